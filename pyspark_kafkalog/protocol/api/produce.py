"""Produce: records to append to partitions.

API      Versions  Flexible from  Left out
-------  --------  -------------  --------------
Produce  0-12      9              13 (topic ids)

Versions 0 to 2 carry message sets of v0 or v1, 3 and later record batches. A batch of version 12 adds its
partition to the transaction. The response has a throttle time from version 1 and an append time from 2.
``records`` is not decoded: read as a slice of the frame, sent unchanged.

Most requests have one batch for one partition. `read_single` and `write_single` handle them with the same
bytes as the tables, which create an object per level and take six times as long (benchmarks/protocol.py).
Source: protocol guide, Produce; KIP-98, 890.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import Any, NamedTuple

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest
from pyspark_kafkalog.protocol.codec import (
    ERROR_CODE,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    Array,
    WireStruct,
    tuned,
    wire,
)
from pyspark_kafkalog.protocol.primitives import Output, Writer, read_length, write_length


class PartitionProduceData(WireStruct):
    """Records for one partition: a memoryview when read, anything with a length when written."""

    index: int = wire(INT32)
    records: Any = wire(RECORDS, null_since=0)


class TopicProduceData(WireStruct):
    name: str = wire(STRING)
    partition_data: tuple[PartitionProduceData, ...] = wire(Array(PartitionProduceData))


class ProduceRequest(WireStruct):
    """``acks`` 0: no response; 1: from the leader; -1: from all in-sync replicas."""

    transactional_id: str | None = wire(STRING, 3, null_since=3)
    acks: int = wire(INT16)
    timeout_ms: int = wire(INT32)
    topic_data: tuple[TopicProduceData, ...] = wire(Array(TopicProduceData))


class BatchIndexAndErrorMessage(WireStruct):
    batch_index: int = wire(INT32, 8)
    batch_index_error_message: str | None = wire(STRING, 8, null_since=8)


class LeaderIdAndEpoch(WireStruct):
    """The current leader; -1 if the broker does not know."""

    leader_id: int = wire(INT32, 10, default=-1)
    leader_epoch: int = wire(INT32, 10, default=-1)


class PartitionProduceResponse(WireStruct):
    """``log_append_time_ms`` is -1 if records keep their create time."""

    index: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    base_offset: int = wire(INT64)
    log_append_time_ms: int = wire(INT64, 2, default=-1, ignorable=True)
    log_start_offset: int = wire(INT64, 5, default=-1, ignorable=True)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = wire(
        Array(BatchIndexAndErrorMessage), 8, ignorable=True
    )
    error_message: str | None = wire(STRING, 8, null_since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, 10, tag=0, ignorable=True)


class TopicProduceResponse(WireStruct):
    name: str = wire(STRING)
    partition_responses: tuple[PartitionProduceResponse, ...] = wire(Array(PartitionProduceResponse))


class NodeEndpoint(WireStruct):
    node_id: int = wire(INT32, 10)
    host: str = wire(STRING, 10)
    port: int = wire(INT32, 10)
    rack: str | None = wire(STRING, 10, null_since=10)


class ProduceResponse(WireStruct):
    responses: tuple[TopicProduceResponse, ...] = wire(Array(TopicProduceResponse))
    throttle_time_ms: int = wire(INT32, 1, ignorable=True)
    node_endpoints: tuple[NodeEndpoint, ...] = wire(Array(NodeEndpoint), 10, tag=0, ignorable=True)


_INDEX = Struct(">i")
_INDEX_AND_LENGTH = Struct(">ii")


@tuned(PartitionProduceData, 0, 11)
def _partition_writer(table: Writer, flexible: bool) -> Writer:
    """For partitions with a batch: 1.4 times as fast as the table (benchmarks/protocol.py)."""

    def write(out: Output, value: PartitionProduceData) -> None:
        records = value.records
        if records is None:
            table(out, value)
        elif flexible:
            out += _INDEX.pack(value.index)
            write_length(out, len(records) + 1)
            out.regions.append((len(out), records))
            out.append(0)
        else:
            out += _INDEX_AND_LENGTH.pack(value.index, len(records))
            out.regions.append((len(out), records))

    return write


# --- one batch for one partition, in one step

_FIRST_FLEXIBLE = 9

_START = Struct(">hhiih")  # transactional id's length, acks, timeout, topic count, name's length
_PARTITION = Struct(">iii")  # partition count, index, records' length
_FLEXIBLE_START = Struct(">BhiBB")
_FLEXIBLE_PARTITION = Struct(">BiBBB")
"""Partition count, index, and three bytes of the records' length: a varint of up to two MiB."""
_NO_TAGS = b"\0\0\0"  # of partition, topic and request
_ANSWER_START = Struct(">iiih")  # size, correlation id, topic count, name's length
_FLEXIBLE_ANSWER_START = Struct(">iiBBB")  # as above, with the header's tags before the topics
# Partition count, index, error, base offset, append time, log start, record errors, message, throttle.
_FLEXIBLE_ANSWER_END = Struct(">BihqqqBBBBiB")  # with the tags of partition and topic before the throttle
_ANSWER_END_8 = Struct(">iihqqqihi")
_ANSWER_END_5 = Struct(">iihqqqi")
_ANSWER_END_3 = Struct(">iihqqi")


