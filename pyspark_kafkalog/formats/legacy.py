"""Message sets of the formats v0 and v1 (Kafka 0.8 to 0.10), read and written.

A set is a row of entries (`legacy_entry` has their layout), one for each message. Compressed, it is the value
of one more entry, the *wrapper*, which has no key. Offsets of the messages in a wrapper:

* v0: each has its own, absolute.
* v1: they count from the first, and the wrapper has the absolute offset of the last one: so a broker numbers
  the set without opening it. A wrapper with offset 0 is as its producer sent it: they stand as they are.

A v1 wrapper with log append time gives its time to all its messages. Sets are not nested deeper: Kafka since
0.11 refuses it, and the brokers before made one set of what they were sent. ``docs/formats.md`` has more.
Source: Kafka 2.8 ``record/AbstractLegacyRecordBatch.java``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.compression import Codec, compress, decompress_in_steps
from pyspark_kafkalog.formats.legacy_entry import (
    CODEC_BITS,
    CODECS,
    LOG_APPEND_TIME_BIT,
    MAGICS,
    MIN_ENTRY_BYTES,
    EntryHeader,
    key_and_value,
    read_entry,
    read_message,
    verify_entry,
)
from pyspark_kafkalog.formats.lz4_header import for_message_set, with_right_checksum
from pyspark_kafkalog.formats.record import quick_record
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.steps import Steps, finished
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, Record, TimestampType

_PREFIX = struct.Struct(">qiI")
_COVERED = (struct.Struct(">BBi"), struct.Struct(">BBqi"))
"""What the checksum covers up to the key, by magic."""

_CREATE, _LOG_APPEND = TimestampType
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
_STEP_MESSAGES = 64


class Message(NamedTuple):
    """One message of a set; key and value are views of the set, None for null.

    ``timestamp`` is in milliseconds, `NO_TIMESTAMP` in v0; ``magic`` is the message's own.
    """

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: memoryview | None
    value: memoryview | None
    magic: int


def messages(buf: Buffer, pos: int = 0, *, max_bytes: int, stored: bool = True) -> Iterator[Message]:
    """The messages of the entry at ``pos``: itself, or those in the wrapper that it is, checksums verified.

    No list is made: memory is what decompression yields, at most ``max_bytes``. ``stored`` False leaves the
    offsets in a wrapper as they stand: a broker numbers what a producer sends, whatever they are.

    Raises:
        CorruptMessage: a checksum or length is wrong, a wrapper holds nothing or another wrapper, or
            ``stored`` offsets do not rise or do not end with the wrapper's. What comes before the damage has
            been given by then.
        MessageTooLarge: decompressed, the set has more than ``max_bytes``.
        UnsupportedCompression: message sets do not have the codec, or its library is not installed.
    """
    yield from finished(messages_in_steps(buf, pos, max_bytes=max_bytes, stored=stored))


def messages_in_steps(
    buf: Buffer, pos: int = 0, *, max_bytes: int, stored: bool = True
) -> Steps[Iterator[Message]]:
    """`messages`, the entry opened in steps; what is in it is then read when asked for. Raises the same."""
    view = memoryview(buf)
    offset, magic, attributes, timestamp, key, value = read_message(view, pos)
    if not attributes & CODEC_BITS:
        if stored and offset < 0:
            raise CorruptMessage(f"a message at offset {offset}")
        kind = _LOG_APPEND if magic and attributes & LOG_APPEND_TIME_BIT else _CREATE
        return iter((Message(offset, timestamp, kind, key, value, magic),))
    header = read_entry(view, pos)
    data = yield from _opened(header, value, max_bytes)
    base = (yield from _base_offset(data, header)) if stored else 0
    return _inner_messages(data, header, base, stored)


def _inner_messages(data: memoryview, header: EntryHeader, base: int, stored: bool) -> Iterator[Message]:
    """The messages in a wrapper's decompressed set; offsets in it count from ``base``."""
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
        fault = f"it ends with a message at offset {previous}, which is not its own"
        raise _within(header, CorruptMessage(fault))


def inner_set(buf: Buffer, pos: int, header: EntryHeader, max_bytes: int) -> memoryview:
    """`inner_set_in_steps`, all of them here and now. Raises the same."""
    return finished(inner_set_in_steps(buf, pos, header, max_bytes))


def inner_set_in_steps(buf: Buffer, pos: int, header: EntryHeader, max_bytes: int) -> Steps[memoryview]:
    """What the wrapper at ``pos`` holds, decompressed; its CRC is not looked at.

    Raises:
        CorruptMessage: the wrapper has no value, or one that its codec cannot read.
        MessageTooLarge: it has more than ``max_bytes``.
        UnsupportedCompression: message sets do not have the codec, or its library is not installed.
    """
    _, value = key_and_value(memoryview(buf), pos, header)
    return (yield from _opened(header, value, max_bytes))


