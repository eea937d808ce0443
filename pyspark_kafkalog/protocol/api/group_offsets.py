"""Committed offsets of groups.

API           Versions  Flexible from  Left out
------------  --------  -------------  --------------
OffsetCommit  0-9       8              10 (topic ids)
OffsetFetch   0-9       6              10 (topic ids)
OffsetDelete  0         never          nothing

* OffsetCommit: version 0 commits to ZooKeeper; 1 has a timestamp per commit, 2 to 4 a retention time, 9 the
  error codes of the newer group protocol.
* OffsetFetch: version 0 reads from ZooKeeper, with the layout of 1. Null topics (from version 2) are all that
  have offsets. Version 8 has several ``groups``, 9 their members.
* OffsetDelete: for partitions without subscribed members.

Source: protocol guide; KIP-211, 320, 345, 848 (OffsetCommit), 88, 447, 709, 848 (OffsetFetch), 496
(OffsetDelete).
"""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT32, INT64, STRING, Array, WireStruct, wire


class OffsetCommitRequestPartition(WireStruct):
    """The next offset to read. Epoch -1 is unknown; ``commit_timestamp`` -1 is now."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, 6, default=-1, ignorable=True)
    commit_timestamp: int = wire(INT64, 1, 1, default=-1)
    committed_metadata: str | None = wire(STRING, default="", null_since=0)


class OffsetCommitRequestTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[OffsetCommitRequestPartition, ...] = wire(Array(OffsetCommitRequestPartition))


class OffsetCommitRequest(WireStruct):
    """Generation -1, no member: committed from outside. ``retention_time_ms`` -1 (2-4): broker's default."""

    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, 1, default=-1, ignorable=True)
    member_id: str = wire(STRING, 1, ignorable=True)
    group_instance_id: str | None = wire(STRING, 7, null_since=7)
    retention_time_ms: int = wire(INT64, 2, 4, default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = wire(Array(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


class OffsetCommitResponseTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[OffsetCommitResponsePartition, ...] = wire(Array(OffsetCommitResponsePartition))


class OffsetCommitResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 3, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = wire(Array(OffsetCommitResponseTopic))


class OffsetFetchRequestTopic(WireStruct):
    name: str = wire(STRING, 0, 7)
    partition_indexes: tuple[int, ...] = wire(Array(INT32), 0, 7)


class OffsetFetchRequestTopics(WireStruct):
    name: str = wire(STRING, 8)
    partition_indexes: tuple[int, ...] = wire(Array(INT32), 8)


class OffsetFetchRequestGroup(WireStruct):
    """One group (version 8); null topics are all. Only members have an epoch, others -1."""

    group_id: str = wire(STRING, 8)
    member_id: str | None = wire(STRING, 9, null_since=9, ignorable=True)
    member_epoch: int = wire(INT32, 9, default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = wire(
        Array(OffsetFetchRequestTopics), 8, null_since=8
    )


class OffsetFetchRequest(WireStruct):
    """``require_stable``: fail while a transaction can still change the offsets."""

    group_id: str = wire(STRING, 0, 7)
    topics: tuple[OffsetFetchRequestTopic, ...] | None = wire(
        Array(OffsetFetchRequestTopic), 0, 7, null_since=2
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = wire(Array(OffsetFetchRequestGroup), 8)
    require_stable: bool = wire(BOOL, 7)


class OffsetFetchResponsePartition(WireStruct):
    """Offset -1: nothing committed."""

    partition_index: int = wire(INT32, 0, 7)
    committed_offset: int = wire(INT64, 0, 7)
    committed_leader_epoch: int = wire(INT32, 5, 7, default=-1, ignorable=True)
    metadata: str | None = wire(STRING, 0, 7, default="", null_since=0)
    error_code: ErrorCode = wire(ERROR_CODE, 0, 7)


class OffsetFetchResponseTopic(WireStruct):
    name: str = wire(STRING, 0, 7)
    partitions: tuple[OffsetFetchResponsePartition, ...] = wire(Array(OffsetFetchResponsePartition), 0, 7)


class OffsetFetchResponsePartitions(WireStruct):
    partition_index: int = wire(INT32, 8)
    committed_offset: int = wire(INT64, 8)
    committed_leader_epoch: int = wire(INT32, 8, default=-1, ignorable=True)
    metadata: str | None = wire(STRING, 8, default="", null_since=8)
    error_code: ErrorCode = wire(ERROR_CODE, 8)


class OffsetFetchResponseTopics(WireStruct):
    name: str = wire(STRING, 8)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = wire(Array(OffsetFetchResponsePartitions), 8)


class OffsetFetchResponseGroup(WireStruct):
    group_id: str = wire(STRING, 8)
    topics: tuple[OffsetFetchResponseTopics, ...] = wire(Array(OffsetFetchResponseTopics), 8)
    error_code: ErrorCode = wire(ERROR_CODE, 8)


class OffsetFetchResponse(WireStruct):
    """``error_code`` is the group's (versions 2-7)."""

    throttle_time_ms: int = wire(INT32, 3, ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = wire(Array(OffsetFetchResponseTopic), 0, 7)
    error_code: ErrorCode = wire(ERROR_CODE, 2, 7, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = wire(Array(OffsetFetchResponseGroup), 8)


class OffsetDeleteRequestPartition(WireStruct):
    partition_index: int = wire(INT32)


class OffsetDeleteRequestTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = wire(Array(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(WireStruct):
    group_id: str = wire(STRING)
    topics: tuple[OffsetDeleteRequestTopic, ...] = wire(Array(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


class OffsetDeleteResponseTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = wire(Array(OffsetDeleteResponsePartition))


class OffsetDeleteResponse(WireStruct):
    """``error_code`` is the group's; with an error there are no topics."""

    error_code: ErrorCode = wire(ERROR_CODE)
    throttle_time_ms: int = wire(INT32, ignorable=True)
    topics: tuple[OffsetDeleteResponseTopic, ...] = wire(Array(OffsetDeleteResponseTopic))
