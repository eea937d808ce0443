"""Message sets of the formats v0 (Kafka 0.8 and 0.9) and v1 (0.10).

A set is a sequence of entries, one per message. Big-endian; positions in bytes from the entry's first::

     0 offset:8     12 crc:4          18 timestamp:8          v1 only
     8 length:4     16 magic:1        18 or 26 key_length:4 key value_length:4 value
                    17 attributes:1

``length`` counts the bytes after it. ``crc`` is the CRC-32 from ``magic`` on, so a broker sets the offset
without changing it. A length of -1 means null. Attributes: bits 0-2 codec; 3, in v1, log append time; the
others are unused and kept. A compressed set is the value of one more entry, the *wrapper*, which has no key.
Offsets of the messages in a wrapper:

* v0: absolute.
* v1: relative to the first; the wrapper has the absolute offset of the last one, so a broker numbers the set
  without opening it. In a wrapper with offset 0, as producers send it, they are used unchanged.

A v1 wrapper with log append time gives its time to all its messages. Wrappers are not nested: Kafka refuses
it since 0.11, and older brokers flattened such sets. ``docs/formats.md`` has more. Source: Kafka protocol
guide, "Message sets"; Kafka 2.8 ``record/LegacyRecord.java``, ``record/AbstractLegacyRecordBatch.java``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord, UnsupportedCompression
from pyspark_kafkalog.formats.base import Buffer, Frame, crc32
from pyspark_kafkalog.formats.compression import (
    Codec,
    compress,
    decompress,
    lz4_frame_for_message_set,
    lz4_frame_with_checksum,
)
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, Record, TimestampType

MAGICS = (0, 1)

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)  # zstd is newer than message sets
ENTRY_OVERHEAD = 12  # bytes before those counted by ``length``
MIN_ENTRY_BYTES = 26  # the smallest entry, v0 without key and value; enough for the header of either format
_LENGTH_POSITION = 8
CRC_POSITION = 12
MAGIC_POSITION = 16
ATTRIBUTES_POSITION = 17
TIMESTAMP_POSITION = 18
KEY_POSITIONS = (18, 26)  # position of the key's length, by magic
CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08

MAX_OFFSET = (1 << 63) - 1

_HEADER = struct.Struct(">qiIBBq")
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">i")
_MIN_LENGTHS = (14, 22)


class EntryHeader(NamedTuple):
    """The fields before the key; timestamp -1 in v0."""

    offset: int
    length: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    @property
    def size(self) -> int:
        return ENTRY_OVERHEAD + self.length

    @property
    def is_compressed(self) -> bool:
        return bool(self.attributes & CODEC_BITS)

    @property
    def codec(self) -> Codec:
        return _codec(self.attributes, self.magic)

    @property
    def timestamp_type(self) -> TimestampType:
        """Create time if there is no timestamp."""
        return TimestampType(self.magic and self.attributes >> 3 & 1)


def codec_at(buf: Buffer, pos: int) -> Codec:
    return _codec(buf[pos + ATTRIBUTES_POSITION], buf[pos + MAGIC_POSITION])


def _codec(attributes: int, magic: int) -> Codec:
    number = attributes & CODEC_BITS
    if number >= len(CODECS):
        raise UnsupportedCompression(f"message format v{magic} has no compression codec {number}")
    return CODECS[number]


def read_entry(buf: Buffer, pos: int = 0) -> EntryHeader:
    """The header of the entry at ``pos``; ``buf`` need only hold `MIN_ENTRY_BYTES` of it."""
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
    end = pos + header.size
    if end > len(buf):
        raise CorruptMessage(
            f"message at offset {header.offset} is cut short: {len(buf) - pos} of {header.size} bytes"
        )
    return end


def verify_entry(buf: Buffer, pos: int, header: EntryHeader) -> None:
    with memoryview(buf) as view, view[pos + MAGIC_POSITION : entry_end(buf, pos, header)] as covered:
        found = crc32(covered)
    if found != header.crc:
        raise CorruptMessage(
            f"message at offset {header.offset}: CRC-32 is {found:#010x}, header says {header.crc:#010x}"
        )


def read_message(
    view: memoryview, pos: int
) -> tuple[int, int, int, int, memoryview | None, memoryview | None]:
    """Offset, magic, attributes, timestamp, key and value of the entry at ``pos``, checksum verified."""
    # For a valid entry, all checks at once take a third of the time of the functions below.
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
    """Key and value of the entry at ``pos`` as views, None for null. Does not check the CRC."""
    end = entry_end(buf, pos, header)
    key, at = _field(buf, pos + KEY_POSITIONS[header.magic], end - _LENGTH.size, header)
    value, at = _field(buf, at, end, header)
    if at != end:
        raise CorruptMessage(f"message at offset {header.offset}: {end - at} bytes follow its value")
    return key, value


def _field(buf: memoryview, pos: int, end: int, header: EntryHeader) -> tuple[memoryview | None, int]:
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
    """Set the offset of the entry at ``pos`` in place; for a wrapper, its last message's.

    With ``timestamp`` (milliseconds) a v1 entry gets that time and type, and a new checksum; the caller has
    verified the old one. v0 has no timestamp.
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
    _OFFSET.pack_into(buf, pos, offset)


