"""Messages of Kafka 0.7: a message's offset is its byte position in the log.

An *entry* is ``length:4 magic:1 [attributes:1] crc32:4 payload``, attributes only with magic 1; ``length``
counts the bytes after it. The CRC-32 covers only the payload. Attribute bits 0-1 are the codec; the others
are unused and kept. A compressed entry's payload is a message set, which may hold compressed entries again.
There is no key and no time.

The bytes hold no offset: an entry's is its position in the partition's log, and the next entry begins at its
end. So bytes are stored as produced. ``docs/formats.md`` has the rules for readers. Source: kafka 0.7
``message/Message.scala``, ``message/ByteBufferMessageSet.scala``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from pyspark_kafkalog.formats.base import Buffer, Frame, crc32
from pyspark_kafkalog.formats.compression import Codec, compress, decompress
from pyspark_kafkalog.types import NO_TIMESTAMP, Record, TimestampType

MIN_ENTRY_BYTES = 9  # magic 0 and an empty payload
ENTRY_HEADER_BYTES = 10  # bytes before the payload of an entry with attributes
CODEC_BITS = 0b11  # the attributes' codec bits; 0.7 has no codec 3
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY)

_LENGTH = struct.Struct(">i")
_LENGTH_AND_MAGIC = struct.Struct(">iB")
_CRC = struct.Struct(">I")
_ENTRY_0 = struct.Struct(">iBI")
_ENTRY_1 = struct.Struct(">iBBI")
_MAY_BEGIN = re.compile(rb"(?=[\x00-\x7f][\x00-\xff]{3}[\x00\x01])")  # a non-negative length, and a magic
_LENGTH_BYTES = 4
_CRC_BYTES = 4
_MIN_LENGTH = MIN_ENTRY_BYTES - _LENGTH_BYTES
_MAX_LENGTH = (1 << 31) - 1


class Entry(NamedTuple):
    """A whole, unverified entry; ``position`` is in the buffer, ``offset`` in the log."""

    position: int
    size: int
    offset: int
    codec: Codec
    crc: int
    payload: memoryview

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        return self.offset + self.size


class MessageAndOffset(NamedTuple):
    """A message, and where to continue after it: its compressed entry's own offset, except for the last."""

    payload: memoryview
    offset: int


class CheckedSet(NamedTuple):
    """A produced set: size of its whole entries in bytes, message count including inner ones."""

    size: int
    message_count: int


def entries(buf: Buffer, offset: int = 0) -> Iterator[Entry]:
    """The whole entries in ``buf``, unverified; ``offset`` is its first byte's. Ends before a cut one."""
    view = memoryview(buf)
    pos = 0
    while (entry := _whole_entry(view, pos, offset + pos)) is not None:
        yield entry
        pos = entry.end


def messages(buf: Buffer, offset: int, *, max_bytes: int) -> Iterator[MessageAndOffset]:
    """The messages in ``buf``, whose first byte has ``offset``; an entry decompresses to ``max_bytes``."""
    for entry in entries(buf, offset):
        payloads = _payloads(entry, _Budget(max_bytes))
        payload = next(payloads, None)
        while payload is not None:
            following = next(payloads, None)
            yield MessageAndOffset(payload, entry.offset if following is not None else entry.next_offset)
            payload = following


def payloads(entry: Buffer, *, max_bytes: int) -> Iterator[memoryview]:
    view = memoryview(entry)
    whole = _whole_entry(view, 0, 0)
    if whole is None or whole.size != len(view):
        raise CorruptMessage(f"{len(view)} bytes are not one whole entry")
    yield from _payloads(whole, _Budget(max_bytes))


