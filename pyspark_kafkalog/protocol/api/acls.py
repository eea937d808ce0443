"""ACLs: describe, create, delete.

API           Versions  Flexible from  Left out
------------  --------  -------------  --------
DescribeAcls  0-3       2              nothing
CreateAcls    0-3       2              nothing
DeleteAcls    0-3       2              nothing

Null and 1 (ANY) in a filter match all. Version 1 added pattern types.
Source: protocol guide; KIP-140, 290.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, STRING, Array, WireStruct, wire

LITERAL = 3  # the resource's name itself; implied by versions without a pattern type


class DescribeAclsRequest(WireStruct):
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, null_since=0)
    pattern_type_filter: int = wire(INT8, 1, default=LITERAL)
    principal_filter: str | None = wire(STRING, null_since=0)
    host_filter: str | None = wire(STRING, null_since=0)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class AclDescription(WireStruct):
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class DescribeAclsResource(WireStruct):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, 1, default=LITERAL)
    acls: tuple[AclDescription, ...] = wire(Array(AclDescription))


class DescribeAclsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resources: tuple[DescribeAclsResource, ...] = wire(Array(DescribeAclsResource))


class AclCreation(WireStruct):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, 1, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class CreateAclsRequest(WireStruct):
    creations: tuple[AclCreation, ...] = wire(Array(AclCreation))


class AclCreationResult(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


class CreateAclsResponse(WireStruct):
    """Results in request order."""

    throttle_time_ms: int = wire(INT32)
    results: tuple[AclCreationResult, ...] = wire(Array(AclCreationResult))


class DeleteAclsFilter(WireStruct):
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, null_since=0)
    pattern_type_filter: int = wire(INT8, 1, default=LITERAL)
    principal_filter: str | None = wire(STRING, null_since=0)
    host_filter: str | None = wire(STRING, null_since=0)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class DeleteAclsRequest(WireStruct):
    filters: tuple[DeleteAclsFilter, ...] = wire(Array(DeleteAclsFilter))


class DeleteAclsMatchingAcl(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, 1, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


class DeleteAclsFilterResult(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = wire(Array(DeleteAclsMatchingAcl))


class DeleteAclsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    filter_results: tuple[DeleteAclsFilterResult, ...] = wire(Array(DeleteAclsFilterResult))
