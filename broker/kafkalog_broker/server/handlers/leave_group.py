"""LeaveGroup 0-5: members go; from version 3 several, static ones by their instance. Left out: nothing."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.groups import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType

_SEVERAL_SINCE = 3


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5), needs=((Operation.READ, ResourceType.GROUP),))
def leave_group(request: LeaveGroupRequest, ctx: Context) -> LeaveGroupResponse:
    """A code for each member, from version 3 beside it."""
    if ctx.version < _SEVERAL_SINCE:
        members: list[tuple[str, str | None]] = [(request.member_id, None)]
    else:
        members = [(each.member_id, each.group_instance_id) for each in request.members]
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        codes = ctx.services.groups.leave(request.group_id, members)
    except KafkaError as e:
        code = ctx.refused(e)
        if ctx.version < _SEVERAL_SINCE or code is not ErrorCode.UNKNOWN_MEMBER_ID:
            return LeaveGroupResponse(error_code=code)
        codes = [code] * len(members)
    if ctx.version < _SEVERAL_SINCE:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=tuple(
            MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
            for (member_id, instance_id), code in zip(members, codes, strict=True)
        ),
    )
