"""Columns of messages of v0 and v1 in plain Python: the fallback where numba is absent, the oracle elsewhere.

What `message_walk` has verified is not checked again.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from pyspark_kafkalog.columnar.columns import columns_of
from pyspark_kafkalog.columnar.engine import (
    MAX_TIMESTAMP_MS,
    NO_KIND,
    OWN_KIND,
    Block,
    Cursor,
    Filled,
    Limits,
    Status,
    Wanted,
)
from pyspark_kafkalog.formats.legacy import (
    ENTRY_OVERHEAD,
    KEY_POSITIONS,
    LOG_APPEND_TIME_BIT,
    MIN_ENTRY_BYTES,
)
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

_HEADER = struct.Struct(">qiIBBq")
"""As much as the smallest message has. In v0 the key's and the value's length stand where v1 has the time."""

_LENGTH = struct.Struct(">i")


def fill_messages(blocks: Sequence[Block], cursor: Cursor, limits: Limits, wanted: Wanted) -> Filled:
    """Columns of the messages from ``cursor`` on; see `engine.Engine.fill`."""
    rows = _Rows(limits, wanted)
    while cursor.block < len(blocks):
        stopped = rows.take(blocks[cursor.block], cursor)
        if stopped is not None:
            return stopped
        cursor.block += 1
        cursor.position, cursor.record, cursor.previous_delta = 0, 0, -1
    return rows.filled(Status.DONE)


class _Rows:
    """Columns as lists, filled block by block. *Not thread-safe: one call fills it.*"""

    def __init__(self, limits: Limits, wanted: Wanted) -> None:
        self._limits, self._wanted = limits, wanted
        self._taken_bytes = self._seen = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets = array("q")
        self._times = array("q")
        self._kinds = array("i")

    def take(self, block: Block, cursor: Cursor) -> Filled | None:
        """Take messages of the block from ``cursor`` on, which moves behind them; what stopped this before
        the block's end, None if nothing did.
        """
        wanted, unpack = self._wanted, _HEADER.unpack_from
        left = self._limits.data_bytes - self._taken_bytes
        first = block.start + cursor.position
        # One message more than there is room for need not be here: its header says what it takes.
        data = bytes(block.buffer[first : min(block.end, first + left + MIN_ENTRY_BYTES)])
        pos, stopped = 0, None
        while cursor.record < block.record_count:
            if self._seen == self._limits.records:
                stopped = self.filled(Status.FULL)
                break
            offset, length, _, magic, attributes, time = unpack(data, pos)
            end = pos + ENTRY_OVERHEAD + length
            if end > left:
                stopped = self.filled(Status.FULL, need_bytes=end - pos)
                break
            if block.low <= offset < block.high:
                if wanted.timestamp or wanted.timestamp_type:
                    time, kind = _time_and_kind(block, magic, attributes, time)
                    if wanted.timestamp and not -MAX_TIMESTAMP_MS <= time <= MAX_TIMESTAMP_MS:
                        stopped = Filled(Status.BAD_TIMESTAMP, len(self._offsets), {}, time, 0, 0, offset)
                        break
                    if wanted.timestamp:
                        self._times.append(time * 1000)
                    self._kinds.append(kind)
                self._offsets.append(block.base_offset + offset)
                if wanted.key or wanted.value:
                    self._add_fields(data, pos + KEY_POSITIONS[magic])
            self._seen += 1
            cursor.record += 1
            cursor.previous_delta = offset
            pos = end
        cursor.position += pos
        self._taken_bytes += pos
        return stopped

    def _add_fields(self, data: bytes, pos: int) -> None:
        """Append the key, whose length stands at ``pos``, and the value behind it."""
        for column in (self._keys, self._values):
            (length,) = _LENGTH.unpack_from(data, pos)
            pos += _LENGTH.size
            if length < 0:
                column.append(None)
            else:
                column.append(data[pos : pos + length])
                pos += length

    def filled(self, status: Status, *, need_bytes: int = 0) -> Filled:
        """What this call gave."""
        wanted, rows = self._wanted, len(self._offsets)
        headers = [()] * rows if wanted.headers else []
        columns = columns_of(
            wanted, self._keys, self._values, self._offsets, self._times, self._kinds, headers
        )
        return Filled(status, rows, columns, need_bytes=need_bytes)


def _time_and_kind(block: Block, magic: int, attributes: int, time: int) -> tuple[int, int]:
    """When a message was made, in milliseconds, and who says so."""
    if not magic:
        return NO_TIMESTAMP, NO_KIND
    if block.append_time == OWN_KIND:
        return time, int(bool(attributes & LOG_APPEND_TIME_BIT))
    if block.append_time == TimestampType.LOG_APPEND_TIME:
        return block.timestamp, TimestampType.LOG_APPEND_TIME
    return time, TimestampType.CREATE_TIME
