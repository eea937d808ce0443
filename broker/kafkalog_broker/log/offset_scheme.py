"""Maps offsets and timestamps to file positions, one `OffsetScheme` per segment. Changes need the log's lock,
look-ups do not. Positions are frame starts, at or before the wanted one.

Where offsets count records, the map is a sparse index: two columns of ascending integers, in memory while in
use. File format, big-endian: first column, second column (4 or 8 bytes per number), then 24 bytes::

    magic "KLIX":4  base_offset:8  segment_size:8  crc32c:4 (of everything before it)

An index that is damaged, outdated or of another segment is rebuilt from the segment.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kafkalog_broker.disk.filesystem import OpenFiles, write_all
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame, crc32c
from pyspark_kafkalog.types import NO_TIMESTAMP

_TRAILER = struct.Struct(">4sqq")
_CRC = struct.Struct(">I")
_MAGIC = b"KLIX"
TRAILER_BYTES = _TRAILER.size + _CRC.size


OFFSET_COLUMNS, TIME_COLUMNS = "ii", "qi"
"""Columns (relative offset, position) and (timestamp, relative offset), as `array` typecodes."""


class IndexFile(msgspec.Struct, frozen=True):
    base_offset: int
    segment_size: int
    first: array[int]
    second: array[int]


def parse_index(data: bytes, columns: str) -> IndexFile:
    first, second = array(columns[0]), array(columns[1])
    rows = len(data) - TRAILER_BYTES
    count, rest = divmod(rows, first.itemsize + second.itemsize)
    if rows < 0 or data[rows : rows + len(_MAGIC)] != _MAGIC:
        raise CorruptMessage("it does not end as an index does: it is cut short, or was not written whole")
    if rest:
        raise CorruptMessage(f"{rows} bytes are not a whole number of rows")
    _, base_offset, segment_size = _TRAILER.unpack_from(data, rows)
    (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    found = crc32c(memoryview(data)[: -_CRC.size])
    if found != crc:
        raise CorruptMessage(f"its checksum is {found:#010x}, and it says {crc:#010x}")
    first.frombytes(data[: count * first.itemsize])
    second.frombytes(data[count * first.itemsize : rows])
    _swap_if_little(first, second)
    return IndexFile(base_offset, segment_size, first, second)


class Rows:
    """*Not thread-safe for changes, which need the log's lock; look-ups from any thread.* Two columns."""

    __slots__ = ("_first", "_second", "row_bytes", "size_bytes")

    def __init__(self, columns: str) -> None:
        self._first = array(columns[0])
        self._second = array(columns[1])
        self.row_bytes = self._first.itemsize + self._second.itemsize
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._first)

    def last(self) -> tuple[int, int] | None:
        return (self._first[-1], self._second[-1]) if self._first else None

    def add(self, first: int, second: int) -> None:
        self._second.append(second)
        self._first.append(first)  # last: a reader that finds this row finds the other half too
        self.size_bytes += self.row_bytes

    def row_at(self, first: int) -> tuple[int, int] | None:
        found = bisect_right(self._first, first)
        return (self._first[found - 1], self._second[found - 1]) if found else None

    def first_from(self, second: int) -> int | None:
        found = bisect_left(self._second, second)
        return self._first[found] if found < len(self._first) else None

    def second_up_to(self, second: int) -> int | None:
        found = bisect_right(self._second, second)
        return self._second[found - 1] if found else None


