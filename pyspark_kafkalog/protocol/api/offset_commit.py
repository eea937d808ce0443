"""OffsetCommit, versions 0-9: stores a group's offsets.

Flexible from 8. Version 0 is meant for ZooKeeper; 1 has a timestamp for each commit, 2 to 4 a retention time.
Version 9 has the fields of 8, and the codes of the newer group protocol. Left out: 10 (topic ids).
Source: protocol guide, OffsetCommit; KIP-211, 320, 345, 848.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestPartition:
    """The next offset to read. Epoch -1 is unknown; ``commit_timestamp`` -1 is now."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, 6, default=-1, ignorable=True)
    commit_timestamp: int = wire(INT64, 1, 1, default=-1)
    committed_metadata: str | None = wire(STRING, default="", null_since=0)


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestTopic:
    name: str = wire(STRING)
    partitions: tuple[OffsetCommitRequestPartition, ...] = wire(Array(OffsetCommitRequestPartition))


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """Generation -1, no member: not from the group. ``retention_time_ms`` -1 (2-4): the broker's default."""

    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, 1, default=-1, ignorable=True)
    member_id: str = wire(STRING, 1, ignorable=True)
    group_instance_id: str | None = wire(STRING, 7, null_since=7)
    retention_time_ms: int = wire(INT64, 2, 4, default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = wire(Array(OffsetCommitRequestTopic))


@dataclass(frozen=True, slots=True)
class OffsetCommitResponsePartition:
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class OffsetCommitResponseTopic:
    name: str = wire(STRING)
    partitions: tuple[OffsetCommitResponsePartition, ...] = wire(Array(OffsetCommitResponsePartition))


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    throttle_time_ms: int = wire(INT32, 3, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = wire(Array(OffsetCommitResponseTopic))
