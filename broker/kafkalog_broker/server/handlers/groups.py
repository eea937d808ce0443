"""Groups of the classic protocol, and the calls that describe, list and delete groups.

API             Versions  Left out
--------------  --------  --------
JoinGroup       0-9       nothing
SyncGroup       0-5       nothing
Heartbeat       0-4       nothing
LeaveGroup      0-5       nothing
DescribeGroups  0-6       nothing
ListGroups      0-5       nothing
DeleteGroups    0-2       nothing
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from kafkalog_broker.groups.classic_rules import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from kafkalog_broker.groups.group import NoSuchGroup
from kafkalog_broker.server.dispatch import LATER, Context, always, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api import groups as api
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType

_MEMBER_ID_FIRST_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_SKIPPED_ASSIGNMENT_SINCE = 9


@handles(ApiKey.JOIN_GROUP, (0, 9), (Operation.READ, ResourceType.GROUP))
def join_group(request: api.JoinGroupRequest, ctx: Context) -> Any:
    """Let a member join, and answer when the others have joined."""
    given_name = request.group_instance_id if request.group_instance_id is not None else ctx.header.client_id
    rebalance_ms = request.rebalance_timeout_ms  # 0 has none
    member = JoinRequest(
        member_id=request.member_id,
        new_id=f"{given_name or ''}-{uuid4()}",
        instance_id=request.group_instance_id,
        client_id=ctx.header.client_id or "",
        client_host=ctx.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        names_first=ctx.version >= _MEMBER_ID_FIRST_SINCE,
        can_skip=ctx.version >= _SKIPPED_ASSIGNMENT_SINCE,
    )

    def answer(given: JoinAnswer) -> None:
        ctx.later(lambda: _join_response(given, ctx.version))()

    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        abandon = ctx.services.groups.join(request.group_id, member, answer)
    except KafkaError as e:
        denied = e.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        return _join_response(JoinAnswer(ctx.refused(e), "" if denied else request.member_id), ctx.version)
    ctx.reply.on_close(abandon)
    return LATER


def _join_response(given: JoinAnswer, version: int) -> api.JoinGroupResponse:
    return api.JoinGroupResponse(
        error_code=given.error,
        generation_id=given.generation,
        protocol_type=given.protocol_type,
        protocol_name=given.protocol if version >= _NULL_PROTOCOL_SINCE else given.protocol or "",
        leader=given.leader,
        skip_assignment=given.skip_assignment,
        member_id=given.member_id,
        members=tuple(
            api.JoinGroupResponseMember(
                member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata
            )
            for m in given.members
        ),
    )


_PROTOCOL_IN_SYNC_SINCE = 5


@handles(ApiKey.SYNC_GROUP, (0, 5), (Operation.READ, ResourceType.GROUP))
def sync_group(request: api.SyncGroupRequest, ctx: Context) -> Any:
    """Give members their assignments once the leader has sent them."""
    if ctx.version >= _PROTOCOL_IN_SYNC_SINCE and None in (request.protocol_type, request.protocol_name):
        return api.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    member = SyncRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
    )

    def answer(given: SyncAnswer) -> None:
        ctx.later(
            lambda: api.SyncGroupResponse(
                error_code=given.error,
                protocol_type=given.protocol_type,
                protocol_name=given.protocol,
                assignment=given.assignment,
            )
        )()

    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        ctx.services.groups.sync(request.group_id, member, answer)
    except KafkaError as e:
        return api.SyncGroupResponse(error_code=ctx.refused(e))
    return LATER


@handles(ApiKey.HEARTBEAT, (0, 4), (Operation.READ, ResourceType.GROUP))
def heartbeat(request: api.HeartbeatRequest, ctx: Context) -> api.HeartbeatResponse:
    """Note that a member is alive, and tell it when to join again."""
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        code = ctx.services.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except KafkaError as e:
        code = ctx.refused(e)
    return api.HeartbeatResponse(error_code=code)


_SEVERAL_LEAVE_SINCE = 3


@handles(ApiKey.LEAVE_GROUP, (0, 5), (Operation.READ, ResourceType.GROUP))
def leave_group(request: api.LeaveGroupRequest, ctx: Context) -> api.LeaveGroupResponse:
    """Let members leave; from version 3 several at once, static ones by their instance."""
    if ctx.version < _SEVERAL_LEAVE_SINCE:
        members: list[tuple[str, str | None]] = [(request.member_id, None)]
    else:
        members = [(each.member_id, each.group_instance_id) for each in request.members]
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        codes = ctx.services.groups.leave(request.group_id, members)
    except KafkaError as e:
        code = ctx.refused(e)
        if ctx.version < _SEVERAL_LEAVE_SINCE or code is not ErrorCode.UNKNOWN_MEMBER_ID:
            return api.LeaveGroupResponse(error_code=code)
        codes = [code] * len(members)
    if ctx.version < _SEVERAL_LEAVE_SINCE:
        return api.LeaveGroupResponse(error_code=codes[0])
    return api.LeaveGroupResponse(
        members=tuple(
            api.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
            for (member_id, instance_id), code in zip(members, codes, strict=True)
        )
    )


_DEAD = "Dead"
"""State of an unknown group; only the newest version adds an error."""

_UNKNOWN_GROUP_ERROR_SINCE = 6

GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))
"""Kafka's ``AclOperation`` numbers as bits: read, delete and describe a group."""


