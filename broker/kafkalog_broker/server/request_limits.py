"""Limits on the size of requests and on their elements; Produce is checked before it is decoded.

Records are never decoded, so a frame may be large because of them. Everything else becomes objects many times
larger than its bytes, and has limits of its own, far above what clients of one broker need. A request with
too many elements gets an error for each; one with too many bytes is not decoded, and its connection closed.
"""

from __future__ import annotations

import struct

from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.codec import Array, WireStruct, specs
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey, RequestHeader
from pyspark_kafkalog.protocol.primitives import read_length, skip_tagged_fields

MAX_REQUEST_BYTES = 1 << 20

MAX_PARTITIONS = 20_000
"""Most topics and partitions, together, in a produce request above `NARROW_BYTES`."""

NARROW_BYTES = 256 << 10
"""A smaller produce request needs no check: it cannot hold enough elements to matter."""

MAX_ELEMENTS = 20_000
"""Elements of a request's arrays, including nested ones; each costs its handler up to 0.1 ms."""

COSTLY_ELEMENTS = 1_000
"""Limit for APIs whose elements cost more the more there are of others, or are kept."""

_COSTLY = frozenset(
    {ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.JOIN_GROUP, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS}
)


class BeyondLimit(KafkaError):
    """The request is larger than this broker serves."""

    code = ErrorCode.POLICY_VIOLATION


FEW_BYTES = 4 << 10
"""Requests up to this size cannot have too many elements."""

_TRANSACTIONAL_ID_SINCE = 3
_ACKS_AND_TIMEOUT_BYTES = 6
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def check_width(key: ApiKey, header: RequestHeader, frame: bytearray, pos: int) -> None:
    if key is not ApiKey.PRODUCE:
        if len(frame) > MAX_REQUEST_BYTES:
            raise BeyondLimit(f"{key.name} of {len(frame)} bytes; the limit is {MAX_REQUEST_BYTES}")
        return
    if len(frame) <= NARROW_BYTES:
        return
    try:
        _check_produce(memoryview(frame), pos, header.api_version)
    except (struct.error, IndexError):
        return  # cut short: the decoder reports it


def excess(key: ApiKey, frame_bytes: int, request: object) -> BeyondLimit | None:
    """Why the request has too many elements; None if it has not."""
    if frame_bytes <= FEW_BYTES or key is ApiKey.PRODUCE:  # `check_width` has counted a produce request
        return None
    most = COSTLY_ELEMENTS if key in _COSTLY else MAX_ELEMENTS
    count = _elements(request)
    return BeyondLimit(f"{key.name} of {count} elements; the limit is {most}") if count > most else None


def _elements(message: object) -> int:
    count = 0
    for name in _nesting(type(message)):
        value = getattr(message, name)
        if isinstance(value, tuple):
            count += len(value)
            if value and isinstance(value[0], WireStruct) and _nesting(type(value[0])):
                count += sum(map(_elements, value))
        elif value is not None:
            count += _elements(value)
    return count


_nesting_of: dict[type, tuple[str, ...]] = {}


def _nesting(cls: type) -> tuple[str, ...]:
    if cls not in _nesting_of:
        nesting = [name for name, spec in specs(cls) if isinstance(spec.type, Array | type)]
        _nesting_of[cls] = tuple(nesting)
    return _nesting_of[cls]


def _check_produce(buf: memoryview, pos: int, version: int) -> None:
    """Walk over the partitions. Fields: `pyspark_kafkalog.protocol.api.produce`."""
    left, flexible = MAX_PARTITIONS, APIS[ApiKey.PRODUCE].flexible(version)
    if version >= _TRANSACTIONAL_ID_SINCE:
        pos = _skip_string(buf, pos, flexible)
    pos += _ACKS_AND_TIMEOUT_BYTES
    topics, pos = _read_size(buf, pos, flexible)
    for _ in range(topics):
        pos = _skip_string(buf, pos, flexible)
        partitions, pos = _read_size(buf, pos, flexible)
        left -= 1 + max(0, partitions)
        if left < 0:
            raise BeyondLimit(f"more than {MAX_PARTITIONS} topics and partitions in one produce request")
        for _ in range(partitions):
            size, pos = _read_size(buf, pos + _INT32.size, flexible)
            pos += max(0, size)
            if flexible:
                left, pos = _skip_tags(buf, pos, left)
        if flexible:
            left, pos = _skip_tags(buf, pos, left)


def _skip_tags(buf: memoryview, pos: int, left: int) -> tuple[int, int]:
    """Tagged fields count like partitions; returns the remaining count and the position after them."""
    count, _ = read_length(buf, pos)
    if count > left:
        raise BeyondLimit(f"more than {MAX_PARTITIONS} partitions and tagged fields in one produce request")
    return left - count, skip_tagged_fields(buf, pos)


def _read_size(buf: memoryview, pos: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        size, pos = read_length(buf, pos)
        return size - 1, pos
    size = _INT32.unpack_from(buf, pos)[0]
    return size, pos + _INT32.size


def _skip_string(buf: memoryview, pos: int, flexible: bool) -> int:
    if flexible:
        length, pos = read_length(buf, pos)
        return pos + max(0, length - 1)
    size: int = _INT16.unpack_from(buf, pos)[0]
    return pos + _INT16.size + max(0, size)