class SparseIndex(Rows):
    """Rows that are saved in a file. *Thread-safe as `Rows`.*"""

    def __init__(self, path: Path, columns: str, pool: OpenFiles) -> None:
        super().__init__(columns)
        self.path = path
        self._pool = pool
        self._columns = columns

    def load(self, base_offset: int, segment_size: int) -> bool:
        """Load the file. False if it is missing, damaged or not of this segment."""
        try:
            with self._pool.acquire(self.path) as file:
                # The rows are smaller than the segment: a larger file is not ours.
                found = parse_index(file.read_at(0, segment_size + TRAILER_BYTES + 1), self._columns)
        except (FileNotFoundError, CorruptMessage):
            return False
        if (found.base_offset, found.segment_size) != (base_offset, segment_size):
            return False
        self._first, self._second = found.first, found.second
        self.size_bytes = len(found.first) * self.row_bytes
        return True

    def save(self, base_offset: int, segment_size: int) -> None:
        """Write all rows. On `OSError` the file is missing or will not match."""
        first, second = self._first[:], self._second[:]
        _swap_if_little(first, second)
        data = first.tobytes() + second.tobytes() + _TRAILER.pack(_MAGIC, base_offset, segment_size)
        data += _CRC.pack(crc32c(data))
        with self._pool.acquire(self.path, create=True) as file:
            write_all(file, 0, data)
            # Truncate last: ext4 flushes a file on close if it was truncated to zero before.
            file.truncate(len(data))


def _swap_if_little(*columns: array[int]) -> None:
    if sys.byteorder == "little":
        for column in columns:
            column.byteswap()


_NEGLECTED_SHIFT = 6
"""A read may be up to 1/64 shorter than allowed if that makes it faster."""

_STEP_BYTES = 256
"""Distance between the frames that are remembered since the last row."""

MAX_RELATIVE = 2**31 - 1
"""Largest relative offset and file position that an index row can hold."""


class ReadWindow(NamedTuple):
    """A read of offsets ``[offset, end_offset)`` in a segment of ``size`` bytes that ends at ``next_offset``.
    ``at_least_one``: the first batch may exceed ``max_bytes``. ``gaps_allowed``: offsets may be cleaned away.
    """

    offset: int
    end_offset: int
    max_bytes: int
    at_least_one: bool
    size: int
    next_offset: int
    gaps_allowed: bool = False


Frames = Callable[[int, int, int], Iterator[Frame]]
"""Frames in bytes ``[start, end)`` of a segment; third: offset of the frame at ``start``, or -1."""


