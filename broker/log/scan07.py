"""Scans a segment of 0.7 that may be damaged: its entries, and the places where none can be made out.

An entry has no offset of its own and hardly a mark by which it is known, so the bytes behind damage are taken
for one only if their checksum holds and the end of the file, or what may be another entry, follows them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from broker.log.filesystem import File
from broker.log.salvage import Damage, Window, salvage
from broker.log.validation import MAX_DECOMPRESSED_BYTES
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import (
    ENTRY_HEADER_BYTES,
    MIN_ENTRY_BYTES,
    MessageAndOffset,
    entry_header,
    messages,
)
from pyspark_kafkalog.types import NO_TIMESTAMP

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_MAGIC_POSITION = 4
_KEY_BYTES = 6
"""Length, magic and attributes: what `entry_header` needs."""

_MAY_BEGIN = re.compile(rb"(?=(?!\x00\x00\x00[\x00-\x04])[\x00-\x7f][\x00-\xff]{3}(?:\x00|\x01[\x00-\xff]))")
"""A length that an entry may have, and a magic byte."""

_LARGEST_BEHIND_DAMAGE = 16 << 20
"""Bytes of the largest entry at which reading goes on behind damage; larger ones are passed over. To sum up
all that looks like a length in a file of 512 MiB would take hours. 0.7 allowed messages of 1 MB.
"""


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry by its header; ``crc`` is what its payload adds up to."""

    position: int
    size: int
    first_offset: int
    magic: int
    codec: Codec
    summed_from: int
    stored_crc: int
    crc: int

    @property
    def sound(self) -> bool:
        return self.crc == self.stored_crc

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def payload_size(self) -> int:
        """Bytes of its payload as it lies there."""
        return self.end - self.summed_from

    @property
    def first_is_known(self) -> bool:
        return True

    @property
    def last_offset(self) -> int:
        return self.next_offset - 1

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.size

    @property
    def max_timestamp(self) -> int:
        return NO_TIMESTAMP

    @property
    def record_count(self) -> int | None:
        return 1 if self.codec is Codec.NONE else None

    def messages(self, file: File) -> Iterator[MessageAndOffset]:
        """Its messages, inner ones too, whatever its own checksum is.

        Raises:
            KafkaError: it cannot be decompressed, or a message within is not sound.
            OSError: the disk refused to read.
        """
        data = bytearray(file.read_at(self.position, self.size))
        if len(data) < self.size:
            raise CorruptMessage(f"the file became shorter than {self.end} bytes")
        _CRC.pack_into(data, self.summed_from - self.position - _CRC.size, self.crc)
        return messages(data, self.first_offset, max_bytes=MAX_DECOMPRESSED_BYTES)

    def count(self, file: File) -> int:
        return sum(1 for _ in self.messages(file))


def scan07(file: File, size: int, base_offset: int, *, start: int = 0) -> Iterator[FoundEntry | Damage]:
    """What lies in bytes ``[start, size)``, as `salvage` tells it; the file's first byte has ``base_offset``.

    Raises:
        OSError: the disk refused to read.
    """
    return salvage(Window(file, size), _Entries(base_offset), start=start)


class _Entries:
    """*Thread-safe: it never changes.* The layout of 0.7's entries."""

    smallest = MIN_ENTRY_BYTES
    key_bytes = _KEY_BYTES

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset

    def header_at(self, window: Window, position: int) -> FoundEntry:
        view = window.view(position, ENTRY_HEADER_BYTES)
        if len(view) and view == bytes(len(view)):
            raise CorruptMessage("zeros where an entry should begin")
        try:
            header = entry_header(view, 0)
        except CorruptMessage as e:
            # The text counts from the entry's own first byte.
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
        return FoundEntry(
            position, size, first_offset, view[_MAGIC_POSITION], codec, position + payload, crc, 0
        )

    def summed(self, found: FoundEntry, window: Window) -> FoundEntry:
        return replace(found, crc=window.sum(found.summed_from, found.end, crc32))

    def candidates(self, window: Window, chunk: bytes, position: int) -> Iterator[int]:
        for match in _MAY_BEGIN.finditer(chunk):
            (length,) = _LENGTH.unpack_from(chunk, match.start())
            end = position + match.start() + _LENGTH.size + length
            if end <= window.size and length <= _LARGEST_BEHIND_DAMAGE and _may_begin(window, end):
                yield match.start()


def _may_begin(window: Window, position: int) -> bool:
    """Whether the file ends at ``position``, or an entry may begin there, one that is cut short too."""
    try:
        entry_header(window.peek(position, _KEY_BYTES), 0)
    except CorruptMessage:
        return False
    return True
