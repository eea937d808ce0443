"""ListOffsets, versions 0-7: the offset for a timestamp, or at an end of a log.

Flexible from 6. ``timestamp`` is in milliseconds, or one of `types`' `LATEST_TIMESTAMP`, `EARLIEST_TIMESTAMP`
and, from version 7, `MAX_TIMESTAMP`. Version 0 requests up to ``max_num_offsets``; the response has them in
``old_style_offsets``, the greatest first. Left out: 8 and later (tiered storage). Source: protocol guide,
ListOffsets; KIP-79, 734.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, 4, default=-1, ignorable=True)
    timestamp: int = wire(INT64)
    max_num_offsets: int = wire(INT32, 0, 0, default=1)


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    name: str = wire(STRING)
    partitions: tuple[ListOffsetsPartition, ...] = wire(Array(ListOffsetsPartition))


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """The timestamps to look up; ``replica_id`` -1 is a consumer."""

    replica_id: int = wire(INT32, default=-1)
    isolation_level: int = wire(INT8, 2)
    topics: tuple[ListOffsetsTopic, ...] = wire(Array(ListOffsetsTopic))


@dataclass(frozen=True, slots=True)
class ListOffsetsPartitionResponse:
    """The first record at or after the timestamp, -1 for none; in version 0 starts of segments before it."""

    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    old_style_offsets: tuple[int, ...] = wire(Array(INT64), 0, 0)
    timestamp: int = wire(INT64, 1, default=-1)
    offset: int = wire(INT64, 1, default=-1)
    leader_epoch: int = wire(INT32, 4, default=-1, ignorable=True)


@dataclass(frozen=True, slots=True)
class ListOffsetsTopicResponse:
    name: str = wire(STRING)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = wire(Array(ListOffsetsPartitionResponse))


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    throttle_time_ms: int = wire(INT32, 2, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = wire(Array(ListOffsetsTopicResponse))
