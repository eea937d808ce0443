"""Requests and answers as frames: which APIs there are, in which versions, and with which header.

Bytes to be sent are *parts*: a record set stays the object it was (bytes or a slice of a file) between the
bytes of the message around it. Only its ``len()`` is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from importlib import import_module
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, UnsupportedVersion
from pyspark_kafkalog.protocol import headers, primitives
from pyspark_kafkalog.protocol.codec import Codec, codec
from pyspark_kafkalog.protocol.headers import RequestHeader
from pyspark_kafkalog.protocol.primitives import Output

if TYPE_CHECKING:
    from pyspark_kafkalog.protocol.api.api_versions import ApiVersionsResponse

_SIZE = Struct(">i")
_MESSAGES = "pyspark_kafkalog.protocol.api"


class _Sized(Protocol):
    def __len__(self) -> int: ...


Part: TypeAlias = bytes | bytearray | memoryview | _Sized
"""Something to be sent as it is: bytes, or a region of which only the length is known here."""


class ApiKey(IntEnum):
    """The numbers of the APIs that we speak."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    CREATE_PARTITIONS = 37


class VersionRange(NamedTuple):
    """The oldest and the newest version, both included."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max


@dataclass(frozen=True)
class Api:
    """One API: its messages, the versions that our tables hold, and the first that is flexible.

    The messages stand in the module of `protocol.api` that has the API's name, and are imported when they
    are first asked for: each costs milliseconds, and a Spark worker needs four of them for its first row.
    """

    key: ApiKey
    versions: VersionRange
    first_flexible: int

    @cached_property
    def request(self) -> type[Any]:
        """The class of its requests."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Any]:
        """The class of its answers."""
        return self._message("Response")

    def _message(self, kind: str) -> type[Any]:
        name = self.key.name.lower()
        found: type[Any] = getattr(import_module(f"{_MESSAGES}.{name}"), name.title().replace("_", "") + kind)
        return found

    def flexible(self, version: int) -> bool:
        """Whether requests and answers of this version have compact lengths and tagged fields."""
        return version >= self.first_flexible

    def flexible_answer_header(self, version: int) -> bool:
        """Whether answers of this version have tagged fields in their header.

        ApiVersions' never have: a client must be able to read the answer of a broker that does not know
        the version it asked for (KIP-511).
        """
        return self.key != ApiKey.API_VERSIONS and self.flexible(version)


APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, VersionRange(0, 11), 9),
        Api(ApiKey.FETCH, VersionRange(0, 12), 12),
        Api(ApiKey.LIST_OFFSETS, VersionRange(0, 7), 6),
        Api(ApiKey.METADATA, VersionRange(0, 12), 9),
        Api(ApiKey.OFFSET_COMMIT, VersionRange(0, 8), 8),
        Api(ApiKey.OFFSET_FETCH, VersionRange(0, 8), 6),
        Api(ApiKey.FIND_COORDINATOR, VersionRange(0, 4), 3),
        Api(ApiKey.DESCRIBE_GROUPS, VersionRange(0, 5), 5),
        Api(ApiKey.LIST_GROUPS, VersionRange(0, 4), 3),
        Api(ApiKey.API_VERSIONS, VersionRange(0, 4), 3),
        Api(ApiKey.CREATE_TOPICS, VersionRange(0, 7), 5),
        Api(ApiKey.DELETE_TOPICS, VersionRange(0, 6), 4),
        Api(ApiKey.INIT_PRODUCER_ID, VersionRange(0, 4), 2),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, VersionRange(0, 3), 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, VersionRange(0, 4), 3),
        Api(ApiKey.END_TXN, VersionRange(0, 4), 3),
        Api(ApiKey.TXN_OFFSET_COMMIT, VersionRange(0, 4), 3),
        Api(ApiKey.DESCRIBE_CONFIGS, VersionRange(1, 4), 4),
        Api(ApiKey.CREATE_PARTITIONS, VersionRange(0, 3), 2),
    )
}
"""Everything that we can read and write. What a broker serves of it stands in the broker's registry."""

_NEVER = 1 << 15
_FIRST_FLEXIBLE = {int(api.key): api.first_flexible for api in APIS.values()}
"""By plain number: read for every request, of APIs that we do not know as well."""


def api_of(message: type[Any]) -> Api:
    """The API to which a request or response class belongs."""
    return _api_in(message.__module__)


