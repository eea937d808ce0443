"""Messages of v0 and v1 in a fetch answer: plain ones in a row, or those of a compressed set.

`step` does what `batch_walk` leaves to it. `walk_messages` is the walk over plain messages in Python: the
fallback without numba, the oracle of the compiled one with it. What is wrong is asked of `formats.legacy`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pyspark_kafkalog.columnar.types import OWN_KIND, Block, Kind, Status, Walk, Walks
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.checksum import crc32
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

RUN_BYTES = 256 << 10
"""How far one walk goes, so that what it went over is still in the cache when columns are made of it."""

_OFFSET_BYTES = 8


class WalkedBlocks(NamedTuple):
    """Blocks with the messages that are wanted; where in the answer the next entry begins, None where nothing
    more is wanted or whole; at which offset reading goes on; the lowest offset that the next entry may have;
    how many bytes were decompressed.
    """

    blocks: Sequence[Block]
    position: int | None
    next_offset: int
    lowest: int
    decompressed_bytes: int = 0


def step(
    data: memoryview, pos: int, walks: Walks, expected: ExpectedOffsets, at: int, end: int, most: int
) -> WalkedBlocks:
    """What the entry of v0 or v1 at ``pos``, or those from there on, hold of the offsets ``[at, end)``.

    ``expected`` is what the offsets of the first of them must be. A set may decompress to ``most`` bytes.
    Raises what `engine.Walker.groups` does.
    """
    found = walks.walk_messages(data, pos, pos + RUN_BYTES, min(end, expected.below))
    if found.message_count:
        # Within a run they rise, and are below the limit it was given.
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
        # Of what is cut short the length may still be an impossible one.
        next(frames(data[pos:]), None)
        return WalkedBlocks((), None, at, expected.lowest)
    raise _fault(data, pos, most)


def _beyond(data: memoryview, pos: int, expected: ExpectedOffsets) -> int:
    """The offset of the message at ``pos``, which is not below the range's end."""
    entry = read_entry(data, pos)
    if not expected.has(entry.offset, entry.offset):
        raise expected.refuse(entry.offset, entry.offset)
    _check_next(data, pos + entry.size, expected.after(entry.offset))
    return entry.offset


def _check_next(data: memoryview, pos: int, expected: ExpectedOffsets) -> None:
    """Look at the offset of the entry at ``pos``, of which perhaps only a part is there. What lies beyond the
    range's end comes after a gap, or has a damaged offset: then that of the next entry is lower.
    """
    head = data[pos : pos + _OFFSET_BYTES]
    offset = int.from_bytes(head, "big", signed=True)
    if len(head) == _OFFSET_BYTES and offset < expected.lowest:
        raise expected.refuse(offset, offset)


def records(block: Block) -> list[Record]:
    """The messages of a block that are wanted, one by one."""
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
            offset = block.base_offset + header.offset
            found.append(
                Record(
                    offset,
                    offset + 1,
                    time,
                    kind,
                    None if key is None else bytes(key),
                    None if value is None else bytes(value),
                )
            )
        pos += header.size
    return found


def _opened(
    data: memoryview, pos: int, walks: Walks, expected: ExpectedOffsets, at: int, end: int, most: int
) -> WalkedBlocks:
    """What the compressed set at ``pos`` holds. Its messages end with its own offset, or before."""
    wrapper = read_entry(data, pos)
    verify_entry(data, pos, wrapper)
    after = pos + wrapper.size
    if wrapper.offset < at:
        # All of it is below what is wanted; how far it goes down is not known.
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
        _check_next(data, after, expected.after(whole))
        return WalkedBlocks((), None, first, whole + 1, len(inner))
    append_time = wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME
    count, low, time = found.message_count, max(0, at - base), wrapper.timestamp if append_time else 0
    where = inner, 0, found.end, count, found.last_offset, low, end - base
    block = Block(*where, base, time, int(append_time), Kind.MESSAGES)
    return WalkedBlocks((block,) if last >= at else (), after, whole + 1, whole + 1, len(inner))


def _fault(data: memoryview, pos: int, max_bytes: int) -> KafkaError:
    """What is wrong with the entry at ``pos``."""
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
    """Walk plain messages; see `engine.Walks`."""
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
    """Why a walk ends before the entry of which all this is so. In the kernel's order."""
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
    """Whether key and value, the first at ``pos``, fill what there is up to ``end``."""
    for _ in range(2):
        if end - pos < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(data, pos)
        if length < -1:
            return False
        pos += _LENGTH.size + max(length, 0)
    return pos == end
