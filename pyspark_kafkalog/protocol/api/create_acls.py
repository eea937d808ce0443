"""CreateAcls, versions 0-3: ACLs to add. Flexible from 2.

Left out: nothing. Source: protocol guide, CreateAcls; KIP-140, 290.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.describe_acls import LITERAL
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class AclCreation:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, 1, default=LITERAL)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(frozen=True, slots=True)
class CreateAclsRequest:
    creations: tuple[AclCreation, ...] = wire(Array(AclCreation))


@dataclass(frozen=True, slots=True)
class AclCreationResult:
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class CreateAclsResponse:
    """In the order of the request."""

    throttle_time_ms: int = wire(INT32)
    results: tuple[AclCreationResult, ...] = wire(Array(AclCreationResult))
