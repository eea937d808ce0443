"""OffsetDelete, version 0: forgets a group's offsets of partitions that no member subscribes to.

Left out: nothing. Source: protocol guide, OffsetDelete; KIP-496.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequestPartition:
    partition_index: int = wire(INT32)


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequestTopic:
    name: str = wire(STRING)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = wire(Array(OffsetDeleteRequestPartition))


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    group_id: str = wire(STRING)
    topics: tuple[OffsetDeleteRequestTopic, ...] = wire(Array(OffsetDeleteRequestTopic))


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponsePartition:
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponseTopic:
    name: str = wire(STRING)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = wire(Array(OffsetDeleteResponsePartition))


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    """``error_code`` is the group's; then there are no topics."""

    error_code: ErrorCode = wire(ERROR_CODE)
    throttle_time_ms: int = wire(INT32, ignorable=True)
    topics: tuple[OffsetDeleteResponseTopic, ...] = wire(Array(OffsetDeleteResponseTopic))
