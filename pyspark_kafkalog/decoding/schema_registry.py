"""Confluent's wire header, and a client for its schema registry: schemas by id, or a subject's newest.

Header: ``magic:1 = 0, schema id:4`` big-endian, then the value. For Protobuf, the path to the message type in
its file comes between: ``count, index...`` as zigzag varints; a single 0 stands for ``1, 0``. Source:
Confluent's "Wire format" and "Schema Registry API reference".
"""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import msgspec

from pyspark_kafkalog.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

HEADER_BYTES = 5
_MAGIC = 0
_ID = struct.Struct(">I")
_MAX_DEPTH = 100  # of nested message types, beyond any real schema
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_MAX_BYTES = 16 << 20
_MAX_REFERENCES = 1000
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.2
_NOT_FOUND = 404
_TOO_MANY = 429
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=[a-z]+://)")  # a password may hold a comma
_SERVER_FAILED = 500


class Undecodable(Exception):
    """A value cannot be decoded; the text becomes its row's reason."""


def schema_id(value: bytes) -> int:
    """The id in the header; the value begins at `HEADER_BYTES`. Raises `Undecodable`."""
    if len(value) < HEADER_BYTES:
        raise Undecodable(f"no Confluent header: {len(value)} bytes are fewer than its {HEADER_BYTES}")
    if value[0] != _MAGIC:
        raise Undecodable(f"no Confluent header: the first byte is {value[0]}, not 0")
    return int(_ID.unpack_from(value, 1)[0])


