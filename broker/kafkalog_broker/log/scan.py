"""Scans of segments that may be damaged, one for each log family. A 0.7 entry after damage counts only if its
checksum is right and the end of the file or another possible entry follows it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from kafkalog_broker.disk.filesystem import File
from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES
from kafkalog_broker.log.walk import CandidateEntry, Damage, Window, salvage
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats import legacy
from pyspark_kafkalog.formats.base import Frame, crc32, crc32c
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    decode_records,
    magic_at,
    read_header,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import ENTRY_HEADER_BYTES, MessageAndOffset, entry_header
from pyspark_kafkalog.formats.v07 import MIN_ENTRY_BYTES as SMALLEST_07
from pyspark_kafkalog.formats.v07 import messages as messages07
from pyspark_kafkalog.types import NO_TIMESTAMP, Record

__all__ = ["Damage", "FoundBatch", "FoundEntry", "FoundSet", "scan"]

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_SETS = legacy.LegacyFormat()

_MAY_BEGIN = re.compile(
    # Offset, a possible length, checksum or epoch, magic; then v2's checksum or the attributes.
    rb"(?=[\x00-\x7f][\x00-\xff]{7}(?!\x00\x00\x00[\x00-\x0d])[\x00-\x7f][\x00-\xff]{3}"
    rb"[\x00-\xff]{4}(?:\x02|[\x00\x01][\x00-\x0f]))"
)

_OFFSETS_OF_A_SEGMENT = 1 << 31
"""A batch found after damage must be this near: a segment's index cannot hold more."""

_LARGEST_AFTER_DAMAGE = 16 << 20
"""Largest v0, v1 or 0.7 entry accepted after damage: checksumming all that looks like one takes hours. The
default limit of these was 1 MB.
"""


class FoundBatch(CandidateEntry):
    __slots__ = ("header",)
    checksum = staticmethod(crc32c)

    def __init__(self, position: int, header: BatchHeader, crc: int) -> None:
        super().__init__(
            position, header.size, position + ATTRIBUTES_POSITION, header.base_offset, True,
            header.last_offset, header.next_offset, header.max_timestamp, header.record_count,
            header.crc, crc,
        )  # fmt: skip
        self.header = header

    def records(self, file: File) -> list[Record]:
        data = file.read_at(self.position, self.size)
        return list(decode_records(data, 0, self.header, MAX_DECOMPRESSED_BYTES, check_crc=False))

    def count(self, file: File) -> int:
        return len(self.records(file))


class FoundSet(CandidateEntry):
    __slots__ = ("header",)
    checksum = staticmethod(crc32)

    def __init__(self, position: int, header: legacy.EntryHeader, crc: int) -> None:
        compressed, offset = header.is_compressed, header.offset
        super().__init__(
            position, header.size, position + legacy.MAGIC_POSITION, offset, not compressed, offset,
            offset + 1, header.timestamp, None if compressed else 1, header.crc, crc,
        )  # fmt: skip
        self.header = header

    def records(self, file: File) -> list[Record]:
        view = memoryview(self.content(file, legacy.CRC_POSITION))
        frame = Frame(0, self.size, self.first_offset, self.last_offset, self.next_offset, self.max_timestamp)
        return list(_SETS.records(view, frame, max_bytes=MAX_DECOMPRESSED_BYTES))

    def count(self, file: File) -> int:
        # Ignores its own offset, which no checksum covers.
        view = memoryview(self.content(file, legacy.CRC_POSITION))
        return sum(1 for _ in legacy.messages(view, max_bytes=MAX_DECOMPRESSED_BYTES, stored=False))


FoundEntry = FoundBatch | FoundSet


def scan(file: File, size: int, lowest_offset: int, start: int = 0) -> Iterator[CandidateEntry | Damage]:
    """Contents of bytes ``[start, size)``, as `salvage`; the segment's offsets begin at ``lowest_offset``."""
    return salvage(Window(file, size), _Entries(lowest_offset), start=start)


class _Entries:
    smallest = legacy.MIN_ENTRY_BYTES
    key_bytes = legacy.MAGIC_POSITION + 2

    def __init__(self, lowest_offset: int) -> None:
        self._lowest_offset = lowest_offset

    def header_at(self, window: Window, position: int) -> FoundEntry:
        view = window.view(position, HEADER_SIZE)
        if len(view) < legacy.MIN_ENTRY_BYTES:
            raise CorruptMessage(f"{len(view)} bytes are left: too few for a batch's header")
        if view == bytes(len(view)):
            raise CorruptMessage("zeros where a batch should begin")
        found: FoundEntry
        try:
            if magic_at(view, 0) == MAGIC:
                found = FoundBatch(position, read_header(view), 0)
            else:
                found = FoundSet(position, _read_entry(window, position), 0)
        except CorruptMessage as e:
            # Its positions count from the header, not the file.
            raise CorruptMessage(str(e).replace(" at byte 0", "")) from None
        if found.first_offset < 0:
            raise CorruptMessage(f"a batch with offset {found.first_offset}")
        if found.end > window.size:
            raise CorruptMessage(
                f"a batch of {found.size} bytes with offset {found.first_offset} is cut short at byte"
                f" {window.size}"
            )
        return found

    def candidates(self, window: Window, chunk: bytes, position: int) -> Iterator[int]:  # noqa: ARG002
        for match in _MAY_BEGIN.finditer(chunk):
            begins = match.start()
            offset, length = _OFFSET_AND_LENGTH.unpack_from(chunk, begins)
            if 0 <= offset - self._lowest_offset < _OFFSETS_OF_A_SEGMENT and (
                length <= _LARGEST_AFTER_DAMAGE or chunk[begins + legacy.MAGIC_POSITION] == MAGIC
            ):
                yield begins


