"""DeleteAcls, versions 0-3: filters, and the ACLs that went for each. Flexible from 2.

Left out: nothing. Source: protocol guide, DeleteAcls; KIP-140, 290.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.describe_acls import LITERAL
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DeleteAclsFilter:
    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(STRING, null_since=0)
    pattern_type_filter: int = wire(INT8, 1, default=LITERAL)
    principal_filter: str | None = wire(STRING, null_since=0)
    host_filter: str | None = wire(STRING, null_since=0)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest:
    filters: tuple[DeleteAclsFilter, ...] = wire(Array(DeleteAclsFilter))


@dataclass(frozen=True, slots=True)
class DeleteAclsMatchingAcl:
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, 1, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class DeleteAclsFilterResult:
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = wire(Array(DeleteAclsMatchingAcl))


@dataclass(frozen=True, slots=True)
class DeleteAclsResponse:
    throttle_time_ms: int = wire(INT32)
    filter_results: tuple[DeleteAclsFilterResult, ...] = wire(Array(DeleteAclsFilterResult))
