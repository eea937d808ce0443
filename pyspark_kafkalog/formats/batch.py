"""Record batches of format v2 (Kafka 0.11 and later): header, records as a block, and writing both.

Big-endian; positions in bytes from the batch's first::

     0 base_offset:8        12 partition_leader_epoch:4   27 base_timestamp:8   57 record_count:4
     8 batch_length:4       16 magic:1 = 2                35 max_timestamp:8    61 records (`record`)
                            17 crc:4                      43 producer_id:8
                            21 attributes:2               51 producer_epoch:2
                            23 last_offset_delta:4        53 base_sequence:4

``batch_length`` counts the bytes after it. ``crc`` is the CRC-32C from ``attributes`` on, so a broker sets
offset and leader epoch without changing it. Attributes: bits 0-2 codec, 3 log append time, 4 transactional,
5 control, 6 delete horizon. The records are compressed as one block; the header never is.
``docs/formats.md`` has the rules for readers. Source: Kafka protocol guide, "Record Batch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise

import msgspec

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord
from pyspark_kafkalog.formats.base import Buffer, Frame, crc32c, read_varint, read_varlong
from pyspark_kafkalog.formats.compression import Codec, compress, decompress
from pyspark_kafkalog.formats.record import encode_record, parse_records, read_times
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, Record, TimestampType

HEADER_SIZE = 61
BATCH_OVERHEAD = 12  # bytes before those counted by ``batch_length``
MAGIC = 2

# The header, and its parts outside and inside the checksum.
HEADER = struct.Struct(">qiibIhiqqqhii")
UNCOVERED = struct.Struct(">qiibI")
COVERED = struct.Struct(">hiqqqhii")
MAGIC_POSITION = 16  # in entries of all formats
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21

CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_MAX_OFFSET = (1 << 63) - 1
_SEQUENCES = 1 << 31

_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")
_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_LEADER_EPOCH_POSITION = 12
_MAX_TIMESTAMP_POSITION = 35


class BatchHeader(msgspec.Struct, frozen=True):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return BATCH_OVERHEAD + self.batch_length

    @property
    def codec(self) -> Codec:
        return Codec.of(self.attributes & CODEC_BITS)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp`` is the time from which tombstones may be deleted."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record, even if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where reading continues, also after a batch that compaction has emptied."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, -1 if none; numbers wrap from 2**31-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header of the batch at ``pos``; ``buf`` need only hold the header."""
    base, length, epoch, _, *rest = read_header_fields(buf, pos)
    return BatchHeader(base, length, epoch, *rest)


def read_header_fields(buf: Buffer, pos: int) -> tuple[int, ...]:
    if len(buf) - pos < HEADER_SIZE:
        raise CorruptMessage(
            f"batch header at byte {pos} is cut short: {len(buf) - pos} of {HEADER_SIZE} bytes"
        )
    fields = HEADER.unpack_from(buf, pos)
    base, length, _, magic, _, _, last_delta, _, _, _, _, _, count = fields
    if magic != MAGIC:
        raise CorruptMessage(f"batch at byte {pos} has magic {magic}, not {MAGIC}")
    if length < HEADER_SIZE - BATCH_OVERHEAD:
        raise CorruptMessage(f"impossible batch length {length} at byte {pos}, offset {base}")
    if not 0 <= count <= last_delta + 1 or last_delta < 0:
        raise CorruptMessage(
            f"batch at byte {pos}, offset {base}: {count} records with a last offset delta of {last_delta}"
        )
    if base > _MAX_OFFSET - last_delta - 1:
        raise CorruptMessage(f"batch at byte {pos}: its offsets from {base} on do not fit 64 bits")
    return fields


