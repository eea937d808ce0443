"""ConsumerGroupHeartbeat 0-1: a member of the newer protocol joins, stays, lets go of partitions or leaves.

Left out: members of the classic protocol in the same group.
"""

from __future__ import annotations

from kafkalog_broker.group.assignors import by_topic
from kafkalog_broker.group.classic_rules import CONSUMER
from kafkalog_broker.group.consumer_group import Client
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType


@handles(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    needs=((Operation.READ, ResourceType.GROUP), (Operation.DESCRIBE, ResourceType.TOPIC)),
)
def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, ctx: Context
) -> ConsumerGroupHeartbeatResponse:
    """Answered at once; the assignment is sent where it changed and where the member said everything."""
    groups = ctx.services.groups.consumers
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        for name in request.subscribed_topic_names or ():
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
        if CONSUMER not in ctx.services.config.group_coordinator_rebalance_protocols:
            raise ServerError(
                ErrorCode.UNSUPPORTED_VERSION, "group.coordinator.rebalance.protocols does not name consumer"
            )
        client = Client(ctx.header.client_id or "", ctx.client_host, ctx.version)
        beat = groups.heartbeat(request, client)
    except KafkaError as e:
        return ConsumerGroupHeartbeatResponse(error_code=ctx.refused(e), error_message=str(e))
    assignment = None
    if beat.assignment is not None:
        topics = (TopicPartitions(topic, partitions) for topic, partitions in by_topic(beat.assignment))
        assignment = Assignment(tuple(topics))
    return ConsumerGroupHeartbeatResponse(
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=groups.settings.heartbeat_interval_ms if beat.epoch >= 0 else 0,
        assignment=assignment,
    )
