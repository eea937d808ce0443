"""Offsets of logs: look-up by time or leader epoch, and deletion of the records before one.

API                   Versions  Flexible from  Left out
--------------------  --------  -------------  --------------------------------
ListOffsets           0-7       6              8 and later (tiered storage)
OffsetForLeaderEpoch  2-4       4              0 and 1, which only brokers sent
DeleteRecords         0-2       2              nothing

* ListOffsets: ``timestamp`` is in milliseconds, or `types`' `LATEST_TIMESTAMP`, `EARLIEST_TIMESTAMP` or (from
  version 7) `MAX_TIMESTAMP`. Version 0 returns up to ``max_num_offsets`` in ``old_style_offsets``, greatest
  first.
* OffsetForLeaderEpoch: version 3 added the replica's id.

Source: protocol guide; KIP-79 and 734 (ListOffsets), 101 and 320 (OffsetForLeaderEpoch), 107 (DeleteRecords).
"""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import ERROR_CODE, INT8, INT32, INT64, STRING, Array, WireStruct, wire


class ListOffsetsPartition(WireStruct):
    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, 4, default=-1, ignorable=True)
    timestamp: int = wire(INT64)
    max_num_offsets: int = wire(INT32, 0, 0, default=1)


class ListOffsetsTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[ListOffsetsPartition, ...] = wire(Array(ListOffsetsPartition))


class ListOffsetsRequest(WireStruct):
    """``replica_id`` -1 is a consumer."""

    replica_id: int = wire(INT32, default=-1)
    isolation_level: int = wire(INT8, 2)
    topics: tuple[ListOffsetsTopic, ...] = wire(Array(ListOffsetsTopic))


class ListOffsetsPartitionResponse(WireStruct):
    """The first record at or after the timestamp, -1 for none; in version 0, segment starts before it."""

    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    old_style_offsets: tuple[int, ...] = wire(Array(INT64), 0, 0)
    timestamp: int = wire(INT64, 1, default=-1)
    offset: int = wire(INT64, 1, default=-1)
    leader_epoch: int = wire(INT32, 4, default=-1, ignorable=True)


class ListOffsetsTopicResponse(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = wire(Array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, 2, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = wire(Array(ListOffsetsTopicResponse))


class OffsetForLeaderPartition(WireStruct):
    """The epoch whose end is requested; ``current_leader_epoch`` -1 is unknown."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, default=-1, ignorable=True)
    leader_epoch: int = wire(INT32)


class OffsetForLeaderTopic(WireStruct):
    topic: str = wire(STRING)
    partitions: tuple[OffsetForLeaderPartition, ...] = wire(Array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(WireStruct):
    """``replica_id`` -1 is a consumer, -2 the default of versions without the field."""

    replica_id: int = wire(INT32, 3, default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = wire(Array(OffsetForLeaderTopic))


class EpochEndOffset(WireStruct):
    """The largest epoch up to the requested one, and the offset after its last record; -1 if unknown."""

    error_code: ErrorCode = wire(ERROR_CODE)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1, ignorable=True)
    end_offset: int = wire(INT64, default=-1)


class OffsetForLeaderTopicResult(WireStruct):
    topic: str = wire(STRING)
    partitions: tuple[EpochEndOffset, ...] = wire(Array(EpochEndOffset))


class OffsetForLeaderEpochResponse(WireStruct):
    throttle_time_ms: int = wire(INT32, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = wire(Array(OffsetForLeaderTopicResult))


class DeleteRecordsPartition(WireStruct):
    """Delete records below ``offset``; -1 is the high watermark."""

    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


class DeleteRecordsTopic(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[DeleteRecordsPartition, ...] = wire(Array(DeleteRecordsPartition))


class DeleteRecordsRequest(WireStruct):
    topics: tuple[DeleteRecordsTopic, ...] = wire(Array(DeleteRecordsTopic))
    timeout_ms: int = wire(INT32)


class DeleteRecordsPartitionResult(WireStruct):
    """The partition's new start; -1 with an error."""

    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64)
    error_code: ErrorCode = wire(ERROR_CODE)


class DeleteRecordsTopicResult(WireStruct):
    name: str = wire(STRING)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = wire(Array(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(WireStruct):
    throttle_time_ms: int = wire(INT32)
    topics: tuple[DeleteRecordsTopicResult, ...] = wire(Array(DeleteRecordsTopicResult))