def entry_header(buf: Buffer, pos: int) -> tuple[int, int, Codec] | None:
    """Payload start and end (perhaps beyond ``buf``) and codec of the entry at ``pos``; None if cut."""
    left = len(buf) - pos
    if left < _LENGTH_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(buf, pos)
    if length < _MIN_LENGTH:
        raise CorruptMessage(f"impossible message length {length} at byte {pos}")
    if left < _LENGTH_BYTES + 1:
        return None
    end = pos + _LENGTH_BYTES + length
    magic = buf[pos + 4]
    if magic == 0:
        return pos + 9, end, Codec.NONE
    if magic != 1:
        raise CorruptMessage(f"unknown magic {magic} at byte {pos}: Kafka 0.7 has 0 and 1")
    if length == _MIN_LENGTH:
        raise CorruptMessage(f"impossible message length {length} at byte {pos}")
    if left < _LENGTH_BYTES + 2:
        return None
    codec = buf[pos + 5] & CODEC_BITS
    if codec == CODEC_BITS:
        raise CorruptMessage(f"unknown codec {codec} at byte {pos}: Kafka 0.7 has 0 to 2")
    return pos + 10, end, CODECS[codec]


def entry_at_byte(buf: Buffer, target: int) -> int:
    """Position of the entry with byte ``target``, by lengths from byte 0 on; if ``buf`` is too short, that of
    the first entry without its 5 bytes of length and magic, perhaps beyond its end.
    """
    pos, last = 0, len(buf) - _LENGTH_AND_MAGIC.size
    while pos <= last:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(buf, pos)
        if magic > 1 or length < _MIN_LENGTH + magic:
            raise CorruptMessage(f"no message begins at byte {pos}: length {length}, magic {magic}")
        end = pos + _LENGTH_BYTES + int(length)
        if end > target:
            break
        pos = end
    return pos


def check_produced(buf: Buffer, *, max_message_bytes: int, max_bytes: int) -> CheckedSet:
    """Check every produced message, inner ones too; a cut tail is not counted.

    ``max_message_bytes`` limits each entry's stored payload, ``max_bytes`` the total decompressed size. An
    oversized payload or an incomplete first entry is reported before other faults.
    """
    view = memoryview(buf)
    pos, size, count = 0, len(view), 0
    budget = _Budget(max_bytes)
    fault: CorruptMessage | None = None
    while (found := entry_header(view, pos)) is not None and found[1] <= size:
        payload, end, codec = found
        if end - payload > max_message_bytes:
            raise MessageTooLarge(
                f"message of {end - payload} bytes at byte {pos}; the limit is {max_message_bytes}"
            )
        (crc,) = _CRC.unpack_from(view, payload - _CRC_BYTES)
        # An Entry per message would double the time: 2.0 instead of 1.0 us for 100 bytes.
        if codec is Codec.NONE and crc32(view[payload:end]) == crc:
            count += 1
        elif fault is None:
            try:
                count += sum(1 for _ in _payloads(_entry(view, pos, pos, found), budget))
            except CorruptMessage as e:
                fault = e
        pos = end
    if pos == 0 and size > 0:
        raise CorruptMessage(f"the first of {size} bytes of messages is incomplete")
    if fault is not None:
        raise fault
    return CheckedSet(pos, count)


def verify_entry(entry: Entry) -> None:
    found = crc32(entry.payload)
    if found != entry.crc:
        raise CorruptMessage(
            f"bad checksum {found:#010x} of the message at byte {entry.position}; stored is {entry.crc:#010x}"
        )


def sound_entry(buf: Buffer, pos: int, max_message_bytes: int) -> Entry | None:
    """The entry at ``pos`` if it is whole, allowed in length, and its checksum is correct."""
    try:
        entry = _whole_entry(memoryview(buf), pos, pos)
        if entry is None or len(entry.payload) > max_message_bytes:
            return None
        verify_entry(entry)
    except CorruptMessage:
        return None
    return entry


def next_sound_entry(buf: Buffer, pos: int, max_message_bytes: int) -> int | None:
    """Position of the first sound entry after the one at ``pos``, or None: at its end, else at any byte."""
    view = memoryview(buf)
    try:
        found = entry_header(view, pos)
    except CorruptMessage:
        found = None
    if found is not None and sound_entry(view, found[1], max_message_bytes) is not None:
        return found[1]
    for match in _MAY_BEGIN.finditer(view, pos + 1):
        entry = sound_entry(view, match.start(), max_message_bytes)
        # Empty messages often occur inside others by chance.
        if entry is not None and len(entry.payload):
            return entry.position
    return None


