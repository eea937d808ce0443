"""DescribeGroups, versions 0-6: states and members of groups, requested from their coordinator.

Flexible from 5. A group that the coordinator does not know has state "Dead" and up to version 5 no error.
Left out: nothing. Source: protocol guide, DescribeGroups; KIP-430, 345, 1043.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import BOOL, BYTES, ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    groups: tuple[str, ...] = wire(Array(STRING))
    include_authorized_operations: bool = wire(BOOL, 3)


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    """One member. Metadata and assignment are the client's own bytes; a consumer's are
    those of `protocol.consumer_protocol`.
    """

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 4, null_since=4, ignorable=True)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """One group; ``protocol_data`` is the assignment strategy of its members."""

    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, 6, null_since=6)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: tuple[DescribedGroupMember, ...] = wire(Array(DescribedGroupMember))
    authorized_operations: int = wire(INT32, 3, default=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    groups: tuple[DescribedGroup, ...] = wire(Array(DescribedGroup))
