"""CreateAcls 0-3: ACLs that are in force, and on the disk, before they are answered."""

from __future__ import annotations

from functools import partial

from kafkalog_broker.security.acl_store import check_new
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.describe_acls import authorizer_of
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from pyspark_kafkalog.steps import Steps


@handles(ApiKey.CREATE_ACLS, versions=(0, 3), needs=((Operation.ALTER, ResourceType.CLUSTER),))
def create_acls(request: CreateAclsRequest, ctx: Context) -> Steps[CreateAclsResponse]:
    """A result for each; those that can mean nothing are refused, and do not fail the others."""
    results = [AclCreationResult(ErrorCode.NONE, None)] * len(request.creations)
    wanted: dict[int, Acl] = {}
    failed = partial(_failed, ctx=ctx)
    try:
        authorizer = authorizer_of(ctx)
        ctx.demand(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        return CreateAclsResponse(results=tuple(failed(e) for _ in results))
    for number, creation in enumerate(request.creations):
        try:
            wanted[number] = _acl(creation)
        except InvalidRequest as e:
            results[number] = failed(e)
    try:
        # It waits for the disk, or for ZooKeeper.
        yield partial(authorizer.add, tuple(wanted.values()))
    except KafkaError as e:
        for number in wanted:
            results[number] = failed(e)
    return CreateAclsResponse(results=tuple(results))


def _acl(creation: AclCreation) -> Acl:
    try:
        acl = Acl(
            ResourceType(creation.resource_type),
            creation.resource_name,
            PatternType(creation.resource_pattern_type),
            creation.principal,
            creation.host,
            Operation(creation.operation),
            Permission(creation.permission_type),
        )
        check_new(acl)
    except ValueError as e:
        raise InvalidRequest(str(e)) from e
    return acl


def _failed(error: KafkaError, ctx: Context) -> AclCreationResult:
    return AclCreationResult(ctx.refused(error), str(error))
