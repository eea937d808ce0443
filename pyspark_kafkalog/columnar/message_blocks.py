"""Messages of v0 and v1 in a fetch answer, step by step: plain ones in a row, or those of a compressed set.

The rules are those of `formats.legacy`, which is asked what is wrong where something is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark_kafkalog.columnar.engine import Block
from pyspark_kafkalog.columnar.message_engine import OWN_KIND, Stop, Walk
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.legacy import inner_set, messages
from pyspark_kafkalog.formats.legacy_entry import MAX_OFFSET, key_and_value, read_entry, verify_entry
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import Record, TimestampType

RUN_BYTES = 256 << 10
"""How far one walk goes, so that what it went over is still in the cache when columns are made of it."""

Walker = Callable[[memoryview, int, int, int], Walk]
"""`engine.Engine.walk`."""


class Step(NamedTuple):
    """Blocks with the messages that are wanted; where in the answer the next entry begins, None where nothing
    more is wanted or whole; at which offset reading goes on; how many bytes were decompressed.
    """

    blocks: Sequence[Block]
    position: int | None
    next_offset: int
    decompressed_bytes: int = 0


def step(data: memoryview, pos: int, walk: Walker, *, at: int, end: int, max_bytes: int) -> Step:
    """What the entry of v0 or v1 at ``pos``, or those from there on, hold of the offsets ``[at, end)``.

    A set may decompress to ``max_bytes``.

    Raises:
        CorruptMessage: a checksum, length or offset is wrong, or compressed data is damaged.
        MessageTooLarge: a set decompresses to more than the limit.
        UnsupportedCompression: a codec is none of theirs, or its library not installed.
    """
    found = walk(data, pos, pos + RUN_BYTES, end)
    if found.message_count:
        if found.last_offset < at:
            return Step((), found.end, at)
        block = Block(
            data,
            pos,
            found.end,
            found.message_count,
            found.last_offset,
            at,
            end,
            0,
            0,
            OWN_KIND,
            is_messages=True,
        )
        return Step((block,), found.end, found.last_offset + 1)
    if found.stop is Stop.COMPRESSED:
        return _opened(data, pos, walk, at, end, max_bytes)
    if found.stop is Stop.BEYOND:
        return Step((), None, read_entry(data, pos).offset)
    if found.stop is Stop.CUT:
        # Of what is cut short the length may still be an impossible one.
        next(frames(data[pos:]), None)
        return Step((), None, at)
    raise _fault(data, pos, max_bytes)


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


def _opened(data: memoryview, pos: int, walk: Walker, at: int, end: int, max_bytes: int) -> Step:
    """What the compressed set at ``pos`` holds. Its messages end with its own offset, or before."""
    wrapper = read_entry(data, pos)
    verify_entry(data, pos, wrapper)
    after = pos + wrapper.size
    if wrapper.offset < at:
        return Step((), after, at)
    inner = inner_set(data, pos, wrapper, max_bytes)
    found = walk(inner, 0, len(inner), MAX_OFFSET)
    relative = wrapper.magic > 0 and wrapper.offset > 0
    if (
        found.stop not in (Stop.DONE, Stop.CUT)
        or not found.message_count
        or (relative and found.last_offset > wrapper.offset)
    ):
        raise _fault(data, pos, max_bytes)
    base = wrapper.offset - found.last_offset if relative else 0
    first, last = base + found.first_offset, base + found.last_offset
    if first >= end:
        return Step((), None, first, len(inner))
    append_time = wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME
    block = Block(
        inner,
        0,
        found.end,
        found.message_count,
        found.last_offset,
        max(0, at - base),
        end - base,
        base,
        wrapper.timestamp if append_time else 0,
        int(append_time),
        is_messages=True,
    )
    return Step((block,) if last >= at else (), after, max(wrapper.offset, last) + 1, len(inner))


def _fault(data: memoryview, pos: int, max_bytes: int) -> KafkaError:
    """What is wrong with the entry at ``pos``."""
    try:
        for _ in messages(data, pos, max_bytes=max_bytes):
            pass
    except KafkaError as e:
        return e
    return CorruptMessage(f"the set at offset {read_entry(data, pos).offset}: no offset is negative")
