"""DescribeGroups 0-6: states and members of classic groups. An unknown group is "Dead". Left out: nothing."""

from __future__ import annotations

from kafkalog_broker.group.group import NoSuchGroup
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps

DEAD = "Dead"
"""The state of an unknown group, with an error only in the newest version."""

_UNKNOWN_SINCE = 6

GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))
"""Kafka's ``AclOperation`` numbers as bits: to read, to delete and to describe a group."""


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), needs=((Operation.DESCRIBE, ResourceType.GROUP),))
def describe_groups(request: DescribeGroupsRequest, ctx: Context) -> Steps[DescribeGroupsResponse]:
    """Answered from memory; an error of one group does not fail the others, and one named again is not
    described again.
    """
    groups = []
    for name in dict.fromkeys(request.groups):
        groups.append(_describe(name, request.include_authorized_operations, ctx))
        yield None
    return DescribeGroupsResponse(groups=tuple(groups))


def _describe(group: str, asked: bool, ctx: Context) -> DescribedGroup:
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.GROUP, group)
    except KafkaError as e:
        return DescribedGroup(error_code=ctx.refused(e), group_id=group)
    if asked:
        operations = ctx.operations(GROUP_OPERATIONS, ResourceType.GROUP, group)
    else:
        operations = NOT_ASKED
    try:
        found = ctx.services.groups.describe(group)
    except NoSuchGroup as e:
        if ctx.version < _UNKNOWN_SINCE:
            return DescribedGroup(group_id=group, group_state=DEAD, authorized_operations=operations)
        return DescribedGroup(
            error_code=ctx.refused(e), error_message=str(e), group_id=group, group_state=DEAD
        )
    except KafkaError as e:
        return DescribedGroup(error_code=ctx.refused(e), group_id=group, group_state=DEAD)
    return DescribedGroup(
        group_id=group,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=tuple(
            DescribedGroupMember(
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
