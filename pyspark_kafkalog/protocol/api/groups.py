"""Groups of the classic protocol: calls of members, and listing, describing and deleting groups.

API             Versions  Flexible from  Left out
--------------  --------  -------------  --------
JoinGroup       0-9       6              nothing
SyncGroup       0-5       4              nothing
Heartbeat       0-4       4              nothing
LeaveGroup      0-5       4              nothing
DescribeGroups  0-6       5              nothing
ListGroups      0-5       3              nothing
DeleteGroups    0-2       2              nothing

Members join again after each change of their group, of which Heartbeat informs them. The leader sends the
assignments with SyncGroup; each member gets its own in the response.

* JoinGroup: version 4 answers a new member with MEMBER_ID_REQUIRED and its id, 5 has static members, 7 the
  protocol type, 8 a reason for the log, 9 lets the leader keep its assignment.
* SyncGroup: version 3 has static members, 5 the protocol. Heartbeat: version 3 has static members.
* LeaveGroup: version 3 has several members, static ones by instance; 5 a reason for the log.
* DescribeGroups: an unknown group has state "Dead", and up to version 5 no error.
* ListGroups: version 4 has states and a filter by state, 5 the same for types.

Source: protocol guide; KIP-62, 229, 345, 394, 430, 518, 559, 800, 814, 848, 1043.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import BOOL, BYTES, ERROR_CODE, INT32, STRING, Array, WireStruct, wire


class JoinGroupRequestProtocol(WireStruct):
    """An assignment strategy, with the member's metadata for those who assign by it."""

    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


class JoinGroupRequest(WireStruct):
    """``member_id`` is empty at first. ``protocols`` are in order of preference."""

    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, 1, default=-1, ignorable=True)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 5, null_since=5)
    protocol_type: str = wire(STRING)
    protocols: tuple[JoinGroupRequestProtocol, ...] = wire(Array(JoinGroupRequestProtocol))
    reason: str | None = wire(STRING, 8, null_since=8, ignorable=True)


class JoinGroupResponseMember(WireStruct):
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    metadata: bytes = wire(BYTES)


class JoinGroupResponse(WireStruct):
    """Only the leader gets ``members``; it assigns unless ``skip_assignment``."""

    throttle_time_ms: int = wire(INT32, 2, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(STRING, 7, null_since=7, ignorable=True)
    protocol_name: str | None = wire(STRING, default="", null_since=7)
    leader: str = wire(STRING)
    skip_assignment: bool = wire(BOOL, 9)
    member_id: str = wire(STRING)
    members: tuple[JoinGroupResponseMember, ...] = wire(Array(JoinGroupResponseMember))


class SyncGroupRequestAssignment(WireStruct):
    member_id: str = wire(STRING)
    assignment: bytes = wire(BYTES)


class SyncGroupRequest(WireStruct):
    """Only the leader sends ``assignments``."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    protocol_type: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    protocol_name: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = wire(Array(SyncGroupRequestAssignment))


class SyncGroupResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    protocol_type: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    protocol_name: str | None = wire(STRING, 5, null_since=5, ignorable=True)
    assignment: bytes = wire(BYTES)


class HeartbeatRequest(WireStruct):
    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)


class HeartbeatResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)


class MemberIdentity(WireStruct):
    """An empty ``member_id`` with an instance selects the instance's current member."""

    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    reason: str | None = wire(STRING, 5, null_since=5, ignorable=True)


class LeaveGroupRequest(WireStruct):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING, 0, 2)
    members: tuple[MemberIdentity, ...] = wire(Array(MemberIdentity), 3)


class MemberResponse(WireStruct):
    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    error_code: ErrorCode = wire(ERROR_CODE, 3)


class LeaveGroupResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    members: tuple[MemberResponse, ...] = wire(Array(MemberResponse), 3)


class DescribeGroupsRequest(WireStruct):
    groups: tuple[str, ...] = wire(Array(STRING))
    include_authorized_operations: bool = wire(BOOL, 3)


class DescribedGroupMember(WireStruct):
    """Metadata and assignment are the client's bytes, a consumer's those of `protocol.consumer_protocol`."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, 4, null_since=4, ignorable=True)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


class DescribedGroup(WireStruct):
    """``protocol_data`` is the members' assignment strategy."""

    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, 6, null_since=6)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: tuple[DescribedGroupMember, ...] = wire(Array(DescribedGroupMember))
    authorized_operations: int = wire(INT32, 3, default=NOT_ASKED)


class DescribeGroupsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    groups: tuple[DescribedGroup, ...] = wire(Array(DescribedGroup))


class ListGroupsRequest(WireStruct):
    states_filter: tuple[str, ...] = wire(Array(STRING), 4)
    types_filter: tuple[str, ...] = wire(Array(STRING), 5)


class ListedGroup(WireStruct):
    """Groups with only offsets have no protocol type. The group type is "classic" or "consumer"."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, 4, ignorable=True)
    group_type: str = wire(STRING, 5, ignorable=True)


class ListGroupsResponse(WireStruct):
    """This broker's groups; possibly incomplete with COORDINATOR_LOAD_IN_PROGRESS."""

    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    groups: tuple[ListedGroup, ...] = wire(Array(ListedGroup))


class DeleteGroupsRequest(WireStruct):
    groups_names: tuple[str, ...] = wire(Array(STRING))


class DeletableGroupResult(WireStruct):
    group_id: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)


class DeleteGroupsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    results: tuple[DeletableGroupResult, ...] = wire(Array(DeletableGroupResult))
