"""Confluent's wire header: which schema a value was written with. Pure.

Layout: ``magic:1 = 0, schema id:4`` big-endian, then the value. Protobuf has between them the path to the
message type in its file: ``count, index...`` as zigzag varints, where a single 0 stands for ``1, 0``.
Source: Confluent's schema registry, "Wire format".
"""

from __future__ import annotations

import struct

HEADER_BYTES = 5
_MAGIC = 0
_ID = struct.Struct(">I")
_MAX_DEPTH = 100
"""Nested message types, one in the other: beyond what any schema has."""


class Undecodable(Exception):
    """A value is not what it should be; the text is the reason that its row gets."""


def schema_id(value: bytes) -> int:
    """The id in the header; the value begins at `HEADER_BYTES`.

    Raises:
        Undecodable: there is no such header.
    """
    if len(value) < HEADER_BYTES:
        raise Undecodable(f"no Confluent header: {len(value)} bytes are fewer than its {HEADER_BYTES}")
    if value[0] != _MAGIC:
        raise Undecodable(f"no Confluent header: its first byte is 0, here it is {value[0]}")
    return int(_ID.unpack_from(value, 1)[0])


def message_path(value: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """The path of indexes at ``position``, and where the message begins.

    Raises:
        Undecodable: it is cut off, or no path.
    """
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
