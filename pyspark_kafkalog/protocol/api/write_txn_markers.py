"""WriteTxnMarkers, version 1: the coordinator of transactions has their markers written by the brokers that
own the partitions. Clients use it only to abort what has no coordinator any more.

Flexible. Left out: 0, which no broker since Kafka 4.0 serves; 2 (the version of the transaction).
Source: protocol guide, WriteTxnMarkers; KIP-98, 664.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT16, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class WritableTxnMarkerTopic:
    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class WritableTxnMarker:
    """``transaction_result`` is true for a commit."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire(BOOL)
    topics: tuple[WritableTxnMarkerTopic, ...] = wire(Array(WritableTxnMarkerTopic))
    coordinator_epoch: int = wire(INT32, default=0)


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest:
    markers: tuple[WritableTxnMarker, ...] = wire(Array(WritableTxnMarker))


@dataclass(frozen=True, slots=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class WritableTxnMarkerTopicResult:
    name: str = wire(STRING)
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = wire(Array(WritableTxnMarkerPartitionResult))


@dataclass(frozen=True, slots=True)
class WritableTxnMarkerResult:
    producer_id: int = wire(INT64)
    topics: tuple[WritableTxnMarkerTopicResult, ...] = wire(Array(WritableTxnMarkerTopicResult))


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersResponse:
    markers: tuple[WritableTxnMarkerResult, ...] = wire(Array(WritableTxnMarkerResult))
