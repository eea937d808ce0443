"""Converts entries between message formats, for readers and topics of another format. Pure.

* `batch_of_entry`: a 0.7 entry to a v2 batch with one offset per byte. The base offset is the entry's
  position, the last offset delta its size less one, so following v2 offsets follows 0.7 positions.
* `for_reader`: a log's entries to an older format, for readers that know no newer; `readable_until` finds
  the part that needs no conversion.
* `for_topic`: a producer's entries to the topic's format.

Memory: one decompressed set and the piece made of it. Messages compressed together stay together with their
codec if they fit one entry. ``docs/formats.md`` lists what each direction loses. Source: Kafka 2.8
``record/RecordsUtil.java``, ``log/LogValidator.scala``.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from pyspark_kafkalog import errors
from pyspark_kafkalog.formats import batch as batches
from pyspark_kafkalog.formats.base import Buffer, Frame
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import ENTRY_OVERHEAD, Message, encode_entry, messages, wrap_set
from pyspark_kafkalog.formats.message_set import LOWEST, codec_at, frames
from pyspark_kafkalog.formats.record import encode_record, read_messages
from pyspark_kafkalog.formats.v07 import entry_header, payloads
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, TimestampType

PIECE_BYTES = 1 << 20  # size of a piece of uncompressed messages, unless one message is larger
_MOST_OVERHEAD = 34  # largest per-message overhead besides key and value: a v1 entry's


class ConvertedEntry(NamedTuple):
    """A record batch, its record count, and its size before compression."""

    batch: bytes
    message_count: int
    block_bytes: int


def batch_of_entry(entry: Buffer, offset: int, *, max_bytes: int, leader_epoch: int = -1) -> ConvertedEntry:
    """The batch for exactly one ``entry``, which may decompress to ``max_bytes``: gzip, which all clients
    read, if the entry is compressed; without records if it has no messages.
    """
    size = len(entry)
    found = entry_header(entry, 0)
    if found is None or found[1] != size:
        raise errors.CorruptMessage(f"{size} bytes at offset {offset} are not one whole entry")
    block, count = bytearray(), 0

    for payload in payloads(entry, max_bytes=max_bytes):
        if count == size:
            raise errors.InvalidRecord(
                f"the entry at offset {offset} has {size} bytes and more messages than that: record batches"
                " need an offset for each"
            )
        # Encode at once without objects: there may be a million messages.
        block += encode_record(NewRecord(bytes(payload), None, NO_TIMESTAMP), NO_TIMESTAMP, count)
        count += 1
    codec = Codec.GZIP if found[2] is not Codec.NONE and count else Codec.NONE
    batch = batches.seal_batch(
        compress(codec, block),
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=codec,
        last_offset_delta=size - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=count,
    )
    return ConvertedEntry(batch, count, len(block))


class Piece(NamedTuple):
    """Converted entries; reading continues at ``next_offset``. ``message_count`` and ``block_bytes`` (before
    compression) count converted messages; both are 0 if ``data`` is a view of the input.
    """

    data: bytes | memoryview
    next_offset: int
    message_count: int
    block_bytes: int


def for_reader(
    buf: Buffer, magic: int, *, start_offset: int = 0, max_bytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Convert the whole entries in ``buf`` for a reader of formats up to ``magic``; offsets are kept.

    Yields readable entries as views, even with messages before ``start_offset``, and converts others from
    there. A batch without records to return becomes an empty piece that only advances ``next_offset``. Drops
    headers, producer ids and transactions; refuses zstd. An entry holds up to ``max_bytes`` before
    compression; a larger result is split.
    """
    view = memoryview(buf)
    known: Frame | None = None  # first of the frames passed on together unchanged
    last: Frame | None = None
    for frame in frames(view, start_offset=start_offset):
        is_readable = batches.magic_at(view, frame.position) <= magic
        if (
            known is not None
            and last is not None
            and not (is_readable and frame.position == last.end and frame.end - known.position <= piece_bytes)
        ):
            yield Piece(view[known.position : last.end], last.next_offset, 0, 0)
            known = None
        if is_readable:
            known, last = known or frame, frame
            continue
        yield from _convert_for_reader(view, frame, magic, start_offset, max_bytes, piece_bytes)
    if known is not None and last is not None:
        yield Piece(view[known.position : last.end], last.next_offset, 0, 0)


