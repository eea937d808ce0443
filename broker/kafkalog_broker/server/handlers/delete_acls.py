"""DeleteAcls 0-3: what filters mean goes, on the disk too, before it is answered."""

from __future__ import annotations

from functools import partial

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.describe_acls import authorizer_of, filter_of
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Acl, AclFilter, Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(ApiKey.DELETE_ACLS, versions=(0, 3), needs=((Operation.ALTER, ResourceType.CLUSTER),))
def delete_acls(request: DeleteAclsRequest, ctx: Context) -> Steps[DeleteAclsResponse]:
    """What went for each filter; one that cannot be read does not fail the others."""
    results = [DeleteAclsFilterResult(ErrorCode.NONE, None)] * len(request.filters)
    failed = partial(_failed, ctx=ctx)
    try:
        authorizer = authorizer_of(ctx)
        ctx.demand(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        return DeleteAclsResponse(filter_results=tuple(failed(e) for _ in results))
    wanted: dict[int, AclFilter] = {}
    for number, each in enumerate(request.filters):
        try:
            wanted[number] = filter_of(each)
        except KafkaError as e:
            results[number] = failed(e)
    try:
        # It waits for the disk, or for ZooKeeper.
        found: list[list[Acl]] = yield partial(authorizer.remove, tuple(wanted.values()))
    except KafkaError as e:
        for number in wanted:
            results[number] = failed(e)
    else:
        for number, acls in zip(wanted, found, strict=True):
            results[number] = DeleteAclsFilterResult(ErrorCode.NONE, None, tuple(map(_matching, acls)))
    return DeleteAclsResponse(filter_results=tuple(results))


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _failed(error: KafkaError, ctx: Context) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(ctx.refused(error), str(error))
