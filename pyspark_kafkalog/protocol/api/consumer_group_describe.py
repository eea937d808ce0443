"""ConsumerGroupDescribe, versions 0-1: states and members of groups of the newer protocol.

Flexible from 0. Version 1 tells members of the classic protocol from those of the newer. Left out: nothing.
Source: protocol guide, ConsumerGroupDescribe; KIP-848, 1099.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT8, INT32, STRING, UUID_TYPE, Array, wire


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...] = wire(Array(STRING))
    include_authorized_operations: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic_id: UUID = wire(UUID_TYPE)
    topic_name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = wire(Array(TopicPartitions))


@dataclass(frozen=True, slots=True)
class Member:
    """``assignment`` is what the member has, ``target_assignment`` what it is to have. ``member_type`` is 0
    for the classic protocol, 1 for the newer, -1 where it is not known.
    """

    member_id: str = wire(STRING)
    instance_id: str | None = wire(STRING, null_since=0)
    rack_id: str | None = wire(STRING, null_since=0)
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: tuple[str, ...] = wire(Array(STRING))
    subscribed_topic_regex: str | None = wire(STRING, null_since=0)
    assignment: Assignment = wire(Assignment)
    target_assignment: Assignment = wire(Assignment)
    member_type: int = wire(INT8, 1, default=-1, ignorable=True)


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: tuple[Member, ...] = wire(Array(Member))
    authorized_operations: int = wire(INT32, default=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = wire(INT32)
    groups: tuple[DescribedGroup, ...] = wire(Array(DescribedGroup))