def _read_entry(window: Window, position: int) -> legacy.EntryHeader:
    """The v0 or v1 header at ``position``. Key and value must fill it, as its magic proves little."""
    header = legacy.read_entry(window.view(position, legacy.MIN_ENTRY_BYTES))
    at = legacy.KEY_POSITIONS[header.magic]
    if position + header.size > window.size:
        return header
    for what in ("key", "value"):
        if at + _LENGTH.size > header.size:
            raise CorruptMessage(f"a message of {header.size} bytes without a {what}")
        (length,) = _LENGTH.unpack(window.view(position + at, _LENGTH.size))
        at += _LENGTH.size + max(length, 0)
        if length < -1 or at > header.size:
            raise CorruptMessage(f"a message of {header.size} bytes with a {what} of {length}")
    if at != header.size:
        raise CorruptMessage(f"a message of {header.size} bytes, of which key and value fill {at}")
    return header


_MAGIC_POSITION = 4
_KEY_BYTES = 6
"""Length, magic and attributes, as `entry_header` needs."""

_MAY_BEGIN_07 = re.compile(
    rb"(?=(?!\x00\x00\x00[\x00-\x04])[\x00-\x7f][\x00-\xff]{3}(?:\x00|\x01[\x00-\xff]))"
)
"""A possible length and a magic byte."""


class FoundEntry07(CandidateEntry):
    """A 0.7 entry; ``crc`` is the checksum of its payload."""

    __slots__ = ("codec", "magic")
    checksum = staticmethod(crc32)

    def __init__(
        self, position: int, size: int, first_offset: int, magic: int, codec: Codec, payload: int, crc: int
    ) -> None:
        super().__init__(
            position, size, position + payload, first_offset, True, first_offset + size - 1,
            first_offset + size, NO_TIMESTAMP, 1 if codec is Codec.NONE else None, crc, 0,
        )  # fmt: skip
        self.magic, self.codec = magic, codec

    @property
    def payload_size(self) -> int:
        return self.end - self.summed_from

    def messages(self, file: File) -> Iterator[MessageAndOffset]:
        data = self.content(file, self.summed_from - self.position - _CRC.size)
        return messages07(data, self.first_offset, max_bytes=MAX_DECOMPRESSED_BYTES)

    def count(self, file: File) -> int:
        return sum(1 for _ in self.messages(file))


def scan07(file: File, size: int, base_offset: int, start: int = 0) -> Iterator[CandidateEntry | Damage]:
    """Contents of bytes ``[start, size)``, as `salvage`; byte 0 of the file has ``base_offset``."""
    return salvage(Window(file, size), _Entries07(base_offset), start=start)


class _Entries07:
    smallest = SMALLEST_07
    key_bytes = _KEY_BYTES

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset

    def header_at(self, window: Window, position: int) -> FoundEntry07:
        view = window.view(position, ENTRY_HEADER_BYTES)
        if len(view) and view == bytes(len(view)):
            raise CorruptMessage("zeros where an entry should begin")
        try:
            header = entry_header(view, 0)
        except CorruptMessage as e:
            # Its positions count from the entry, not the file.
            raise CorruptMessage(str(e).replace(" at byte 0", "")) from None
        if header is None:
            raise CorruptMessage(f"{len(view)} bytes are left: too few for an entry")
        payload, size, codec = header
        if position + size > window.size:
            raise CorruptMessage(
                f"an entry of {size} bytes with offset {self._base_offset + position} is cut short at byte"
                f" {window.size}"
            )
        (crc,) = _CRC.unpack_from(view, payload - _CRC.size)
        first_offset = self._base_offset + position
        return FoundEntry07(position, size, first_offset, view[_MAGIC_POSITION], codec, payload, crc)

    def candidates(self, window: Window, chunk: bytes, position: int) -> Iterator[int]:
        for match in _MAY_BEGIN_07.finditer(chunk):
            (length,) = _LENGTH.unpack_from(chunk, match.start())
            end = position + match.start() + _LENGTH.size + length
            if end <= window.size and length <= _LARGEST_AFTER_DAMAGE and _may_begin_07(window, end):
                yield match.start()


def _may_begin_07(window: Window, position: int) -> bool:
    """Whether the file ends at ``position`` or an entry, even a truncated one, may begin there."""
    try:
        entry_header(window.peek(position, _KEY_BYTES), 0)
    except CorruptMessage:
        return False
    return True
