"""Fetches that wait for data: parked here, not in a thread, until an append, a timeout or a hang-up; and
where a client's next fetch begins, when its last answer had no room for all that it asked for.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from kafkalog_broker.scheduler import Handle, Scheduler
from pyspark_kafkalog.types import TopicPartition

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ParkedFetch:
    """*Not thread-safe: guarded by the lock of its `DelayedFetches`.* One fetch that waits.

    No two ``partitions`` are the same. ``missing_bytes`` counts down as they grow; ``complete`` reads again
    and answers. One of ``committed`` data waits for the last stable offset.
    """

    partitions: Collection[TopicPartition]
    missing_bytes: int
    complete: Callable[[], None]
    committed: bool = False
    timeout: Handle | None = None
    done: bool = False


class DelayedFetches:
    """*Thread-safe.* All parked fetches by the partitions they wait for.

    ``_lock`` guards the watch lists and every `ParkedFetch`; a fetch is completed by the thread that unlinks
    it, outside the lock, hence once. Appends to a partition without waiting fetches take no lock.
    """

    def __init__(self, timer: Scheduler) -> None:
        self._timer = timer
        self._lock = threading.Lock()
        self._watchers: dict[TopicPartition, set[ParkedFetch]] = {}
        self._count = 0
        self.closed = False
        """Whether the broker stops, so that nothing is kept any more."""

    def __len__(self) -> int:
        return self._count

    def park(self, fetch: ParkedFetch, wait_seconds: float) -> None:
        """Keep ``fetch`` until its bytes have come, or for ``wait_seconds``.

        An append between the caller's read and this call is not seen here: the caller looks again after it,
        and calls `wake` where something has come.
        """
        with self._lock:
            for partition in fetch.partitions:
                self._watchers.setdefault(partition, set()).add(fetch)
            self._count += 1
            closed = self.closed
        handle = self._timer.after(wait_seconds, lambda: self.wake(fetch))
        with self._lock:
            if not fetch.done:
                fetch.timeout = handle
        if fetch.done:
            handle.cancel()
        elif closed:
            self.wake(fetch)

    def appended(self, partition: TopicPartition, size_bytes: int, *, stable: bool = True) -> None:
        """``size_bytes`` more can be read from ``partition``: complete the fetches that now have enough.
        Unless they are ``stable`` readers of committed data cannot see them yet.
        """
        if partition not in self._watchers:
            return
        with self._lock:
            ready = []
            for fetch in self._watchers.get(partition, ()):
                if fetch.committed and not stable:
                    continue
                fetch.missing_bytes -= size_bytes
                if fetch.missing_bytes <= 0:
                    ready.append(fetch)
            self._unlink(ready)
        _complete(ready)

    def transaction_ended(self, partition: TopicPartition, size_bytes: int) -> None:
        """A marker of ``size_bytes`` was appended: readers of committed data may see more than that."""
        if partition not in self._watchers:
            return
        with self._lock:
            ready = [fetch for fetch in self._watchers.get(partition, ()) if fetch.committed]
            self._unlink(ready)
        _complete(ready)
        self.appended(partition, size_bytes, stable=False)

    def changed(self, topic: str) -> None:
        """The topic was deleted: complete what waits for it, so that it gets its error now."""
        with self._lock:
            waiting = (found for partition, found in self._watchers.items() if partition.topic == topic)
            ready = set().union(*waiting)
            self._unlink(ready)
        _complete(ready)

    def wake(self, fetch: ParkedFetch) -> None:
        """Complete ``fetch`` with what there is, unless it is complete already."""
        with self._lock:
            if fetch.done:
                return
            self._unlink((fetch,))
        _complete((fetch,))

    def close(self) -> None:
        """Complete every parked fetch now, and from now on every other at once: the broker stops."""
        with self._lock:
            self.closed = True
            ready = set().union(*self._watchers.values())
            self._unlink(ready)
        _complete(ready)

    def drop(self, fetch: ParkedFetch) -> None:
        """Forget ``fetch``: its client is gone."""
        with self._lock:
            if not fetch.done:
                self._unlink((fetch,))

    def _unlink(self, fetches: Iterable[ParkedFetch]) -> None:
        for fetch in fetches:
            fetch.done = True
            self._count -= 1
            for partition in fetch.partitions:
                watchers = self._watchers[partition]
                watchers.discard(fetch)
                if not watchers:
                    del self._watchers[partition]
            if fetch.timeout is not None:
                fetch.timeout.cancel()


def _complete(fetches: Iterable[ParkedFetch]) -> None:
    """Run the completions; one that fails concerns its own client, never the producer who woke it."""
    for fetch in fetches:
        try:
            fetch.complete()
        except Exception:
            _log.exception("a parked fetch of %s failed", ", ".join(map(str, fetch.partitions)))


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