def magic_at(buf: Buffer, pos: int) -> int:
    """The format of the entry at ``pos``: 0 to 2. Raises `CorruptMessage`: another, or cut short."""
    if len(buf) - pos <= MAGIC_POSITION:
        raise CorruptMessage(f"the entry at byte {pos} is cut short: {len(buf) - pos} bytes")
    magic = buf[pos + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptMessage(f"unknown magic {magic} of the entry at byte {pos}: Kafka has 0 to {MAGIC}")
    return magic


def codec_at(buf: Buffer, pos: int) -> Codec:
    return Codec.of(buf[pos + ATTRIBUTES_POSITION + 1] & CODEC_BITS)


def verify_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    with memoryview(buf) as view, view[pos + ATTRIBUTES_POSITION : batch_end(buf, pos, header)] as covered:
        found = crc32c(covered)
    if found != header.crc:
        raise CorruptMessage(
            f"batch at offset {header.base_offset}: CRC-32C is {found:#010x}, header says {header.crc:#010x}"
        )


def batch_end(buf: Buffer, pos: int, header: BatchHeader) -> int:
    end = pos + header.size
    if end > len(buf):
        raise CorruptMessage(
            f"batch at offset {header.base_offset} is cut short: {len(buf) - pos} of {header.size} bytes"
        )
    return end


class ControlType(IntEnum):
    UNKNOWN = -1  # not a transaction marker: newer Kafka versions have other types
    ABORT = 0
    COMMIT = 1


def record_block(buf: Buffer, pos: int, header: BatchHeader, max_bytes: int) -> memoryview:
    """The records' bytes, decompressed, or a view if not compressed. Does not check the CRC."""
    block = memoryview(buf)[pos + HEADER_SIZE : batch_end(buf, pos, header)]
    codec = header.codec
    # An empty batch has no block, whatever its codec.
    if codec is Codec.NONE or not block:
        return block
    return memoryview(decompress(codec, block, max_bytes))


def decode_records(
    buf: Buffer, pos: int, header: BatchHeader, max_bytes: int, *, check_crc: bool = True
) -> list[Record]:
    """The batch's records; the caller must skip those of a control batch."""
    if check_crc:
        verify_crc(buf, pos, header)
    try:
        return parse_records(
            bytes(record_block(buf, pos, header, max_bytes)),
            header.record_count,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            append_timestamp=header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None,
        )
    except CorruptMessage as e:
        raise CorruptMessage(f"batch at offset {header.base_offset}: {e}") from None


def control_type(record: Record) -> ControlType:
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptMessage(f"control record at offset {record.offset} has no type in its key")
    version, number = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptMessage(f"control record at offset {record.offset} has key version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


MARKER_HEAD_BYTES = HEADER_SIZE + 32  # bytes at the start of a control batch that suffice for `marker_type`


def marker_type(head: Buffer) -> ControlType:
    try:
        _, pos = read_varint(head, HEADER_SIZE)
        _, pos = read_varlong(head, pos + 1)
        _, pos = read_varint(head, pos)
        length, pos = read_varint(head, pos)
        version, number = _CONTROL_KEY.unpack_from(head, pos)
    except (struct.error, IndexError) as e:
        raise CorruptMessage(f"control batch of {len(head)} bytes: {e}") from None
    if length < _CONTROL_KEY.size or version < 0 or number not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlType.UNKNOWN
    return ControlType(number)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    level: int | None = None,
    leader_epoch: int = -1,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    control: bool = False,
) -> bytes:
    """One batch; offsets are consecutive, or ``offset_deltas`` with gaps and the ``last_offset_delta``."""
    deltas: Sequence[int] = range(len(records)) if offset_deltas is None else offset_deltas
    if len(deltas) != len(records) or (offset_deltas and not _rises(offset_deltas)):
        raise InvalidRecord(f"the offset deltas of {len(records)} records do not rise: {deltas}")
    last_held = deltas[-1] if deltas else -1
    last = last_held if last_offset_delta is None else last_offset_delta
    if last < max(last_held, 0):
        raise InvalidRecord(f"a batch of {len(records)} records cannot end at offset delta {last}")
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    block = b"".join([encode_record(r, base_timestamp, d) for r, d in zip(records, deltas, strict=True)])
    return seal_batch(
        compress(codec, block, level) if block else block,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=codec | timestamp_type << 3 | transactional * TRANSACTIONAL_BIT | control * CONTROL_BIT,
        last_offset_delta=last,
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp for record in records), default=NO_TIMESTAMP),
        producer=(producer_id, producer_epoch, base_sequence),
        record_count=len(records),
    )


