"""DescribeGroups, versions 0-5: states and members of groups, asked of their coordinator.

Flexible from 5. A group that the coordinator has not heard of is in state "Dead", without an error.
Left out: 6 (an error for such groups, KIP-1043). Source: protocol guide, DescribeGroups; KIP-430, 345.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.schema import BOOL, BYTES, ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """Which groups to tell of."""

    groups: tuple[str, ...] = wire(Array(STRING))
    include_authorized_operations: bool = wire(BOOL, 3)


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    """One member. Metadata and assignment are the clients' own bytes; those of consumers: `Assignment`."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 4, null_since=4, ignorable=True)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """One group: ``protocol_data`` names the strategy that its members agreed on."""

    error_code: ErrorCode = wire(ERROR_CODE)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: tuple[DescribedGroupMember, ...] = wire(Array(DescribedGroupMember))
    authorized_operations: int = wire(INT32, 3, default=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    """The groups, in the order in which they were asked for."""

    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    groups: tuple[DescribedGroup, ...] = wire(Array(DescribedGroup))


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class Assignment:
    """What follows the version, an int16, in a consumer's ``member_assignment``: the same in all versions.

    Other data of the strategy comes after it. Never flexible. Source: Kafka, ConsumerProtocolAssignment.
    """

    assigned_partitions: tuple[AssignedPartitions, ...] = wire(Array(AssignedPartitions))
