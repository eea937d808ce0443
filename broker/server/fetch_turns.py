"""Where each client's next fetch begins, when its last answer had no room for all that it asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict

from pyspark_kafkalog.types import TopicPartition

_MAX_CLIENTS = 10_000
"""Clients whose place is kept; beyond that the one not heard of for longest begins at its own first."""


class FetchTurns:
    """*Thread-safe: ``_lock`` guards the table.* The first partition that an answer left out, by client.

    Without fetch sessions a client may name its partitions in the same order again and again, and those at
    the end would never have their turn. A place is only a hint: it is looked for among what is asked next.
    """

    def __init__(self, max_clients: int = _MAX_CLIENTS) -> None:
        self._max_clients = max_clients
        self._places: OrderedDict[str, TopicPartition] = OrderedDict()
        self._lock = threading.Lock()

    def first_of(self, peer: str) -> TopicPartition | None:
        """The partition that the next answer to ``peer`` begins with; None for the one it names first."""
        return self._places.get(peer)

    def note(self, peer: str, left_out: TopicPartition | None) -> None:
        """An answer goes to ``peer`` that has nothing of ``left_out`` on; None when nothing was left out."""
        if left_out is None and peer not in self._places:
            return
        with self._lock:
            self._places.pop(peer, None)
            if left_out is not None:
                self._places[peer] = left_out
                if len(self._places) > self._max_clients:
                    self._places.popitem(last=False)
