"""Walks a segment that may be damaged: every batch that can be made out, and the places where none can.

The broker's own walks (`walk`, `recovery`) end at the first fault, because what lies behind it must not be
served. Here somebody wants to know what is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from broker.log.filesystem import File
from broker.log.walk import SCAN_BYTES
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    read_header,
)
from pyspark_kafkalog.formats.checksum import crc32c

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
        """Whether the checksum in the header holds."""
        return self.crc == self.header.crc

    @property
    def end(self) -> int:
        """Position of the first byte after it."""
        return self.position + self.header.size


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[position, end)`` in which no batch can be made out, and why none begins there."""

    position: int
    end: int
    reason: str


def scan(file: File, size: int, lowest_offset: int, *, start: int = 0) -> Iterator[FoundBatch | Damage]:
    """What lies in bytes ``[start, size)``, in order and without a gap between.

    ``lowest_offset`` is where the segment's offsets begin. A batch whose checksum fails is given as one as
    long as something that looks like a batch follows it; else nothing of its header can be trusted, its
    length neither. Memory is bounded whatever the headers claim.

    Raises:
        OSError: the disk refused to read.
    """
    window = _Window(file, size)
    position = start
    while position < size:
        try:
            batch = _batch_at(window, position)
            if not batch.sound and not (batch.end == size or _looks_like_a_batch(window, batch.end)):
                raise CorruptMessage(
                    f"the checksum is {batch.crc:#010x}, its header says {batch.header.crc:#010x},"
                    " and no batch follows where it should end"
                )
        except CorruptMessage as e:
            end = _next_sound(window, position + 1, lowest_offset)
            yield Damage(position, end, str(e))
            position = end
        else:
            yield batch
            position = batch.end


class _Window:
    """*Not thread-safe.* A file's bytes below ``size``, a chunk of them in memory."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._origin = 0
        self._chunk = memoryview(b"")

    def view(self, position: int, size: int) -> memoryview:
        """Up to ``size`` bytes, `SCAN_BYTES` at most; fewer only where the file ends."""
        size = min(size, SCAN_BYTES, self.size - position)
        inside = position - self._origin
        if inside < 0 or inside + size > len(self._chunk):
            wanted = min(SCAN_BYTES, self.size - position)
            self._chunk, self._origin, inside = memoryview(self._file.read_at(position, wanted)), position, 0
        return self._chunk[inside : inside + size]


def _batch_at(window: _Window, position: int) -> FoundBatch:
    """The batch that begins at ``position``; its checksum may be wrong.

    Raises:
        CorruptMessage: no batch begins there, or not all of it is in the file.
    """
    header = _header_at(window, position)
    if position + header.size > window.size:
        raise CorruptMessage(
            f"a batch of {header.size} bytes with offset {header.base_offset} is cut short at byte"
            f" {window.size}"
        )
    crc, at, end = 0, position + ATTRIBUTES_POSITION, position + header.size
    while at < end:
        view = window.view(at, end - at)
        if not view:
            raise CorruptMessage(f"the file became shorter than {end} bytes")
        crc = crc32c(view, crc)
        at += len(view)
    return FoundBatch(position, header, crc)


def _header_at(window: _Window, position: int) -> BatchHeader:
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
    return header


def _looks_like_a_batch(window: _Window, position: int) -> bool:
    try:
        return position + _header_at(window, position).size <= window.size
    except CorruptMessage:
        return False


def _next_sound(window: _Window, start: int, lowest_offset: int) -> int:
    """Where, from ``start`` on, the next batch begins whose checksum holds and whose offset may stand there;
    the end of the file when there is none.
    """
    position = start
    while window.size - position >= HEADER_SIZE:
        chunk = bytes(window.view(position, SCAN_BYTES))
        if len(chunk) < HEADER_SIZE:
            break
        at = chunk.find(_MAGIC_BYTE, _MAGIC_POSITION)
        while at >= 0:
            begins = at - _MAGIC_POSITION
            (offset,) = _OFFSET.unpack_from(chunk, begins)
            if 0 <= offset - lowest_offset < _OFFSETS_OF_A_SEGMENT and _is_sound(window, position + begins):
                return position + begins
            at = chunk.find(_MAGIC_BYTE, at + 1)
        position += len(chunk) - _MAGIC_POSITION
    return window.size


def _is_sound(window: _Window, position: int) -> bool:
    try:
        return _batch_at(window, position).sound
    except CorruptMessage:
        return False
