"""Offset to file position, and back from time: what a segment asks, and never how it is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from broker.log.filesystem import FileSystem
from broker.log.index import OFFSET_ROW, TIME_ROW, SparseIndex
from broker.log.open_files import OpenFiles
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.types import NO_TIMESTAMP

MAX_RELATIVE = 2**31 - 1
"""Largest offset above the base, and largest file position, that a row of an index can hold."""


class OffsetScheme(Protocol):
    """How the offsets of one segment relate to positions in its file.

    Changes are made under the log's lock; the look-ups may run in any thread meanwhile. A position that
    is answered is where a frame begins, at or before the one wanted: the segment walks on from there.
    """

    largest: tuple[int, int]
    """Largest timestamp of the segment, and the first offset of the frame that has it; `NO_TIMESTAMP`
    where no record has a time.
    """

    def on_append(self, frame: Frame) -> None:
        """A frame was written; called in order, for each."""
        ...

    def has_room(self, size: int, last_offset: int, limit_bytes: int) -> bool:
        """Whether the segment can grow to this size and offset, its index to one more row."""
        ...

    def start_for_offset(self, offset: int) -> int:
        """Position from which to look for the frame with ``offset``."""
        ...

    def start_for_position(self, position: int) -> int:
        """The last position known to begin a frame that is not beyond ``position``."""
        ...

    def start_for_timestamp(self, timestamp: int) -> int:
        """Position before which no record has a time of ``timestamp`` or later."""
        ...

    def load(self, size: int, *, growing: bool) -> bool:
        """Take over what was saved for the segment at ``size``; False when it does not match."""
        ...

    def clear(self) -> None:
        """Forget everything; `on_append` follows for every frame of the segment."""
        ...

    def save(self, size: int, *, growing: bool) -> None:
        """Write down what `load` will want. Raises `OSError`; nothing is lost then but the saving."""
        ...

    def files(self) -> tuple[Path, ...]:
        """What stands beside the segment for this scheme."""
        ...


class LogicalOffsets:
    """Offsets that count records, found through a sparse offset index and a sparse time index.

    *Thread-safety as the protocol says.* One row in each at most every ``interval_bytes`` of the segment.
    """

    def __init__(
        self, base_offset: int, segment: Path, interval_bytes: int, files: FileSystem, pool: OpenFiles
    ) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = SparseIndex(segment.with_suffix(".index"), OFFSET_ROW, files, pool)
        self._times = SparseIndex(segment.with_suffix(".timeindex"), TIME_ROW, files, pool)
        self._bytes_since_row = 0
        self.largest = (NO_TIMESTAMP, base_offset)

    def on_append(self, frame: Frame) -> None:
        if frame.max_timestamp > self.largest[0]:
            self.largest = (frame.max_timestamp, frame.first_offset)
        if self._bytes_since_row > self._interval_bytes:
            self._offsets.add(frame.first_offset - self._base_offset, frame.position)
            self._add_time()
            self._bytes_since_row = 0
        self._bytes_since_row += frame.size

    def has_room(self, size: int, last_offset: int, limit_bytes: int) -> bool:
        if last_offset - self._base_offset > MAX_RELATIVE or size > MAX_RELATIVE:
            return False
        offsets_bytes = self._offsets.size_bytes + OFFSET_ROW.size
        return offsets_bytes <= limit_bytes and self._times.size_bytes + TIME_ROW.size <= limit_bytes

    def start_for_offset(self, offset: int) -> int:
        row = self._offsets.last_at_most(offset - self._base_offset)
        return row[1] if row is not None else 0

    def start_for_position(self, position: int) -> int:
        row = self._offsets.last_at_most(position, column=1)
        return row[1] if row is not None else 0

    def start_for_timestamp(self, timestamp: int) -> int:
        row = self._times.last_at_most(timestamp - 1)
        return self.start_for_offset(self._base_offset + row[1]) if row is not None else 0

    def load(self, size: int, *, growing: bool) -> bool:
        if not self._offsets.load(self._base_offset, size, keep=growing):
            return False
        if not self._times.load(self._base_offset, size, keep=growing):
            return False
        last = self._times.last()
        if last is not None:
            self.largest = (last[0], self._base_offset + last[1])
        row = self._offsets.last()
        self._bytes_since_row = size - (row[1] if row is not None else 0)
        return True

    def clear(self) -> None:
        self._offsets.clear()
        self._times.clear()
        self._bytes_since_row = 0
        self.largest = (NO_TIMESTAMP, self._base_offset)

    def save(self, size: int, *, growing: bool) -> None:
        # The last row of a saved time index is the largest time of all: retention goes by it.
        self._add_time()
        self._offsets.save(self._base_offset, size, keep=growing)
        self._times.save(self._base_offset, size, keep=growing)

    def files(self) -> tuple[Path, ...]:
        return (self._offsets.path, self._times.path)

    def _add_time(self) -> None:
        timestamp, offset = self.largest
        last = self._times.last()
        if timestamp != NO_TIMESTAMP and (last is None or timestamp > last[0]):
            self._times.add(timestamp, offset - self._base_offset)
