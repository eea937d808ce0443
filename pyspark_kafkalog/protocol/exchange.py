"""Requests and responses as frames: the table of APIs and versions, headers, encoding and decoding.

Request header: ``api_key:int16 api_version:int16 correlation_id:int32 client_id:nullable string``; response
header: ``correlation_id:int32``. Both have tagged fields in flexible versions, where client_id keeps its
int16 length (KIP-482).

An outgoing message is a list of *parts*: record sets stay separate objects (bytes or file slices) between the
message's bytes. Only their ``len()`` is used.

`RELEASES` lists the versions of brokers before 0.10.0, which has ApiVersions (KIP-35): the client must know
their release. Source: the releases' own `kafka/api/RequestKeys.scala` with its requests,
`common/protocol/Protocol.java`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from importlib import import_module
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark_kafkalog.errors import ErrorCode, FrameTooLarge, InvalidRequest, UnsupportedVersion
from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.codec import Codec, codec
from pyspark_kafkalog.protocol.primitives import Output

if TYPE_CHECKING:
    from pyspark_kafkalog.protocol.api.metadata import ApiVersionsResponse

_FIXED = Struct(">hhi")
_FIXED_AND_LENGTH = Struct(">hhih")
_CORRELATION = Struct(">i")
_SIZE = Struct(">i")
_write_client_id = primitives.string_writer("client_id", flexible=False, nullable=True)


class RequestHeader(NamedTuple):
    """A tuple, because the broker creates one per request: a third of a frozen dataclass's time."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


_MESSAGES = "pyspark_kafkalog.protocol.api"
_REQUEST, _RESPONSE = "Request", "Response"


Part: TypeAlias = bytes | bytearray | memoryview | Sized
"""Bytes to send, or a region of a file with a known length."""


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


NEVER_FLEXIBLE = 1 << 15  # first flexible version of an API that has none


class VersionRange(NamedTuple):
    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max


@dataclass(frozen=True)
class Api:
    """One API. ``theme`` is its module in `protocol.api`, imported on first use: each costs milliseconds, and
    a Spark worker needs only three for its first row.
    """

    key: ApiKey
    theme: str
    versions: VersionRange
    first_flexible: int

    @property
    def name(self) -> str:
        """Kafka's name, which prefixes the names of its messages: ``ListOffsets``."""
        return self.key.name.title().replace("_", "")

    @cached_property
    def request(self) -> type[Any]:
        return self._message(_REQUEST)

    @cached_property
    def response(self) -> type[Any]:
        return self._message(_RESPONSE)

    def _message(self, kind: str) -> type[Any]:
        message: type[Any] = getattr(import_module(f"{_MESSAGES}.{self.theme}"), self.name + kind)
        return message

    def flexible(self, version: int) -> bool:
        return version >= self.first_flexible

    def flexible_answer_header(self, version: int) -> bool:
        """Whether response headers have tagged fields; ApiVersions' never do (KIP-511)."""
        return self.key != ApiKey.API_VERSIONS and self.flexible(version)


APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, "produce", VersionRange(0, 12), 9),
        Api(ApiKey.FETCH, "fetch", VersionRange(0, 13), 12),
        Api(ApiKey.LIST_OFFSETS, "log_offsets", VersionRange(0, 7), 6),
        Api(ApiKey.METADATA, "metadata", VersionRange(0, 12), 9),
        Api(ApiKey.OFFSET_COMMIT, "group_offsets", VersionRange(0, 9), 8),
        Api(ApiKey.OFFSET_FETCH, "group_offsets", VersionRange(0, 9), 6),
        Api(ApiKey.FIND_COORDINATOR, "metadata", VersionRange(0, 4), 3),
        Api(ApiKey.JOIN_GROUP, "groups", VersionRange(0, 9), 6),
        Api(ApiKey.HEARTBEAT, "groups", VersionRange(0, 4), 4),
        Api(ApiKey.LEAVE_GROUP, "groups", VersionRange(0, 5), 4),
        Api(ApiKey.SYNC_GROUP, "groups", VersionRange(0, 5), 4),
        Api(ApiKey.DESCRIBE_GROUPS, "groups", VersionRange(0, 6), 5),
        Api(ApiKey.LIST_GROUPS, "groups", VersionRange(0, 5), 3),
        Api(ApiKey.SASL_HANDSHAKE, "logins", VersionRange(0, 1), NEVER_FLEXIBLE),
        Api(ApiKey.API_VERSIONS, "metadata", VersionRange(0, 4), 3),
        Api(ApiKey.CREATE_TOPICS, "topics", VersionRange(0, 7), 5),
        Api(ApiKey.DELETE_TOPICS, "topics", VersionRange(0, 6), 4),
        Api(ApiKey.DELETE_RECORDS, "log_offsets", VersionRange(0, 2), 2),
        Api(ApiKey.INIT_PRODUCER_ID, "producers", VersionRange(0, 5), 2),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "log_offsets", VersionRange(2, 4), 4),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, "transactions", VersionRange(0, 4), 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, "transactions", VersionRange(0, 4), 3),
        Api(ApiKey.END_TXN, "transactions", VersionRange(0, 5), 3),
        Api(ApiKey.WRITE_TXN_MARKERS, "transactions", VersionRange(1, 1), 1),
        Api(ApiKey.TXN_OFFSET_COMMIT, "transactions", VersionRange(0, 5), 3),
        Api(ApiKey.DESCRIBE_ACLS, "acls", VersionRange(0, 3), 2),
        Api(ApiKey.CREATE_ACLS, "acls", VersionRange(0, 3), 2),
        Api(ApiKey.DELETE_ACLS, "acls", VersionRange(0, 3), 2),
        Api(ApiKey.DESCRIBE_CONFIGS, "configs", VersionRange(1, 4), 4),
        Api(ApiKey.ALTER_CONFIGS, "configs", VersionRange(0, 2), 2),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "cluster", VersionRange(1, 2), 2),
        Api(ApiKey.DESCRIBE_LOG_DIRS, "cluster", VersionRange(1, 4), 2),
        Api(ApiKey.SASL_AUTHENTICATE, "logins", VersionRange(0, 2), 2),
        Api(ApiKey.CREATE_PARTITIONS, "topics", VersionRange(0, 3), 2),
        Api(ApiKey.DELETE_GROUPS, "groups", VersionRange(0, 2), 2),
        Api(ApiKey.ELECT_LEADERS, "cluster", VersionRange(0, 2), 2),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "configs", VersionRange(0, 1), 1),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "cluster", VersionRange(0, 1), 0),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "cluster", VersionRange(0, 0), 0),
        Api(ApiKey.OFFSET_DELETE, "group_offsets", VersionRange(0, 0), NEVER_FLEXIBLE),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "cluster", VersionRange(0, 1), 1),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "logins", VersionRange(0, 0), 0),
        Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "logins", VersionRange(0, 0), 0),
        Api(ApiKey.DESCRIBE_CLUSTER, "cluster", VersionRange(0, 1), 0),
        Api(ApiKey.DESCRIBE_PRODUCERS, "producers", VersionRange(0, 0), 0),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, "transactions", VersionRange(0, 0), 0),
        Api(ApiKey.LIST_TRANSACTIONS, "transactions", VersionRange(0, 1), 0),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "consumer_groups", VersionRange(0, 1), 0),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "consumer_groups", VersionRange(0, 1), 0),
        Api(ApiKey.LIST_CONFIG_RESOURCES, "configs", VersionRange(0, 1), 0),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "metadata", VersionRange(0, 0), 0),
    )
}
"""All APIs of our tables; the broker's registry has those that it serves."""

_FIRST_FLEXIBLE = {int(api.key): api.first_flexible for api in APIS.values()}
"""By number, because it is read for every request, including unknown APIs."""

_API_OF_CLASS = {
    (f"{_MESSAGES}.{api.theme}", api.name + kind): api
    for api in APIS.values()
    for kind in (_REQUEST, _RESPONSE)
}
"""By a class's module and name, so that it need not be imported."""


def _api_of(message: type[Any]) -> Api:
    return _API_OF_CLASS[message.__module__, message.__name__]


api_of: Callable[[type[Any]], Api] = cache(_api_of)  # type: ignore[assignment]  # a class is hashable


