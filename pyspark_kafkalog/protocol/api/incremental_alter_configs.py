"""IncrementalAlterConfigs, versions 0-1: changes single properties of topics and brokers.

Flexible from 1. Left out: nothing. Source: protocol guide, IncrementalAlterConfigs; KIP-339.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT8, INT32, STRING, Array, wire


class ConfigOperation(IntEnum):
    """What happens to a property; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    """``value`` is null where the property is deleted."""

    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class AlterConfigsResource:
    """A topic, or a broker by its id in decimals; the kinds are those of DescribeConfigs."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[AlterableConfig, ...] = wire(Array(AlterableConfig))


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...] = wire(Array(AlterConfigsResource))
    validate_only: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class AlterConfigsResourceResponse:
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = wire(INT32, ignorable=True)
    responses: tuple[AlterConfigsResourceResponse, ...] = wire(Array(AlterConfigsResourceResponse))