@handles(ApiKey.DESCRIBE_GROUPS, (0, 6), (Operation.DESCRIBE, ResourceType.GROUP), takes_long=always)
def describe_groups(request: api.DescribeGroupsRequest, ctx: Context) -> api.DescribeGroupsResponse:
    """Describe states and members of classic groups. An unknown group is "Dead"."""
    asked = request.include_authorized_operations
    return api.DescribeGroupsResponse(
        groups=tuple(_describe_group(name, asked, ctx) for name in dict.fromkeys(request.groups))
    )


def _describe_group(group: str, asked: bool, ctx: Context) -> api.DescribedGroup:
    if refusal := ctx.denied(Operation.DESCRIBE, ResourceType.GROUP, group):
        return api.DescribedGroup(error_code=ctx.refused(refusal), group_id=group)
    operations = ctx.operations(GROUP_OPERATIONS, ResourceType.GROUP, group) if asked else NOT_ASKED
    try:
        found = ctx.services.groups.describe(group)
    except NoSuchGroup as e:
        if ctx.version < _UNKNOWN_GROUP_ERROR_SINCE:
            return api.DescribedGroup(group_id=group, group_state=_DEAD, authorized_operations=operations)
        return api.DescribedGroup(
            error_code=ctx.refused(e), error_message=str(e), group_id=group, group_state=_DEAD
        )
    except KafkaError as e:
        return api.DescribedGroup(error_code=ctx.refused(e), group_id=group, group_state=_DEAD)
    return api.DescribedGroup(
        group_id=group,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=tuple(
            api.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ),
        authorized_operations=operations,
    )


@handles(
    ApiKey.LIST_GROUPS, (0, 5), (Operation.DESCRIBE, ResourceType.CLUSTER),
    (Operation.DESCRIBE, ResourceType.GROUP), takes_long=always,
)  # fmt: skip
def list_groups(request: api.ListGroupsRequest, ctx: Context) -> api.ListGroupsResponse:
    """List all groups, with their states (from version 4) and types (from 5)."""
    states = {word.lower() for word in request.states_filter}
    kinds = {word.lower() for word in request.types_filter}  # an unknown word matches nothing, without error
    try:
        ctx.check_size()
        groups = ctx.services.groups.groups()
    except KafkaError as e:
        return api.ListGroupsResponse(error_code=ctx.refused(e))
    everything = ctx.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return api.ListGroupsResponse(
        groups=tuple(
            api.ListedGroup(each.group, each.protocol_type, each.state, each.kind)
            for each in groups
            if (not states or each.state.lower() in states)
            and (not kinds or each.kind in kinds)
            and (everything or ctx.allows(Operation.DESCRIBE, ResourceType.GROUP, each.group))
        )
    )


@handles(ApiKey.DELETE_GROUPS, (0, 2), (Operation.DELETE, ResourceType.GROUP), takes_long=always)
def delete_groups(request: api.DeleteGroupsRequest, ctx: Context) -> api.DeleteGroupsResponse:
    """Delete groups without members, with their offsets."""
    return api.DeleteGroupsResponse(results=tuple(_delete_group(name, ctx) for name in request.groups_names))


def _delete_group(name: str, ctx: Context) -> api.DeletableGroupResult:
    code = ErrorCode.NONE
    try:
        ctx.demand(Operation.DELETE, ResourceType.GROUP, name)
        ctx.services.groups.delete(name)
    except KafkaError as e:
        code = ctx.refused(e)
    return api.DeletableGroupResult(group_id=name, error_code=code)
