"""Caches timestamps of decompressed batches, so that each is opened once."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable

KEPT_ROWS = 1 << 20
"""Limit for all batches together, 16 bytes each."""


class Rises:
    """*Thread-safe: immutable.* Offsets in a batch where the largest time so far rises."""

    __slots__ = ("_offsets", "_times")

    def __init__(self, times: array[int], offsets: array[int]) -> None:
        self._times = times
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._times)

    def first_at_or_after(self, timestamp: int) -> tuple[int, int] | None:
        """Time in ms and offset of the first record at or after ``timestamp``, or None."""
        place = bisect_left(self._times, timestamp)
        return (self._times[place], self._offsets[place]) if place < len(self._times) else None

    def newest(self) -> tuple[int, int] | None:
        """Largest time in ms and the first offset that has it, or None."""
        return (self._times[-1], self._offsets[-1]) if self._times else None


def rises_of(records: Iterable[tuple[int, int]]) -> Rises:
    times, offsets = array("q"), array("q")
    for time, offset in records:
        if not times or time > times[-1]:
            times.append(time)
            offsets.append(offset)
    return Rises(times, offsets)


class BatchTimes:
    """*Thread-safe: guarded by ``_lock``.* LRU cache of `Rises` by batch."""

    def __init__(self, max_rows: int = KEPT_ROWS) -> None:
        self._max_rows = max_rows
        self._rows = 0
        self._kept: OrderedDict[Hashable, Rises] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, batch: Hashable) -> Rises | None:
        with self._lock:
            found = self._kept.get(batch)
            if found is not None:
                self._kept.move_to_end(batch)
            return found

    def keep(self, batch: Hashable, rises: Rises) -> None:
        """Cache the rises of ``batch`` unless too large; evicts the least recently used."""
        size = 1 + len(rises)
        with self._lock:
            if size > self._max_rows or batch in self._kept:
                return
            self._kept[batch] = rises
            self._rows += size
            while self._rows > self._max_rows:
                self._rows -= 1 + len(self._kept.popitem(last=False)[1])
