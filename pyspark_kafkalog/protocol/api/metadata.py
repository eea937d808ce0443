"""A client's first requests: APIs of a broker, locations of partitions and coordinators.

API                      Versions  Flexible from  Left out
-----------------------  --------  -------------  --------------------------------------------------
ApiVersions              0-4       3              nothing
Metadata                 0-12      9              13 (an error code for the whole response)
DescribeTopicPartitions  0         0              nothing
FindCoordinator          0-4       3              5 and later (error codes of KIP-890, share groups)

* ApiVersions: the response's header is never flexible. To an unknown version, a broker responds with version
  0 and error 35.
* Metadata: an empty list requests all topics in version 0; later null does, and an empty list none. Responses
  have topic ids from 10; requests can use them (name null) from 12.
* FindCoordinator: up to version 3 one ``key`` and one coordinator; version 4 has ``coordinator_keys`` and
  ``coordinators``.

Source: protocol guide; KIP-35, 511 and 584 (ApiVersions), 516 (Metadata), 966
(DescribeTopicPartitions), 699 (FindCoordinator).
"""

from __future__ import annotations

from enum import IntEnum
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    ERROR_CODE,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID_TYPE,
    Array,
    WireStruct,
    codec,
    tuned,
    wire,
)
from pyspark_kafkalog.protocol.primitives import Output, Writer


class ApiVersionsRequest(WireStruct):
    client_software_name: str = wire(STRING, 3, ignorable=True)
    client_software_version: str = wire(STRING, 3, ignorable=True)


class ApiVersion(WireStruct):
    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


class SupportedFeatureKey(WireStruct):
    """Versions of a feature that the broker supports."""

    name: str = wire(STRING, 3)
    min_version: int = wire(INT16, 3)
    max_version: int = wire(INT16, 3)


class FinalizedFeatureKey(WireStruct):
    """Versions of a feature that the whole cluster uses."""

    name: str = wire(STRING, 3)
    max_version_level: int = wire(INT16, 3)
    min_version_level: int = wire(INT16, 3)


class ApiVersionsResponse(WireStruct):
    """``finalized_features_epoch`` -1 is unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    api_keys: tuple[ApiVersion, ...] = wire(Array(ApiVersion))
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    supported_features: tuple[SupportedFeatureKey, ...] = wire(
        Array(SupportedFeatureKey), 3, tag=0, ignorable=True
    )
    finalized_features_epoch: int = wire(INT64, 3, tag=1, default=-1, ignorable=True)
    finalized_features: tuple[FinalizedFeatureKey, ...] = wire(
        Array(FinalizedFeatureKey), 3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = wire(BOOL, 3, tag=3, ignorable=True)


_METADATA_FLEXIBLE_SINCE = 9

NOT_ASKED = -2147483648  # authorized operations that were not requested


class MetadataRequestTopic(WireStruct):
    topic_id: UUID = wire(UUID_TYPE, 10, ignorable=True)
    name: str | None = wire(STRING, null_since=10)


class MetadataRequest(WireStruct):
    """Null ``topics`` (from version 1) is all."""

    topics: tuple[MetadataRequestTopic, ...] | None = wire(Array(MetadataRequestTopic), null_since=1)
    allow_auto_topic_creation: bool = wire(BOOL, 4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOL, 8, 10)
    include_topic_authorized_operations: bool = wire(BOOL, 8)


class MetadataResponseBroker(WireStruct):
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, 1, null_since=1, ignorable=True)


class MetadataResponsePartition(WireStruct):
    """``leader_id`` -1 is none, ``leader_epoch`` -1 unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, 7, default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = wire(Array(INT32))
    isr_nodes: tuple[int, ...] = wire(Array(INT32))
    offline_replicas: tuple[int, ...] = wire(Array(INT32), 5, ignorable=True)


