"""Metadata and assignments of consumers in classic groups, carried by JoinGroup and SyncGroup.

An int16 version, then its fields; a reader ignores fields that newer versions append. Subscription version 1
added owned partitions, 2 the generation, 3 the rack. Source: Kafka's ConsumerProtocolSubscription and
ConsumerProtocolAssignment; KIP-429, 792, 881.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.codec import BYTES, INT32, STRING, Array, WireStruct, codec, wire
from pyspark_kafkalog.protocol.primitives import Output
from pyspark_kafkalog.types import TopicPartition

PROTOCOL_TYPE = "consumer"

_SUBSCRIPTION_VERSION, _ASSIGNMENT_VERSION = 3, 3
_VERSION_BYTES = 2


class TopicPartitions(WireStruct):
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class Subscription(WireStruct):
    """A joining member's metadata. Generation -1: unknown, or not a member before."""

    topics: tuple[str, ...] = wire(Array(STRING))
    user_data: bytes | None = wire(BYTES, null_since=0)
    owned_partitions: tuple[TopicPartitions, ...] = wire(Array(TopicPartitions), 1, ignorable=True)
    generation_id: int = wire(INT32, 2, default=-1, ignorable=True)
    rack_id: str | None = wire(STRING, 3, null_since=3, ignorable=True)


class Assignment(WireStruct):
    assigned_partitions: tuple[TopicPartitions, ...] = wire(Array(TopicPartitions))
    user_data: bytes | None = wire(BYTES, null_since=0)


class Previous(WireStruct):
    """User data of the "sticky" strategy, without a version: the previous assignment (KIP-54, 341)."""

    previous_assignment: tuple[TopicPartitions, ...] = wire(Array(TopicPartitions))
    generation: int = wire(INT32, 1, default=-1)


def encode_previous(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    return _fields(Previous(grouped(sorted(partitions)), generation), 1)


def decode_previous(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Reads `encode_previous`; no partitions and -1 if ``data`` is missing or different."""
    for version in (1, 0):
        try:
            found: Previous = codec(Previous, version, False).read(memoryview(data or b""), 0)
        except InvalidRequest:
            continue
        return flat(found.previous_assignment), found.generation
    return (), -1


def encode_subscription(subscription: Subscription) -> bytes:
    return _written(subscription, _SUBSCRIPTION_VERSION)


def decode_subscription(data: bytes) -> Subscription:
    found: Subscription = _read(Subscription, data, _SUBSCRIPTION_VERSION)
    return found


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return _written(Assignment(grouped(partitions)), _ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """A member's sorted partitions; none before the first assignment. Raises `InvalidRequest`."""
    if not data:
        return ()
    return flat(_read(Assignment, data, _ASSIGNMENT_VERSION).assigned_partitions)


def assignment_user_data(data: bytes) -> bytes:
    """What the leader's strategy added to an assignment, mostly nothing. Raises `InvalidRequest`."""
    return bytes(_read(Assignment, data, _ASSIGNMENT_VERSION).user_data or b"") if data else b""


def grouped(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return tuple(TopicPartitions(name, tuple(numbers)) for name, numbers in topics.items())


def flat(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(row.topic, number) for row in topics for number in row.partitions))


def _written(message: Any, version: int) -> bytes:
    return version.to_bytes(_VERSION_BYTES, "big") + _fields(message, version)


def _fields(message: Any, version: int) -> bytes:
    out = Output()
    cls: Any = type(message)
    codec(cls, version, False).write(out, message)
    return bytes(out)


def _read(cls: Any, data: bytes, newest: int) -> Any:
    if len(data) < _VERSION_BYTES:
        raise InvalidRequest(f"{cls.__name__}: {len(data)} bytes have no version")
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise InvalidRequest(f"{cls.__name__}: version {version} is below 0")
    return codec(cls, min(version, newest), False).read(memoryview(data), _VERSION_BYTES, exact=False)
