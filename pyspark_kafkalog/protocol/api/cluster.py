"""The cluster, its brokers' data directories, and quotas.

API                   Versions  Flexible from  Left out
--------------------  --------  -------------  ---------------------------
DescribeCluster       0-1       0              2 (fenced brokers)
DescribeLogDirs       1-4       2              0; 5 (cordoned directories)
DescribeClientQuotas  0-1       1              nothing

DescribeCluster 1 added the endpoint type; DescribeLogDirs 3 an error for the whole response, 4 disk sizes.
Source: protocol guide; KIP-700, 919 (DescribeCluster), 113, 827 (DescribeLogDirs), 546
(DescribeClientQuotas).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, FLOAT64, INT8, INT32, INT64, STRING, Array, wire

BROKERS = 1  # the ``endpoint_type`` of brokers; controllers have 2


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = wire(BOOL)
    endpoint_type: int = wire(INT8, 1, default=BROKERS)


@dataclass(frozen=True, slots=True)
class DescribeClusterBroker:
    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    endpoint_type: int = wire(INT8, 1, default=BROKERS)
    cluster_id: str = wire(STRING)
    controller_id: int = wire(INT32, default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = wire(Array(DescribeClusterBroker))
    cluster_authorized_operations: int = wire(INT32, default=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class DescribableLogDirTopic:
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    """The requested partitions; null is all."""

    topics: tuple[DescribableLogDirTopic, ...] | None = wire(Array(DescribableLogDirTopic), null_since=0)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsPartition:
    """``partition_size`` in bytes; ``offset_lag`` is the replica's lag."""

    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsTopic:
    name: str = wire(STRING)
    partitions: tuple[DescribeLogDirsPartition, ...] = wire(Array(DescribeLogDirsPartition))


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResult:
    """One directory; sizes of its file system in bytes, -1 if unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    log_dir: str = wire(STRING)
    topics: tuple[DescribeLogDirsTopic, ...] = wire(Array(DescribeLogDirsTopic))
    total_bytes: int = wire(INT64, 4, default=-1, ignorable=True)
    usable_bytes: int = wire(INT64, 4, default=-1, ignorable=True)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 3, ignorable=True)
    results: tuple[DescribeLogDirsResult, ...] = wire(Array(DescribeLogDirsResult))


@dataclass(frozen=True, slots=True)
class ComponentData:
    """``match_type``: 0 the name in ``match``, 1 the default, 2 any with a quota."""

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
