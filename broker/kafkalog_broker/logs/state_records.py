"""Keys and values of coordinators' records: ``version:2``, then strings or a struct, in Kafka's layout. Pure.

A string in a key is ``length:2`` and UTF-8. A null value deletes its key.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.protocol.codec import WireStruct, codec
from pyspark_kafkalog.protocol.primitives import Output

_INT16 = struct.Struct(">h")
_LONGEST = 0x7FFF

_T = TypeVar("_T", bound=WireStruct)


def encode_strings(version: int, *strings: str) -> bytes:
    out = _INT16.pack(version)
    for text in strings:
        data = text.encode()
        if len(data) > _LONGEST:
            raise CorruptMessage(f"a string of {len(data)} bytes in a record's key; the limit is {_LONGEST}")
        out += _INT16.pack(len(data)) + data
    return out


def version_of(data: bytes) -> int:
    if len(data) < _INT16.size:
        raise CorruptMessage(f"a record's key or value of {len(data)} bytes is cut")
    return int(_INT16.unpack_from(data)[0])


def decode_strings(data: bytes, count: int) -> tuple[list[str], int]:
    """The strings after the version, and the position after them. Raises `CorruptMessage`: truncated."""
    strings, pos = [], _INT16.size
    try:
        for _ in range(count):
            (length,) = _INT16.unpack_from(data, pos)
            start, pos = pos + _INT16.size, pos + _INT16.size + length
            if length < 0 or pos > len(data):
                raise CorruptMessage(f"a string of {length} bytes at byte {start} of a key of {len(data)}")
            strings.append(str(data[start:pos], "utf-8"))
    except (struct.error, UnicodeDecodeError) as e:
        raise CorruptMessage(f"a key of {len(data)} bytes cannot be read: {e}") from e
    return strings, pos


def encode_struct(value: WireStruct, version: int, *, flexible: bool) -> bytes:
    out = Output(_INT16.pack(version))
    codec(type(value), version, flexible).write(out, value)
    return bytes(out)


def decode_struct(cls: type[_T], data: bytes, newest: int, *, flexible_since: int) -> _T:
    version = version_of(data)
    if not 0 <= version <= newest:
        raise CorruptMessage(f"value of unknown version {version}; known are 0 to {newest}")
    try:
        found: _T = codec(cls, version, version >= flexible_since).read(memoryview(data), _INT16.size)
    except (struct.error, KafkaError) as e:
        raise CorruptMessage(f"a value of {len(data)} bytes cannot be read: {e}") from e
    return found
