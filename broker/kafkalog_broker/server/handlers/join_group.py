"""JoinGroup 0-9: a member joins, and waits for the others. Left out: nothing."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from kafkalog_broker.group.classic_rules import JoinAnswer, JoinRequest
from kafkalog_broker.server.dispatch import LATER, Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.groups import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType

_ID_FIRST_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_SKIPS_SINCE = 9


@handles(ApiKey.JOIN_GROUP, versions=(0, 9), needs=((Operation.READ, ResourceType.GROUP),))
def join_group(request: JoinGroupRequest, ctx: Context) -> Any:
    """Answered when the rebalance is over; if the connection ends before, a member without an id goes."""
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
        names_first=ctx.version >= _ID_FIRST_SINCE,
        can_skip=ctx.version >= _SKIPS_SINCE,
    )

    def answer(given: JoinAnswer) -> None:
        ctx.later(lambda: _response(given, ctx.version))()

    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        abandon = ctx.services.groups.join(request.group_id, member, answer)
    except KafkaError as e:
        denied = e.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        return _response(JoinAnswer(ctx.refused(e), "" if denied else request.member_id), ctx.version)
    ctx.reply.on_close(abandon)
    return LATER


def _response(given: JoinAnswer, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=given.error,
        generation_id=given.generation,
        protocol_type=given.protocol_type,
        protocol_name=given.protocol if version >= _NULL_PROTOCOL_SINCE else given.protocol or "",
        leader=given.leader,
        skip_assignment=given.skip_assignment,
        member_id=given.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata
            )
            for m in given.members
        ),
    )
