"""Metadata, versions 0-12: brokers, topics, partitions and their leaders.

Flexible from 9. In version 0 an empty list requests all topics; later null requests all and an
empty list none. Responses have topic ids from 10; requests can use them (name null) from 12.
A topic's part of the response can be encoded once and sent often (`WrittenTopic`).
Left out: version 13 (an error code for the whole response). Source: protocol guide, Metadata; KIP-516.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    ERROR_CODE,
    INT32,
    STRING,
    UUID_TYPE,
    Array,
    codec,
    tuned,
    wire,
)
from pyspark_kafkalog.protocol.primitives import Output, Writer

FLEXIBLE_SINCE = 9

NOT_ASKED = -2147483648
"""The authorized operations if the request did not ask for them."""


@dataclass(frozen=True, slots=True)
class MetadataRequestTopic:
    topic_id: UUID = wire(UUID_TYPE, 10, ignorable=True)
    name: str | None = wire(STRING, null_since=10)


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """The wanted topics; null (from version 1) is all."""

    topics: tuple[MetadataRequestTopic, ...] | None = wire(Array(MetadataRequestTopic), null_since=1)
    allow_auto_topic_creation: bool = wire(BOOL, 4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOL, 8, 10)
    include_topic_authorized_operations: bool = wire(BOOL, 8)


@dataclass(frozen=True, slots=True)
class MetadataResponseBroker:
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, 1, null_since=1, ignorable=True)


@dataclass(frozen=True, slots=True)
class MetadataResponsePartition:
    """One partition; ``leader_id`` -1 is none, ``leader_epoch`` -1 unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, 7, default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = wire(Array(INT32))
    isr_nodes: tuple[int, ...] = wire(Array(INT32))
    offline_replicas: tuple[int, ...] = wire(Array(INT32), 5, ignorable=True)


@dataclass(frozen=True, slots=True)
class MetadataResponseTopic:
    """One topic; ``name`` is null only for an unknown id (from version 12)."""

    error_code: ErrorCode = wire(ERROR_CODE)
    name: str | None = wire(STRING, null_since=12)
    topic_id: UUID = wire(UUID_TYPE, 10, ignorable=True)
    is_internal: bool = wire(BOOL, 1, ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = wire(Array(MetadataResponsePartition))
    topic_authorized_operations: int = wire(INT32, 8, default=NOT_ASKED)


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """A `MetadataResponseTopic` encoded in one version, for responses of that version."""

    data: bytes


def written_topic(topic: MetadataResponseTopic, version: int) -> WrittenTopic:
    """``topic`` encoded in ``version``."""
    out = Output()
    codec(MetadataResponseTopic, version, version >= FLEXIBLE_SINCE).write(out, topic)
    return WrittenTopic(bytes(out))


@tuned(MetadataResponseTopic, 0, 12)
def _with_written_topics(table: Writer, flexible: bool) -> Writer:  # noqa: ARG001
    def write(out: Output, value: MetadataResponseTopic | WrittenTopic) -> None:
        if type(value) is WrittenTopic:
            out += value.data
        else:
            table(out, value)

    return write


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    throttle_time_ms: int = wire(INT32, 3, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = wire(Array(MetadataResponseBroker))
    cluster_id: str | None = wire(STRING, 2, null_since=2, ignorable=True)
    controller_id: int = wire(INT32, 1, default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = wire(Array(MetadataResponseTopic))
    cluster_authorized_operations: int = wire(INT32, 8, 10, default=NOT_ASKED)
