"""DeleteGroups, versions 0-2: groups without members go, with their offsets.

Flexible from 2. Left out: nothing. Source: protocol guide, DeleteGroups; KIP-229.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    groups_names: tuple[str, ...] = wire(Array(STRING))


@dataclass(frozen=True, slots=True)
class DeletableGroupResult:
    group_id: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    throttle_time_ms: int = wire(INT32)
    results: tuple[DeletableGroupResult, ...] = wire(Array(DeletableGroupResult))