def encode_request(request: Any, *, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
    """A request as parts, size and header included."""
    api = api_of(type(request))
    message = _codec(api, api.request, version)
    out = Output(bytes(_SIZE.size))
    out += _FIXED.pack(api.key, version, correlation_id)
    _write_client_id(out, client_id)
    if api.flexible(version):
        out.append(0)
    message.write(out, request)
    return framed(out)


def encode_response(response: Any, *, version: int, correlation_id: int) -> list[Part]:
    """A response as parts, size and header included."""
    api = api_of(type(response))
    message = _codec(api, api.response, version)
    out = Output(bytes(_SIZE.size))
    out += _CORRELATION.pack(correlation_id)
    if api.flexible_answer_header(version):
        out.append(0)
    message.write(out, response)
    return framed(out)


def decode_header(frame: bytes | bytearray | memoryview) -> tuple[RequestHeader, int]:
    """A request's header and the position of its body; skips tagged fields of known APIs."""
    try:
        api_key, api_version, correlation_id, length = _FIXED_AND_LENGTH.unpack_from(frame)
        start = _FIXED_AND_LENGTH.size
        pos = start + max(length, 0)
        if length < -1 or pos > len(frame):
            raise InvalidRequest(f"client_id claims {length} bytes; {len(frame) - start} are left")
        client_id = str(frame[start:pos], "utf-8") if length >= 0 else None
        header = RequestHeader(api_key, api_version, correlation_id, client_id)
        if api_version >= _FIRST_FLEXIBLE.get(api_key, NEVER_FLEXIBLE):
            # Clients send none; this check costs less than the call.
            pos = pos + 1 if frame[pos] == 0 else primitives.skip_tagged_fields(memoryview(frame), pos)
    except (StructError, IndexError, UnicodeDecodeError, InvalidRequest) as error:
        raise InvalidRequest(f"request header: {error}") from None
    return header, pos


def decode_request(header: RequestHeader, frame: bytes | bytearray | memoryview, pos: int) -> Any:
    """The request at ``pos``; record sets are slices of ``frame``. Ignores bytes after its end, as Kafka
    does: librdkafka 2.16 appends three to a flexible Metadata request for all topics.
    """
    # An IntEnum hashes as its number.
    api: Api | None = APIS.get(header.api_key)  # type: ignore[call-overload]
    if api is None:
        raise UnsupportedVersion(f"unknown API {header.api_key} (version {header.api_version})")
    return _codec(api, api.request, header.api_version).read(memoryview(frame), pos, exact=False)


def decode_response(key: ApiKey, version: int, frame: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """Correlation id and message of a response; record sets are slices of ``frame``. ApiVersions falls back
    to version 0, from a broker that does not know ``version``.
    """
    api = APIS[key]
    message = _codec(api, api.response, version)
    buf = memoryview(frame)
    try:
        (correlation_id,), pos = _CORRELATION.unpack_from(buf), _CORRELATION.size
        if api.flexible_answer_header(version):
            pos = primitives.skip_tagged_fields(buf, pos)
    except (StructError, IndexError, InvalidRequest) as error:
        raise InvalidRequest(f"header of {message}: {error}") from None
    try:
        return correlation_id, message.read(buf, pos)
    except InvalidRequest:
        if key != ApiKey.API_VERSIONS or version == 0:
            raise
        refusal = _refusal(buf, pos)
        if refusal is None:
            raise
        return correlation_id, refusal


def _refusal(buf: memoryview, pos: int) -> ApiVersionsResponse | None:
    """The version 0 response of a broker that does not know the requested version; None for other bytes."""
    api = APIS[ApiKey.API_VERSIONS]
    try:
        answer: ApiVersionsResponse = _codec(api, api.response, 0).read(buf, pos)
    except InvalidRequest:
        return None
    return answer if answer.error_code == ErrorCode.UNSUPPORTED_VERSION else None


def _codec(api: Api, cls: Any, version: int) -> Codec:
    if version not in api.versions:
        known = f"{api.versions.min} to {api.versions.max}"
        raise UnsupportedVersion(f"{api.key.name} version {version}; known are {known}")
    return codec(cls, version, api.flexible(version))


def framed(out: Output) -> list[Part]:
    """``out``, which begins with room for the size, as parts: split at its regions."""
    size = len(out) - _SIZE.size + sum(len(region) for _, region in out.regions)
    try:
        _SIZE.pack_into(out, 0, size)
    except StructError:
        raise InvalidRequest(f"message of {size} bytes; the limit is {2**31 - 1}") from None
    if not out.regions:
        return [out]
    view, done = memoryview(out), 0
    parts: list[Part] = []
    for position, region in out.regions:
        if position > done:
            parts.append(view[done:position])
        parts.append(region)
        done = position
    if done < len(out):
        parts.append(view[done:])
    return parts


Versions = Mapping[ApiKey, VersionRange]

_V0, _V0_1, _V0_2, _V0_3 = (VersionRange(0, last) for last in range(4))

_0_8_0: Versions = {
    ApiKey.PRODUCE: _V0, ApiKey.FETCH: _V0, ApiKey.LIST_OFFSETS: _V0, ApiKey.METADATA: _V0,
}  # fmt: skip
_0_8_1: Versions = {**_0_8_0, ApiKey.OFFSET_COMMIT: _V0, ApiKey.OFFSET_FETCH: _V0}
_0_8_2: Versions = {
    **_0_8_1, ApiKey.OFFSET_COMMIT: _V0_1, ApiKey.OFFSET_FETCH: _V0_1, ApiKey.FIND_COORDINATOR: _V0,
}  # fmt: skip
_0_9_0: Versions = {
    **_0_8_2, ApiKey.PRODUCE: _V0_1, ApiKey.FETCH: _V0_1, ApiKey.OFFSET_COMMIT: _V0_2,
    ApiKey.DESCRIBE_GROUPS: _V0, ApiKey.LIST_GROUPS: _V0,
}  # fmt: skip
_0_10_0: Versions = {
    **_0_9_0, ApiKey.PRODUCE: _V0_2, ApiKey.FETCH: _V0_2, ApiKey.METADATA: _V0_1,
    ApiKey.SASL_HANDSHAKE: _V0, ApiKey.API_VERSIONS: _V0,
}  # fmt: skip
_0_10_1: Versions = {
    **_0_10_0, ApiKey.FETCH: _V0_3, ApiKey.LIST_OFFSETS: _V0_1, ApiKey.METADATA: _V0_2,
    ApiKey.CREATE_TOPICS: _V0, ApiKey.DELETE_TOPICS: _V0,
}  # fmt: skip
_0_10_2: Versions = {**_0_10_1, ApiKey.OFFSET_FETCH: _V0_2, ApiKey.CREATE_TOPICS: _V0_1}

RELEASES: Mapping[str, Versions] = {
    "0.8.0": _0_8_0, "0.8.1": _0_8_1, "0.8.2": _0_8_2, "0.9.0": _0_9_0,
    "0.10.0": _0_10_0, "0.10.1": _0_10_1, "0.10.2": _0_10_2,
}  # fmt: skip
"""Versions by release, oldest first. Since 0.10.0 brokers list their own."""

_PATCH = re.compile(r"(0\.(?:8|9|10)\.[0-9])(?:\.[0-9]{1,2})?")


def release_of(text: str) -> str | None:
    """The key in `RELEASES` for a version number with or without patch level: 0.8.2.2 is 0.8.2."""
    found = _PATCH.fullmatch(text)
    return found[1] if found is not None and found[1] in RELEASES else None


def message_magic(release: str) -> int:
    """The newest message format that a release's brokers accept: 0, or 1 since Produce 2."""
    return 0 if RELEASES[release][ApiKey.PRODUCE].max < 2 else 1


# --- frames: ``size:int32`` and that many bytes, split from a byte stream

SIZE_BYTES = 4

_STAGE_BYTES = 4096

_WHOLE_BYTES = 256 << 10
"""Largest frame that is received together with its size, if the previous one had the same size."""


class FrameReader:
    """Splits received bytes into frames. *Not thread-safe: one per connection, used by its reading thread.*

    Receive into `buffer`; `received` returns the completed frames without their size, each in its own memory.
    An invalid size raises `FrameTooLarge` after the complete frames before it were returned.

    Memory follows the bytes received, never the claimed size: it begins at 4 KiB and doubles. After a large
    frame the next one gets that much at once, which saves copies. Up to `_WHOLE_BYTES` it includes the next
    frame's size, so a producer's full batches need one system call each and no copy.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        """Largest allowed frame; a change applies to sizes that have not arrived yet."""
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._staged = 0  # bytes in the stage that belong to no frame yet
        self._size = 0
        self._body: bytearray | None = None
        """The current frame, if its known size exceeds what is staged; or see `_whole`."""
        self._filled = 0
        self._trusted = _STAGE_BYTES
        self._spare: bytearray | None = None
        self._whole = False  # whether ``_body`` begins with its size, assumed to equal the last frame's
        self.failure: FrameTooLarge | None = None  # why no frame can follow, or None

    @property
    def claimed(self) -> int:
        body = self._body
        if body is None:
            return 0
        if not self._whole:
            return self._size
        return len(body) - SIZE_BYTES if self._filled >= SIZE_BYTES else 0

    @property
    def partial(self) -> bool:
        return bool(self._staged if self._body is None else self._filled or not self._whole)

    def buffer(self, *, whole: bool = True) -> memoryview:
        """Memory for the next bytes; release it, then call `received`. ``whole``: for an expected frame."""
        if self.failure is not None:
            raise self.failure
        body = self._body
        if body is None:
            if self._staged:
                return self._stage[self._staged :]
            if not whole or not _STAGE_BYTES < self._trusted <= _WHOLE_BYTES:
                return self._stage
            self._body = body = bytearray(SIZE_BYTES + self._trusted)
            self._whole, self._filled = True, 0
            return memoryview(body)
        if self._filled == len(body):
            grown = self._grown(len(body))
            grown[: self._filled] = body
            self._body = body = grown
        return memoryview(body)[self._filled :]

    def rest(self) -> None:
        """Free unused memory while no data is expected."""
        if self._whole and not self._filled:
            self._body, self._whole = None, False

    def recycle(self, frame: bytearray) -> None:
        """Reuse a frame's memory once no view is left: fresh memory doubles the cost of 4 MiB."""
        self._spare = frame

    def received(self, count: int) -> list[bytearray]:
        """The frames completed by ``count`` more bytes; the caller owns them."""
        frames = self._take(count) if self.failure is None else []
        if self.failure is not None and not frames:
            raise self.failure
        return frames

    def _take(self, count: int) -> list[bytearray]:
        """As `received`, but stores an invalid size in `failure`."""
        if self._body is None:
            return self._cut_stage(count)
        self._filled += count
        if self._whole:
            return self._take_whole(self._body)
        if self._filled < self._size:
            return []
        frame, self._body = self._body, None
        self._trusted = max(_STAGE_BYTES, self._size)
        return [frame]

    def _take_whole(self, body: bytearray) -> list[bytearray]:
        """The frame in ``body`` if it is as long as the last one; otherwise split as usual."""
        filled = self._filled
        if filled < SIZE_BYTES:
            return []
        size = int.from_bytes(body[:SIZE_BYTES], "big", signed=True)
        if size == len(body) - SIZE_BYTES and filled < len(body):
            return []
        self._body, self._whole = None, False
        if size != len(body) - SIZE_BYTES:
            self._trusted = max(_STAGE_BYTES, min(size, self._trusted))
            return self._cut(memoryview(body)[:filled])
        try:
            del body[:SIZE_BYTES]  # copies nothing: a bytearray stores its start offset
        except BufferError:
            body = body[SIZE_BYTES:]  # the caller still holds a view from `buffer`
        return [body]

    def _cut(self, data: memoryview) -> list[bytearray]:
        frames: list[bytearray] = []
        while data and self.failure is None:
            room = self._stage[self._staged :] if self._body is None else self.buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            del room  # a bytearray with views cannot be resized
            frames += self._take(count)
        return frames

    def _cut_stage(self, count: int) -> list[bytearray]:
        frames: list[bytearray] = []
        stage, end, pos = self._stage, self._staged + count, 0
        while end - pos >= SIZE_BYTES:
            (size,) = _SIZE.unpack_from(stage, pos)
            if not 0 <= size <= self.max_frame_bytes:
                limit = self.max_frame_bytes
                self.failure = FrameTooLarge(f"frame of {size} bytes; the limit is {limit}", size)
                return frames
            start = pos + SIZE_BYTES
            if end - start < size:
                # Only the bytes that arrived; `buffer` enlarges it.
                self._body = bytearray(stage[start:end])
                self._size, self._filled, self._staged = size, end - start, 0
                return frames
            frames.append(bytearray(stage[start : start + size]))
            pos = start + size
        rest = end - pos
        if pos and rest:
            stage[:rest] = bytes(stage[pos:end])
        self._staged = rest
        return frames

    def _grown(self, length: int) -> bytearray:
        if length > _STAGE_BYTES:
            return bytearray(min(self._size, 2 * length))
        # Recycled memory is already allocated: using all of it does not trust the claimed size.
        there = self._spare.__alloc__() - 1 if self._spare is not None else 0
        return self._memory(min(self._size, max(self._trusted, 2 * length, there)))

    def _memory(self, size: int) -> bytearray:
        spare, self._spare = self._spare, None
        if spare is None or not size // 2 < len(spare) < 2 * size:
            return bytearray(size)
        try:
            spare.append(spare.pop())  # raises BufferError while a view of it exists
            if len(spare) > size:
                del spare[size:]
            else:
                spare.extend(bytes(size - len(spare)))
        except BufferError:
            return bytearray(size)
        return spare
