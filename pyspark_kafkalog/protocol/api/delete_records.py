"""DeleteRecords, versions 0-2: have partitions begin at an offset.

Flexible from 2. Left out: nothing. Source: protocol guide, DeleteRecords; KIP-107.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """What is below ``offset`` is to go; -1 is the high watermark."""

    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopic:
    name: str = wire(STRING)
    partitions: tuple[DeleteRecordsPartition, ...] = wire(Array(DeleteRecordsPartition))


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...] = wire(Array(DeleteRecordsTopic))
    timeout_ms: int = wire(INT32)


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartitionResult:
    """Where the partition begins now; -1 with an error."""

    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopicResult:
    name: str = wire(STRING)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = wire(Array(DeleteRecordsPartitionResult))


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    throttle_time_ms: int = wire(INT32)
    topics: tuple[DeleteRecordsTopicResult, ...] = wire(Array(DeleteRecordsTopicResult))
