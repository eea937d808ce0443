"""Messages of every API and version: strategies made from the field tables, and a plain encoder."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    BYTES,
    ERROR_CODE,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID_TYPE,
    Array,
    FieldSpec,
    Scalar,
    specs,
)
from pyspark_kafkalog.protocol.exchange import (
    APIS,
    Api,
    decode_header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

CORRELATION_ID = 77
CLIENT_ID = "zo\u00eb"

_BITS = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}


class Case(NamedTuple):
    """One message class in one version."""

    api: Api
    cls: Any
    version: int

    @property
    def flexible(self) -> bool:
        return self.api.flexible(self.version)

    @property
    def is_request(self) -> bool:
        return self.cls is self.api.request

    def __str__(self) -> str:
        return f"{self.cls.__name__}-{self.version}"

    def frame(self, message: Any) -> bytes:
        """The whole frame without its size."""
        if self.is_request:
            parts = encode_request(
                message, version=self.version, correlation_id=CORRELATION_ID, client_id=CLIENT_ID
            )
        else:
            parts = encode_response(message, version=self.version, correlation_id=CORRELATION_ID)
        data = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        return data[4:]

    def read(self, frame: bytes) -> Any:
        """The message in a whole frame; checks the header too."""
        if self.is_request:
            header, pos = decode_header(frame)
            if (header.api_key, header.api_version) == (self.api.key, self.version):
                return decode_request(header, frame, pos)
            raise AssertionError(f"read {header} in a frame of {self}")
        return decode_response(self.api.key, self.version, frame)[1]

    @property
    def header_bytes(self) -> bytes:
        """The header as `frame` writes it."""
        correlation = CORRELATION_ID.to_bytes(4, "big")
        if not self.is_request:
            return correlation + (b"\0" if self.api.flexible_answer_header(self.version) else b"")
        client = CLIENT_ID.encode()
        key, version = self.api.key.to_bytes(2, "big"), self.version.to_bytes(2, "big")
        tags = b"\0" if self.flexible else b""
        return key + version + correlation + len(client).to_bytes(2, "big") + client + tags


CASES = [
    Case(api, cls, version)
    for api in APIS.values()
    for version in range(api.versions.min, api.versions.max + 1)
    for cls in (api.request, api.response)
]


def by_class(cases: Iterable[Case] = CASES) -> pytest.MarkDecorator:
    """Parametrises a test by message class: ``cases`` are all its versions."""
    classes: dict[str, list[Case]] = {}
    for case in cases:
        classes.setdefault(case.cls.__name__, []).append(case)
    return pytest.mark.parametrize("cases", classes.values(), ids=classes)


@cache
def messages(cls: Any, version: int) -> st.SearchStrategy[Any]:
    """Messages that ``version`` can carry whole."""
    return st.builds(
        cls,
        **{name: _values(name, spec, version) for name, spec in specs(cls) if spec.exists_in(version)},
    )


def _values(name: str, spec: FieldSpec, version: int) -> st.SearchStrategy[Any]:
    if isinstance(spec.type, Array):
        values = st.lists(_elements(name, spec.type.element, version), max_size=2).map(tuple)
    else:
        values = _elements(name, spec.type, version)
    return st.none() | values if spec.nullable_in(version) else values


def _elements(name: str, kind: Any, version: int) -> st.SearchStrategy[Any]:
    if kind is STRING:
        return st.text(st.characters(codec="utf-8"), max_size=5) | st.just("x" * 130)
    if kind is RECORDS or kind is BYTES:
        return st.binary(max_size=8) | st.just(bytes(200))
    if kind is UUID_TYPE:
        return st.uuids()
    if kind is BOOL:
        return st.booleans()
    if kind is ERROR_CODE:
        return st.sampled_from(ErrorCode)
    if kind is FLOAT64:
        return st.floats(allow_nan=False)
    if isinstance(kind, Scalar):
        bits = _BITS[kind]
        if name.endswith("_ms"):
            # Foreign implementations turn times into objects that lose milliseconds when they grow large.
            return st.integers(-1 if name == "log_append_time_ms" else 0, (1 << min(bits - 1, 41)) - 1)
        return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return messages(kind, version)


def reference_body(message: Any, case: Case, extra_tags: dict[int, bytes] | None = None) -> bytes:
    """``message`` field by field, the slow way; ``extra_tags`` are put into every flexible struct."""
    out = b""
    tags = dict(extra_tags or {})
    for name, spec in specs(message):
        value = getattr(message, name)
        if not spec.exists_in(case.version):
            continue
        if isinstance(spec.type, type) and spec.nullable_in(case.version):
            data = b"\xff" if value is None else b"\x01" + reference_body(value, case, extra_tags)
        else:
            data = _reference_value(value, spec.type, case, extra_tags)
        if spec.tag is None:
            out += data
        elif value != spec.default:
            tags[spec.tag] = data
    if case.flexible:
        out += _uvarint(len(tags))
        out += b"".join(_uvarint(tag) + _uvarint(len(tags[tag])) + tags[tag] for tag in sorted(tags))
    return out


def _reference_value(value: Any, kind: Any, case: Case, extra: dict[int, bytes] | None) -> bytes:
    if isinstance(kind, Array):
        count = -1 if value is None else len(value)
        items = b"".join(_reference_value(item, kind.element, case, extra) for item in value or ())
        return (_uvarint(count + 1) if case.flexible else count.to_bytes(4, "big", signed=True)) + items
    if kind is STRING or kind is RECORDS or kind is BYTES:
        data = value.encode() if isinstance(value, str) else value or b""
        length = -1 if value is None else len(data)
        width = 2 if kind is STRING else 4
        return (_uvarint(length + 1) if case.flexible else length.to_bytes(width, "big", signed=True)) + data
    if kind is UUID_TYPE:
        return bytes(value.bytes)
    if kind is FLOAT64:
        return struct.pack(">d", value)
    if isinstance(kind, Scalar):
        return int(value).to_bytes(kind.size, "big", signed=kind is not BOOL)
    return reference_body(value, case, extra)


def _uvarint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
