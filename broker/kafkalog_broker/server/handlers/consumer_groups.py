"""Groups of the newer protocol (KIP-848).

API                     Versions  Left out
----------------------  --------  --------
ConsumerGroupHeartbeat  0-1       nothing
ConsumerGroupDescribe   0-1       nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import UUID

from kafkalog_broker.groups.classic_rules import CONSUMER
from kafkalog_broker.groups.consumer_group import Client, ConsumerGroup
from kafkalog_broker.groups.server_assignors import EMPTY, TargetAssignment, by_topic
from kafkalog_broker.server.dispatch import Context, always, handles
from kafkalog_broker.server.handlers.groups import GROUP_OPERATIONS
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api import consumer_groups as api
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType


@handles(
    ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), (Operation.READ, ResourceType.GROUP),
    (Operation.DESCRIBE, ResourceType.TOPIC),
)  # fmt: skip
def consumer_group_heartbeat(
    request: api.ConsumerGroupHeartbeatRequest, ctx: Context
) -> api.ConsumerGroupHeartbeatResponse:
    """Let a member of the newer protocol join, stay, give up partitions, or leave."""
    groups = ctx.services.groups.consumers
    try:
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        for name in request.subscribed_topic_names or ():
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
        if CONSUMER not in ctx.services.config.group_coordinator_rebalance_protocols:
            raise ServerError(
                ErrorCode.UNSUPPORTED_VERSION, "group.coordinator.rebalance.protocols does not name consumer"
            )
        client = Client(
            ctx.header.client_id or "",
            ctx.client_host,
            ctx.version,
            partial(ctx.allows, Operation.DESCRIBE, ResourceType.TOPIC),
        )
        beat = groups.heartbeat(request, client)
    except KafkaError as e:
        return api.ConsumerGroupHeartbeatResponse(error_code=ctx.refused(e), error_message=str(e))
    assignment = None
    if beat.assignment is not None:
        assignment = api.Assignment(
            tuple(api.TopicPartitions(topic_id, numbers) for topic_id, numbers in by_topic(beat.assignment))
        )
    return api.ConsumerGroupHeartbeatResponse(
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=groups.settings.heartbeat_interval_ms if beat.epoch >= 0 else 0,
        assignment=assignment,
    )


_CLASSIC, _NEWER_PROTOCOL = 0, 1
_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


@handles(
    ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), (Operation.DESCRIBE, ResourceType.GROUP),
    (Operation.DESCRIBE, ResourceType.TOPIC), takes_long=always,
)  # fmt: skip
def consumer_group_describe(
    request: api.ConsumerGroupDescribeRequest, ctx: Context
) -> api.ConsumerGroupDescribeResponse:
    """Describe states, members and assignments of groups of the newer protocol. A group with a topic that the
    client may not describe is hidden.
    """
    names = {topic.topic_id: name for name, topic in ctx.services.topics.all().items()}
    asked = request.include_authorized_operations
    return api.ConsumerGroupDescribeResponse(
        groups=tuple(_describe_group(each, names, asked, ctx) for each in dict.fromkeys(request.group_ids))
    )


def _describe_group(
    group_id: str, names: Mapping[UUID, str], asked: bool, ctx: Context
) -> api.DescribedGroup:
    try:
        if not group_id:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "a group with members needs a name")
        ctx.demand(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        group = ctx.services.groups.consumers.get(group_id)
        for name in _topics_of(group, names):
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
    except KafkaError as e:
        message = _HIDDEN_TOPICS if e.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else str(e)
        return api.DescribedGroup(error_code=ctx.refused(e), error_message=message, group_id=group_id)
    return api.DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(ctx.services.groups.consumers.settings),
        members=tuple(_describe_member(group, member_id, names) for member_id in group.members),
        authorized_operations=(
            ctx.operations(GROUP_OPERATIONS, ResourceType.GROUP, group_id) if asked else NOT_ASKED
        ),
    )


def _topics_of(group: ConsumerGroup, names: Mapping[UUID, str]) -> set[str]:
    found: set[str] = set()
    for member_id, member in group.members.items():
        found.update(member.names)
        for each in (group.progress[member_id].assigned, group.target.get(member_id, EMPTY)):
            found.update(names[topic_id] for topic_id, _ in by_topic(each) if topic_id in names)
    return found


def _describe_member(group: ConsumerGroup, member_id: str, names: Mapping[UUID, str]) -> api.Member:
    member, progress = group.members[member_id], group.progress[member_id]
    return api.Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=progress.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.names,
        subscribed_topic_regex=member.pattern,
        assignment=_describe_assignment(progress.assigned, names),
        target_assignment=_describe_assignment(group.target.get(member_id, EMPTY), names),
        member_type=_NEWER_PROTOCOL if member.classic is None else _CLASSIC,
    )


def _describe_assignment(assignment: TargetAssignment, names: Mapping[UUID, str]) -> api.DescribedAssignment:
    """Skips deleted topics, which have no name any more."""
    return api.DescribedAssignment(
        tuple(
            api.DescribedTopicPartitions(topic_id, names[topic_id], partitions)
            for topic_id, partitions in by_topic(assignment)
            if topic_id in names
        )
    )
