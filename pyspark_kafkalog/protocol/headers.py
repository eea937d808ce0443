"""What stands before every request and answer.

Request: ``api_key:int16 api_version:int16 correlation_id:int32 client_id:nullable string``, and tagged
fields where the version is flexible. Even there client_id keeps its int16 length (KIP-482).
Answer: ``correlation_id:int32``, and tagged fields where the version is flexible.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.primitives import Output

_FIXED = Struct(">hhi")
_FIXED_AND_LENGTH = Struct(">hhih")
_CORRELATION = Struct(">i")
_write_client_id = primitives.string_writer("client_id", flexible=False, nullable=True)


class RequestHeader(NamedTuple):
    """Who asks what; ``client_id`` is whatever the client calls itself.

    A tuple, as the broker makes one for every request: a third of the time of a frozen dataclass.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def read_request_header(buf: Buffer) -> tuple[RequestHeader, int]:
    """The header at the start of a frame, but for its tagged fields, and the position after it.

    Raises:
        InvalidRequest: the client id is longer than what is left.
        struct.error, UnicodeDecodeError: the frame is too short for a header, or the id is not UTF-8.
    """
    api_key, api_version, correlation_id, length = _FIXED_AND_LENGTH.unpack_from(buf)
    start = _FIXED_AND_LENGTH.size
    if length == -1:
        return RequestHeader(api_key, api_version, correlation_id, None), start
    end = start + length
    if length < 0 or end > len(buf):
        raise InvalidRequest(f"client_id claims {length} bytes; {len(buf) - start} are left")
    return RequestHeader(api_key, api_version, correlation_id, str(buf[start:end], "utf-8")), end


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
