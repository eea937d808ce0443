"""DeleteGroups 0-2: groups without members go, with their offsets. Left out: nothing."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2), needs=((Operation.DELETE, ResourceType.GROUP),))
def delete_groups(request: DeleteGroupsRequest, ctx: Context) -> Steps[DeleteGroupsResponse]:
    """A result for each group, in the order of the request."""
    results = []
    for name in request.groups_names:
        results.append(_delete(name, ctx))
        yield None
    return DeleteGroupsResponse(results=tuple(results))


def _delete(name: str, ctx: Context) -> DeletableGroupResult:
    code = ErrorCode.NONE
    try:
        ctx.demand(Operation.DELETE, ResourceType.GROUP, name)
        ctx.services.groups.delete(name)
    except KafkaError as e:
        code = ctx.refused(e)
    return DeletableGroupResult(group_id=name, error_code=code)