def _opened(header: EntryHeader, value: memoryview | None, max_bytes: int) -> Steps[memoryview]:
    codec = header.codec
    if value is None:
        raise CorruptMessage(f"the compressed set at offset {header.offset} is null")
    packed: Buffer = value
    if codec is Codec.LZ4 and header.magic == 0:
        packed = with_right_checksum(value)
    try:
        return memoryview((yield from decompress_in_steps(codec, packed, max_bytes)))
    except CorruptMessage as e:
        raise _within(header, e) from None


def _within(wrapper: EntryHeader, fault: CorruptMessage) -> CorruptMessage:
    return CorruptMessage(f"in the compressed set at offset {wrapper.offset}: {fault}")


def inner_entries(data: memoryview, wrapper: EntryHeader) -> Iterator[tuple[int, EntryHeader]]:
    """Position and header of each entry in a wrapper's decompressed set. Checksums are not looked at.

    An incomplete entry at the end is left out, as Kafka does, unless it is the first.

    Raises:
        CorruptMessage: the set holds no whole entry, a wrapper, or what is no entry at all.
    """
    pos, size = 0, len(data)
    try:
        while size - pos >= MIN_ENTRY_BYTES:
            header = read_entry(data, pos)
            if pos + header.size > size:
                break
            if header.is_compressed:
                raise CorruptMessage(f"the message at byte {pos} is compressed once more")
            yield pos, header
            pos += header.size
    except CorruptMessage as e:
        raise _within(wrapper, e) from None
    if pos == 0:
        raise CorruptMessage(
            f"the compressed set at offset {wrapper.offset} holds no whole message in {size} bytes"
        )


def _base_offset(data: memoryview, wrapper: EntryHeader) -> Steps[int]:
    """What to add to the offsets of the messages in a wrapper, so that the last has the wrapper's own.

    Raises:
        CorruptMessage: the last one stands at more than that.
    """
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    last = 0
    for count, (_, inner) in enumerate(inner_entries(data, wrapper), 1):
        last = inner.offset
        if not count % _STEP_MESSAGES:
            yield None
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
    """The entry of one message that is not compressed. v0 has no place for its time.

    Raises:
        InvalidRecord: the record has headers, or a number does not fit its field.
    """
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
    """The wrapper around a ``block`` of entries, compressed here; they are of the same magic.

    ``last_offset`` is the absolute offset of the last one, ``timestamp`` the largest of theirs, or with log
    append time that of all.

    Raises:
        InvalidRecord: message sets do not have this codec, or a number does not fit its field.
        InvalidConfig: the codec has no such ``level``.
        UnsupportedCompression: the codec's library is not installed.
    """
    if codec is Codec.NONE or codec not in CODECS:
        raise InvalidRecord(f"message format v{magic} cannot hold a set compressed in {codec.name.lower()}")
    packed = compress(codec, block, level)
    if codec is Codec.LZ4:
        packed = for_message_set(packed, magic)
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
    """A message set with ``records`` in their order: plain entries, or with a ``codec`` one wrapper.

    Their offsets follow each other from ``base_offset`` on, unless ``offsets`` has others, which rise: a set
    that compaction went over has gaps. No records are no bytes.

    Raises:
        InvalidRecord: a record has headers, message sets do not have this codec, or a number does not fit.
        InvalidConfig: the codec has no such ``level``.
        UnsupportedCompression: the codec's library is not installed.
    """
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
    """The bytes of an entry with these fields, as they are.

    Raises:
        InvalidRecord: a number does not fit its field, or there is no such ``magic``.
    """
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
    """v0 and v1 entries as a log's `MessageFormat`: one frame is one top-level entry, whatever it holds.

    A wrapper's frame has the offset of its last message for its first as well: without decompression no more
    is known. ``max_timestamp`` is the entry's own, which producers need not set in a wrapper; brokers do.
    """

    header_size = min_frame_size = MIN_ENTRY_BYTES

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:  # noqa: ARG002  (0.7 needs it)
        """The entry that begins at ``pos``; None while its header is incomplete."""
        if len(buf) - pos < MIN_ENTRY_BYTES:
            return None
        header = read_entry(buf, pos)
        at = header.offset
        return Frame(pos, header.size, at, at, at + 1, header.timestamp, not header.is_compressed)

    def verify(self, buf: memoryview, frame: Frame) -> None:
        """Check the entry's CRC-32; the whole entry must be in ``buf``."""
        verify_entry(buf, frame.position, read_entry(buf, frame.position))

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        """The entry's messages, after their checksums."""
        found = messages(buf, frame.position, max_bytes=max_bytes)
        message = next(found, None)
        while message is not None:
            following = next(found, None)
            # A producer's wrapper has offset 0, and messages beyond that.
            end = message.offset + 1 if following is not None else max(message.offset + 1, frame.next_offset)
            key, value = message.key, message.value
            yield quick_record(
                message.offset,
                end,
                message.timestamp,
                message.timestamp_type,
                None if key is None else bytes(key),
                None if value is None else bytes(value),
            )
            message = following

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of the entry's messages, after their checksums."""
        for message in messages(buf, frame.position, max_bytes=max_bytes):
            yield message.timestamp, message.offset
