"""CreatePartitions, versions 0-3: adds partitions to topics.

Flexible from 2. Left out: nothing. Source: protocol guide, CreatePartitions; KIP-195.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT32, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class CreatePartitionsAssignment:
    """The brokers for one new partition, the preferred leader first."""

    broker_ids: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopic:
    """``count`` is the new total; with null ``assignments`` the broker chooses."""

    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: tuple[CreatePartitionsAssignment, ...] | None = wire(
        Array(CreatePartitionsAssignment), null_since=0
    )


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...] = wire(Array(CreatePartitionsTopic))
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopicResult:
    name: str = wire(STRING)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    throttle_time_ms: int = wire(INT32, ignorable=True)
    results: tuple[CreatePartitionsTopicResult, ...] = wire(Array(CreatePartitionsTopicResult))