class MetadataResponseTopic(WireStruct):
    """``name`` is null only for an unknown id (from version 12)."""

    error_code: ErrorCode = wire(ERROR_CODE)
    name: str | None = wire(STRING, null_since=12)
    topic_id: UUID = wire(UUID_TYPE, 10, ignorable=True)
    is_internal: bool = wire(BOOL, 1, ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = wire(Array(MetadataResponsePartition))
    topic_authorized_operations: int = wire(INT32, 8, default=NOT_ASKED)


class CachedTopic(WireStruct):
    """A `MetadataResponseTopic` encoded for responses of one version."""

    data: bytes


def written_topic(topic: MetadataResponseTopic, version: int) -> CachedTopic:
    out = Output()
    codec(MetadataResponseTopic, version, version >= _METADATA_FLEXIBLE_SINCE).write(out, topic)
    return CachedTopic(bytes(out))


@tuned(MetadataResponseTopic, 0, 12)
def _with_written_topics(table: Writer, flexible: bool) -> Writer:  # noqa: ARG001
    def write(out: Output, value: MetadataResponseTopic | CachedTopic) -> None:
        if type(value) is CachedTopic:
            out += value.data
        else:
            table(out, value)

    return write


class MetadataResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 3, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = wire(Array(MetadataResponseBroker))
    cluster_id: str | None = wire(STRING, 2, null_since=2, ignorable=True)
    controller_id: int = wire(INT32, 1, default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = wire(Array(MetadataResponseTopic))
    cluster_authorized_operations: int = wire(INT32, 8, 10, default=NOT_ASKED)


class NamedTopic(WireStruct):
    name: str = wire(STRING)


class Cursor(WireStruct):
    """The first partition of the next response."""

    topic_name: str = wire(STRING)
    partition_index: int = wire(INT32)


class DescribeTopicPartitionsRequest(WireStruct):
    """No ``topics`` are all."""

    topics: tuple[NamedTopic, ...] = wire(Array(NamedTopic))
    response_partition_limit: int = wire(INT32, default=2_000)
    cursor: Cursor | None = wire(Cursor, null_since=0, default=None)


class DescribeTopicPartitionsResponsePartition(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = wire(Array(INT32))
    isr_nodes: tuple[int, ...] = wire(Array(INT32))
    eligible_leader_replicas: tuple[int, ...] | None = wire(Array(INT32), null_since=0, ignorable=True)
    last_known_elr: tuple[int, ...] | None = wire(Array(INT32), null_since=0, ignorable=True)
    offline_replicas: tuple[int, ...] = wire(Array(INT32), ignorable=True)


class DescribeTopicPartitionsResponseTopic(WireStruct):
    error_code: ErrorCode = wire(ERROR_CODE)
    name: str | None = wire(STRING, null_since=0)
    topic_id: UUID = wire(UUID_TYPE, ignorable=True)
    is_internal: bool = wire(BOOL, ignorable=True)
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = wire(
        Array(DescribeTopicPartitionsResponsePartition)
    )
    topic_authorized_operations: int = wire(INT32, default=NOT_ASKED)


class DescribeTopicPartitionsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, ignorable=True)
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = wire(
        Array(DescribeTopicPartitionsResponseTopic)
    )
    next_cursor: Cursor | None = wire(Cursor, null_since=0, default=None, ignorable=True)


class CoordinatorType(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class FindCoordinatorRequest(WireStruct):
    """A group, or (``key_type`` 1, from version 1) a transactional id."""

    key: str = wire(STRING, 0, 3)
    key_type: int = wire(INT8, 1)
    coordinator_keys: tuple[str, ...] = wire(Array(STRING), 4)


class Coordinator(WireStruct):
    key: str = wire(STRING, 4)
    node_id: int = wire(INT32, 4)
    host: str = wire(STRING, 4)
    port: int = wire(INT32, 4)
    error_code: ErrorCode = wire(ERROR_CODE, 4)
    error_message: str | None = wire(STRING, 4, null_since=4, ignorable=True)


class FindCoordinatorResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE, 0, 3)
    error_message: str | None = wire(STRING, 1, 3, null_since=1, ignorable=True)
    node_id: int = wire(INT32, 0, 3)
    host: str = wire(STRING, 0, 3)
    port: int = wire(INT32, 0, 3)
    coordinators: tuple[Coordinator, ...] = wire(Array(Coordinator), 4)
