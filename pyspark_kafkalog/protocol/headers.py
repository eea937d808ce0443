"""What stands before every request and answer.

Request: ``api_key:int16 api_version:int16 correlation_id:int32 client_id:nullable string``, and tagged
fields where the version is flexible. Even there client_id keeps its int16 length (KIP-482).
Answer: ``correlation_id:int32``, and tagged fields where the version is flexible.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.primitives import Output, Values

_FIXED = Struct(">hhi")
_CORRELATION = Struct(">i")
_read_client_id = primitives.string_reader("client_id", flexible=False, nullable=True)
_write_client_id = primitives.string_writer("client_id", flexible=False, nullable=True)


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Who asks what; ``client_id`` is whatever the client calls itself."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def read_request_header(buf: memoryview) -> tuple[RequestHeader, int]:
    """The header at the start of a frame, but for its tagged fields, and the position after it."""
    api_key, api_version, correlation_id = _FIXED.unpack_from(buf)
    values: Values = []
    pos = _read_client_id(buf, _FIXED.size, values)
    return RequestHeader(api_key, api_version, correlation_id, values[0]), pos


def write_request_header(out: Output, header: RequestHeader, *, flexible: bool) -> None:
    """Append a header, without tagged fields of its own."""
    out += _FIXED.pack(header.api_key, header.api_version, header.correlation_id)
    _write_client_id(out, header.client_id)
    if flexible:
        out.append(0)


def read_response_header(buf: memoryview, *, flexible: bool) -> tuple[int, int]:
    """The correlation id at the start of a frame, and the position after the header."""
    (correlation_id,) = _CORRELATION.unpack_from(buf)
    pos = _CORRELATION.size
    return correlation_id, primitives.skip_tagged_fields(buf, pos) if flexible else pos


def write_response_header(out: Output, correlation_id: int, *, flexible: bool) -> None:
    """Append a header, without tagged fields of its own."""
    out += _CORRELATION.pack(correlation_id)
    if flexible:
        out.append(0)
