"""TxnOffsetCommit, versions 0-5: stores a group's offsets as part of a transaction.

Flexible from 3. Version 2 adds leader epochs, 3 the committing group member, 4 an error code for a
transaction that must be aborted. 5 also adds the group to it. Source: protocol
guide, TxnOffsetCommit; KIP-98, 447, 890.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT16, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestPartition:
    """The next offset to read; epoch -1 is unknown."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, 2, default=-1, ignorable=True)
    committed_metadata: str | None = wire(STRING, default="", null_since=0)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestTopic:
    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = wire(Array(TxnOffsetCommitRequestPartition))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """Generation -1 with an empty member id: the committer is not a member of the group."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, 3, default=-1)
    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = wire(Array(TxnOffsetCommitRequestTopic))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponseTopic:
    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = wire(Array(TxnOffsetCommitResponsePartition))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = wire(INT32)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = wire(Array(TxnOffsetCommitResponseTopic))
