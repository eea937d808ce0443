"""The cluster, its brokers' data directories, reassignments, elections, and quotas.

API                         Versions  Flexible from  Left out
--------------------------  --------  -------------  ---------------------------
DescribeCluster             0-1       0              2 (fenced brokers)
DescribeLogDirs             1-4       2              0; 5 (cordoned directories)
AlterReplicaLogDirs         1-2       2              0
DescribeClientQuotas        0-1       1              nothing
ElectLeaders                0-2       2              nothing
AlterPartitionReassignments 0-1       0              nothing
ListPartitionReassignments  0         0              nothing

DescribeCluster 1 added the endpoint type; DescribeLogDirs 3 an error for the whole response, 4 disk sizes;
ElectLeaders 1 the election type and an error for the whole response. Source: protocol guide; KIP-700, 919
(DescribeCluster), 113, 827 (log directories), 546 (DescribeClientQuotas), 183, 460 (ElectLeaders), 455, 860
(reassignments).
"""

from __future__ import annotations

from enum import IntEnum

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    ERROR_CODE,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    Array,
    WireStruct,
    wire,
)

BROKERS = 1  # the ``endpoint_type`` of brokers; controllers have 2


class DescribeClusterRequest(WireStruct):
    include_cluster_authorized_operations: bool = wire(BOOL)
    endpoint_type: int = wire(INT8, 1, default=BROKERS)


class DescribeClusterBroker(WireStruct):
    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, null_since=0)


class DescribeClusterResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    endpoint_type: int = wire(INT8, 1, default=BROKERS)
    cluster_id: str = wire(STRING)
    controller_id: int = wire(INT32, default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = wire(Array(DescribeClusterBroker))
    cluster_authorized_operations: int = wire(INT32, default=NOT_ASKED)


class DescribableLogDirTopic(WireStruct):
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class DescribeLogDirsRequest(WireStruct):
    """The requested partitions; null is all."""

    topics: tuple[DescribableLogDirTopic, ...] | None = wire(Array(DescribableLogDirTopic), null_since=0)


class DescribeLogDirsPartition(WireStruct):
    """``partition_size`` in bytes; ``offset_lag`` is the replica's lag."""

    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOL)


class DescribeLogDirsTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[DescribeLogDirsPartition, ...] = wire(Array(DescribeLogDirsPartition))


class DescribeLogDirsResult(WireStruct):
    """One directory; sizes of its file system in bytes, -1 if unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    log_dir: str = wire(STRING)
    topics: tuple[DescribeLogDirsTopic, ...] = wire(Array(DescribeLogDirsTopic))
    total_bytes: int = wire(INT64, 4, default=-1, ignorable=True)
    usable_bytes: int = wire(INT64, 4, default=-1, ignorable=True)


class DescribeLogDirsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 3, ignorable=True)
    results: tuple[DescribeLogDirsResult, ...] = wire(Array(DescribeLogDirsResult))


class AlterReplicaLogDirTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class AlterReplicaLogDir(WireStruct):
    """The absolute path of a directory, and the partitions to move there."""

    path: str = wire(STRING)
    topics: tuple[AlterReplicaLogDirTopic, ...] = wire(Array(AlterReplicaLogDirTopic))


class AlterReplicaLogDirsRequest(WireStruct):
    dirs: tuple[AlterReplicaLogDir, ...] = wire(Array(AlterReplicaLogDir))


class AlterReplicaLogDirPartitionResult(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


class AlterReplicaLogDirTopicResult(WireStruct):
    topic_name: str = wire(STRING)
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = wire(Array(AlterReplicaLogDirPartitionResult))


class AlterReplicaLogDirsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    results: tuple[AlterReplicaLogDirTopicResult, ...] = wire(Array(AlterReplicaLogDirTopicResult))


class ComponentData(WireStruct):
    """``match_type``: 0 the name in ``match``, 1 the default, 2 any with a quota."""

    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(STRING, null_since=0)


class DescribeClientQuotasRequest(WireStruct):
    components: tuple[ComponentData, ...] = wire(Array(ComponentData))
    strict: bool = wire(BOOL)


class EntityData(WireStruct):
    entity_type: str = wire(STRING)
    entity_name: str | None = wire(STRING, null_since=0)


class ValueData(WireStruct):
    key: str = wire(STRING)
    value: float = wire(FLOAT64)


class EntryData(WireStruct):
    entity: tuple[EntityData, ...] = wire(Array(EntityData))
    values: tuple[ValueData, ...] = wire(Array(ValueData))


class DescribeClientQuotasResponse(WireStruct):
    """``entries`` is null only with an error."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    entries: tuple[EntryData, ...] | None = wire(Array(EntryData), null_since=0)


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectTopicPartitions(WireStruct):
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class ElectLeadersRequest(WireStruct):
    """Null ``topic_partitions`` are all."""

    election_type: int = wire(INT8, 1)
    topic_partitions: tuple[ElectTopicPartitions, ...] | None = wire(
        Array(ElectTopicPartitions), null_since=0
    )
    timeout_ms: int = wire(INT32, default=60_000)


class PartitionResult(WireStruct):
    partition_id: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


class ReplicaElectionResult(WireStruct):
    topic: str = wire(STRING)
    partition_result: tuple[PartitionResult, ...] = wire(Array(PartitionResult))


class ElectLeadersResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 1)
    replica_election_results: tuple[ReplicaElectionResult, ...] = wire(Array(ReplicaElectionResult))


class ReassignablePartition(WireStruct):
    """Null ``replicas`` cancel a reassignment."""

    partition_index: int = wire(INT32)
    replicas: tuple[int, ...] | None = wire(Array(INT32), null_since=0)


class ReassignableTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[ReassignablePartition, ...] = wire(Array(ReassignablePartition))


class AlterPartitionReassignmentsRequest(WireStruct):
    timeout_ms: int = wire(INT32, default=60_000)
    allow_replication_factor_change: bool = wire(BOOL, 1, default=True)
    topics: tuple[ReassignableTopic, ...] = wire(Array(ReassignableTopic))


class ReassignablePartitionResponse(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


class ReassignableTopicResponse(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[ReassignablePartitionResponse, ...] = wire(Array(ReassignablePartitionResponse))


class AlterPartitionReassignmentsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    allow_replication_factor_change: bool = wire(BOOL, 1, default=True, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    responses: tuple[ReassignableTopicResponse, ...] = wire(Array(ReassignableTopicResponse))


class ListPartitionReassignmentsTopics(WireStruct):
    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(Array(INT32))


class ListPartitionReassignmentsRequest(WireStruct):
    """Null ``topics`` are all."""

    timeout_ms: int = wire(INT32, default=60_000)
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = wire(
        Array(ListPartitionReassignmentsTopics), null_since=0
    )


class OngoingPartitionReassignment(WireStruct):
    partition_index: int = wire(INT32)
    replicas: tuple[int, ...] = wire(Array(INT32))
    adding_replicas: tuple[int, ...] = wire(Array(INT32))
    removing_replicas: tuple[int, ...] = wire(Array(INT32))


class OngoingTopicReassignment(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[OngoingPartitionReassignment, ...] = wire(Array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    topics: tuple[OngoingTopicReassignment, ...] = wire(Array(OngoingTopicReassignment))