class LogicalOffsets:
    """Offsets that count records, with sparse indexes of at most one row per ``interval_bytes``: (relative
    offset, position) of a frame; (largest time so far, relative offset of its frame).

    Since the last row, a frame every `_STEP_BYTES` is remembered too, in memory only, so that a consumer at
    the end of the log need not walk there from the row again and again.
    """

    def __init__(self, base_offset: int, segment: Path, interval_bytes: int, pool: OpenFiles) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = SparseIndex(segment.with_suffix(".index"), OFFSET_COLUMNS, pool)
        self._times = SparseIndex(segment.with_suffix(".timeindex"), TIME_COLUMNS, pool)
        self._bytes_since_row = 0
        self._newest = Rows(OFFSET_COLUMNS)
        self.largest = (NO_TIMESTAMP, base_offset)
        """Largest timestamp, and the first offset of its frame."""

    @staticmethod
    def readable_end(end_offset: int, flushed_offset: int) -> int:  # noqa: ARG004
        return end_offset

    @staticmethod
    def is_full(size: int, more: int, limit: int) -> bool:
        """Whether a segment has no room for ``more`` bytes: it never grows beyond ``segment.bytes``."""
        return size + more > limit

    @property
    def memory_bytes(self) -> int:
        return self._offsets.size_bytes + self._times.size_bytes

    def on_append(self, position: int, size: int, first_offset: int, max_timestamp: int) -> None:
        """Called for each frame written, in order."""
        if max_timestamp > self.largest[0]:
            self.largest = (max_timestamp, first_offset)
        if self._bytes_since_row > self._interval_bytes:
            self._offsets.add(first_offset - self._base_offset, position)
            self._add_time()
            self._bytes_since_row = 0
            self._newest = Rows(OFFSET_COLUMNS)
        elif self._bytes_since_row >= _STEP_BYTES * len(self._newest):
            self._newest.add(first_offset - self._base_offset, position)
        self._bytes_since_row += size

    def has_room(self, size: int, last_offset: int, limit_bytes: int) -> bool:
        """Whether the segment can grow to this size and offset, and its index by one row."""
        if last_offset - self._base_offset > MAX_RELATIVE or size > MAX_RELATIVE:
            return False
        offsets, times = self._offsets, self._times
        return (
            offsets.size_bytes + offsets.row_bytes <= limit_bytes
            and times.size_bytes + times.row_bytes <= limit_bytes
        )

    def start_for_offset(self, offset: int) -> int:
        return self._row_at(offset)[1]

    def offset_from(self, position: int) -> int | None:
        relative = self._offsets.first_from(position)
        return None if relative is None else self._base_offset + relative

    def start_of_end(self, size: int) -> int:  # noqa: ARG002
        """Position from which to search the last frame of a segment of ``size`` bytes."""
        last = self._offsets.last()
        return last[1] if last is not None else 0

    def cut(self, wanted: ReadWindow, frames: Frames) -> tuple[int, int] | None:
        """Start and end of whole frames from the one holding the offset; None if there are none."""
        relative, start = self._row_at(wanted.offset)
        walk = frames(start, wanted.size, self._base_offset + relative)
        first = next((frame for frame in walk if frame.last_offset >= wanted.offset), None)
        if not wanted.gaps_allowed and self._base_offset <= wanted.offset < wanted.next_offset:
            _check_found(first, wanted)
        if first is None:
            return None
        if first.last_offset >= wanted.end_offset:
            return first.position, first.position
        if first.size > wanted.max_bytes:
            return first.position, first.position + (first.size if wanted.at_least_one else 0)
        return first.position, self._end_within(first, wanted, frames)

    def start_for_timestamp(self, timestamp: int) -> int:
        row = self._times.row_at(timestamp - 1)
        return self.start_for_offset(self._base_offset + row[1]) if row is not None else 0

    def _end_within(self, first: Frame, wanted: ReadWindow, frames: Frames) -> int:
        """End of the last whole frame within ``max_bytes`` and before ``end_offset``.
        A large read ends at an index row if that loses little: faster than walking many small frames.
        """
        size, end_offset = wanted.size, wanted.end_offset
        limit = first.position + wanted.max_bytes
        if limit >= size and end_offset >= wanted.next_offset:
            return size
        start = self._offsets.second_up_to(min(limit, size)) or 0
        if end_offset < wanted.next_offset:
            start = min(start, self.start_for_offset(end_offset))
        end = max(first.position, start)
        if limit - end <= wanted.max_bytes >> _NEGLECTED_SHIFT:
            return end
        try:
            for frame in frames(end, size, -1):
                frame_end = frame.position + frame.size
                if frame_end > limit or frame.last_offset >= end_offset:
                    break
                end = frame_end
        except CorruptMessage:
            if end == first.position:
                raise
            # Return what precedes the damage; the next read begins at it and fails.
        return end

    def load(self, size: int) -> bool:
        """Load what was saved at this segment size; False if it does not match."""
        if not (self._offsets.load(self._base_offset, size) and self._times.load(self._base_offset, size)):
            return False
        newest, row = self._times.last(), self._offsets.last()
        if newest is not None:
            self.largest = (newest[0], self._base_offset + newest[1])
        self._bytes_since_row = size - (row[1] if row is not None else 0)
        return True

    def save(self, size: int) -> None:
        # The last saved row must be the largest time of all: retention uses it.
        self._add_time()
        self._offsets.save(self._base_offset, size)
        self._times.save(self._base_offset, size)

    def files(self) -> tuple[Path, ...]:
        return (self._offsets.path, self._times.path)

    def _row_at(self, offset: int) -> tuple[int, int]:
        relative = offset - self._base_offset
        return self._newest.row_at(relative) or self._offsets.row_at(relative) or (0, 0)

    def _add_time(self) -> None:
        timestamp, offset = self.largest
        last = self._times.last()
        if timestamp != NO_TIMESTAMP and (last is None or timestamp > last[0]):
            self._times.add(timestamp, offset - self._base_offset)


