"""AlterConfigs, versions 0-2: replaces all the properties that a topic or broker sets for itself.

Flexible from 2. Left out: nothing. Source: protocol guide, AlterConfigs; KIP-133.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT8, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    name: str = wire(STRING)
    value: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class AlterConfigsResource:
    """A topic, or a broker by its id in decimals; the kinds are those of DescribeConfigs."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[AlterableConfig, ...] = wire(Array(AlterableConfig))


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...] = wire(Array(AlterConfigsResource))
    validate_only: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class AlterConfigsResourceResponse:
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    throttle_time_ms: int = wire(INT32, ignorable=True)
    responses: tuple[AlterConfigsResourceResponse, ...] = wire(Array(AlterConfigsResourceResponse))