def message_path(value: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """The path of indexes at ``position``, and the message's position. Raises `Undecodable`."""
    count, position = _zigzag(value, position)
    if count == 0:
        return (0,), position
    if not 0 < count <= _MAX_DEPTH:
        raise Undecodable(f"a path of {count} message indexes; it has 1 to {_MAX_DEPTH}")
    path = []
    for _ in range(count):
        index, position = _zigzag(value, position)
        path.append(index)
    return tuple(path), position


def _zigzag(value: bytes, position: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if position >= len(value):
            raise Undecodable("the message indexes are cut off")
        byte = value[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), position
    raise Undecodable("a message index has more than 5 bytes")


def decode_column(
    values: pa.Array, decode: Callable[[bytes], Any], column_of: Callable[[list[Any]], pa.Array]
) -> pa.StructArray:
    """Decode each value and collect with ``column_of``; `Undecodable` becomes null with a reason."""
    import pyarrow as pa

    decoded: list[Any] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        found, reason = None, None
        if value is not None:
            try:
                found = decode(value)
            except Undecodable as e:
                reason = str(e)
        decoded.append(found)
        reasons.append(reason)
    misfits = (pa.ArrowException, OverflowError, TypeError, ValueError)
    try:
        column = column_of(decoded)
    except misfits:
        # A value, such as a damaged number, does not fit its type: find it.
        for index, value in enumerate(decoded):
            try:
                column_of([value])
            except misfits as e:
                decoded[index], reasons[index] = None, f"does not fit the column: {e}"
        column = column_of(decoded)
    return pa.StructArray.from_arrays([column, pa.array(reasons, pa.string())], ["value", "reason"])


class RegistryError(KafkaError):
    """The schema registry cannot be reached, or its answer is invalid."""


class Schema(msgspec.Struct, frozen=True):
    """A schema's text and those it refers to, dependencies first."""

    text: str
    kind: str = "AVRO"
    references: tuple[str, ...] = ()


class _Server(NamedTuple):
    url: str
    headers: dict[str, str]

    @classmethod
    def of(cls, text: str) -> _Server:
        try:
            parts = urlsplit(text)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise InvalidConfig(
                "a schema registry's URL is http://host:port or https://host:port; several are separated by "
                "commas"
            )
        headers = {"Accept": _ACCEPT}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        address = parts.netloc.rpartition("@")[2]
        return cls(urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", "")), headers)


class Registry:
    """A client of one registry. *Thread-safe.* Schemas never change, so callers cache them."""

    def __init__(self, urls: str, *, timeout_seconds: float = 10.0) -> None:
        """``urls`` of its servers: ``http://[user:password@]host:8081,...``. Raises `InvalidConfig`."""
        self._servers = tuple(map(_Server.of, _BETWEEN_URLS.split(urls.strip(" ,"))))
        self._timeout = timeout_seconds

    @property
    def url(self) -> str:
        """Of the server that answered last."""
        return self._servers[0].url

    def by_id(self, schema_id: int) -> Schema | None:
        """The schema with this id, or None. Raises `RegistryError`."""
        found = self._get(f"/schemas/ids/{schema_id}")
        return None if found is None else self._schema(found)

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject, usually ``<topic>-value``. Raises `RegistryError`."""
        return self._schema(self._version(subject, "latest"))

    def _version(self, subject: str, version: object) -> dict[str, object]:
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        if found is None:
            raise RegistryError(f"{self.url} has no version {version} of subject {subject!r}")
        return found

    def _schema(self, answer: dict[str, object]) -> Schema:
        texts: dict[tuple[str, object], str] = {}
        self._follow(answer, texts)
        kind = answer.get("schemaType") or "AVRO"
        return Schema(self._text(answer), str(kind), tuple(texts.values()))

    def _follow(self, answer: dict[str, object], texts: dict[tuple[str, object], str]) -> None:
        references = answer.get("references") or []
        if not isinstance(references, list) or not all(isinstance(one, dict) for one in references):
            raise RegistryError(f"{self.url} answered with invalid references")
        for reference in references:
            key = str(reference.get("subject")), reference.get("version")
            if key in texts:
                continue
            if len(texts) >= _MAX_REFERENCES:
                raise RegistryError(f"{self.url}: a schema refers to more than {_MAX_REFERENCES} others")
            found = self._version(*key)
            self._follow(found, texts)
            texts[key] = self._text(found)

    def _text(self, answer: dict[str, object]) -> str:
        text = answer.get("schema")
        if not isinstance(text, str):
            raise RegistryError(f"{self.url} answered without a schema: is it a schema registry?")
        return text

    def _get(self, path: str) -> dict[str, object] | None:
        servers, failures = self._servers, dict[str, None]()
        for attempt in range(_ATTEMPTS):
            time.sleep(_PAUSE_SECONDS * attempt)
            for server in servers:
                try:
                    found = self._ask(server, path)
                except RegistryError as e:
                    failures[str(e)] = None
                    continue
                self._servers = (server, *(other for other in servers if other is not server))
                return found
        raise RegistryError("; ".join(failures))

    def _ask(self, server: _Server, path: str) -> dict[str, object] | None:
        """The answer; None for 404. `InvalidConfig` if a retry cannot help."""
        place = server.url + path
        request = Request(place, headers=server.headers)
        try:
            with urlopen(request, timeout=self._timeout) as response:
                body = response.read(_MAX_BYTES + 1)
        except HTTPError as e:
            with e:
                if e.code == _NOT_FOUND:
                    return None
                answered = f"{place} answered {e.code} {e.reason}"
            if e.code == _TOO_MANY or e.code >= _SERVER_FAILED:
                raise RegistryError(answered) from None
            raise InvalidConfig(f"{answered}: check the registry's URL, user and password") from None
        except (URLError, OSError, HTTPException) as e:
            raise RegistryError(f"{place}: {getattr(e, 'reason', e)}") from e
        if len(body) > _MAX_BYTES:
            raise InvalidConfig(f"{place} answered more than {_MAX_BYTES} bytes")
        try:
            found = json.loads(body)
        except ValueError as e:
            raise InvalidConfig(f"{place} did not answer in JSON: is it a schema registry?") from e
        if not isinstance(found, dict):
            raise InvalidConfig(f"{place} did not answer with an object: is it a schema registry?")
        return found
