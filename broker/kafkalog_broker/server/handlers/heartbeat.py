"""Heartbeat 0-4: a member is alive; it is told when to join again. Left out: nothing."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.groups import HeartbeatRequest, HeartbeatResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType


@handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=((Operation.READ, ResourceType.GROUP),))
def heartbeat(request: HeartbeatRequest, ctx: Context) -> HeartbeatResponse:
    """Answered from memory."""
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        code = ctx.services.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except KafkaError as e:
        code = ctx.refused(e)
    return HeartbeatResponse(error_code=code)
