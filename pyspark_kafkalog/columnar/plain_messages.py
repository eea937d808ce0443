"""Columns of messages of v0, v1 and 0.7 in plain Python: the fallback without numba, the oracle with it.

Messages of v0 and v1 are not checked: `message_walk` has verified them. Entries of 0.7 are: one loop takes
all good ones and checks only what it must. At the first that is not good, or is shorter than what the loop
reads, `EntryColumns._look_at` takes its time over it, in the kernel's order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyspark_kafkalog.columnar.columns import ListColumns
from pyspark_kafkalog.columnar.engine import (
    MAX_TIMESTAMP_MS,
    NO_KIND,
    OWN_KIND,
    Block,
    Cursor,
    Status,
    Stopped,
)
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.legacy import (
    ENTRY_OVERHEAD,
    KEY_POSITIONS,
    LOG_APPEND_TIME_BIT,
    MIN_ENTRY_BYTES,
)
from pyspark_kafkalog.formats.v07 import CODEC_BITS, ENTRY_HEADER_BYTES, entry_header
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

_HEADER = struct.Struct(">qiIBBq")
"""As much as the smallest message of v0 has. There the key's and the value's length stand where v1 has the
time."""

_LENGTH = struct.Struct(">i")

_ENTRY = struct.Struct(">iBBI")
"""The header of 0.7's magic 1; of magic 0 the attributes are the checksum's first byte,
and its last is missing."""

_CRC = struct.Struct(">I")


class MessageColumns(ListColumns):
    """Of messages of v0 and v1."""

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        """See `engine.Columns`."""
        while cursor.block < len(blocks):
            stopped = self._take_from(blocks[cursor.block], cursor)
            if stopped is not None:
                return stopped
            cursor.block += 1
            cursor.position, cursor.record, cursor.previous_delta = 0, 0, -1
        return Stopped(Status.DONE)

    def _take_from(self, block: Block, cursor: Cursor) -> Stopped | None:
        """Take messages of one block; what stopped this before the block's end, None if nothing did."""
        wanted, unpack = self.wanted, _HEADER.unpack_from
        left = self.limits.data_bytes - self.taken_bytes
        first = block.start + cursor.position
        # One message more than there is room for need not be here: its header says what it takes.
        data = bytes(block.buffer[first : min(block.end, first + left + MIN_ENTRY_BYTES)])
        pos, stopped = 0, None
        while cursor.record < block.record_count:
            if self.seen == self.limits.records:
                stopped = Stopped(Status.FULL)
                break
            offset, length, _, magic, attributes, time = unpack(data, pos)
            end = pos + ENTRY_OVERHEAD + length
            if end > left:
                stopped = Stopped(Status.FULL, need_bytes=end - pos)
                break
            if block.low <= offset < block.high:
                if wanted.timestamp or wanted.timestamp_type:
                    time, kind = _time_and_kind(block, magic, attributes, time)
                    if wanted.timestamp and not -MAX_TIMESTAMP_MS <= time <= MAX_TIMESTAMP_MS:
                        stopped = Stopped(Status.BAD_TIMESTAMP, number=time, offset_delta=offset)
                        break
                    if wanted.timestamp:
                        self.times.append(time * 1000)
                    self.kinds.append(kind)
                self.offsets.append(block.base_offset + offset)
                if wanted.key or wanted.value:
                    self._add_fields(data, pos + KEY_POSITIONS[magic])
            self.seen += 1
            cursor.record += 1
            cursor.previous_delta = offset
            pos = end
        cursor.position += pos
        self.taken_bytes += pos
        self.rows = len(self.offsets)
        self.headers = [()] * self.rows if wanted.headers else []
        return stopped

    def _add_fields(self, data: bytes, pos: int) -> None:
        """Append the key, whose length stands at ``pos``, and the value that follows it."""
        for column in (self.keys, self.values):
            (length,) = _LENGTH.unpack_from(data, pos)
            pos += _LENGTH.size
            if length < 0:
                column.append(None)
            else:
                column.append(data[pos : pos + length])
                pos += length