def assign_in_order(buf: bytearray, first_offset: int) -> None:
    pos, offset = 0, first_offset
    while pos < len(buf):
        _OFFSET.pack_into(buf, pos, offset)
        pos += ENTRY_OVERHEAD + int(_LENGTH.unpack_from(buf, pos + _LENGTH_POSITION)[0])
        offset += 1


_PREFIX = struct.Struct(">qiI")
_COVERED = (struct.Struct(">BBi"), struct.Struct(">BBqi"))  # the checksummed fields up to the key, by magic
_CREATE, _LOG_APPEND = TimestampType

_NULL = _LENGTH.pack(-1)


class Message(NamedTuple):
    """One message of a set; key and value are views, ``magic`` is the message's own format."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: memoryview | None
    value: memoryview | None
    magic: int


def messages(buf: Buffer, pos: int = 0, *, max_bytes: int, stored: bool = True) -> Iterator[Message]:
    """The message of the entry at ``pos``, or all messages of a wrapper, checksums verified.

    Decompresses at once, then yields messages one by one, those before a damaged one too. ``stored`` requires
    offsets in a wrapper to rise and end with the wrapper's; False accepts any, for a producer's sets.
    """
    view = memoryview(buf)
    offset, magic, attributes, timestamp, key, value = read_message(view, pos)
    if not attributes & CODEC_BITS:
        if stored and offset < 0:
            raise CorruptMessage(f"a message at offset {offset}")
        kind = _LOG_APPEND if magic and attributes & LOG_APPEND_TIME_BIT else _CREATE
        return iter((Message(offset, timestamp, kind, key, value, magic),))
    header = read_entry(view, pos)
    data = _opened(header, value, max_bytes)
    base = _base_offset(data, header) if stored else 0
    return _inner_messages(data, header, base, stored)


def _inner_messages(data: memoryview, header: EntryHeader, base: int, stored: bool) -> Iterator[Message]:
    kind, previous = header.timestamp_type, -1
    for at, _ in inner_entries(data, header):
        try:
            inner_offset, inner_magic, _, time, key, value = read_message(data, at)
        except CorruptMessage as e:
            raise _within(header, e) from None
        if stored and inner_offset <= previous:
            raise _within(header, CorruptMessage(f"offset {inner_offset} follows {previous}"))
        previous = inner_offset
        if not inner_magic:
            yield Message(base + inner_offset, NO_TIMESTAMP, _CREATE, key, value, 0)
        else:
            yield Message(base + inner_offset, header.timestamp if kind else time, kind, key, value, 1)
    if stored and not header.magic and 0 < header.offset != previous:
        fault = f"it ends with a message at offset {previous}, not at the wrapper's own offset"
        raise _within(header, CorruptMessage(fault))


def inner_set(buf: Buffer, pos: int, header: EntryHeader, max_bytes: int) -> memoryview:
    """The decompressed content of the wrapper at ``pos``. Does not check its CRC."""
    _, value = key_and_value(memoryview(buf), pos, header)
    return _opened(header, value, max_bytes)


def _opened(header: EntryHeader, value: memoryview | None, max_bytes: int) -> memoryview:
    codec = header.codec
    if value is None:
        raise CorruptMessage(f"the compressed set at offset {header.offset} is null")
    packed: Buffer = value
    if codec is Codec.LZ4 and header.magic == 0:
        packed = lz4_frame_with_checksum(value)
    try:
        return memoryview(decompress(codec, packed, max_bytes))
    except CorruptMessage as e:
        raise _within(header, e) from None


def _within(wrapper: EntryHeader, fault: CorruptMessage) -> CorruptMessage:
    return CorruptMessage(f"in the compressed set at offset {wrapper.offset}: {fault}")


def inner_entries(data: memoryview, wrapper: EntryHeader) -> Iterator[tuple[int, EntryHeader]]:
    """Position and unchecked header of each entry in a decompressed set; skips a cut tail."""
    pos, size = 0, len(data)
    try:
        while size - pos >= MIN_ENTRY_BYTES:
            header = read_entry(data, pos)
            if pos + header.size > size:
                break
            if header.is_compressed:
                raise CorruptMessage(f"the message at byte {pos} is itself a compressed set")
            yield pos, header
            pos += header.size
    except CorruptMessage as e:
        raise _within(wrapper, e) from None
    if pos == 0:
        raise CorruptMessage(
            f"the compressed set at offset {wrapper.offset} holds no whole message in {size} bytes"
        )


def _base_offset(data: memoryview, wrapper: EntryHeader) -> int:
    """Added to relative offsets so that the last message gets the wrapper's."""
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    last = 0
    for _, inner in inner_entries(data, wrapper):
        last = inner.offset
    if last > wrapper.offset:
        raise CorruptMessage(f"the compressed set at offset {wrapper.offset} ends at relative offset {last}")
    return wrapper.offset - last


