"""What an append must be before anything of it is written. Pure; walks frames, never records.

The rules are Kafka's for batches that a client sends (``LogValidator``, ``UnifiedLog``): one bad batch
refuses the whole request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.config import LogConfig
from pyspark_kafkalog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    ServerError,
)
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.batch import HEADER_SIZE, BatchHeader, assign, read_header, verify_crc
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

LEADER_EPOCH = 0
"""Written into every batch: without replicas there is only one leader, and one epoch."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where an append went.

    ``log_append_time_ms`` is -1 where records keep their producer's time. A ``duplicate`` was appended by
    an earlier request, and the offsets are those it got then.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    start_offset: int
    duplicate: bool = False


class AppendGuard(Protocol):
    """Keeps idempotent producers' batches in order and single. Called under the log's lock only."""

    def check(self, header: BatchHeader) -> tuple[int, int] | None:
        """The base and last offset of the batch that this one repeats; None when it is new and in order.

        Raises:
            OutOfOrderSequence: batches are missing between the producer's last one and this.
            InvalidProducerEpoch: a newer instance of the producer has written here.
        """
        ...

    def record(self, header: BatchHeader, base_offset: int, last_offset: int, timestamp: int) -> None:
        """The batch was appended, at ``timestamp`` ms by the broker's clock."""
        ...

    def clear(self) -> None:
        """Forget all producers: the log is about to be replayed."""
        ...

    def forget_before(self, now_ms: int) -> None:
        """Forget producers that have been silent for too long at ``now_ms``."""
        ...

    def dump(self) -> bytes:
        """Everything that is remembered, for `restore`; empty when that is nothing."""
        ...

    def restore(self, data: bytes) -> None:
        """Take over what `dump` gave. Raises `CorruptMessage` when it is not that."""
        ...


def check_batches(data: memoryview, config: LogConfig, now_ms: int, *, internal: bool) -> list[BatchHeader]:
    """The headers of the batches in ``data``, all of them whole and fit to be appended.

    ``internal`` is for what the broker itself appends: control and transactional batches are then allowed,
    and timestamps and size are not bounded.

    Raises:
        CorruptMessage: a batch is cut short, has a wrong checksum, or its header is impossible.
        MessageTooLarge: a batch is larger than ``max.message.bytes``.
        InvalidRecord: it is well formed, but nothing that a client may send.
        InvalidTimestamp: its times are outside what the topic allows.
        ServerError: INVALID_TXN_STATE for a transactional batch.
        UnsupportedCompression: its codec is unknown.
    """
    headers = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        if not internal and header.size > config.max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {header.size} bytes; max.message.bytes is {config.max_message_bytes}"
            )
        if header.size > len(data) - position:
            raise CorruptMessage(
                f"the batch at byte {position} has {len(data) - position} of its {header.size} bytes"
            )
        verify_crc(data, position, header)
        _check_contents(header)
        if not internal:
            _check_sender(header)
            _check_times(header, config, now_ms)
        headers.append(header)
        position += header.size
    if not headers:
        raise InvalidRecord("there is no record batch in the request")
    if not internal and len(headers) > 1 and any(header.producer_id >= 0 for header in headers):
        raise InvalidRecord("a batch of an idempotent producer must come alone")
    return headers


def assign_offsets(
    data: memoryview,
    headers: Sequence[BatchHeader],
    base_offset: int,
    file_position: int,
    log_append_time_ms: int | None,
) -> list[Frame]:
    """Number the batches in place from ``base_offset`` on, for a file where they begin at ``file_position``.

    Only a ``log_append_time_ms`` costs a new checksum.
    """
    frames = []
    position = 0
    for header in headers:
        assign(
            data,
            position,
            base_offset=base_offset,
            leader_epoch=LEADER_EPOCH,
            log_append_time=log_append_time_ms,
        )
        last = base_offset + header.last_offset_delta
        timestamp = header.max_timestamp if log_append_time_ms is None else log_append_time_ms
        frames.append(Frame(file_position + position, header.size, base_offset, last, last + 1, timestamp))
        base_offset = last + 1
        position += header.size
    return frames


def _check_contents(header: BatchHeader) -> None:
    """The header agrees with itself; what only decompression would show is the reader's to find."""
    if header.record_count < 1:
        raise InvalidRecord("a record batch without records")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    # No record has fewer than 7 bytes; compressed, no batch is without at least one.
    floor = header.record_count * 7 if header.attributes & 7 == 0 else 1
    if header.size - HEADER_SIZE < floor:
        raise InvalidRecord(f"{header.record_count} records cannot be in {header.size - HEADER_SIZE} bytes")
    _ = header.codec  # raises where there is no such codec


def _check_sender(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a batch to append must be 0, not {header.base_offset}")
    if header.is_control:
        raise InvalidRecord("clients may not write control records")
    if header.is_transactional:
        if header.producer_id < 0:
            raise InvalidRecord("a transactional batch without a producer id")
        raise ServerError(
            ErrorCode.INVALID_TXN_STATE, "a transactional batch, and no transaction is open in this partition"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(
            f"producer {header.producer_id}: epoch {header.producer_epoch}, sequence {header.base_sequence}"
        )


def _check_times(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Kafka's bounds, applied to the two times in the header: those of the first and of the newest record."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidTimestamp("a producer may not set the log append time")
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            raise InvalidTimestamp(f"timestamp {timestamp} is outside [{earliest}, {latest}]")
