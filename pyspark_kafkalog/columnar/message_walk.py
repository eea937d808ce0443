"""The walk over messages of v0 and v1 in plain Python: without numba the fallback, with it the oracle."""

from __future__ import annotations

import struct

from pyspark_kafkalog.columnar.message_engine import Stop, Walk
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.legacy_entry import (
    CODEC_BITS,
    ENTRY_OVERHEAD,
    KEY_POSITIONS,
    MAGIC_POSITION,
    MAX_OFFSET,
    MIN_ENTRY_BYTES,
)

_HEADER = struct.Struct(">qiIBB")
_LENGTH = struct.Struct(">i")
_MIN_LENGTHS = (MIN_ENTRY_BYTES - ENTRY_OVERHEAD, MIN_ENTRY_BYTES - ENTRY_OVERHEAD + 8)


def walk_messages(data: memoryview, start: int, stop: int, below: int) -> Walk:
    """Walk plain messages; see `engine.Engine.walk`."""
    unpack, size = _HEADER.unpack_from, len(data)
    stop = min(stop, size)
    pos, count, first, last = start, 0, -1, -1
    why = Stop.DONE
    while pos < stop:
        if size - pos < MIN_ENTRY_BYTES:
            why = Stop.CUT
            break
        offset, length, crc, magic, attributes = unpack(data, pos)
        end = pos + ENTRY_OVERHEAD + length
        if (
            end > size
            or magic > 1
            or length < _MIN_LENGTHS[magic]
            or attributes & CODEC_BITS
            or not last < offset < below
            or crc32(data[pos + MAGIC_POSITION : end]) != crc
            or not _fields_fit(data, pos + KEY_POSITIONS[magic], end)
        ):
            why = _why_not(length, end > size, magic, offset, attributes, below, last)
            break
        if not count:
            first = offset
        last = offset
        count += 1
        pos = end
    return Walk(why, pos, count, first, last)


def _why_not(
    length: int, cut: bool, magic: int, offset: int, attributes: int, below: int, previous: int
) -> Stop:
    """Why a walk ends before the entry of which all this is so. In the kernel's order."""
    if length < _MIN_LENGTHS[0]:
        return Stop.FAULT
    if cut:
        return Stop.CUT
    if magic > 1:
        return Stop.OTHER
    if length < _MIN_LENGTHS[magic] or not 0 <= offset < MAX_OFFSET:
        return Stop.FAULT
    if attributes & CODEC_BITS:
        return Stop.COMPRESSED
    if offset >= below:
        return Stop.BEYOND
    return Stop.NOT_RISING if offset <= previous else Stop.FAULT


def _fields_fit(data: memoryview, pos: int, end: int) -> bool:
    """Whether key and value, the first at ``pos``, fill what there is up to ``end``."""
    for _ in range(2):
        if end - pos < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(data, pos)
        if length < -1:
            return False
        pos += _LENGTH.size + max(length, 0)
    return pos == end
