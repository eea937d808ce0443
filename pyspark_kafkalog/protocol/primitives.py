"""The protocol's simple types: classic and flexible writers, and helpers of generated readers.

Classic lengths are int16 or int32, -1 for null; flexible ("compact") ones are an unsigned varint of length +
1, or 0 for null. Cut input raises `InvalidRequest`, ``struct.error``, ``IndexError`` or
``UnicodeDecodeError``; `codec` makes it `InvalidRequest` with the message's name. Source: protocol guide,
"Protocol Primitive Types".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any
from uuid import UUID

from pyspark_kafkalog.errors import CorruptMessage, InvalidRequest
from pyspark_kafkalog.formats.base import Buffer, read_uvarint, write_uvarint

Writer = Callable[["Output", Any], None]

ZERO_UUID = UUID(int=0)

MAX_STRING_BYTES = 0x7FFF  # limit for strings in bytes of UTF-8, compact strings included, as in Kafka
MAX_TAGGED_FIELDS = 1000
"""Limit per struct: a frame of 100 MiB could hold enough for half a minute of reading."""

INT16 = Struct(">h")
INT32 = Struct(">i")


class Output(bytearray):
    """The bytes of a message, and the regions between them. *Not thread-safe: belongs to one message.*

    ``regions`` holds ``(position, region)`` in ascending order; a region precedes the byte at its position.
    Only its ``len()`` is used here.
    """

    __slots__ = ("regions",)

    def __init__(self, initial: bytes = b"") -> None:
        super().__init__(initial)
        self.regions: list[tuple[int, Any]] = []


def read_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint: a compact length + 1, a tag, a size."""
    byte = buf[pos]
    if byte < 0x80:
        return byte, pos + 1
    if (high := buf[pos + 1]) < 0x80:
        return byte + (high - 1 << 7), pos + 2
    try:
        return read_uvarint(buf, pos)
    except CorruptMessage as error:
        raise InvalidRequest(str(error)) from None


def write_length(out: bytearray, value: int) -> None:
    if value < 0x80:
        out.append(value)
    elif value < 0x4000:
        out += bytes((value & 0x7F | 0x80, value >> 7))
    else:
        write_uvarint(out, value)


def string_writer(name: str, *, flexible: bool, nullable: bool) -> Writer:
    null = (b"\x00" if flexible else b"\xff\xff") if nullable else None

    def write(out: Output, value: str | None) -> None:
        if value is None:
            if null is None:
                raise InvalidRequest(f"{name} cannot be null in this version")
            out += null
            return
        data = value.encode()
        if len(data) > MAX_STRING_BYTES:
            raise InvalidRequest(f"{name} has {len(data)} bytes; the limit is {MAX_STRING_BYTES}")
        if flexible:
            write_length(out, len(data) + 1)
        else:
            out += INT16.pack(len(data))
        out += data

    return write


def bytes_writer(name: str, *, flexible: bool, nullable: bool) -> Writer:
    write_count = count_writer(name, flexible=flexible, nullable=nullable)

    def write(out: Output, value: bytes | None) -> None:
        write_count(out, None if value is None else len(value))
        if value is not None:
            out += value

    return write


def records_writer(name: str, *, flexible: bool, nullable: bool) -> Writer:
    write_count = count_writer(name, flexible=flexible, nullable=nullable)

    def write(out: Output, value: Any) -> None:
        write_count(out, None if value is None else len(value))
        if value is not None:
            out.regions.append((len(out), value))

    return write


def write_uuid(out: Output, value: UUID) -> None:
    out += value.bytes


def count_writer(name: str, *, flexible: bool, nullable: bool) -> Writer:

    def write(out: Output, count: int | None) -> None:
        if count is None:
            if not nullable:
                raise InvalidRequest(f"{name} cannot be null in this version")
            count = -1
        if flexible:
            write_length(out, count + 1)
        else:
            out += INT32.pack(count)

    return write


def read_tag_count(buf: memoryview, pos: int) -> tuple[int, int]:
    count, pos = read_length(buf, pos)
    if count > MAX_TAGGED_FIELDS:
        raise InvalidRequest(f"{count} tagged fields in one place; the limit is {MAX_TAGGED_FIELDS}")
    return count, pos


def skip_tagged_fields(buf: memoryview, pos: int) -> int:
    count, pos = read_tag_count(buf, pos)
    for _ in range(count):
        _, pos = read_length(buf, pos)
        size, pos = read_length(buf, pos)
        pos += size
        if pos > len(buf):
            raise bad_length("tagged field", size, len(buf) - (pos - size))
    return pos


def bad_count(name: str, count: int, left: int) -> InvalidRequest:
    return InvalidRequest(f"{name} claims {count} elements; {left} bytes are left")


def bad_length(name: str, length: int, left: int) -> InvalidRequest:
    """The error for a length that exceeds the rest, or for a forbidden null."""
    if length == -1:
        return InvalidRequest(f"{name} cannot be null in this version")
    return InvalidRequest(f"{name} claims {length} bytes; {left} are left")
