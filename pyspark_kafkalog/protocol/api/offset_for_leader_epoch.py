"""OffsetForLeaderEpoch, versions 2-4: where a leader's epoch ends in a log.

Flexible from 4. Version 3 added the replica's id. Left out: 0 and 1, which only brokers sent.
Source: protocol guide, OffsetForLeaderEpoch; KIP-101, 320.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class OffsetForLeaderPartition:
    """The epoch whose end is asked for; ``current_leader_epoch`` -1 is a client that does not know it."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, default=-1, ignorable=True)
    leader_epoch: int = wire(INT32)


@dataclass(frozen=True, slots=True)
class OffsetForLeaderTopic:
    topic: str = wire(STRING)
    partitions: tuple[OffsetForLeaderPartition, ...] = wire(Array(OffsetForLeaderPartition))


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    """``replica_id`` -1 is a consumer, -2 one that may ask before it has been told a version."""

    replica_id: int = wire(INT32, 3, default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = wire(Array(OffsetForLeaderTopic))


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The largest epoch that is not above the one asked for, and the offset after its last; -1 if unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1, ignorable=True)
    end_offset: int = wire(INT64, default=-1)


@dataclass(frozen=True, slots=True)
class OffsetForLeaderTopicResult:
    topic: str = wire(STRING)
    partitions: tuple[EpochEndOffset, ...] = wire(Array(EpochEndOffset))


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = wire(INT32, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = wire(Array(OffsetForLeaderTopicResult))
