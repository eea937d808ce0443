"""Scans a segment of 0.8 onwards that may be damaged: its v2 batches, and the places where there is none."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from broker.log.filesystem import File
from broker.log.salvage import Damage, Window, salvage
from broker.log.segment import MAX_DECOMPRESSED_BYTES
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.batch import decode_records
from pyspark_kafkalog.formats.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    read_header,
)
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.types import Record

__all__ = ["Damage", "FoundBatch", "scan"]

_MAGIC_POSITION = 16
_MAGIC_BYTE = bytes([MAGIC])
_OFFSET = struct.Struct(">q")

_OFFSETS_OF_A_SEGMENT = 1 << 31
"""A batch found behind damage must lie this near: a segment's index can hold no more."""


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch by its header; ``crc`` is what its bytes add up to."""

    position: int
    header: BatchHeader
    crc: int

    @property
    def sound(self) -> bool:
        return self.crc == self.header.crc

    @property
    def stored_crc(self) -> int:
        return self.header.crc

    @property
    def size(self) -> int:
        return self.header.size

    @property
    def end(self) -> int:
        return self.position + self.header.size

    @property
    def summed_from(self) -> int:
        return self.position + ATTRIBUTES_POSITION

    @property
    def first_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    @property
    def next_offset(self) -> int:
        return self.header.next_offset

    @property
    def max_timestamp(self) -> int:
        return self.header.max_timestamp

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def records(self, file: File) -> list[Record]:
        """Its records, those of control batches too, whatever its checksum is. Raises as `count`."""
        data = file.read_at(self.position, self.size)
        return list(decode_records(data, 0, self.header, MAX_DECOMPRESSED_BYTES, check_crc=False))

    def count(self, file: File) -> int:
        return len(self.records(file))


def scan(file: File, size: int, lowest_offset: int, *, start: int = 0) -> Iterator[FoundBatch | Damage]:
    """What lies in bytes ``[start, size)``, as `salvage` tells it.

    ``lowest_offset`` is where the segment's offsets begin.

    Raises:
        OSError: the disk refused to read.
    """
    return salvage(Window(file, size), _Batches(lowest_offset), start=start)


class _Batches:
    """*Thread-safe: it never changes.* The layout of v2 batches, whose offsets begin at ``lowest_offset``."""

    smallest = HEADER_SIZE
    key_bytes = _MAGIC_POSITION + 1

    def __init__(self, lowest_offset: int) -> None:
        self._lowest_offset = lowest_offset

    def header_at(self, window: Window, position: int) -> FoundBatch:
        view = window.view(position, HEADER_SIZE)
        if len(view) < HEADER_SIZE:
            raise CorruptMessage(f"{len(view)} bytes are left: too few for a batch's header")
        if view == bytes(HEADER_SIZE):
            raise CorruptMessage("zeros where a batch should begin")
        try:
            header = read_header(view)
        except CorruptMessage as e:
            # The text counts from the header's own first byte.
            raise CorruptMessage(str(e).replace(" at byte 0", "")) from None
        if header.base_offset < 0:
            raise CorruptMessage(f"a batch with offset {header.base_offset}")
        if position + header.size > window.size:
            raise CorruptMessage(
                f"a batch of {header.size} bytes with offset {header.base_offset} is cut short at byte"
                f" {window.size}"
            )
        return FoundBatch(position, header, 0)

    def summed(self, found: FoundBatch, window: Window) -> FoundBatch:
        return replace(found, crc=window.sum(found.summed_from, found.end, crc32c))

    def candidates(self, window: Window, chunk: bytes, position: int) -> Iterator[int]:  # noqa: ARG002
        at = chunk.find(_MAGIC_BYTE, _MAGIC_POSITION)
        while at >= 0:
            (offset,) = _OFFSET.unpack_from(chunk, at - _MAGIC_POSITION)
            if 0 <= offset - self._lowest_offset < _OFFSETS_OF_A_SEGMENT:
                yield at - _MAGIC_POSITION
            at = chunk.find(_MAGIC_BYTE, at + 1)
