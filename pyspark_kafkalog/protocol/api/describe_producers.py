"""DescribeProducers, version 0: the producers that the leader of a partition knows.

Flexible from 0. Source: protocol guide, DescribeProducers; KIP-664.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class TopicRequest:
    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest:
    topics: tuple[TopicRequest, ...] = wire(Array(TopicRequest))


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The transaction's first offset is -1 if none is open; times are in ms since the epoch."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@dataclass(frozen=True, slots=True)
class PartitionResponse:
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    active_producers: tuple[ProducerState, ...] = wire(Array(ProducerState))


@dataclass(frozen=True, slots=True)
class TopicResponse:
    name: str = wire(STRING)
    partitions: tuple[PartitionResponse, ...] = wire(Array(PartitionResponse))


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse:
    throttle_time_ms: int = wire(INT32)
    topics: tuple[TopicResponse, ...] = wire(Array(TopicResponse))
