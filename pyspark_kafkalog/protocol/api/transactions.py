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

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    ERROR_CODE,
    INT16,
    INT32,
    INT64,
    STRING,
    Array,
    WireStruct,
    wire,
)


class AddPartitionsToTxnTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class AddPartitionsToTxnTransaction(WireStruct):
    transactional_id: str = wire(STRING, 4)
    producer_id: int = wire(INT64, 4)
    producer_epoch: int = wire(INT16, 4)
    verify_only: bool = wire(BOOL, 4)
    topics: tuple[AddPartitionsToTxnTopic, ...] = wire(Array(AddPartitionsToTxnTopic), 4)


class AddPartitionsToTxnRequest(WireStruct):
    transactions: tuple[AddPartitionsToTxnTransaction, ...] = wire(Array(AddPartitionsToTxnTransaction), 4)
    v3_and_below_transactional_id: str = wire(STRING, 0, 3)
    v3_and_below_producer_id: int = wire(INT64, 0, 3)
    v3_and_below_producer_epoch: int = wire(INT16, 0, 3)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = wire(Array(AddPartitionsToTxnTopic), 0, 3)


class AddPartitionsToTxnPartitionResult(WireStruct):
    partition_index: int = wire(INT32)
    partition_error_code: ErrorCode = wire(ERROR_CODE)


class AddPartitionsToTxnTopicResult(WireStruct):
    name: str = wire(STRING)
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = wire(
        Array(AddPartitionsToTxnPartitionResult)
    )


class AddPartitionsToTxnResult(WireStruct):
    transactional_id: str = wire(STRING, 4)
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = wire(Array(AddPartitionsToTxnTopicResult), 4)


class AddPartitionsToTxnResponse(WireStruct):
    """Adds all partitions or none."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 4, ignorable=True)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = wire(Array(AddPartitionsToTxnResult), 4)
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = wire(
        Array(AddPartitionsToTxnTopicResult), 0, 3
    )


class AddOffsetsToTxnRequest(WireStruct):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


class AddOffsetsToTxnResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


class EndTxnRequest(WireStruct):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOL)


class EndTxnResponse(WireStruct):
    """Success: the decision is stored, and the markers in the partitions follow."""

    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    producer_id: int = wire(INT64, 5, default=-1, ignorable=True)
    producer_epoch: int = wire(INT16, 5, default=-1, ignorable=True)


class TxnOffsetCommitRequestPartition(WireStruct):
    """The next offset to read; epoch -1 is unknown."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, 2, default=-1, ignorable=True)
    committed_metadata: str | None = wire(STRING, default="", null_since=0)


class TxnOffsetCommitRequestTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = wire(Array(TxnOffsetCommitRequestPartition))


class TxnOffsetCommitRequest(WireStruct):
    """Generation -1 with an empty member id: the committer is not a group member."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, 3, default=-1)
    member_id: str = wire(STRING, 3)
    group_instance_id: str | None = wire(STRING, 3, null_since=3)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = wire(Array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


class TxnOffsetCommitResponseTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = wire(Array(TxnOffsetCommitResponsePartition))


class TxnOffsetCommitResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = wire(Array(TxnOffsetCommitResponseTopic))


class WritableTxnMarkerTopic(WireStruct):
    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(Array(INT32))


class WritableTxnMarker(WireStruct):
    """``transaction_result`` is true for a commit."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire(BOOL)
    topics: tuple[WritableTxnMarkerTopic, ...] = wire(Array(WritableTxnMarkerTopic))
    coordinator_epoch: int = wire(INT32, default=0)


class WriteTxnMarkersRequest(WireStruct):
    markers: tuple[WritableTxnMarker, ...] = wire(Array(WritableTxnMarker))


class WritableTxnMarkerPartitionResult(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)


class WritableTxnMarkerTopicResult(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = wire(Array(WritableTxnMarkerPartitionResult))


class WritableTxnMarkerResult(WireStruct):
    producer_id: int = wire(INT64)
    topics: tuple[WritableTxnMarkerTopicResult, ...] = wire(Array(WritableTxnMarkerTopicResult))


class WriteTxnMarkersResponse(WireStruct):
    markers: tuple[WritableTxnMarkerResult, ...] = wire(Array(WritableTxnMarkerResult))


class DescribeTransactionsRequest(WireStruct):
    transactional_ids: tuple[str, ...] = wire(Array(STRING))


class TopicData(WireStruct):
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


class TransactionState(WireStruct):
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""

    error_code: ErrorCode = wire(ERROR_CODE)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING)
    transaction_timeout_ms: int = wire(INT32)
    transaction_start_time_ms: int = wire(INT64)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    topics: tuple[TopicData, ...] = wire(Array(TopicData))


class DescribeTransactionsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    transaction_states: tuple[TransactionState, ...] = wire(Array(TransactionState))


class ListTransactionsRequest(WireStruct):
    """Without filters: all. ``duration_filter`` in ms, -1 for any."""

    state_filters: tuple[str, ...] = wire(Array(STRING))
    producer_id_filters: tuple[int, ...] = wire(Array(INT64))
    duration_filter: int = wire(INT64, 1, default=-1)


class ListedTransaction(WireStruct):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


class ListTransactionsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    unknown_state_filters: tuple[str, ...] = wire(Array(STRING))
    transaction_states: tuple[ListedTransaction, ...] = wire(Array(ListedTransaction))