def _time_and_kind(block: Block, magic: int, attributes: int, time: int) -> tuple[int, int]:
    """When a message was made, in milliseconds, and who says so."""
    if not magic:
        return NO_TIMESTAMP, NO_KIND
    if block.append_time == OWN_KIND:
        return time, int(bool(attributes & LOG_APPEND_TIME_BIT))
    if block.append_time == TimestampType.LOG_APPEND_TIME:
        return block.timestamp, TimestampType.LOG_APPEND_TIME
    return time, TimestampType.CREATE_TIME


class EntryColumns(ListColumns):
    """Of entries of 0.7."""

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        """See `engine.Columns`. After the last block ``cursor`` keeps its position in it."""
        while True:
            block = blocks[cursor.block]
            self._take_good(block, cursor)
            pos = block.start + cursor.position
            if pos < min(block.high, block.end):
                stopped, payload, end = self._look_at(block.buffer[: block.end], pos)
                if stopped.status is not Status.DONE:
                    return stopped
                self._add(block, cursor, [bytes(block.buffer[payload:end])], [0], pos, end - pos)
            elif cursor.block + 1 < len(blocks):
                cursor.block, cursor.position, cursor.record = cursor.block + 1, 0, 0
            else:
                cursor.block += 1
                return Stopped(Status.DONE)

    def _take_good(self, block: Block, cursor: Cursor) -> None:
        """Append the leading entries that are good and of a usual length, as far as there is room."""
        begin, unpack = block.start + cursor.position, _ENTRY.unpack_from
        rows_left, room = self.limits.records - self.rows, self.limits.data_bytes - self.taken_bytes
        # More than there is room for need not be here.
        data = bytes(block.buffer[begin : min(block.end, begin + room + rows_left * ENTRY_HEADER_BYTES)])
        pos, size, stop = 0, len(data), block.high - begin
        values: list[bytes] = []
        positions: list[int] = []
        try:
            while pos < stop and len(values) < rows_left:
                length, magic, attributes, crc = unpack(data, pos)
                end = pos + 4 + length
                if end > size or length < 5 + magic:
                    break
                if magic == 1 and not attributes & CODEC_BITS:
                    value = data[pos + 10 : end]
                elif magic == 0:
                    value = data[pos + 9 : end]
                    (crc,) = _CRC.unpack_from(data, pos + 5)
                else:
                    break
                room -= len(value)
                if room < 0 or crc32(value) != crc:
                    break
                values.append(value)
                positions.append(pos)
                pos = end
        except struct.error:
            pass
        self._add(block, cursor, values, positions, begin, pos)

    def _look_at(self, data: memoryview, pos: int) -> tuple[Stopped, int, int]:
        """What is to be said of the entry at ``pos``, and where its payload begins and ends."""
        try:
            found = entry_header(data, pos)
        except CorruptMessage:
            return Stopped(Status.FAULT), 0, 0
        if found is None or found[1] > len(data):
            return Stopped(Status.CUT), 0, 0
        payload, end, codec = found
        if codec:
            return Stopped(Status.COMPRESSED), payload, end
        if self.rows >= self.limits.records or end - payload > self.limits.data_bytes - self.taken_bytes:
            return Stopped(Status.FULL, need_bytes=end - payload), payload, end
        (crc,) = _CRC.unpack_from(data, payload - _CRC.size)
        good = crc32(data[payload:end]) == crc
        return Stopped(Status.DONE if good else Status.FAULT), payload, end

    def _add(
        self, block: Block, cursor: Cursor, values: list[bytes], positions: list[int], begin: int, size: int
    ) -> None:
        """Append these payloads, whose entries stand at ``positions`` in ``size`` bytes from ``begin`` on."""
        count, base = len(values), block.base_offset
        if self.wanted.value:
            self.values += values
        if self.wanted.offset:
            base += begin if block.low < 0 else 0
            self.offsets.extend([base + at for at in positions] if block.low < 0 else [base] * count)
        if self.wanted.inner_index:
            first = block.low + cursor.record
            self.indexes.extend([0] * count if block.low < 0 else range(first, first + count))
        cursor.position += size
        cursor.record += count
        self.rows += count
        self.taken_bytes += sum(map(len, values))