class SingleProduce(NamedTuple):
    """A `ProduceRequest` for one partition and without a transactional id."""

    acks: int
    topic: str
    name: bytes  # ``topic`` as sent, for the response
    partition: int
    records: memoryview


def read_single(frame: bytearray, pos: int, version: int) -> SingleProduce | None:
    """The request body at ``pos``; None if it is damaged or has another shape: then use `decode_request`."""
    try:
        return _read_flexible(frame, pos) if version >= _FIRST_FLEXIBLE else _read_classic(frame, pos)
    except (StructError, IndexError, UnicodeDecodeError, InvalidRequest):
        return None


def _read_classic(frame: bytearray, pos: int) -> SingleProduce | None:
    id_length, acks, _, topics, name_length = _START.unpack_from(frame, pos)
    pos += _START.size
    end = pos + name_length
    if id_length != -1 or topics != 1 or name_length < 0:
        return None
    partitions, index, length = _PARTITION.unpack_from(frame, end)
    start = end + _PARTITION.size
    if partitions != 1 or length < 0 or start + length > len(frame):
        return None
    name = bytes(frame[pos:end])
    return SingleProduce(acks, name.decode(), name, index, memoryview(frame)[start : start + length])


def _read_flexible(frame: bytearray, pos: int) -> SingleProduce | None:
    """Compact lengths are length + 1 and fit a byte, unless the name is uncommonly long."""
    id_length, acks, _, topics, name_length = _FLEXIBLE_START.unpack_from(frame, pos)
    pos += _FLEXIBLE_START.size
    end = pos + name_length - 1
    if id_length != 0 or topics != 2 or not 1 <= name_length < 0x80:
        return None
    partitions, index, low, middle, high = _FLEXIBLE_PARTITION.unpack_from(frame, end)
    if low >= 0x80 and middle >= 0x80 > high:  # most batches' size: half the time of a call
        length, start = high << 14 | (middle & 0x7F) << 7 | low & 0x7F, end + _FLEXIBLE_PARTITION.size
    else:
        length, start = read_length(frame, end + _FLEXIBLE_PARTITION.size - 3)
    last = start + length - 1
    if partitions != 2 or length < 1 or frame[last : last + 3] != _NO_TAGS:
        return None
    name = bytes(frame[pos:end])
    return SingleProduce(acks, name.decode(), name, index, memoryview(frame)[start:last])


def write_single(
    request: SingleProduce,
    version: int,
    correlation_id: int,
    *,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """The response to a successful request, byte for byte as from `encode_response`."""
    name, index = request.name, request.partition
    if version >= _FIRST_FLEXIBLE:
        end = _FLEXIBLE_ANSWER_END.pack(
            2, index, 0, base_offset, log_append_time_ms, log_start_offset, 1, 0, 0, 0, 0, 0
        )
        size = _FLEXIBLE_ANSWER_START.size - 4 + len(name) + len(end)
        return _FLEXIBLE_ANSWER_START.pack(size, correlation_id, 0, 2, len(name) + 1) + name + end
    if version >= 8:
        end = _ANSWER_END_8.pack(1, index, 0, base_offset, log_append_time_ms, log_start_offset, 0, -1, 0)
    elif version >= 5:
        end = _ANSWER_END_5.pack(1, index, 0, base_offset, log_append_time_ms, log_start_offset, 0)
    else:
        end = _ANSWER_END_3.pack(1, index, 0, base_offset, log_append_time_ms, 0)
    size = _ANSWER_START.size - 4 + len(name) + len(end)
    return _ANSWER_START.pack(size, correlation_id, 1, len(name)) + name + end
