"""Walks v0 and v1 messages in a fetch answer: runs of plain ones, and compressed sets.

`walk_messages` is the walk in Python, the oracle of the compiled one. `formats.legacy` produces the errors.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pyspark_kafkalog.columnar.column_types import OWN_KIND, Block, Kind, Status, Walk, Walks
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.base import crc32
from pyspark_kafkalog.formats.legacy import (
    CODEC_BITS,
    ENTRY_OVERHEAD,
    KEY_POSITIONS,
    MAGIC_POSITION,
    MAX_OFFSET,
    MIN_ENTRY_BYTES,
    inner_set,
    key_and_value,
    messages,
    read_entry,
    verify_entry,
)
from pyspark_kafkalog.formats.message_set import ExpectedOffsets, frames
from pyspark_kafkalog.types import Record, TimestampType

RUN_BYTES = 256 << 10  # length of one walk, so that its bytes are still in the cache when columns are made


class WalkedBlocks(NamedTuple):
    """Blocks, the next entry's position (None at the end), where reading continues, lowest next offset."""

    blocks: Sequence[Block]
    position: int | None
    next_offset: int
    lowest: int
    decompressed_bytes: int = 0


def step(
    data: memoryview, pos: int, walks: Walks, expected: ExpectedOffsets, at: int, end: int, most: int
) -> WalkedBlocks:
    """Walk v0 or v1 entries for the offsets ``[at, end)``; a set may decompress to ``most`` bytes."""
    found = walks.walk_messages(data, pos, pos + RUN_BYTES, min(end, expected.below))
    if found.message_count:
        # Offsets rise within a run and are below the limit passed to it.
        if not expected.has(found.first_offset, found.first_offset):
            raise expected.refuse(found.first_offset, found.first_offset)
        after = found.last_offset + 1
        if found.last_offset < at:
            return WalkedBlocks((), found.end, at, after)
        count, last = found.message_count, found.last_offset
        block = Block(data, pos, found.end, count, last, at, end, 0, 0, OWN_KIND, Kind.MESSAGES)
        return WalkedBlocks((block,), found.end, after, after)
    if found.status is Status.COMPRESSED:
        return _opened(data, pos, walks, expected, at, end, most)
    if found.status is Status.BEYOND:
        return WalkedBlocks((), None, _beyond(data, pos, expected), expected.lowest)
    if found.status is Status.CUT:
        # A cut entry may still have an impossible length.
        next(frames(data[pos:]), None)
        return WalkedBlocks((), None, at, expected.lowest)
    raise _fault(data, pos, most)


def _beyond(data: memoryview, pos: int, expected: ExpectedOffsets) -> int:
    entry = read_entry(data, pos)
    if not expected.has(entry.offset, entry.offset):
        raise expected.refuse(entry.offset, entry.offset)
    expected.after(entry.offset).check_next(data, pos + entry.size)
    return entry.offset


def records(block: Block) -> list[Record]:
    found, pos = [], block.start
    for _ in range(block.record_count):
        header = read_entry(block.buffer, pos)
        if block.low <= header.offset < block.high:
            key, value = key_and_value(block.buffer, pos, header)
            time, kind = header.timestamp, TimestampType.CREATE_TIME
            if block.append_time == OWN_KIND:
                kind = header.timestamp_type
            elif block.append_time and header.magic:
                time, kind = block.timestamp, TimestampType.LOG_APPEND_TIME
            offset, own_key = block.base_offset + header.offset, None if key is None else bytes(key)
            own_value = None if value is None else bytes(value)
            found.append(Record(offset, offset + 1, time, kind, own_key, own_value))
        pos += header.size
    return found


def _opened(
    data: memoryview, pos: int, walks: Walks, expected: ExpectedOffsets, at: int, end: int, most: int
) -> WalkedBlocks:
    """Open the compressed set at ``pos``. Its messages end at or before its own offset."""
    wrapper = read_entry(data, pos)
    verify_entry(data, pos, wrapper)
    after = pos + wrapper.size
    if wrapper.offset < at:
        # Entirely below the range; its first offset is unknown.
        if not expected.has(wrapper.offset, wrapper.offset):
            raise expected.refuse(wrapper.offset, wrapper.offset)
        return WalkedBlocks((), after, at, wrapper.offset + 1)
    inner = inner_set(data, pos, wrapper, most)
    found = walks.walk_messages(inner, 0, len(inner), MAX_OFFSET)
    relative = wrapper.magic > 0 and wrapper.offset > 0
    if (
        found.status not in (Status.DONE, Status.CUT)
        or not found.message_count
        or (relative and found.last_offset > wrapper.offset)
        or (not relative and 0 < wrapper.offset != found.last_offset)
    ):
        raise _fault(data, pos, most)
    base = wrapper.offset - found.last_offset if relative else 0
    first, last = base + found.first_offset, base + found.last_offset
    whole = max(wrapper.offset, last)
    if not expected.has(first, whole):
        raise expected.refuse(first, whole)
    if first >= end:
        expected.after(whole).check_next(data, after)
        return WalkedBlocks((), None, first, whole + 1, len(inner))
    append_time = wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME
    count, low, time = found.message_count, max(0, at - base), wrapper.timestamp if append_time else 0
    where = inner, 0, found.end, count, found.last_offset, low, end - base
    block = Block(*where, base, time, int(append_time), Kind.MESSAGES)
    return WalkedBlocks((block,) if last >= at else (), after, whole + 1, whole + 1, len(inner))


def _fault(data: memoryview, pos: int, max_bytes: int) -> KafkaError:
    try:
        for _ in messages(data, pos, max_bytes=max_bytes):
            pass
    except KafkaError as e:
        return e
    return CorruptMessage(f"the set at offset {read_entry(data, pos).offset}: no offset is negative")


_HEADER = struct.Struct(">qiIBB")
_LENGTH = struct.Struct(">i")
_MIN_LENGTHS = (MIN_ENTRY_BYTES - ENTRY_OVERHEAD, MIN_ENTRY_BYTES - ENTRY_OVERHEAD + 8)


def walk_messages(data: memoryview, start: int, stop: int, below: int) -> Walk:
    unpack, size = _HEADER.unpack_from, len(data)
    stop = min(stop, size)
    pos, count, first, last = start, 0, -1, -1
    why = Status.DONE
    while pos < stop:
        if size - pos < MIN_ENTRY_BYTES:
            why = Status.CUT
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
) -> Status:
    """Why a walk ends before this entry. In the kernel's order."""
    if length < _MIN_LENGTHS[0]:
        return Status.FAULT
    if cut:
        return Status.CUT
    if magic > 1:
        return Status.OTHER
    if length < _MIN_LENGTHS[magic] or not 0 <= offset < MAX_OFFSET:
        return Status.FAULT
    if attributes & CODEC_BITS:
        return Status.COMPRESSED
    if offset >= below:
        return Status.BEYOND
    return Status.NOT_RISING if offset <= previous else Status.FAULT


def _fields_fit(data: memoryview, pos: int, end: int) -> bool:
    for _ in range(2):
        if end - pos < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(data, pos)
        if length < -1:
            return False
        pos += _LENGTH.size + max(length, 0)
    return pos == end
