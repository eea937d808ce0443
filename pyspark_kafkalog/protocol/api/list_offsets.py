"""ListOffsets, versions 1-7: the offset that belongs to a time, or to an end of a log.

Flexible from 6. ``timestamp`` is in milliseconds, or one of `types`' `LATEST_TIMESTAMP`,
`EARLIEST_TIMESTAMP` and, from version 7, `MAX_TIMESTAMP`.
Left out: version 0 (lists of segment starts), 8 and later (tiers).
Source: protocol guide, ListOffsets; KIP-79, 734.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.schema import ERROR_CODE, INT8, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """The time asked for in one partition."""

    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, 4, default=-1, ignorable=True)
    timestamp: int = wire(INT64)


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[ListOffsetsPartition, ...] = wire(Array(ListOffsetsPartition))


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """Which offsets belong to these times? ``replica_id`` -1 is a consumer."""

    replica_id: int = wire(INT32, default=-1)
    isolation_level: int = wire(INT8, 2)
    topics: tuple[ListOffsetsTopic, ...] = wire(Array(ListOffsetsTopic))


@dataclass(frozen=True, slots=True)
class ListOffsetsPartitionResponse:
    """The first record at or after the time; ``timestamp`` and ``offset`` -1 where there is none."""

    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    timestamp: int = wire(INT64, 1, default=-1)
    offset: int = wire(INT64, 1, default=-1)
    leader_epoch: int = wire(INT32, 4, default=-1, ignorable=True)


@dataclass(frozen=True, slots=True)
class ListOffsetsTopicResponse:
    """The answers for one topic."""

    name: str = wire(STRING)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = wire(Array(ListOffsetsPartitionResponse))


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    """The offsets."""

    throttle_time_ms: int = wire(INT32, 2, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = wire(Array(ListOffsetsTopicResponse))
