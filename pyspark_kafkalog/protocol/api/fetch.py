"""Fetch: message sets and record batches from partitions.

API    Versions  Flexible from  Left out
-----  --------  -------------  ---------------------------------------
Fetch  0-13      12             14 and later (tiered storage, replicas)

``records`` is not decoded: read as a slice of the frame, sent unchanged. Version 1 added the throttle time, 2
messages v1, 3 a limit for the whole response, 4 record batches v2 and isolation levels, 7 sessions, 9 leader
epochs, 11 racks, 12 epochs of the last fetch, 13 topic ids instead of names.
Source: protocol guide, Fetch; KIP-32, 74, 98, 227, 320, 516.
"""

from __future__ import annotations

from struct import Struct
from typing import Any
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    ERROR_CODE,
    INT8,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID_TYPE,
    Array,
    WireStruct,
    tuned,
    wire,
)
from pyspark_kafkalog.protocol.primitives import Output, Writer, write_length


class FetchPartition(WireStruct):
    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, 9, default=-1, ignorable=True)
    fetch_offset: int = wire(INT64)
    last_fetched_epoch: int = wire(INT32, 12, default=-1)
    log_start_offset: int = wire(INT64, 5, default=-1, ignorable=True)
    partition_max_bytes: int = wire(INT32)


class FetchTopic(WireStruct):
    topic: str = wire(STRING, 0, 12, ignorable=True)
    topic_id: UUID = wire(UUID_TYPE, 13, ignorable=True)
    partitions: tuple[FetchPartition, ...] = wire(Array(FetchPartition))


class ForgottenTopic(WireStruct):
    topic: str = wire(STRING, 7, 12, ignorable=True)
    topic_id: UUID = wire(UUID_TYPE, 13, ignorable=True)
    partitions: tuple[int, ...] = wire(Array(INT32), 7)


class FetchRequest(WireStruct):
    """Sizes are bytes. ``session_epoch`` -1: no session; ``replica_id`` -1: a consumer."""

    cluster_id: str | None = wire(STRING, 12, null_since=12, tag=0, ignorable=True)
    replica_id: int = wire(INT32, default=-1)
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, 3, default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = wire(INT8, 4, ignorable=True)
    session_id: int = wire(INT32, 7, ignorable=True)
    session_epoch: int = wire(INT32, 7, default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = wire(Array(FetchTopic))
    forgotten_topics_data: tuple[ForgottenTopic, ...] = wire(Array(ForgottenTopic), 7)
    rack_id: str = wire(STRING, 11, ignorable=True)


class EpochEndOffset(WireStruct):
    epoch: int = wire(INT32, 12, default=-1)
    end_offset: int = wire(INT64, 12, default=-1)


class LeaderIdAndEpoch(WireStruct):
    """The current leader; -1 if the broker does not know."""

    leader_id: int = wire(INT32, 12, default=-1)
    leader_epoch: int = wire(INT32, 12, default=-1)


class SnapshotId(WireStruct):
    end_offset: int = wire(INT64, default=-1)
    epoch: int = wire(INT32, default=-1)


class AbortedTransaction(WireStruct):
    producer_id: int = wire(INT64, 4)
    first_offset: int = wire(INT64, 4)


class PartitionData(WireStruct):
    """``records``: a view of the frame when read. ``aborted_transactions``: null unless read_committed."""

    partition_index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    high_watermark: int = wire(INT64)
    last_stable_offset: int = wire(INT64, 4, default=-1, ignorable=True)
    log_start_offset: int = wire(INT64, 5, default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = wire(EpochEndOffset, 12, tag=0)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, 12, tag=1)
    snapshot_id: SnapshotId = wire(SnapshotId, 12, tag=2)
    aborted_transactions: tuple[AbortedTransaction, ...] | None = wire(
        Array(AbortedTransaction), 4, null_since=4, ignorable=True
    )
    preferred_read_replica: int = wire(INT32, 11, default=-1)
    records: Any = wire(RECORDS, null_since=0)


class FetchableTopicResponse(WireStruct):
    topic: str = wire(STRING, 0, 12, ignorable=True)
    topic_id: UUID = wire(UUID_TYPE, 13, ignorable=True)
    partitions: tuple[PartitionData, ...] = wire(Array(PartitionData))


class FetchResponse(WireStruct):
    """``session_id`` 0 is no session."""

    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    error_code: ErrorCode = wire(ERROR_CODE, 7, ignorable=True)
    session_id: int = wire(INT32, 7)
    responses: tuple[FetchableTopicResponse, ...] = wire(Array(FetchableTopicResponse))


_USUAL = PartitionData()
_HEAD = Struct(">ihqqq")
_REPLICA = Struct(">i")
_TAIL = Struct(">ii")


@tuned(PartitionData, 11, 13)
def _partition_writer(table: Writer, flexible: bool) -> Writer:
    """For partitions with only records: twice as fast as the table (benchmarks/protocol.py)."""
    null, none = (b"\x00", b"\x01") if flexible else (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00")

    def write(out: Output, value: PartitionData) -> None:
        records = value.records
        if (
            records is None
            or value.aborted_transactions
            or value.diverging_epoch is not _USUAL.diverging_epoch
            or value.current_leader is not _USUAL.current_leader
            or value.snapshot_id is not _USUAL.snapshot_id
        ):
            table(out, value)
            return
        out += _HEAD.pack(
            value.partition_index,
            value.error_code,
            value.high_watermark,
            value.last_stable_offset,
            value.log_start_offset,
        )
        out += null if value.aborted_transactions is None else none
        if flexible:
            out += _REPLICA.pack(value.preferred_read_replica)
            write_length(out, len(records) + 1)
        else:
            out += _TAIL.pack(value.preferred_read_replica, len(records))
        if type(records) is bytes:  # few, in the broker's answers
            out += records
        else:
            out.regions.append((len(out), records))
        if flexible:
            out.append(0)

    return write