def _check_found(first: Frame | None, wanted: ReadWindow) -> None:
    """Offsets have no gaps here, so some frame must hold the wanted one."""
    if first is None:
        raise CorruptMessage(
            f"offset {wanted.offset} is not found in its segment, which should hold offsets up to"
            f" {wanted.next_offset - 1}"
        )
    if first.first_is_known and first.first_offset > wanted.offset:
        raise CorruptMessage(
            f"byte {first.position}: offset {first.first_offset} stands where {wanted.offset} should be"
        )


class ByteOffsets:
    """0.7: an offset is the segment's base plus the file position; nothing to index. *Thread-safe:
    immutable.* A reader gets the exact bytes it asked for, cut anywhere, and asks again for a cut entry.
    """

    memory_bytes = 0

    def __init__(self, base_offset: int, segment: Path, interval_bytes: int, pool: OpenFiles) -> None:  # noqa: ARG002
        self._base_offset = base_offset
        self.largest = (NO_TIMESTAMP, base_offset)

    @staticmethod
    def readable_end(end_offset: int, flushed_offset: int) -> int:  # noqa: ARG004
        return flushed_offset

    @staticmethod
    def is_full(size: int, more: int, limit: int) -> bool:  # noqa: ARG004
        """A segment ends with the append that makes it exceed ``log.file.size``."""
        return size > limit

    def on_append(self, position: int, size: int, first_offset: int, max_timestamp: int) -> None:
        pass

    def has_room(self, size: int, last_offset: int, limit_bytes: int) -> bool:  # noqa: ARG002
        return True

    def start_for_offset(self, offset: int) -> int:
        return offset - self._base_offset

    def offset_from(self, position: int) -> int | None:
        return self._base_offset + position

    def start_of_end(self, size: int) -> int:
        return size

    def cut(self, wanted: ReadWindow, frames: Frames) -> tuple[int, int] | None:  # noqa: ARG002
        start = wanted.offset - self._base_offset
        if start < 0:
            # The previous segment was cut short; do not return other bytes instead.
            raise CorruptMessage(f"bytes {wanted.offset} to {self._base_offset - 1} of the log are missing")
        if start >= wanted.size:
            return None
        end = min(start + wanted.max_bytes, wanted.end_offset - self._base_offset, wanted.size)
        return start, max(start, end)

    def start_for_timestamp(self, timestamp: int) -> int:  # noqa: ARG002
        return 0

    def load(self, size: int) -> bool:  # noqa: ARG002
        return True

    def save(self, size: int) -> None:
        pass

    def files(self) -> tuple[Path, ...]:
        return ()


OffsetScheme = LogicalOffsets | ByteOffsets


class LoadedSchemes:
    """*Thread-safe: ``_lock`` guards the table.* Limits index memory; unloads the oldest first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._loaded: OrderedDict[Any, int] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, holder: Any, memory_bytes: int) -> None:
        with self._lock:
            self._used_bytes += memory_bytes - self._loaded.pop(holder, 0)
            self._loaded[holder] = memory_bytes
            while self._used_bytes > self._max_bytes and len(self._loaded) > 1:
                oldest, freed = self._loaded.popitem(last=False)
                self._used_bytes -= freed
                oldest.unload()

    def discard(self, holder: Any) -> None:
        with self._lock:
            self._used_bytes -= self._loaded.pop(holder, 0)


KEPT_ROWS = 1 << 20
"""Limit for all batches together, 16 bytes each."""


@dataclass(slots=True, eq=False)
class Rises:
    """*Thread-safe: immutable.* Offsets in a batch where the largest time so far rises."""

    times: array[int]
    offsets: array[int]

    def __len__(self) -> int:
        return len(self.times)

    def first_at_or_after(self, timestamp: int) -> tuple[int, int] | None:
        place = bisect_left(self.times, timestamp)
        return (self.times[place], self.offsets[place]) if place < len(self.times) else None

    def newest(self) -> tuple[int, int] | None:
        return (self.times[-1], self.offsets[-1]) if self.times else None


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
