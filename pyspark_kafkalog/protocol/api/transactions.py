"""Transactions.

API                   Versions  Flexible from  Left out
--------------------  --------  -------------  ---------------------------------------------------------------
AddPartitionsToTxn    0-4       3              5 and later (an error code of KIP-890)
AddOffsetsToTxn       0-4       3              nothing
EndTxn                0-5       3              nothing
TxnOffsetCommit       0-5       3              nothing
WriteTxnMarkers       1         1              0, which no broker since Kafka 4.0 serves; 2 (the version of
                                               the transaction)
DescribeTransactions  0         0              nothing
ListTransactions      0-1       0              2 (a filter by name)

A producer adds partitions and the offsets of groups to its transaction, and ends it. Fenced producers have
their own error code from version 2 of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn; producers that must
abort, from version 4 of AddOffsetsToTxn, EndTxn and TxnOffsetCommit.

* AddPartitionsToTxn: clients use versions up to 3. Version 4 is for brokers: several transactions at once, or
  (``verify_only``) a check before appending that partitions are in one.
* EndTxn: in version 5 each transaction has its own epoch; the response has the next one.
* TxnOffsetCommit: version 2 adds leader epochs, 3 the group member; 5 also adds the group to the transaction.
* WriteTxnMarkers: from the coordinator to the owners of the partitions. Clients use it only to abort a
  transaction that lost its coordinator.
* ListTransactions: version 1 has a filter by duration.

Source: protocol guide; KIP-98, 447, 588, 664, 890, 994.
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
    """Adds all partitions or none."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 4, ignorable=True)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = wire(Array(AddPartitionsToTxnResult), 4)
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = wire(
        Array(AddPartitionsToTxnTopicResult), 0, 3
    )


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """Success: the decision is stored, and the markers in the partitions follow."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    producer_id: int = wire(INT64, 5, default=-1, ignorable=True)
    producer_epoch: int = wire(INT16, 5, default=-1, ignorable=True)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestPartition:
    """The next offset to read; epoch -1 is unknown."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, 2, default=-1, ignorable=True)
    committed_metadata: str | None = wire(STRING, default="", null_since=0)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestTopic:
    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = wire(Array(TxnOffsetCommitRequestPartition))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """Generation -1 with an empty member id: the committer is not a group member."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, 3, default=-1)
    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = wire(Array(TxnOffsetCommitRequestTopic))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponseTopic:
    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = wire(Array(TxnOffsetCommitResponsePartition))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = wire(INT32)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = wire(Array(TxnOffsetCommitResponseTopic))


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


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...] = wire(Array(STRING))


@dataclass(frozen=True, slots=True)
class TopicData:
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class TransactionState:
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""

    error_code: ErrorCode = wire(ERROR_CODE)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: tuple[TopicData, ...] = wire(Array(TopicData))


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    transaction_states: tuple[TransactionState, ...] = wire(Array(TransactionState))


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """Without filters: all. ``duration_filter`` in ms, -1 for any."""

    state_filters: tuple[str, ...] = wire(Array(STRING))
    producer_id_filters: tuple[int, ...] = wire(Array(INT64))
    duration_filter: int = wire(INT64, 1, default=-1)


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    unknown_state_filters: tuple[str, ...] = wire(Array(STRING))
    transaction_states: tuple[ListedTransaction, ...] = wire(Array(ListedTransaction))
