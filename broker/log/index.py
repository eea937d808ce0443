"""A sparse index file: fixed rows in ascending order, and a trailer that says what they belong to.

Rows are two big-endian integers (`OFFSET_ROW`, `TIME_ROW`), as in Kafka's index files. Behind the last
row stand 24 bytes::

    magic "KLIX":4  base_offset:8  segment_size:8  crc32c:4 (of the rows and of the 20 bytes before it)

so an index that is cut short, torn, of another segment, or older than its segment is known for what it
is. Nothing depends on these files: what does not match is built anew from the segment.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path

from broker.log.filesystem import FileSystem, write_all
from broker.log.open_files import OpenFiles
from pyspark_kafkalog.formats.checksum import crc32c

OFFSET_ROW = struct.Struct(">iI")
"""Offset relative to the segment's base, and the file position of the frame that begins with it."""

TIME_ROW = struct.Struct(">qi")
"""Largest timestamp so far, and the relative first offset of the frame that has it."""

_TRAILER = struct.Struct(">4sqq")
_CRC = struct.Struct(">I")
_MAGIC = b"KLIX"
TRAILER_BYTES = _TRAILER.size + _CRC.size

Row = tuple[int, int]


class SparseIndex:
    """*Not thread-safe: the log's lock for changes; look-ups from any thread at any time.*

    The rows are in memory while the segment grows, and only in the file once `save` was told so.
    """

    def __init__(self, path: Path, row: struct.Struct, files: FileSystem, pool: OpenFiles) -> None:
        self.path = path
        self._row = row
        self._files = files
        self._pool = pool
        self._memory: bytearray | None = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self._count * self._row.size

    def last(self) -> Row | None:
        """The last row, None when there is none."""
        return self._at(self._count - 1) if self._count else None

    def add(self, first: int, second: int) -> None:
        """Append a row; both columns must be above those of the last one."""
        if self._memory is None:
            raise ValueError(f"{self.path.name} is finished")
        self._memory += self._row.pack(first, second)
        self._count += 1  # last: a reader counts only rows that are there

    def clear(self) -> None:
        """Forget all rows, and keep new ones in memory."""
        self._count = 0
        self._memory = bytearray()

    def last_at_most(self, value: int, *, column: int = 0) -> Row | None:
        """The last row whose column is ``<= value``."""
        found = bisect_right(range(self._count), value, key=lambda number: self._at(number)[column])
        return self._at(found - 1) if found else None

    def load(self, base_offset: int, segment_size: int, *, keep: bool) -> bool:
        """Take over the file if it belongs to exactly this segment; ``keep`` its rows in memory.

        False, and nothing taken over, when the file is missing or not what it should be.
        """
        try:
            file = self._pool.acquire(self.path)
        except FileNotFoundError:
            return False
        try:
            # Rows are fewer than the segment's bytes: a larger file is not ours, and is not read.
            data = file.file.read_at(0, segment_size + TRAILER_BYTES + 1)
        finally:
            self._pool.release(file)
        rows = len(data) - TRAILER_BYTES
        if rows < 0 or rows % self._row.size:
            return False
        (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
        if data[rows : -_CRC.size] != _TRAILER.pack(_MAGIC, base_offset, segment_size):
            return False
        if crc32c(memoryview(data)[: -_CRC.size]) != crc:
            return False
        self._memory = bytearray(data[:rows]) if keep else None
        self._count = rows // self._row.size
        return True

    def save(self, base_offset: int, segment_size: int, *, keep: bool) -> None:
        """Write all rows to the file; without ``keep`` they are then read from there.

        Raises:
            OSError: the disk refused. The rows stay in memory and a torn file is removed if it can be.
        """
        if self._memory is None:
            return
        data = bytes(self._memory) + _TRAILER.pack(_MAGIC, base_offset, segment_size)
        data += _CRC.pack(crc32c(data))
        file = self._pool.acquire(self.path, create=True)
        try:
            file.file.truncate(0)
            write_all(file.file, 0, data)
        finally:
            self._pool.release(file)
        if not keep:
            self._memory = None

    def _at(self, number: int) -> Row:
        memory = self._memory
        if memory is not None:
            first, second = self._row.unpack_from(memory, number * self._row.size)
            return first, second
        file = self._pool.acquire(self.path)
        try:
            data = file.file.read_at(number * self._row.size, self._row.size)
        finally:
            self._pool.release(file)
        first, second = self._row.unpack(data)
        return first, second
