"""ConsumerGroupDescribe 0-1: states, members and assignments of groups of the newer protocol."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafkalog_broker.group import assignors
from kafkalog_broker.group.consumer_group import ConsumerGroup
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.describe_groups import GROUP_OPERATIONS
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedGroup,
    DescribedTopicPartitions,
    Member,
)
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps

_NEWER_PROTOCOL = 1
"""The type of a member."""


@handles(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    needs=((Operation.DESCRIBE, ResourceType.GROUP), (Operation.DESCRIBE, ResourceType.TOPIC)),
)
def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, ctx: Context
) -> Steps[ConsumerGroupDescribeResponse]:
    """Answered from memory; an error of one group does not fail the others, and one named again is not
    described again.
    """
    names = {topic.topic_id: name for name, topic in ctx.services.topics.all().items()}
    groups = []
    for group_id in dict.fromkeys(request.group_ids):
        groups.append((yield from _described(group_id, names, request.include_authorized_operations, ctx)))
    return ConsumerGroupDescribeResponse(groups=tuple(groups))


def _described(group_id: str, names: Mapping[UUID, str], asked: bool, ctx: Context) -> Steps[DescribedGroup]:
    try:
        if not group_id:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "a group with members needs a name")
        ctx.demand(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        group = ctx.services.groups.consumers.get(group_id)
        for name in _topics(group, names):
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
    except KafkaError as e:
        return DescribedGroup(error_code=ctx.refused(e), error_message=str(e), group_id=group_id)
    members = []
    for member_id in group.members:
        members.append(_member(group, member_id, names))
        yield None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(ctx.services.groups.consumers.settings),
        members=tuple(members),
        authorized_operations=(
            ctx.operations(GROUP_OPERATIONS, ResourceType.GROUP, group_id) if asked else NOT_ASKED
        ),
    )


def _topics(group: ConsumerGroup, names: Mapping[UUID, str]) -> set[str]:
    """Those that its description names."""
    found: set[str] = set()
    for member_id, member in group.members.items():
        found.update(member.names)
        for each in (group.progress[member_id].assigned, group.target.get(member_id, assignors.EMPTY)):
            found.update(names[topic_id] for topic_id, _ in assignors.by_topic(each) if topic_id in names)
    return found


def _member(group: ConsumerGroup, member_id: str, names: Mapping[UUID, str]) -> Member:
    member, progress = group.members[member_id], group.progress[member_id]
    return Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=progress.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.names,
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(progress.assigned, names),
        target_assignment=_assignment(group.target.get(member_id, assignors.EMPTY), names),
        member_type=_NEWER_PROTOCOL,
    )


def _assignment(assignment: assignors.Assignment, names: Mapping[UUID, str]) -> DescribedAssignment:
    """Topics that were deleted meanwhile are left out: they have no name any more."""
    return DescribedAssignment(
        tuple(
            DescribedTopicPartitions(topic_id, names[topic_id], partitions)
            for topic_id, partitions in assignors.by_topic(assignment)
            if topic_id in names
        )
    )
