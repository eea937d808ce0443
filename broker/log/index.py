"""A sparse index: two columns of ascending integers, in memory while in use, and a file that binds them.

The file, big-endian: the first column, the second column (4 or 8 bytes a number), then 24 bytes::

    magic "KLIX":4  base_offset:8  segment_size:8  crc32c:4 (of everything before it)

so an index that is cut short, torn, of another segment, or older than its segment is known for what it
is. Nothing depends on these files: what does not match is built anew from the segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from broker.disk.filesystem import write_all
from broker.disk.open_files import OpenFiles
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.checksum import crc32c

_TRAILER = struct.Struct(">4sqq")
_CRC = struct.Struct(">I")
_MAGIC = b"KLIX"
TRAILER_BYTES = _TRAILER.size + _CRC.size


OFFSET_COLUMNS, TIME_COLUMNS = "ii", "qi"
"""Relative offset and position; timestamp and relative offset. Typecodes of `array`: "i" 4 bytes, "q" 8."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """What an index file holds, and the segment that it was written for."""

    base_offset: int
    segment_size: int
    first: array[int]
    second: array[int]


def parse_index(data: bytes, columns: str) -> IndexFile:
    """The content of an index file with these ``columns``.

    Raises:
        CorruptMessage: it is cut short, is no index, or its checksum does not hold.
    """
    first, second = array(columns[0]), array(columns[1])
    rows = len(data) - TRAILER_BYTES
    count, rest = divmod(rows, first.itemsize + second.itemsize)
    if rows < 0 or data[rows : rows + len(_MAGIC)] != _MAGIC:
        raise CorruptMessage("it does not end as an index does: it is cut short, or was not written whole")
    if rest:
        raise CorruptMessage(f"{rows} bytes of rows are no whole number of them")
    _, base_offset, segment_size = _TRAILER.unpack_from(data, rows)
    (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    found = crc32c(memoryview(data)[: -_CRC.size])
    if found != crc:
        raise CorruptMessage(f"its checksum is {found:#010x}, and it says {crc:#010x}")
    first.frombytes(data[: count * first.itemsize])
    second.frombytes(data[count * first.itemsize : rows])
    _swap_if_little(first, second)
    return IndexFile(base_offset, segment_size, first, second)


class SparseIndex:
    """*Not thread-safe: the log's lock for changes; look-ups from any thread at any time.*

    ``columns`` are `OFFSET_COLUMNS` or `TIME_COLUMNS`.
    """

    def __init__(self, path: Path, columns: str, pool: OpenFiles) -> None:
        self.path = path
        self._pool = pool
        self._columns = columns
        self._first = array(columns[0])
        self._second = array(columns[1])
        self.row_bytes = self._first.itemsize + self._second.itemsize
        self.size_bytes = 0
        """Bytes of all rows, in memory as in the file."""

    def __len__(self) -> int:
        return len(self._first)

    def last(self) -> tuple[int, int] | None:
        """The last row, None when there is none."""
        return (self._first[-1], self._second[-1]) if self._first else None

    def add(self, first: int, second: int) -> None:
        """Append a row; both columns must be above those of the last one."""
        self._second.append(second)
        self._first.append(first)  # last: a reader who finds a row here finds the other half too
        self.size_bytes += self.row_bytes

    def row_at(self, first: int) -> tuple[int, int] | None:
        """The last row whose first column is ``<= first``."""
        found = bisect_right(self._first, first)
        return (self._first[found - 1], self._second[found - 1]) if found else None

    def second_at(self, first: int) -> int | None:
        """The second column of the last row whose first one is ``<= first``."""
        row = self.row_at(first)
        return row[1] if row is not None else None

    def second_up_to(self, second: int) -> int | None:
        """The last value of the second column that is ``<= second``."""
        found = bisect_right(self._second, second)
        return self._second[found - 1] if found else None

    def load(self, base_offset: int, segment_size: int) -> bool:
        """Take over the file if it belongs to exactly this segment.

        False, and nothing taken over, when the file is missing or not what it should be.
        """
        try:
            held = self._pool.acquire(self.path)
        except FileNotFoundError:
            return False
        try:
            # Rows are fewer than the segment's bytes: a larger file is not ours, and is not read.
            data = held.file.read_at(0, segment_size + TRAILER_BYTES + 1)
        finally:
            self._pool.release(held)
        try:
            found = parse_index(data, self._columns)
        except CorruptMessage:
            return False
        if (found.base_offset, found.segment_size) != (base_offset, segment_size):
            return False
        self._first, self._second = found.first, found.second
        self.size_bytes = len(found.first) * self.row_bytes
        return True

    def save(self, base_offset: int, segment_size: int) -> None:
        """Write all rows to the file. Raises `OSError`; the file is then missing or does not match."""
        first, second = self._first[:], self._second[:]
        _swap_if_little(first, second)
        data = first.tobytes() + second.tobytes() + _TRAILER.pack(_MAGIC, base_offset, segment_size)
        held = self._pool.acquire(self.path, create=True)
        try:
            data += _CRC.pack(crc32c(data))
            write_all(held.file, 0, data)
            # Last: ext4 writes a file back at its closing if it was cut to nothing before.
            held.file.truncate(len(data))
        finally:
            self._pool.release(held)


def _swap_if_little(*columns: array[int]) -> None:
    if sys.byteorder == "little":
        for column in columns:
            column.byteswap()
