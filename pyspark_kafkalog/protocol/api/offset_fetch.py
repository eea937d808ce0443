"""OffsetFetch, versions 0-9: committed offsets of groups.

Flexible from 6. Up to version 7 for one group; version 8 has ``groups``, 9 their members. Null topics (from
version 2) are all that the group has offsets of. Version 0 has the layout of 1 and reads the offsets in
ZooKeeper. Left out: 10 (topic ids). Source: protocol guide, OffsetFetch; KIP-88, 447, 709, 848.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestTopic:
    name: str = wire(STRING, 0, 7)
    partition_indexes: tuple[int, ...] = wire(Array(INT32), 0, 7)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestTopics:
    name: str = wire(STRING, 8)
    partition_indexes: tuple[int, ...] = wire(Array(INT32), 8)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestGroup:
    """One group (version 8); null topics are all. Its member asks with its epoch, others with -1."""

    group_id: str = wire(STRING, 8)
    member_id: str | None = wire(STRING, 9, null_since=9, ignorable=True)
    member_epoch: int = wire(INT32, 9, default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = wire(
        Array(OffsetFetchRequestTopics), 8, null_since=8
    )


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """``require_stable``: fail while a transaction may still change the offsets."""

    group_id: str = wire(STRING, 0, 7)
    topics: tuple[OffsetFetchRequestTopic, ...] | None = wire(
        Array(OffsetFetchRequestTopic), 0, 7, null_since=2
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = wire(Array(OffsetFetchRequestGroup), 8)
    require_stable: bool = wire(BOOL, 7)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponsePartition:
    """Offset -1 is none."""

    partition_index: int = wire(INT32, 0, 7)
    committed_offset: int = wire(INT64, 0, 7)
    committed_leader_epoch: int = wire(INT32, 5, 7, default=-1, ignorable=True)
    metadata: str | None = wire(STRING, 0, 7, default="", null_since=0)
    error_code: ErrorCode = wire(ERROR_CODE, 0, 7)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseTopic:
    name: str = wire(STRING, 0, 7)
    partitions: tuple[OffsetFetchResponsePartition, ...] = wire(Array(OffsetFetchResponsePartition), 0, 7)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponsePartitions:
    partition_index: int = wire(INT32, 8)
    committed_offset: int = wire(INT64, 8)
    committed_leader_epoch: int = wire(INT32, 8, default=-1, ignorable=True)
    metadata: str | None = wire(STRING, 8, default="", null_since=8)
    error_code: ErrorCode = wire(ERROR_CODE, 8)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseTopics:
    name: str = wire(STRING, 8)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = wire(Array(OffsetFetchResponsePartitions), 8)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseGroup:
    group_id: str = wire(STRING, 8)
    topics: tuple[OffsetFetchResponseTopics, ...] = wire(Array(OffsetFetchResponseTopics), 8)
    error_code: ErrorCode = wire(ERROR_CODE, 8)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    """The offsets; ``error_code`` is the group's (versions 2-7)."""

    throttle_time_ms: int = wire(INT32, 3, ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = wire(Array(OffsetFetchResponseTopic), 0, 7)
    error_code: ErrorCode = wire(ERROR_CODE, 2, 7, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = wire(Array(OffsetFetchResponseGroup), 8)
