"""DescribeAcls, versions 0-3: the ACLs that a filter means. Flexible from 2.

Null and 1 (ANY) mean all. Left out: nothing. Source: protocol guide, DescribeAcls; KIP-140, 290.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, STRING, Array, wire

LITERAL = 3


@dataclass(frozen=True, slots=True)
class DescribeAclsRequest:
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, null_since=0)
    pattern_type_filter: int = wire(INT8, 1, default=LITERAL)
    principal_filter: str | None = wire(STRING, null_since=0)
    host_filter: str | None = wire(STRING, null_since=0)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class AclDescription:
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class DescribeAclsResource:
    """A pattern, with all ACLs of it that are meant."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, 1, default=LITERAL)
    acls: tuple[AclDescription, ...] = wire(Array(AclDescription))


@dataclass(frozen=True, slots=True)
class DescribeAclsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resources: tuple[DescribeAclsResource, ...] = wire(Array(DescribeAclsResource))
