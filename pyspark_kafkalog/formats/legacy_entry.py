"""One entry of message format v0 (Kafka 0.8 and 0.9) or v1 (0.10): its layout, its header, its checksum.

Big-endian; positions in bytes from the entry's first::

     0 offset:8     12 crc:4          18 timestamp:8          v1 only
     8 length:4     16 magic:1        18 or 26 key_length:4 key value_length:4 value
                    17 attributes:1

``length`` counts what follows it. ``crc`` is the CRC-32 of everything from ``magic`` on, so a broker sets the
offset without touching it. A length of -1 means null. Attributes: bits 0-2 codec; 3, in v1, log append time;
the others mean nothing and stay as they are. With a codec the value is a whole message set (`legacy`).
Source: Kafka protocol guide, "Message sets"; Kafka 2.8 ``record/LegacyRecord.java``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, UnsupportedCompression
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

MAGICS = (0, 1)

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
"""What message sets can be compressed with: zstd came later."""

ENTRY_OVERHEAD = 12
"""Bytes before those that ``length`` counts."""

MIN_ENTRY_BYTES = 26
"""The smallest entry, v0 without key and value; and as many as hold the header of either format."""

_LENGTH_POSITION = 8
CRC_POSITION = 12
MAGIC_POSITION = 16
ATTRIBUTES_POSITION = 17
TIMESTAMP_POSITION = 18
KEY_POSITIONS = (18, 26)
"""Where the key's length stands, by magic."""

CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08

MAX_OFFSET = (1 << 63) - 1

_HEADER = struct.Struct(">qiIBBq")
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">i")
_MIN_LENGTHS = (14, 22)