def encode_message(
    record: NewRecord,
    *,
    magic: int,
    offset: int = 0,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """The entry of one uncompressed message; v0 drops the time."""
    if record.headers:
        raise InvalidRecord(
            f"message format v{magic} has no headers, and the record has {len(record.headers)}"
        )
    return encode_entry(
        record.key, record.value, magic, offset, record.timestamp, timestamp_type << 3 if magic else 0
    )


def wrap_set(
    block: Buffer,
    *,
    magic: int,
    codec: Codec,
    last_offset: int,
    timestamp: int = NO_TIMESTAMP,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    level: int | None = None,
) -> bytes:
    """Compress a ``block`` of entries. ``last_offset`` is absolute, ``timestamp`` the largest."""
    if codec is Codec.NONE or codec not in CODECS:
        raise InvalidRecord(f"message format v{magic} cannot hold a set compressed in {codec.name.lower()}")
    packed = compress(codec, block, level)
    if codec is Codec.LZ4:
        packed = lz4_frame_for_message_set(packed, magic)
    return encode_entry(
        None, packed, magic, last_offset, timestamp, codec | (timestamp_type << 3 if magic else 0)
    )


def encode_set(
    records: Iterable[NewRecord],
    *,
    magic: int,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    offsets: Sequence[int] | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    level: int | None = None,
) -> bytes:
    """A message set: plain entries, or with a ``codec`` one wrapper; ``offsets`` if they have gaps."""
    held = list(records)
    places: Sequence[int] = range(base_offset, base_offset + len(held)) if offsets is None else offsets
    if len(places) != len(held):
        raise InvalidRecord(f"{len(places)} offsets for {len(held)} records")
    if not held:
        return b""
    first = places[0] if magic and codec else 0
    block = b"".join(
        [
            encode_message(record, magic=magic, offset=offset - first, timestamp_type=timestamp_type)
            for record, offset in zip(held, places, strict=True)
        ]
    )
    if codec is Codec.NONE:
        return block
    return wrap_set(
        block,
        magic=magic,
        codec=codec,
        last_offset=places[-1],
        timestamp=max(record.timestamp for record in held),
        timestamp_type=timestamp_type,
        level=level,
    )


def encode_entry(
    key: Buffer | None, value: Buffer | None, magic: int, offset: int, timestamp: int, attributes: int
) -> bytes:
    if magic not in MAGICS:
        raise InvalidRecord(f"there is no message set of format v{magic}")
    key_length = -1 if key is None else len(key)
    try:
        if magic:
            head = _COVERED[1].pack(1, attributes, timestamp, key_length)
        else:
            head = _COVERED[0].pack(0, attributes, key_length)
        value_length = _NULL if value is None else _LENGTH.pack(len(value))
        body = b"".join((head, key or b"", value_length, value or b""))
        return _PREFIX.pack(offset, 4 + len(body), crc32(body)) + body
    except struct.error as e:
        raise InvalidRecord(f"message at offset {offset}, timestamp {timestamp}: {e}") from None


class LegacyFormat:
    """v0 and v1 as a `MessageFormat`: a frame is a top-level entry; a wrapper has its last offset."""

    min_frame_size = MIN_ENTRY_BYTES

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:  # noqa: ARG002  (0.7 needs it)
        if len(buf) - pos < MIN_ENTRY_BYTES:
            return None
        header = read_entry(buf, pos)
        at = header.offset
        return Frame(pos, header.size, at, at, at + 1, header.timestamp, not header.is_compressed)

    def verify(self, buf: memoryview, frame: Frame) -> None:
        verify_entry(buf, frame.position, read_entry(buf, frame.position))

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        found = messages(buf, frame.position, max_bytes=max_bytes)
        message = next(found, None)
        while message is not None:
            following = next(found, None)
            # A producer's wrapper has offset 0, its messages higher ones.
            end = message.offset + 1 if following is not None else max(message.offset + 1, frame.next_offset)
            key = None if message.key is None else bytes(message.key)
            value = None if message.value is None else bytes(message.value)
            kind = message.timestamp_type
            yield Record(message.offset, end, message.timestamp, kind, key, value)
            message = following

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        for message in messages(buf, frame.position, max_bytes=max_bytes):
            yield message.timestamp, message.offset
