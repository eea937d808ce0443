"""Groups of the newer protocol (KIP-848).

API                     Versions  Flexible from  Left out
----------------------  --------  -------------  --------
ConsumerGroupHeartbeat  0-1       0              nothing
ConsumerGroupDescribe   0-1       0              nothing

Members join, stay and leave by ConsumerGroupHeartbeat. In its version 1 the client creates its member id and
may subscribe to a regular expression. ConsumerGroupDescribe 1 added the member's protocol type.
Source: protocol guide; KIP-848, 1082 and 1099.
"""

from __future__ import annotations

from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    ERROR_CODE,
    INT8,
    INT32,
    STRING,
    UUID_TYPE,
    Array,
    WireStruct,
    wire,
)


class TopicPartitions(WireStruct):
    topic_id: UUID = wire(UUID_TYPE)
    partitions: tuple[int, ...] = wire(Array(INT32))


class ConsumerGroupHeartbeatRequest(WireStruct):
    """Null, and timeout -1, mean "unchanged". ``member_epoch`` 0 joins, -1 leaves, -2 is a static member that
    returns soon. ``topic_partitions``: what the member owns.
    """

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    instance_id: str | None = wire(STRING, null_since=0)
    rack_id: str | None = wire(STRING, null_since=0)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = wire(Array(STRING), null_since=0)
    subscribed_topic_regex: str | None = wire(STRING, 1, null_since=1)
    server_assignor: str | None = wire(STRING, null_since=0)
    topic_partitions: tuple[TopicPartitions, ...] | None = wire(Array(TopicPartitions), null_since=0)


class Assignment(WireStruct):
    topic_partitions: tuple[TopicPartitions, ...] = wire(Array(TopicPartitions))


class ConsumerGroupHeartbeatResponse(WireStruct):
    """``assignment``: what the member may use now; null if unchanged."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    member_id: str | None = wire(STRING, null_since=0)
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: Assignment | None = wire(Assignment, null_since=0)


class ConsumerGroupDescribeRequest(WireStruct):
    group_ids: tuple[str, ...] = wire(Array(STRING))
    include_authorized_operations: bool = wire(BOOL)


class DescribedTopicPartitions(WireStruct):
    topic_id: UUID = wire(UUID_TYPE)
    topic_name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class DescribedAssignment(WireStruct):
    topic_partitions: tuple[DescribedTopicPartitions, ...] = wire(Array(DescribedTopicPartitions))


class Member(WireStruct):
    """``target_assignment`` is the intended one. ``member_type``: 0 classic, 1 newer protocol, -1 unknown."""

    member_id: str = wire(STRING)
    instance_id: str | None = wire(STRING, null_since=0)
    rack_id: str | None = wire(STRING, null_since=0)
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: tuple[str, ...] = wire(Array(STRING))
    subscribed_topic_regex: str | None = wire(STRING, null_since=0)
    assignment: DescribedAssignment = wire(DescribedAssignment)
    target_assignment: DescribedAssignment = wire(DescribedAssignment)
    member_type: int = wire(INT8, 1, default=-1, ignorable=True)


class DescribedGroup(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: tuple[Member, ...] = wire(Array(Member))
    authorized_operations: int = wire(INT32, default=NOT_ASKED)


class ConsumerGroupDescribeResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    groups: tuple[DescribedGroup, ...] = wire(Array(DescribedGroup))
