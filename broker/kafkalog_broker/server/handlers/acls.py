"""Describe, create and delete ACLs. Without an authorizer all three answer SECURITY_DISABLED.

API           Versions  Left out
------------  --------  --------
DescribeAcls  0-3       nothing
CreateAcls    0-3       nothing
DeleteAcls    0-3       nothing
"""

from __future__ import annotations

from itertools import groupby

from kafkalog_broker.security.authorizer import Authorizer
from kafkalog_broker.security.file_stores import check_new
from kafkalog_broker.server.dispatch import Context, always, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError
from pyspark_kafkalog.protocol.api import acls as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)


@handles(ApiKey.DESCRIBE_ACLS, (0, 3), (Operation.DESCRIBE, ResourceType.CLUSTER), takes_long=always)
def describe_acls(request: api.DescribeAclsRequest, ctx: Context) -> api.DescribeAclsResponse:
    """List the ACLs that a filter matches, together for each pattern of resources."""
    try:
        authorizer = _authorizer_of(Operation.DESCRIBE, ctx)
        wanted = _filter_of(request)
    except KafkaError as e:
        return api.DescribeAclsResponse(error_code=ctx.refused(e), error_message=str(e))
    acls = sorted(filter(wanted.matches, authorizer.acls))
    by_pattern = groupby(acls, key=lambda acl: (acl.resource_type, acl.name, acl.pattern_type))
    return api.DescribeAclsResponse(
        resources=tuple(
            api.DescribeAclsResource(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=tuple(
                    api.AclDescription(acl.principal, acl.host, acl.operation, acl.permission) for acl in acls
                ),
            )
            for (kind, name, pattern), acls in by_pattern
        )
    )


def _authorizer_of(operation: Operation, ctx: Context) -> Authorizer:
    authorizer = ctx.services.authorizer
    if authorizer is None:
        raise ServerError(
            ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: set authorizer.class.name"
        )
    ctx.demand(operation, ResourceType.CLUSTER, CLUSTER_NAME)
    return authorizer


def _filter_of(request: api.DescribeAclsRequest | api.DeleteAclsFilter) -> AclFilter:
    try:
        return AclFilter(
            ResourceType(request.resource_type_filter), request.resource_name_filter,
            PatternType(request.pattern_type_filter), request.principal_filter, request.host_filter,
            Operation(request.operation), Permission(request.permission_type),
        )  # fmt: skip
    except ValueError as e:
        raise InvalidRequest(f"the filter has an unknown element: {e}") from e


@handles(ApiKey.CREATE_ACLS, (0, 3), (Operation.ALTER, ResourceType.CLUSTER), takes_long=always)
def create_acls(request: api.CreateAclsRequest, ctx: Context) -> api.CreateAclsResponse:
    """Add ACLs, which are in force, and on the disk, before the response is sent."""
    results = [api.AclCreationResult(ErrorCode.NONE, None)] * len(request.creations)
    wanted: dict[int, Acl] = {}

    def failed(error: KafkaError) -> api.AclCreationResult:
        return api.AclCreationResult(ctx.refused(error), str(error))

    try:
        authorizer = _authorizer_of(Operation.ALTER, ctx)
    except KafkaError as e:
        return api.CreateAclsResponse(results=tuple(failed(e) for _ in results))
    for number, creation in enumerate(request.creations):
        try:
            wanted[number] = _new_acl(creation)
        except InvalidRequest as e:
            results[number] = failed(e)
    try:
        authorizer.add(tuple(wanted.values()))  # waits for the disk or ZooKeeper
    except KafkaError as e:
        for number in wanted:
            results[number] = failed(e)
    return api.CreateAclsResponse(results=tuple(results))


def _new_acl(creation: api.AclCreation) -> Acl:
    try:
        acl = Acl(
            ResourceType(creation.resource_type), creation.resource_name,
            PatternType(creation.resource_pattern_type), creation.principal, creation.host,
            Operation(creation.operation), Permission(creation.permission_type),
        )  # fmt: skip
        check_new(acl)
    except ValueError as e:
        raise InvalidRequest(str(e)) from e
    return acl


@handles(ApiKey.DELETE_ACLS, (0, 3), (Operation.ALTER, ResourceType.CLUSTER), takes_long=always)
def delete_acls(request: api.DeleteAclsRequest, ctx: Context) -> api.DeleteAclsResponse:
    """Delete what filters match, on the disk too, before the response is sent."""
    results = [api.DeleteAclsFilterResult(ErrorCode.NONE, None)] * len(request.filters)

    def failed(error: KafkaError) -> api.DeleteAclsFilterResult:
        return api.DeleteAclsFilterResult(ctx.refused(error), str(error))

    try:
        authorizer = _authorizer_of(Operation.ALTER, ctx)
    except KafkaError as e:
        return api.DeleteAclsResponse(filter_results=tuple(failed(e) for _ in results))
    wanted: dict[int, AclFilter] = {}
    for number, each in enumerate(request.filters):
        try:
            wanted[number] = _filter_of(each)
        except KafkaError as e:
            results[number] = failed(e)
    try:
        found: list[list[Acl]] = authorizer.remove(tuple(wanted.values()))  # waits for the disk or ZooKeeper
    except KafkaError as e:
        for number in wanted:
            results[number] = failed(e)
    else:
        for number, acls in zip(wanted, found, strict=True):
            results[number] = api.DeleteAclsFilterResult(ErrorCode.NONE, None, tuple(map(_deleted_acl, acls)))
    return api.DeleteAclsResponse(filter_results=tuple(results))


def _deleted_acl(acl: Acl) -> api.DeleteAclsMatchingAcl:
    return api.DeleteAclsMatchingAcl(
        resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern_type,
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
    )  # fmt: skip
