"""AddPartitionsToTxn, versions 0-4: adds partitions to a transaction.

Flexible from 3. From version 2 a fenced producer gets an error code of its own. Clients use versions up to 3;
version 4 is for brokers, which ask for several transactions at once, and whether partitions are in one
(``verify_only``) before they append to them. Field names are Kafka's.
Left out: 5 and later (an error code of KIP-890).
Source: protocol guide, AddPartitionsToTxn; KIP-98, 588, 890.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT16, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTopic:
    name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str = wire(STRING, 4)
    producer_id: int = wire(INT64, 4)
    producer_epoch: int = wire(INT16, 4)
    verify_only: bool = wire(BOOL, 4)
    topics: tuple[AddPartitionsToTxnTopic, ...] = wire(Array(AddPartitionsToTxnTopic), 4)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    transactions: tuple[AddPartitionsToTxnTransaction, ...] = wire(Array(AddPartitionsToTxnTransaction), 4)
    v3_and_below_transactional_id: str = wire(STRING, 0, 3)
    v3_and_below_producer_id: int = wire(INT64, 0, 3)
    v3_and_below_producer_epoch: int = wire(INT16, 0, 3)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = wire(Array(AddPartitionsToTxnTopic), 0, 3)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int = wire(INT32)
    partition_error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTopicResult:
    name: str = wire(STRING)
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = wire(
        Array(AddPartitionsToTxnPartitionResult)
    )


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResult:
    transactional_id: str = wire(STRING, 4)
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = wire(Array(AddPartitionsToTxnTopicResult), 4)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    """All partitions are in the transaction, or none is."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 4, ignorable=True)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = wire(Array(AddPartitionsToTxnResult), 4)
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = wire(
        Array(AddPartitionsToTxnTopicResult), 0, 3
    )