def encode_message(payload: Buffer, *, magic: int = 1, codec: Codec = Codec.NONE) -> bytes:
    """One entry; with a ``codec``, ``payload`` must already be compressed."""
    if magic not in (0, 1) or codec not in CODECS or (codec and not magic):
        raise InvalidRecord(f"Kafka 0.7 has no message of magic {magic} with codec {codec.name.lower()}")
    length = 1 + magic + _CRC_BYTES + len(payload)
    if length > _MAX_LENGTH:
        raise InvalidRecord(f"payload of {len(payload)} bytes; an entry's length has 31 bits")
    if magic:
        return _ENTRY_1.pack(length, 1, codec, crc32(payload)) + payload
    return _ENTRY_0.pack(length, 0, crc32(payload)) + payload


def encode_set(payloads: Iterable[Buffer], *, codec: Codec = Codec.NONE, magic: int = 1) -> bytes:
    """Consecutive entries of this magic; with a ``codec``, inside one entry of magic 1."""
    data = b"".join([encode_message(payload, magic=magic) for payload in payloads])
    if codec is Codec.NONE:
        return data
    if codec not in CODECS:
        raise InvalidRecord(f"Kafka 0.7 has no codec {codec.name.lower()}")
    return encode_message(compress(codec, data), codec=codec)


class V07Format:
    """0.7's entries as a `MessageFormat`. Each byte is an offset; ``last_offset`` is the last byte's."""

    min_frame_size = MIN_ENTRY_BYTES

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        found = entry_header(buf, pos)
        if found is None:
            return None
        size = found[1] - pos
        return Frame(pos, size, offset, offset + size - 1, offset + size, NO_TIMESTAMP)

    def verify(self, buf: memoryview, frame: Frame) -> None:
        verify_entry(_framed(buf, frame))

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        view = memoryview(buf)[frame.position : frame.end]
        for payload, next_offset in messages(view, frame.first_offset, max_bytes=max_bytes):
            kind = TimestampType.CREATE_TIME
            yield Record(frame.first_offset, next_offset, NO_TIMESTAMP, kind, None, bytes(payload))

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        for _ in _payloads(_framed(buf, frame), _Budget(max_bytes)):
            yield NO_TIMESTAMP, frame.first_offset


def _framed(buf: memoryview, frame: Frame) -> Entry:
    entry = _whole_entry(memoryview(buf), frame.position, frame.first_offset)
    if entry is None:
        raise CorruptMessage(f"the entry at byte {frame.position} is cut short at byte {len(buf)}")
    return entry


def _whole_entry(view: memoryview, pos: int, offset: int) -> Entry | None:
    found = entry_header(view, pos)
    return None if found is None or found[1] > len(view) else _entry(view, pos, offset, found)


def _entry(view: memoryview, pos: int, offset: int, found: tuple[int, int, Codec]) -> Entry:
    payload, end, codec = found
    (crc,) = _CRC.unpack_from(view, payload - _CRC_BYTES)
    return Entry(pos, end - pos, offset, codec, crc, view[payload:end])


class _Budget:
    """Bytes that decompression may still yield. *Not thread-safe: belongs to one walk.*"""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def opened(self, entry: Entry) -> memoryview:
        data = decompress(entry.codec, entry.payload, self._left)
        self._left -= len(data)
        return memoryview(data)


def _payloads(entry: Entry, budget: _Budget) -> Iterator[memoryview]:
    verify_entry(entry)
    if entry.codec is Codec.NONE:
        yield entry.payload
        return
    try:
        # A stack instead of recursion, since producers choose the depth.
        levels = [_inner_entries(budget.opened(entry))]
        while levels:
            inner = next(levels[-1], None)
            if inner is None:
                levels.pop()
                continue
            verify_entry(inner)
            if inner.codec is Codec.NONE:
                yield inner.payload
            else:
                levels.append(_inner_entries(budget.opened(inner)))
    except CorruptMessage as e:
        raise CorruptMessage(f"in the compressed entry at byte {entry.position}: {e}") from None


def _inner_entries(data: memoryview) -> Iterator[Entry]:
    """Entries of a decompressed set. A cut last one is skipped unless it is also the first."""
    size = 0
    for entry in entries(data):
        size = entry.end
        yield entry
    if not size and len(data) > 0:
        raise CorruptMessage(f"the first of {len(data)} bytes of messages is incomplete")
