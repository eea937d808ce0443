"""A v2 record batch's header: its layout, its meaning, its checksum.

Big-endian; positions in bytes from the batch's first::

     0 base_offset:8        12 partition_leader_epoch:4   27 base_timestamp:8   57 record_count:4
     8 batch_length:4       16 magic:1 = 2                35 max_timestamp:8    61 records
                            17 crc:4                      43 producer_id:8
                            21 attributes:2               51 producer_epoch:2
                            23 last_offset_delta:4        53 base_sequence:4

``batch_length`` counts what follows it. ``crc`` is the CRC-32C of everything from ``attributes`` on, so a
broker sets offset and leader epoch without touching it. Attributes: bits 0-2 codec, 3 log append time,
4 transactional, 5 control, 6 delete horizon. The records are compressed as one block; the header never is.
Source: Kafka protocol guide, "Record Batch".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.types import TimestampType

HEADER_SIZE = 61
BATCH_OVERHEAD = 12
"""Bytes before those that ``batch_length`` counts."""

MAGIC = 2

HEADER = struct.Struct(">qiibIhiqqqhii")
UNCOVERED = struct.Struct(">qiibI")
COVERED = struct.Struct(">hiqqqhii")
"""The header, and its two parts: what the checksum does not cover and what it does."""

CRC_POSITION = 17
ATTRIBUTES_POSITION = 21

CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_MAX_OFFSET = (1 << 63) - 1
_SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fields of a batch before its records; the module's docstring has their layout."""

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
        """Bytes of the whole batch."""
        return BATCH_OVERHEAD + self.batch_length

    @property
    def codec(self) -> Codec:
        """How the records are compressed.

        Raises:
            UnsupportedCompression: by a codec that Kafka does not have.
        """
        return Codec.of(self.attributes & CODEC_BITS)

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the records' timestamps."""
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether its records are for readers themselves and not for their users."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp`` says when tombstones may be deleted. Records' times as ever."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch ever held."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where reading goes on, also after a batch that compaction has emptied."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 without one; they wrap from 2**31-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header of the batch at ``pos``; of the batch only so much need be in ``buf``.

    Raises:
        CorruptMessage: it is cut short, or is not that of a v2 batch.
    """
    base, length, epoch, _, *rest = read_header_fields(buf, pos)
    return BatchHeader(base, length, epoch, *rest)


def read_header_fields(buf: Buffer, pos: int) -> tuple[int, ...]:
    """The thirteen fields of the header at ``pos``, ``magic`` among them, in their order and checked.

    Raises:
        CorruptMessage: it is cut short, or is not that of a v2 batch.
    """
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


def codec_at(buf: Buffer, pos: int) -> Codec:
    """The codec of the batch at ``pos``, whose header is whole. Raises as `BatchHeader.codec`."""
    return Codec.of(buf[pos + ATTRIBUTES_POSITION + 1] & CODEC_BITS)


def verify_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Compare the batch's bytes with the header's checksum.

    Raises:
        CorruptMessage: they differ, or the batch is cut short.
    """
    with memoryview(buf) as view, view[pos + ATTRIBUTES_POSITION : batch_end(buf, pos, header)] as covered:
        found = crc32c(covered)
    if found != header.crc:
        raise CorruptMessage(
            f"batch at offset {header.base_offset}: CRC-32C is {found:#010x}, header says {header.crc:#010x}"
        )


def batch_end(buf: Buffer, pos: int, header: BatchHeader) -> int:
    """Position after the batch that begins at ``pos``.

    Raises:
        CorruptMessage: not all of it is in ``buf``.
    """
    end = pos + header.size
    if end > len(buf):
        raise CorruptMessage(
            f"batch at offset {header.base_offset} is cut short: {len(buf) - pos} of {header.size} bytes"
        )
    return end
