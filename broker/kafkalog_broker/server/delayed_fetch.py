"""Fetches that wait for data, parked without a thread until an append, a timeout or a disconnect; and the
partition with which a client's next fetch begins after an answer that had no room for all.
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
    """*Guarded by the lock of its `DelayedFetches`.* ``missing_bytes`` counts down; ``complete`` answers.
    ``expired``: because the time is over.
    """

    partitions: Collection[TopicPartition]
    missing_bytes: int
    complete: Callable[[], None]
    committed: bool = False
    timeout: Handle | None = None
    done: bool = False
    expired: bool = False


class DelayedFetches:
    """*Thread-safe: ``_lock`` guards the watch lists and every `ParkedFetch`.* The thread that unlinks a
    fetch completes it, outside the lock. Appends to partitions without ``watchers`` need not be reported.
    """

    def __init__(self, timer: Scheduler) -> None:
        self._timer = timer
        self._lock = threading.Lock()
        self.watchers: dict[TopicPartition, ParkedFetch | set[ParkedFetch]] = {}
        """Mostly one, and ten thousand sets take ten times as long as none."""
        self._count = 0
        self.closed = False
        """Set when the broker stops: every fetch completes at once."""

    def __len__(self) -> int:
        return self._count

    def park(self, fetch: ParkedFetch, wait_seconds: float) -> None:
        """The caller calls `wake` if an append came between its first read and this call."""
        with self._lock:
            for partition in fetch.partitions:
                others = self.watchers.setdefault(partition, fetch)
                if isinstance(others, set):
                    others.add(fetch)
                elif others is not fetch:
                    self.watchers[partition] = {others, fetch}
            self._count += 1
            closed = self.closed
        handle = self._timer.after(wait_seconds, lambda: self.wake(fetch, expired=True))
        with self._lock:
            if not fetch.done:
                fetch.timeout = handle
        if fetch.done:
            handle.cancel()
        elif closed:
            self.wake(fetch)

    def appended(self, partition: TopicPartition, size_bytes: int, *, stable: bool = True) -> None:
        """Complete fetches for which these bytes are enough; of committed data only if ``stable``."""
        with self._lock:
            ready = []
            for fetch in self._watching(partition):
                if fetch.committed and not stable:
                    continue
                fetch.missing_bytes -= size_bytes
                if fetch.missing_bytes <= 0:
                    ready.append(fetch)
            self._unlink(ready)
        _complete(ready)

    def transaction_ended(self, partition: TopicPartition, size_bytes: int) -> None:
        with self._lock:
            ready = [fetch for fetch in self._watching(partition) if fetch.committed]
            self._unlink(ready)
        _complete(ready)
        self.appended(partition, size_bytes, stable=False)

    def changed(self, topic: str) -> None:
        """The topic was deleted: complete its fetches, so that they get their error now."""
        with self._lock:
            ready = {
                fetch
                for partition in self.watchers
                if partition.topic == topic
                for fetch in self._watching(partition)
            }
            self._unlink(ready)
        _complete(ready)

    def wake(self, fetch: ParkedFetch, *, expired: bool = False) -> None:
        with self._lock:
            if fetch.done:
                return
            fetch.expired = expired
            self._unlink((fetch,))
        _complete((fetch,))

    def close(self) -> None:
        """Complete every parked fetch now, and every later one at once: the broker stops."""
        with self._lock:
            self.closed = True
            ready = {fetch for partition in self.watchers for fetch in self._watching(partition)}
            self._unlink(ready)
        _complete(ready)

    def drop(self, fetch: ParkedFetch) -> None:
        with self._lock:
            if not fetch.done:
                self._unlink((fetch,))

    def _watching(self, partition: TopicPartition) -> Iterable[ParkedFetch]:
        found = self.watchers.get(partition, ())
        return (found,) if isinstance(found, ParkedFetch) else found

    def _unlink(self, fetches: Iterable[ParkedFetch]) -> None:
        for fetch in fetches:
            fetch.done = True
            self._count -= 1
            for partition in fetch.partitions:
                watching = self.watchers.get(partition)
                if isinstance(watching, set):
                    watching.discard(fetch)
                if watching is fetch or watching == set():
                    del self.watchers[partition]
            if fetch.timeout is not None:
                fetch.timeout.cancel()


def _complete(fetches: Iterable[ParkedFetch]) -> None:
    """Run the completions; an error in one must not reach the producer whose append woke it."""
    for fetch in fetches:
        try:
            fetch.complete()
        except Exception:
            _log.exception("a parked fetch of %s failed", ", ".join(map(str, fetch.partitions)))


_MAX_CLIENTS = 10_000
"""Clients remembered; beyond that the one unseen for longest is dropped."""


class FetchTurns:
    """*Thread-safe: ``_lock`` guards the table.* The first partition that an answer left out, by client: it
    may list its partitions in the same order each time, and the last ones would starve. Only a hint.
    """

    def __init__(self, max_clients: int = _MAX_CLIENTS) -> None:
        self._max_clients = max_clients
        self.places: OrderedDict[str, TopicPartition] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, peer: str, left_out: TopicPartition | None) -> None:
        """None if the answer to ``peer`` left out none."""
        with self._lock:
            self.places.pop(peer, None)
            if left_out is not None:
                self.places[peer] = left_out
                if len(self.places) > self._max_clients:
                    self.places.popitem(last=False)
