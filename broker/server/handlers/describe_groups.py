"""DescribeGroups 0-6: groups with offsets are in state "Empty", all others "Dead". None has members."""

from __future__ import annotations

from broker.server.dispatch import Context, handles
from broker.server.handlers.list_groups import EMPTY
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.exchange import ApiKey

DEAD = "Dead"
"""The state of an unknown group, with an error only in the newest version."""

_UNKNOWN_SINCE = 6

_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))
"""Kafka's ``AclOperation`` numbers as bits: to read, to delete and to describe a group."""


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
def describe_groups(request: DescribeGroupsRequest, ctx: Context) -> DescribeGroupsResponse:
    """Answered from memory; an error of one group does not fail the others."""
    operations = _GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    return DescribeGroupsResponse(groups=tuple(_describe(g, operations, ctx) for g in request.groups))


def _describe(group: str, operations: int, ctx: Context) -> DescribedGroup:
    try:
        known = ctx.services.offsets.knows(group)
    except KafkaError as e:
        return DescribedGroup(error_code=ctx.refused(e), group_id=group, group_state=DEAD)
    if not known and ctx.version >= _UNKNOWN_SINCE:
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no group {group!r}",
            group_id=group,
            group_state=DEAD,
        )
    state = EMPTY if known else DEAD
    return DescribedGroup(group_id=group, group_state=state, authorized_operations=operations)
