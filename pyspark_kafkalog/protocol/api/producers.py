"""Producer ids, and the producers of a partition.

API                Versions  Flexible from  Left out
-----------------  --------  -------------  --------------------
InitProducerId     0-5       2              6 (two-phase commit)
DescribeProducers  0         0              nothing

Source: protocol guide; KIP-98 and 360 (InitProducerId), 664 (DescribeProducers).
"""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT16, INT32, INT64, STRING, Array, WireStruct, wire


class InitProducerIdRequest(WireStruct):
    """Null ``transactional_id``: only idempotence. From version 3 a producer may keep its id."""

    transactional_id: str | None = wire(STRING, null_since=0)
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, 3, default=-1)
    producer_epoch: int = wire(INT16, 3, default=-1)


class InitProducerIdResponse(WireStruct):
    """The id, and the epoch that fences its older producers."""

    throttle_time_ms: int = wire(INT32, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)


class TopicRequest(WireStruct):
    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(Array(INT32))


class DescribeProducersRequest(WireStruct):
    topics: tuple[TopicRequest, ...] = wire(Array(TopicRequest))


class ProducerState(WireStruct):
    """``current_txn_start_offset`` -1: no open transaction; times are in ms since the epoch."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


class PartitionResponse(WireStruct):
    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    active_producers: tuple[ProducerState, ...] = wire(Array(ProducerState))


class TopicResponse(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[PartitionResponse, ...] = wire(Array(PartitionResponse))


class DescribeProducersResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    topics: tuple[TopicResponse, ...] = wire(Array(TopicResponse))