def for_topic(
    buf: Buffer, magic: int, *, base_offset: int = 0, max_bytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Convert what a producer sent to format ``magic``, with offsets from ``base_offset`` on.

    Uncompressed messages become v2 batches of at most ``piece_bytes``, or of one message. Only v0's missing
    timestamps are lost silently. As in Kafka, raises `InvalidRecord` for control records, and
    UNSUPPORTED_FOR_MESSAGE_FORMAT for what the format lacks.
    """
    view = memoryview(buf)
    loose = _Block(magic, Codec.NONE)  # messages sent uncompressed
    for frame in frames(view, start_offset=LOWEST):
        pos, codec = frame.position, codec_at(view, frame.position)
        is_batch = batches.magic_at(view, pos) == batches.MAGIC
        if loose.count and (is_batch or codec is not Codec.NONE):
            yield loose.sealed()
            loose = _Block(magic, Codec.NONE)
        if is_batch and magic == batches.MAGIC:
            moved = bytearray(view[pos : frame.end])
            batches.assign(moved, 0, base_offset=base_offset, leader_epoch=-1)
            base_offset += frame.next_offset - frame.first_offset
            yield Piece(bytes(moved), base_offset, 0, 0)
            continue
        if is_batch:
            header = batches.read_header(view, pos)
            _check_convertible(header, magic)
            found = _of_batch(view, pos, header, max_bytes, headers_lost=False)
        else:
            found = messages(view, pos, max_bytes=max_bytes, stored=False)
        if codec is Codec.NONE:
            for message in found:
                if not loose.has_room(message, piece_bytes):
                    yield loose.sealed()
                    loose = _Block(magic, Codec.NONE)
                loose.add(message, base_offset)
                base_offset += 1
        else:
            packed = _Block(magic, codec)
            for message in found:
                packed.add(message, base_offset)
                packed.check(max_bytes)
                base_offset += 1
            yield packed.sealed()
    if loose.count:
        yield loose.sealed()


def _convert_for_reader(
    view: memoryview, frame: Frame, magic: int, start_offset: int, max_bytes: int, piece_bytes: int
) -> Iterator[Piece]:
    pos = frame.position
    if batches.magic_at(view, pos) == batches.MAGIC:
        header = batches.read_header(view, pos)
        if header.is_control or not header.record_count:
            yield Piece(b"", frame.next_offset, 0, 0)
            return
        _refuse_zstd(header, magic)
        found = _of_batch(view, pos, header, max_bytes)
    else:
        found = messages(view, pos, max_bytes=max_bytes, stored=True)
    codec = codec_at(view, pos)
    block = _Block(magic, codec)
    limit = piece_bytes if codec is Codec.NONE else max_bytes
    for message in found:
        if message.offset < start_offset:
            continue
        if not block.has_room(message, limit):
            yield block.sealed()
            block = _Block(magic, codec)
        block.add(message, message.offset)
    last = block.sealed() if block.count else Piece(b"", 0, 0, 0)
    yield last._replace(next_offset=frame.next_offset)


def _check_convertible(header: batches.BatchHeader, magic: int) -> None:
    if header.is_control:
        raise errors.InvalidRecord("clients may not write control records")
    if header.producer_id >= 0 or header.is_transactional:
        what = "transactional" if header.is_transactional else "idempotent"
        raise _unsupported(f"v{magic} has no {what} records")
    _refuse_zstd(header, magic)


def _unsupported(what: str) -> errors.ServerError:
    return errors.ServerError(errors.ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format {what}")


def _refuse_zstd(header: batches.BatchHeader, magic: int) -> None:
    if header.codec is Codec.ZSTD:
        raise errors.UnsupportedCompression(
            f"the batch at offset {header.base_offset} is in zstd, which format v{magic} does not have"
        )


def _of_batch(
    view: memoryview, pos: int, header: batches.BatchHeader, max_bytes: int, *, headers_lost: bool = True
) -> Iterator[Message]:
    batches.verify_crc(view, pos, header)
    walk = read_messages(
        batches.record_block(view, pos, header, max_bytes),
        header.record_count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
    )
    kind = header.timestamp_type
    try:
        for timestamp, offset, key, value, has_headers in walk:
            if has_headers and not headers_lost:
                raise _unsupported("v0 and v1 have no headers")
            time = header.max_timestamp if kind is TimestampType.LOG_APPEND_TIME else timestamp
            yield Message(offset, time, kind, key, value, batches.MAGIC)
    except errors.CorruptMessage as e:
        raise errors.CorruptMessage(f"batch at offset {header.base_offset}: {e}") from None


class _Block:
    """Messages collected in one format for one piece. *Not thread-safe.*"""

    __slots__ = (
        "_block", "_first_offset", "_first_time", "_kind", "_last_offset", "_newest", "_relative",
        "codec", "count", "magic",
    )  # fmt: skip

    def __init__(self, magic: int, codec: Codec) -> None:
        self.magic, self.codec = magic, codec
        self.count = 0
        self._block = bytearray()
        self._first_offset = self._last_offset = 0
        self._first_time = self._newest = NO_TIMESTAMP
        self._kind = TimestampType.CREATE_TIME
        self._relative = magic == 1 and codec is not Codec.NONE

    def has_room(self, message: Message, limit: int) -> bool:
        if not self.count:
            return True
        # With log append time, all records of a v2 batch share one time.
        kind = message.timestamp_type
        if self.magic == batches.MAGIC and (
            kind is not self._kind
            or (kind is TimestampType.LOG_APPEND_TIME and message.timestamp != self._first_time)
        ):
            return False
        size = len(message.key or b"") + len(message.value or b"")
        return batches.HEADER_SIZE + len(self._block) + _MOST_OVERHEAD + size <= limit

    def add(self, message: Message, offset: int) -> None:
        _, timestamp, kind, key, value, _ = message
        if not self.count:
            self._first_offset, self._kind = offset, kind
            self._first_time = self._newest = timestamp
        if self.magic == batches.MAGIC:
            record = NewRecord(
                None if value is None else bytes(value), None if key is None else bytes(key), timestamp
            )
            self._block += encode_record(record, self._first_time, offset - self._first_offset)
        else:
            place = offset - self._first_offset if self._relative else offset
            self._block += encode_entry(
                key, value, self.magic, place, timestamp, kind << 3 if self.magic else 0
            )
        self.count += 1
        self._last_offset = offset
        if timestamp > self._newest:
            self._newest = timestamp

    def check(self, max_bytes: int) -> None:
        if len(self._block) > max_bytes:
            raise errors.MessageTooLarge(
                f"the compressed set at offset {self._first_offset} has more than {max_bytes} bytes in format"
                f" v{self.magic}"
            )

    def sealed(self) -> Piece:
        codec = self.codec
        if self.magic == batches.MAGIC:
            data = batches.seal_batch(
                compress(codec, bytes(self._block)),
                base_offset=self._first_offset,
                attributes=codec | self._kind << 3,
                last_offset_delta=self._last_offset - self._first_offset,
                base_timestamp=self._first_time,
                max_timestamp=self._newest,
                record_count=self.count,
            )
        elif codec is Codec.NONE:
            data = bytes(self._block)
        else:
            data = wrap_set(
                self._block,
                magic=self.magic,
                codec=codec,
                last_offset=self._last_offset,
                timestamp=self._newest,
                timestamp_type=self._kind,
            )
        return Piece(data, self._last_offset + 1, self.count, len(self._block))


# --- what needs no conversion

_HEAD = Struct(">8xi4xB")  # length and magic; shorter than any whole entry
HEAD_BYTES = _HEAD.size


def readable_until(buf: Buffer, pos: int, newest_magic: int) -> tuple[int, bool]:
    """Position after the entries from ``pos`` on of formats up to ``newest_magic``, and whether a newer one
    follows. If False, the next head is damaged or beyond ``buf``; the position may be too.
    """
    end = len(buf) - HEAD_BYTES
    unpack = _HEAD.unpack_from
    while pos <= end:
        length, magic = unpack(buf, pos)
        if magic > newest_magic:
            return pos, True
        if length <= 0:
            break
        pos += ENTRY_OVERHEAD + length
    return pos, False
