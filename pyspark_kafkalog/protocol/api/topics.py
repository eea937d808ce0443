"""Topics: create, delete, add partitions.

API               Versions  Flexible from  Left out
----------------  --------  -------------  --------
CreateTopics      0-7       5              nothing
DeleteTopics      0-6       4              nothing
CreatePartitions  0-3       2              nothing

* CreateTopics: version 1 added ``validate_only`` and error messages. From version 4 ``num_partitions`` and
  ``replication_factor`` may be -1, the broker's default.
* DeleteTopics: version 1 added the throttle time; version 6 has ``topics`` by name or id.

Source: protocol guide; KIP-4, 464 and 525 (CreateTopics), 4 and 516 (DeleteTopics), 195 (CreatePartitions).
"""

from __future__ import annotations

from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    ERROR_CODE,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID_TYPE,
    Array,
    WireStruct,
    wire,
)


class CreatableReplicaAssignment(WireStruct):
    """The brokers for one partition, the preferred leader first."""

    partition_index: int = wire(INT32)
    broker_ids: tuple[int, ...] = wire(Array(INT32))


class CreatableTopicConfig(WireStruct):
    name: str = wire(STRING)
    value: str | None = wire(STRING, null_since=0)


class CreatableTopic(WireStruct):
    """With ``assignments``, both counts are -1."""

    name: str = wire(STRING)
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: tuple[CreatableReplicaAssignment, ...] = wire(Array(CreatableReplicaAssignment))
    configs: tuple[CreatableTopicConfig, ...] = wire(Array(CreatableTopicConfig))


class CreateTopicsRequest(WireStruct):
    topics: tuple[CreatableTopic, ...] = wire(Array(CreatableTopic))
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire(BOOL, 1)


class CreatableTopicConfigs(WireStruct):
    name: str = wire(STRING, 5)
    value: str | None = wire(STRING, 5, null_since=5)
    read_only: bool = wire(BOOL, 5)
    config_source: int = wire(INT8, 5, default=-1, ignorable=True)
    is_sensitive: bool = wire(BOOL, 5)


class CreatableTopicResult(WireStruct):
    """``configs`` is null if the client may not see them."""

    name: str = wire(STRING)
    topic_id: UUID = wire(UUID_TYPE, 7, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, 1, null_since=0, ignorable=True)
    topic_config_error_code: ErrorCode = wire(ERROR_CODE, 5, tag=0, ignorable=True)
    num_partitions: int = wire(INT32, 5, default=-1, ignorable=True)
    replication_factor: int = wire(INT16, 5, default=-1, ignorable=True)
    configs: tuple[CreatableTopicConfigs, ...] | None = wire(
        Array(CreatableTopicConfigs), 5, default=(), null_since=5, ignorable=True
    )


class CreateTopicsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 2, ignorable=True)
    topics: tuple[CreatableTopicResult, ...] = wire(Array(CreatableTopicResult))


class DeleteTopicState(WireStruct):
    """A topic by name or, if that is null, by id."""

    name: str | None = wire(STRING, 6, null_since=6)
    topic_id: UUID = wire(UUID_TYPE, 6)


class DeleteTopicsRequest(WireStruct):
    topics: tuple[DeleteTopicState, ...] = wire(Array(DeleteTopicState), 6)
    topic_names: tuple[str, ...] = wire(Array(STRING), 0, 5, ignorable=True)
    timeout_ms: int = wire(INT32)


class DeletableTopicResult(WireStruct):
    """``name`` is null for an unknown id."""

    name: str | None = wire(STRING, null_since=6)
    topic_id: UUID = wire(UUID_TYPE, 6, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, 5, null_since=5, ignorable=True)


class DeleteTopicsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = wire(Array(DeletableTopicResult))


class CreatePartitionsAssignment(WireStruct):
    """The brokers for one new partition, the preferred leader first."""

    broker_ids: tuple[int, ...] = wire(Array(INT32))


class CreatePartitionsTopic(WireStruct):
    """``count`` is the new total; with null ``assignments`` the broker chooses."""

    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: tuple[CreatePartitionsAssignment, ...] | None = wire(
        Array(CreatePartitionsAssignment), null_since=0
    )


class CreatePartitionsRequest(WireStruct):
    topics: tuple[CreatePartitionsTopic, ...] = wire(Array(CreatePartitionsTopic))
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOL)


class CreatePartitionsTopicResult(WireStruct):
    name: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


class CreatePartitionsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, ignorable=True)
    results: tuple[CreatePartitionsTopicResult, ...] = wire(Array(CreatePartitionsTopicResult))
