"""SyncGroup 0-5: members get their assignments once the leader has brought them. Left out: nothing."""

from __future__ import annotations

from typing import Any

from kafkalog_broker.group.classic_rules import SyncAnswer, SyncRequest
from kafkalog_broker.server.dispatch import LATER, Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.groups import SyncGroupRequest, SyncGroupResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType

_PROTOCOL_SINCE = 5


@handles(ApiKey.SYNC_GROUP, versions=(0, 5), needs=((Operation.READ, ResourceType.GROUP),))
def sync_group(request: SyncGroupRequest, ctx: Context) -> Any:
    """From version 5 a request without the protocol is refused before anything else."""
    if ctx.version >= _PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
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
            lambda: SyncGroupResponse(
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
        return SyncGroupResponse(error_code=ctx.refused(e))
    return LATER
