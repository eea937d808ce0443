"""The five requests of Kafka 0.7 and their responses, as frames.

A frame is ``size:4``, then ``type:2`` (request) or ``error:2`` (response), then the body. There is no
version, correlation id or client id: responses come in request order. PRODUCE and MULTIPRODUCE have no
response; the broker closes the connection after an error. A topic is ``length:2`` and UTF-8.
``docs/protocol.md`` has the tables.

Message sets are not decoded: read as slices of the frame, sent unchanged, using only their ``len()``.
Source: kafka 0.7 ``api/``, ``network/Request.scala``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, TypeAlias

import msgspec

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, InvalidTopic
from pyspark_kafkalog.protocol.exchange import Part, framed
from pyspark_kafkalog.protocol.primitives import Output

ANY_PARTITION = -1  # the broker chooses; only in produce requests
MAX_TOPIC_LENGTH = 255  # in characters: the default of ``max.topic.name.length``

ERROR_CODES = frozenset({
    ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_FETCH_SIZE,
})  # fmt: skip
"""0.7's errors, -1 to 4. Later versions kept the numbers; 3 was "wrong partition", 2 "invalid message"."""


class RequestType(IntEnum):
    PRODUCE = 0
    FETCH = 1
    MULTIFETCH = 2
    MULTIPRODUCE = 3
    OFFSETS = 4


class ProduceRequest(msgspec.Struct, frozen=True):
    """Messages to append: a memoryview when read, anything with a length when written."""

    topic: str
    partition: int
    messages: Any


