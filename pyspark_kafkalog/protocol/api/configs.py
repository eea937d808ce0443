"""Properties of topics and brokers: values, sources and changes.

API                      Versions  Flexible from  Left out
-----------------------  --------  -------------  --------
DescribeConfigs          1-4       4              0
AlterConfigs             0-2       2              nothing
IncrementalAlterConfigs  0-1       1              nothing
ListConfigResources      0-1       0              nothing

AlterConfigs replaces all properties set on a resource; IncrementalAlterConfigs changes single ones.
ListConfigResources 0 is Kafka 3.7's ListClientMetricsResources. Source: protocol guide; KIP-133, 226, 569
(DescribeConfigs), 133 (AlterConfigs), 339 (IncrementalAlterConfigs), 714, 1142 (ListConfigResources).
"""

from __future__ import annotations

from enum import IntEnum

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT8, INT32, STRING, Array, WireStruct, wire


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class DescribeConfigsResource(WireStruct):
    """A topic, or a broker by its decimal id; null keys are all."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configuration_keys: tuple[str, ...] | None = wire(Array(STRING), null_since=0)


class DescribeConfigsRequest(WireStruct):
    resources: tuple[DescribeConfigsResource, ...] = wire(Array(DescribeConfigsResource))
    include_synonyms: bool = wire(BOOL, 1)
    include_documentation: bool = wire(BOOL, 3)


class DescribeConfigsSynonym(WireStruct):
    """A property that can provide the value, in order of precedence."""

    name: str = wire(STRING, 1)
    value: str | None = wire(STRING, 1, null_since=0)
    source: int = wire(INT8, 1)


class DescribeConfigsResourceResult(WireStruct):
    """One property; a secret's value is null."""

    name: str = wire(STRING)
    value: str | None = wire(STRING, null_since=0)
    read_only: bool = wire(BOOL)
    config_source: int = wire(INT8, 1, default=-1, ignorable=True)
    is_sensitive: bool = wire(BOOL)
    synonyms: tuple[DescribeConfigsSynonym, ...] = wire(Array(DescribeConfigsSynonym), 1, ignorable=True)
    config_type: int = wire(INT8, 3, ignorable=True)
    documentation: str | None = wire(STRING, 3, null_since=0, ignorable=True)


class DescribeConfigsResult(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[DescribeConfigsResourceResult, ...] = wire(Array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, ignorable=True)
    results: tuple[DescribeConfigsResult, ...] = wire(Array(DescribeConfigsResult))


class AlterableConfig(WireStruct):
    name: str = wire(STRING)
    value: str | None = wire(STRING, null_since=0)


class AlterConfigsResource(WireStruct):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[AlterableConfig, ...] = wire(Array(AlterableConfig))


class AlterConfigsRequest(WireStruct):
    resources: tuple[AlterConfigsResource, ...] = wire(Array(AlterConfigsResource))
    validate_only: bool = wire(BOOL)


class AlterConfigsResourceResponse(WireStruct):
    """The result for one resource; also used by IncrementalAlterConfigs."""

    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


class AlterConfigsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, ignorable=True)
    responses: tuple[AlterConfigsResourceResponse, ...] = wire(Array(AlterConfigsResourceResponse))


class ConfigOperation(IntEnum):
    """The last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class IncrementalAlterableConfig(WireStruct):
    """``value`` is null for DELETE."""

    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(STRING, null_since=0)


class IncrementalAlterConfigsResource(WireStruct):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[IncrementalAlterableConfig, ...] = wire(Array(IncrementalAlterableConfig))


class IncrementalAlterConfigsRequest(WireStruct):
    resources: tuple[IncrementalAlterConfigsResource, ...] = wire(Array(IncrementalAlterConfigsResource))
    validate_only: bool = wire(BOOL)


class IncrementalAlterConfigsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, ignorable=True)
    responses: tuple[AlterConfigsResourceResponse, ...] = wire(Array(AlterConfigsResourceResponse))


class ListConfigResourcesRequest(WireStruct):
    """No ``resource_types`` are all."""

    resource_types: tuple[int, ...] = wire(Array(INT8), 1)


class ConfigResource(WireStruct):
    resource_name: str = wire(STRING)
    resource_type: int = wire(INT8, 1, default=int(ResourceType.CLIENT_METRICS), ignorable=True)


class ListConfigResourcesResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    config_resources: tuple[ConfigResource, ...] = wire(Array(ConfigResource))
