"""DescribeAcls 0-3: the ACLs that a filter means, together for each pattern of resources."""

from __future__ import annotations

from itertools import groupby

from kafkalog_broker.security.authorizer import Authorizer
from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.acls import (
    AclDescription,
    DeleteAclsFilter,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from pyspark_kafkalog.steps import Steps

_A_STEP = 1_000
"""So many ACLs are looked at between two turns of others."""


@handles(ApiKey.DESCRIBE_ACLS, versions=(0, 3), needs=((Operation.DESCRIBE, ResourceType.CLUSTER),))
def describe_acls(request: DescribeAclsRequest, ctx: Context) -> Steps[DescribeAclsResponse]:
    """Answered from memory."""
    try:
        authorizer = authorizer_of(ctx)
        ctx.demand(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        wanted = filter_of(request)
    except KafkaError as e:
        return DescribeAclsResponse(error_code=ctx.refused(e), error_message=str(e))
    found = []
    for number, acl in enumerate(authorizer.acls, 1):
        if wanted.matches(acl):
            found.append(acl)
        if not number % _A_STEP:
            yield None
    by_pattern = groupby(sorted(found), key=lambda acl: (acl.resource_type, acl.name, acl.pattern_type))
    return DescribeAclsResponse(
        error_code=ErrorCode.NONE,
        resources=tuple(
            DescribeAclsResource(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=tuple(
                    AclDescription(acl.principal, acl.host, acl.operation, acl.permission) for acl in acls
                ),
            )
            for (kind, name, pattern), acls in by_pattern
        ),
    )


def authorizer_of(ctx: Context) -> Authorizer:
    """Raises `ServerError`: this broker has none."""
    authorizer = ctx.services.authorizer
    if authorizer is None:
        raise ServerError(
            ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: set authorizer.class.name"
        )
    return authorizer


def filter_of(request: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Raises `InvalidRequest`: one of its numbers is none that Kafka has."""
    try:
        return AclFilter(
            ResourceType(request.resource_type_filter),
            request.resource_name_filter,
            PatternType(request.pattern_type_filter),
            request.principal_filter,
            request.host_filter,
            Operation(request.operation),
            Permission(request.permission_type),
        )
    except ValueError as e:
        raise InvalidRequest(f"the filter has an unknown element: {e}") from e