class FetchRequest(msgspec.Struct, frozen=True):
    """At most ``max_bytes`` of a log from ``offset`` on. A negative limit requests nothing."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class MultiFetchRequest(msgspec.Struct, frozen=True):
    fetches: tuple[FetchRequest, ...]


class MultiProduceRequest(msgspec.Struct, frozen=True):
    """Several produces, handled in order; one that closes the connection ends them."""

    produces: tuple[ProduceRequest, ...]


class OffsetsRequest(msgspec.Struct, frozen=True):
    """Segment starts at or before ``timestamp`` (ms, or one of `types`), newest first."""

    topic: str
    partition: int
    timestamp: int
    max_offsets: int


class FetchResponse(msgspec.Struct, frozen=True):
    """Log bytes as stored, the last entry perhaps cut; empty after an error."""

    error_code: ErrorCode
    messages: Any = b""


class MultiFetchResponse(msgspec.Struct, frozen=True):
    """Responses to several fetches, in order. ``error_code`` applies to all; 0.7.2 never sets it."""

    responses: tuple[FetchResponse, ...]
    error_code: ErrorCode = ErrorCode.NONE


class OffsetsResponse(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    offsets: tuple[int, ...] = ()


Request: TypeAlias = ProduceRequest | FetchRequest | MultiFetchRequest | MultiProduceRequest | OffsetsRequest
Response: TypeAlias = FetchResponse | MultiFetchResponse | OffsetsResponse
_Reader: TypeAlias = Callable[[memoryview, int], tuple[Request, int]]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PRODUCE = struct.Struct(">ii")
_FETCH = struct.Struct(">iqi")
_OFFSETS = struct.Struct(">iqi")
_SIZE_AND_ERROR = struct.Struct(">ih")
_MAX_FRAME_BYTES = (1 << 31) - 1
_MAX_COUNT = (1 << 15) - 1


def known_error(code: ErrorCode) -> ErrorCode:
    return code if code in ERROR_CODES else ErrorCode.UNKNOWN_SERVER_ERROR


def check_topic(topic: str, max_length: int = MAX_TOPIC_LENGTH) -> None:
    """Refuse a name that 0.7 forbids (`InvalidTopic`); ``max_length`` is in characters."""
    if not 0 < len(topic) <= max_length:
        raise InvalidTopic(f"topic name of {len(topic)} characters; allowed: 1 to {max_length}")
    if topic in (".", ".."):
        raise InvalidTopic(f"topic name {topic!r} is not allowed")
    for character in topic:
        if character == "/" or any(low <= character <= high for low, high in _FORBIDDEN):
            raise InvalidTopic(f"topic name {topic!r}: {character!r} is not allowed in it")


_FORBIDDEN = (("\0", "\x1f"), ("\x7f", "\x9f"), ("\ud800", "\uf8ff"), ("\ufff0", "\uffff"))
"""First and last characters of forbidden ranges."""


def decode_request(frame: bytes | bytearray | memoryview) -> Request:
    """The request in ``frame``, without its size. Topics and numbers are not checked, but the fields must end
    with the frame: that detects today's requests, which begin with the same numbers.
    """
    buf = memoryview(frame)
    try:
        (number,) = _INT16.unpack_from(buf)
        reader = _READERS.get(number)
        if reader is None:
            raise InvalidRequest(f"unknown request type {number}; Kafka 0.7 has 0 to 4")
        request, pos = reader(buf, _INT16.size)
    except (struct.error, UnicodeDecodeError) as e:
        raise InvalidRequest(f"request of {len(buf)} bytes: {e}") from None
    if pos != len(buf):
        raise InvalidRequest(f"its fields end at byte {pos} of {len(buf)}")
    return request


def decode_response(kind: RequestType, frame: bytes | bytearray | memoryview) -> Response:
    """The response to a request of this type; ``frame`` excludes the size."""
    buf = memoryview(frame)
    try:
        (code,) = _INT16.unpack_from(buf)
        error_code, pos = ErrorCode.of(code), _INT16.size
        if kind is RequestType.FETCH:
            return FetchResponse(error_code, buf[pos:])
        if kind is RequestType.MULTIFETCH:
            return _multi_fetch_response(buf, pos, error_code)
        if kind is RequestType.OFFSETS:
            return _offsets_response(buf, pos, error_code)
    except struct.error as e:
        raise InvalidRequest(f"answer of {len(buf)} bytes to {kind.name}: {e}") from None
    raise InvalidRequest(f"{kind.name} has no answer in Kafka 0.7")


def _read_topic(buf: memoryview, pos: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(buf, pos)
    pos += _INT16.size
    if not 0 <= length <= len(buf) - pos:
        raise InvalidRequest(f"topic claims {length} bytes; {len(buf) - pos} are left")
    return str(buf[pos : pos + length], "utf-8"), pos + length


def _read_produce(buf: memoryview, pos: int) -> tuple[ProduceRequest, int]:
    topic, pos = _read_topic(buf, pos)
    partition, length = _PRODUCE.unpack_from(buf, pos)
    pos += _PRODUCE.size
    if not 0 <= length <= len(buf) - pos:
        raise InvalidRequest(f"messages claim {length} bytes; {len(buf) - pos} are left")
    return ProduceRequest(topic, partition, buf[pos : pos + length]), pos + length


def _read_fetch(buf: memoryview, pos: int) -> tuple[FetchRequest, int]:
    topic, pos = _read_topic(buf, pos)
    return FetchRequest(topic, *_FETCH.unpack_from(buf, pos)), pos + _FETCH.size


def _read_offsets(buf: memoryview, pos: int) -> tuple[OffsetsRequest, int]:
    topic, pos = _read_topic(buf, pos)
    return OffsetsRequest(topic, *_OFFSETS.unpack_from(buf, pos)), pos + _OFFSETS.size


def _read_several(cls: Any, read_one: _Reader, buf: memoryview, pos: int) -> tuple[Request, int]:
    (count,) = _INT16.unpack_from(buf, pos)
    if count < 0:
        raise InvalidRequest(f"a request with {count} parts")
    pos += _INT16.size
    parts = []
    for _ in range(count):
        part, pos = read_one(buf, pos)
        parts.append(part)
    return cls(tuple(parts)), pos


_READERS: dict[int, _Reader] = {
    RequestType.PRODUCE: _read_produce,
    RequestType.FETCH: _read_fetch,
    RequestType.MULTIFETCH: partial(_read_several, MultiFetchRequest, _read_fetch),
    RequestType.MULTIPRODUCE: partial(_read_several, MultiProduceRequest, _read_produce),
    RequestType.OFFSETS: _read_offsets,
}


def _multi_fetch_response(buf: memoryview, pos: int, error_code: ErrorCode) -> MultiFetchResponse:
    parts = []
    while pos < len(buf):
        size, code = _SIZE_AND_ERROR.unpack_from(buf, pos)
        start, end = pos + _SIZE_AND_ERROR.size, pos + _INT32.size + size
        if not start <= end <= len(buf):
            raise InvalidRequest(f"part of {size} bytes; {len(buf) - pos - _INT32.size} are left")
        parts.append(FetchResponse(ErrorCode.of(code), buf[start:end]))
        pos = end
    return MultiFetchResponse(tuple(parts), error_code)


def _offsets_response(buf: memoryview, pos: int, error_code: ErrorCode) -> OffsetsResponse:
    if error_code is not ErrorCode.NONE and pos == len(buf):
        return OffsetsResponse(error_code)
    (count,) = _INT32.unpack_from(buf, pos)
    pos += _INT32.size
    if count * 8 != len(buf) - pos:
        raise InvalidRequest(f"{count} offsets in {len(buf) - pos} bytes")
    return OffsetsResponse(error_code, struct.unpack_from(f">{count}q", buf, pos))


def encode_request(request: Request) -> list[Part]:
    out = Output(bytes(_INT32.size))
    try:
        if isinstance(request, ProduceRequest):
            out += _INT16.pack(RequestType.PRODUCE)
            _write_produce(out, request)
        elif isinstance(request, FetchRequest):
            out += _INT16.pack(RequestType.FETCH) + _fetch_bytes(request)
        elif isinstance(request, MultiFetchRequest):
            _write_count(out, RequestType.MULTIFETCH, request.fetches)
            out += b"".join(map(_fetch_bytes, request.fetches))
        elif isinstance(request, MultiProduceRequest):
            _write_count(out, RequestType.MULTIPRODUCE, request.produces)
            for produce in request.produces:
                _write_produce(out, produce)
        else:
            out += _INT16.pack(RequestType.OFFSETS) + _topic_bytes(request.topic)
            out += _OFFSETS.pack(request.partition, request.timestamp, request.max_offsets)
    except struct.error as e:
        raise InvalidRequest(f"{type(request).__name__}: {e}") from None
    return framed(out)


def encode_response(response: Response) -> list[Part]:
    """A response as parts, size included; errors unknown to 0.7 become -1."""
    out = Output(bytes(_INT32.size))
    out += _INT16.pack(known_error(response.error_code))
    if isinstance(response, FetchResponse):
        out.regions.append((len(out), response.messages))
    elif isinstance(response, MultiFetchResponse):
        for part in response.responses:
            size = _INT16.size + len(part.messages)
            if size > _MAX_FRAME_BYTES:
                raise InvalidRequest(f"part of {size} bytes; the limit is {_MAX_FRAME_BYTES}")
            out += _SIZE_AND_ERROR.pack(size, known_error(part.error_code))
            out.regions.append((len(out), part.messages))
    else:
        try:
            out += struct.pack(f">i{len(response.offsets)}q", len(response.offsets), *response.offsets)
        except struct.error as e:
            raise InvalidRequest(f"offsets {response.offsets}: {e}") from None
    return framed(out)


def _topic_bytes(topic: str) -> bytes:
    data = topic.encode()
    return _INT16.pack(len(data)) + data


def _fetch_bytes(fetch: FetchRequest) -> bytes:
    return _topic_bytes(fetch.topic) + _FETCH.pack(fetch.partition, fetch.offset, fetch.max_bytes)


def _write_produce(out: Output, produce: ProduceRequest) -> None:
    out += _topic_bytes(produce.topic) + _PRODUCE.pack(produce.partition, len(produce.messages))
    out.regions.append((len(out), produce.messages))


def _write_count(out: Output, kind: RequestType, of: Sequence[object]) -> None:
    if len(of) > _MAX_COUNT:
        raise InvalidRequest(f"{kind.name} with {len(of)} parts; the limit is {_MAX_COUNT}")
    out += _INT16.pack(kind) + _INT16.pack(len(of))