@cache
def _api_in(module: str) -> Api:
    return APIS[ApiKey[module.rpartition(".")[2].upper()]]


def encode_request(request: Any, *, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
    """A request as parts, with its size and header.

    Raises:
        UnsupportedVersion: the tables do not hold this version.
        InvalidRequest: a value does not fit its type, or this version has no place for it.
    """
    api = api_of(type(request))
    message = _codec(api, api.request, version)
    out = Output(bytes(_SIZE.size))
    header = RequestHeader(api.key, version, correlation_id, client_id)
    headers.write_request_header(out, header, flexible=api.flexible(version))
    message.write(out, request)
    return _parts(out)


def encode_response(response: Any, *, version: int, correlation_id: int) -> list[Part]:
    """An answer as parts, with its size and header.

    A broker that does not know the version of an ApiVersions request answers with version 0 and
    ``ErrorCode.UNSUPPORTED_VERSION``.

    Raises:
        UnsupportedVersion: the tables do not hold this version.
        InvalidRequest: a value does not fit its type, or this version has no place for it.
    """
    api = api_of(type(response))
    message = _codec(api, api.response, version)
    out = Output(bytes(_SIZE.size))
    headers.write_response_header(out, correlation_id, flexible=api.flexible_answer_header(version))
    message.write(out, response)
    return _parts(out)


def decode_header(frame: bytes | bytearray | memoryview) -> tuple[RequestHeader, int]:
    """The header of a request and the position of its body, for unknown keys and versions too.

    Whether an unknown API has tagged fields in its header is not known; its body is taken to
    begin right after the client id.

    Raises:
        InvalidRequest: the frame is too short for a header, or client_id is not UTF-8.
    """
    try:
        header, pos = headers.read_request_header(frame)
        if header.api_version >= _FIRST_FLEXIBLE.get(header.api_key, _NEVER):
            # Nobody sends any: looking costs less than calling.
            pos = pos + 1 if frame[pos] == 0 else primitives.skip_tagged_fields(memoryview(frame), pos)
    except (StructError, IndexError, UnicodeDecodeError, InvalidRequest) as error:
        raise InvalidRequest(f"request header: {error}") from None
    return header, pos


def decode_request(header: RequestHeader, frame: bytes | bytearray | memoryview, pos: int) -> Any:
    """The request whose body begins at ``pos``. Record sets are slices of ``frame``.

    Bytes after its end are ignored, as Kafka does: librdkafka 2.16 leaves three behind a flexible Metadata
    request for all topics.

    Raises:
        UnsupportedVersion: the tables hold no such API, or not this version of it.
        InvalidRequest: the body does not follow its schema.
    """
    api = _find(header.api_key)
    if api is None:
        raise UnsupportedVersion(f"unknown API {header.api_key} (version {header.api_version})")
    return _codec(api, api.request, header.api_version).read(memoryview(frame), pos, exact=False)


def decode_response(key: ApiKey, version: int, frame: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """Correlation id and message of an answer to a request of ``version``.

    Record sets are slices of ``frame``. A broker that does not know the version of an ApiVersions request
    answers in version 0: that is read too.

    Raises:
        UnsupportedVersion: the tables do not hold this version.
        InvalidRequest: the answer does not follow its schema.
    """
    api = APIS[key]
    message = _codec(api, api.response, version)
    buf = memoryview(frame)
    try:
        correlation_id, pos = headers.read_response_header(buf, flexible=api.flexible_answer_header(version))
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
    """What a broker says that does not know the version asked, if these bytes are that."""
    api = APIS[ApiKey.API_VERSIONS]
    try:
        answer: ApiVersionsResponse = _codec(api, api.response, 0).read(buf, pos)
    except InvalidRequest:
        return None
    return answer if answer.error_code == ErrorCode.UNSUPPORTED_VERSION else None


def _find(key: int) -> Api | None:
    return APIS.get(key)  # type: ignore[call-overload,no-any-return]  # an IntEnum hashes as its number


def _codec(api: Api, cls: Any, version: int) -> Codec:
    if version not in api.versions:
        known = f"{api.versions.min} to {api.versions.max}"
        raise UnsupportedVersion(f"{api.key.name} version {version}; known are {known}")
    return codec(cls, version, api.flexible(version))


def _parts(out: Output) -> list[Part]:
    """Write the size into the first bytes of ``out`` and cut it where its regions belong."""
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
