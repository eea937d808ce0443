"""ConsumerGroupHeartbeat, versions 0-1: the one call of a member of the newer group protocol.

Flexible from 0. In version 1 the client makes its own member id and may subscribe to a regular expression.
Left out: nothing. Source: protocol guide, ConsumerGroupHeartbeat; KIP-848, 1082.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, STRING, UUID_TYPE, Array, wire


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic_id: UUID = wire(UUID_TYPE)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest:
    """Null, and -1 for the timeout, is "as before". ``member_epoch`` 0 joins, -1 leaves, -2 is a static
    member that will be back soon. ``topic_partitions``: what the member holds.
    """

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    instance_id: str | None = wire(STRING, null_since=0)
    rack_id: str | None = wire(STRING, null_since=0)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = wire(Array(STRING), null_since=0)
    subscribed_topic_regex: str | None = wire(STRING, 1, null_since=1)
    server_assignor: str | None = wire(STRING, null_since=0)
    topic_partitions: tuple[TopicPartitions, ...] | None = wire(Array(TopicPartitions), null_since=0)


@dataclass(frozen=True, slots=True)
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = wire(Array(TopicPartitions))


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """``assignment``: what the member may use at once; null where it did not change."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    member_id: str | None = wire(STRING, null_since=0)
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: Assignment | None = wire(Assignment, null_since=0)
