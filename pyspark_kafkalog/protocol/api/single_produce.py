"""A produce request with one batch for one partition, and its response, each in one step.

Most produce requests are such. `produce`'s tables handle all others, and encode these to the same bytes
(tests/property/protocol/test_single_produce.py), but create an object for each level, which
takes six times as long (benchmarks/protocol.py).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import NamedTuple

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.primitives import read_length

_FIRST_FLEXIBLE = 9

_START = Struct(">hhiih")
"""Length of the transactional id, acks, timeout, number of topics, length of the name."""
_PARTITION = Struct(">iii")
"""Number of partitions, index, length of the records."""

_FLEXIBLE_START = Struct(">BhiBB")
_FLEXIBLE_PARTITION = Struct(">BiBBB")
"""Number of partitions, index, and three bytes of the records' length: a varint of up to two MiB."""
_NO_TAGS = b"\0\0\0"
"""For the partition, the topic and the request."""

_ANSWER_START = Struct(">iiih")
"""Size, correlation id, number of topics, length of the name."""
_FLEXIBLE_ANSWER_START = Struct(">iiBBB")
"""The same, with the header's tags before the topics."""

# Number of partitions, index, error, base offset, append time, log start, record errors, message, throttle.
_FLEXIBLE_ANSWER_END = Struct(">BihqqqBBBBiB")  # with the tags of partition and topic before the throttle
_ANSWER_END_8 = Struct(">iihqqqihi")
_ANSWER_END_5 = Struct(">iihqqqi")
_ANSWER_END_3 = Struct(">iihqqi")


class SingleProduce(NamedTuple):
    """A `ProduceRequest` for one partition and without a transactional id."""

    acks: int
    topic: str
    name: bytes
    """``topic`` as it was sent, for the response."""
    partition: int
    records: memoryview


def read_single(frame: bytearray, pos: int, version: int) -> SingleProduce | None:
    """The request of ``version`` whose body begins at ``pos``, as `decode_request` reads it.

    None if it has another shape or is damaged; use `decode_request` then.
    """
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
    """Compact lengths are the length plus one, and fit a byte unless the name is uncommonly long."""
    id_length, acks, _, topics, name_length = _FLEXIBLE_START.unpack_from(frame, pos)
    pos += _FLEXIBLE_START.size
    end = pos + name_length - 1
    if id_length != 0 or topics != 2 or not 1 <= name_length < 0x80:
        return None
    partitions, index, low, middle, high = _FLEXIBLE_PARTITION.unpack_from(frame, end)
    if low >= 0x80 and middle >= 0x80 > high:  # the size of most batches: takes half the time of a call
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
    """The response to a successful request, the same bytes as from `encode_response`."""
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