class EntryHeader(NamedTuple):
    """The fields before the key; the module's docstring has their layout. v0 has no timestamp: -1."""

    offset: int
    length: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    @property
    def size(self) -> int:
        """Bytes of the whole entry."""
        return ENTRY_OVERHEAD + self.length

    @property
    def is_compressed(self) -> bool:
        """Whether the entry is a wrapper: its value a compressed message set."""
        return bool(self.attributes & CODEC_BITS)

    @property
    def codec(self) -> Codec:
        """How the value is compressed.

        Raises:
            UnsupportedCompression: by a codec that message sets do not have.
        """
        return _codec(self.attributes, self.magic)

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamp; create time where there is none."""
        return TimestampType(self.magic and self.attributes >> 3 & 1)


def codec_at(buf: Buffer, pos: int) -> Codec:
    """The codec of the entry at ``pos``, whose header is whole. Raises as `EntryHeader.codec`."""
    return _codec(buf[pos + ATTRIBUTES_POSITION], buf[pos + MAGIC_POSITION])


def _codec(attributes: int, magic: int) -> Codec:
    number = attributes & CODEC_BITS
    if number >= len(CODECS):
        raise UnsupportedCompression(f"message format v{magic} has no compression codec {number}")
    return CODECS[number]


def read_entry(buf: Buffer, pos: int = 0) -> EntryHeader:
    """The header of the entry at ``pos``; of the entry only `MIN_ENTRY_BYTES` need be in ``buf``.

    Raises:
        CorruptMessage: it is cut short, or is not that of a v0 or v1 entry.
    """
    if len(buf) - pos < MIN_ENTRY_BYTES:
        raise CorruptMessage(
            f"message header at byte {pos} is cut short: {len(buf) - pos} of {MIN_ENTRY_BYTES} bytes"
        )
    offset, length, crc, magic, attributes, timestamp = _HEADER.unpack_from(buf, pos)
    if magic > 1:
        raise CorruptMessage(f"message at byte {pos} has magic {magic}, not 0 or 1")
    if length < _MIN_LENGTHS[magic]:
        raise CorruptMessage(f"impossible message length {length} at byte {pos}, offset {offset}")
    if offset == MAX_OFFSET:
        raise CorruptMessage(f"message at byte {pos}: no offset can follow {offset} in 64 bits")
    return EntryHeader(offset, length, crc, magic, attributes, timestamp if magic else NO_TIMESTAMP)


def entry_end(buf: Buffer, pos: int, header: EntryHeader) -> int:
    """Position after the entry that begins at ``pos``.

    Raises:
        CorruptMessage: not all of it is in ``buf``.
    """
    end = pos + header.size
    if end > len(buf):
        raise CorruptMessage(
            f"message at offset {header.offset} is cut short: {len(buf) - pos} of {header.size} bytes"
        )
    return end


def verify_entry(buf: Buffer, pos: int, header: EntryHeader) -> None:
    """Compare the entry's bytes with the header's checksum.

    Raises:
        CorruptMessage: they differ, or the entry is cut short.
    """
    with memoryview(buf) as view, view[pos + MAGIC_POSITION : entry_end(buf, pos, header)] as covered:
        found = crc32(covered)
    if found != header.crc:
        raise CorruptMessage(
            f"message at offset {header.offset}: CRC-32 is {found:#010x}, header says {header.crc:#010x}"
        )


def read_message(
    view: memoryview, pos: int
) -> tuple[int, int, int, int, memoryview | None, memoryview | None]:
    """Offset, magic, attributes, timestamp, key and value of the entry at ``pos``, its checksum verified.

    Raises as `read_entry`, `verify_entry` and `key_and_value` together.
    """
    # At one glance for what is sound: a third of the time that the three take.
    if len(view) - pos >= MIN_ENTRY_BYTES:
        offset, length, crc, magic, attributes, timestamp = _HEADER.unpack_from(view, pos)
        end = pos + ENTRY_OVERHEAD + length
        if magic < 2 and length >= _MIN_LENGTHS[magic] and end <= len(view) and offset < MAX_OFFSET:
            at = pos + KEY_POSITIONS[magic]
            (key_length,) = _LENGTH.unpack_from(view, at)
            start = at + 4 + key_length if key_length >= 0 else at + 4
            if key_length >= -1 and start <= end - 4:
                (value_length,) = _LENGTH.unpack_from(view, start)
                if (
                    start + 4 + (value_length if value_length > 0 else 0) == end
                    and value_length >= -1
                    and crc32(view[pos + MAGIC_POSITION : end]) == crc
                ):
                    key = view[at + 4 : start] if key_length >= 0 else None
                    value = view[start + 4 : end] if value_length >= 0 else None
                    return offset, magic, attributes, timestamp if magic else NO_TIMESTAMP, key, value
    header = read_entry(view, pos)
    verify_entry(view, pos, header)
    key, value = key_and_value(view, pos, header)
    return header.offset, header.magic, header.attributes, header.timestamp, key, value


def key_and_value(
    buf: memoryview, pos: int, header: EntryHeader
) -> tuple[memoryview | None, memoryview | None]:
    """Key and value of the entry at ``pos`` as they lie there, None for null; the CRC is not looked at.

    Raises:
        CorruptMessage: their lengths do not fill the entry exactly.
    """
    end = entry_end(buf, pos, header)
    key, at = _field(buf, pos + KEY_POSITIONS[header.magic], end - _LENGTH.size, header)
    value, at = _field(buf, at, end, header)
    if at != end:
        raise CorruptMessage(f"message at offset {header.offset}: {end - at} bytes follow its value")
    return key, value


def _field(buf: memoryview, pos: int, end: int, header: EntryHeader) -> tuple[memoryview | None, int]:
    """The key or value whose length stands at ``pos`` and that ends by ``end``; the position after it."""
    (length,) = _LENGTH.unpack_from(buf, pos)
    pos += _LENGTH.size
    if length == -1:
        return None, pos
    if not 0 <= length <= end - pos:
        raise CorruptMessage(
            f"message at offset {header.offset}: a field of {length} bytes where {end - pos} are left"
        )
    return buf[pos : pos + length], pos + length


def assign_entry(
    buf: bytearray | memoryview,
    pos: int,
    *,
    offset: int,
    timestamp: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> None:
    """Give the entry at ``pos`` its offset, in ``buf`` itself; of a wrapper that is the last message's.

    With ``timestamp`` (milliseconds) a v1 entry takes that time and its type, and the checksum is made anew:
    the caller has verified the old one. v0 has no place for a time and stays as it is.

    Raises:
        CorruptMessage: the entry is cut short.
    """
    header = read_entry(buf, pos)
    end = entry_end(buf, pos, header)
    _OFFSET.pack_into(buf, pos, offset)
    if timestamp is None or header.magic == 0:
        return
    attributes = header.attributes & ~LOG_APPEND_TIME_BIT | timestamp_type << 3
    buf[pos + ATTRIBUTES_POSITION] = attributes
    _OFFSET.pack_into(buf, pos + TIMESTAMP_POSITION, timestamp)
    with memoryview(buf) as view, view[pos + MAGIC_POSITION : end] as covered:
        _CRC.pack_into(buf, pos + CRC_POSITION, crc32(covered))


def assign_offset(buf: bytearray | memoryview, pos: int, offset: int) -> None:
    """Give the whole entry at ``pos`` its offset, in ``buf`` itself, and leave its time as it is."""
    _OFFSET.pack_into(buf, pos, offset)


def assign_in_order(buf: bytearray, first_offset: int, start: int, stop: int) -> tuple[int, int]:
    """Give whole entries, from the one at ``start`` on, offsets that follow each other from ``first_offset``.

    Ends before the first that begins at ``stop`` or later; returns where that is, and its offset. Nothing of
    the entries is checked.
    """
    pos, offset = start, first_offset
    while pos < stop:
        _OFFSET.pack_into(buf, pos, offset)
        pos += ENTRY_OVERHEAD + int(_LENGTH.unpack_from(buf, pos + _LENGTH_POSITION)[0])
        offset += 1
    return pos, offset
