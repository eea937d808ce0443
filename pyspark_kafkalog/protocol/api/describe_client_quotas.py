"""DescribeClientQuotas, versions 0-1: the quotas of users, client ids and addresses.

Flexible from 1. Left out: nothing. Source: protocol guide, DescribeClientQuotas; KIP-546.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, FLOAT64, INT8, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class ComponentData:
    """``match_type``: 0 the name in ``match``, 1 the default, 2 any that has a quota."""

    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasRequest:
    components: tuple[ComponentData, ...] = wire(Array(ComponentData))
    strict: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class EntityData:
    entity_type: str = wire(STRING)
    entity_name: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class ValueData:
    key: str = wire(STRING)
    value: float = wire(FLOAT64)


@dataclass(frozen=True, slots=True)
class EntryData:
    entity: tuple[EntityData, ...] = wire(Array(EntityData))
    values: tuple[ValueData, ...] = wire(Array(ValueData))


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasResponse:
    """``entries`` is null only with an error."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    entries: tuple[EntryData, ...] | None = wire(Array(EntryData), null_since=0)