def _rises(deltas: Sequence[int]) -> bool:
    return deltas[0] >= 0 and all(a < b for a, b in pairwise(deltas))


def encode_control(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
) -> bytes:
    """The control batch that ends a producer's transaction in a partition; key and value have version 0."""
    if kind is ControlType.UNKNOWN:
        raise InvalidRecord("a control batch must abort or commit")
    try:
        key, value = _CONTROL_KEY.pack(0, kind), _CONTROL_VALUE.pack(0, coordinator_epoch)
    except struct.error as e:
        raise InvalidRecord(f"coordinator epoch {coordinator_epoch}: {e}") from None
    return encode_batch(
        [NewRecord(value, key, timestamp)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def seal_batch(
    block: Buffer,
    *more: Buffer,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The batch of an encoded ``block`` plus ``more``; ``producer`` is id, epoch, sequence."""
    try:
        covered = COVERED.pack(
            attributes, last_offset_delta, base_timestamp, max_timestamp, *producer, record_count
        )
        length = HEADER_SIZE - BATCH_OVERHEAD + sum(map(len, (block, *more)))
        crc = crc32c(block, crc32c(covered))
        for part in more:
            crc = crc32c(part, crc)
        head = UNCOVERED.pack(base_offset, length, leader_epoch, MAGIC, crc)
    except struct.error as e:
        raise InvalidRecord(f"batch of {record_count} records at offset {base_offset}: {e}") from None
    return b"".join((head, covered, block, *more))


def assign(
    buf: bytearray | memoryview,
    pos: int,
    *,
    base_offset: int,
    leader_epoch: int,
    log_append_time: int | None = None,
) -> None:
    """Set offset and leader epoch of the batch at ``pos`` in place; no byte under the checksum changes.

    With ``log_append_time`` (milliseconds) also set every record's time and recompute the checksum; the
    caller has verified the old one.
    """
    _OFFSET.pack_into(buf, pos, base_offset)
    _LEADER_EPOCH.pack_into(buf, pos + _LEADER_EPOCH_POSITION, leader_epoch)
    if log_append_time is None:
        return
    header = read_header(buf, pos)
    _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_POSITION, header.attributes | LOG_APPEND_TIME_BIT)
    _OFFSET.pack_into(buf, pos + _MAX_TIMESTAMP_POSITION, log_append_time)
    with memoryview(buf) as view, view[pos + ATTRIBUTES_POSITION : batch_end(buf, pos, header)] as covered:
        _CRC.pack_into(buf, pos + CRC_POSITION, crc32c(covered))


class V2Format:
    """v2 batches as a `MessageFormat`; a frame is a batch."""

    min_frame_size = HEADER_SIZE

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:  # noqa: ARG002  (0.7 needs it)
        if len(buf) - pos < HEADER_SIZE:
            return None
        base, length, _, _, _, _, delta, _, max_timestamp, *_ = read_header_fields(buf, pos)
        return Frame(pos, BATCH_OVERHEAD + length, base, base + delta, base + delta + 1, max_timestamp)

    def verify(self, buf: memoryview, frame: Frame) -> None:
        verify_crc(buf, frame.position, read_header(buf, frame.position))

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        header = read_header(buf, frame.position)
        if header.is_control:
            return iter(())
        return iter(decode_records(buf, frame.position, header, max_bytes))

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        header = read_header(buf, frame.position)
        if header.is_control:
            return
        verify_crc(buf, frame.position, header)
        found = read_times(
            record_block(buf, frame.position, header, max_bytes),
            header.record_count,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
        )
        if header.attributes & LOG_APPEND_TIME_BIT:
            found = ((header.max_timestamp, offset) for _, offset in found)
        try:
            yield from found
        except CorruptMessage as e:
            raise CorruptMessage(f"batch at offset {header.base_offset}: {e}") from None
