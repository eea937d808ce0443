"""The engine in plain Python: the fallback without numba, and the oracle of the kernels. `_scan` only checks
what it must, as a check costs as much as the work; `_RecordColumns._why_not_more` names a bad one's fault.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import pyarrow as pa

from pyspark_kafkalog.columnar import arrow_columns
from pyspark_kafkalog.columnar.batch_walk import PlainWalks
from pyspark_kafkalog.columnar.column_types import (
    MAX_TIMESTAMP_MS,
    NO_KIND,
    OWN_KIND,
    Block,
    ColumnLimits,
    Columns,
    Cursor,
    Kind,
    Status,
    Stopped,
    WantedColumns,
)
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats import legacy
from pyspark_kafkalog.formats.base import crc32
from pyspark_kafkalog.formats.v07 import CODEC_BITS, ENTRY_HEADER_BYTES, entry_header
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

_Headers = list[tuple[bytes, "bytes | None"]]


class _BadRecord(Exception):
    """The current record's fault: status and faulty number."""

    def __init__(self, status: Status, number: int = 0) -> None:
        super().__init__(status, number)
        self.status, self.number = status, number


class PlainEngine(PlainWalks):
    """Turns blocks into columns without compiled code. *Thread-safe.*"""

    name = "plain"

    def columns(self, blocks: Sequence[Block], limits: ColumnLimits, wanted: WantedColumns) -> Columns:
        made: dict[Kind, Callable[[ColumnLimits, WantedColumns], Columns]] = {
            Kind.RECORDS: _RecordColumns,
            Kind.MESSAGES: _MessageColumns,
            Kind.ENTRIES: _EntryColumns,
        }
        return made[blocks[0].kind](limits, wanted)


class _ListColumns(ABC):
    """`column_types.Columns` as lists and arrays; unwanted ones may stay empty. *Not thread-safe.*"""

    def __init__(self, limits: ColumnLimits, wanted: WantedColumns) -> None:
        self.limits, self.wanted = limits, wanted
        self.rows = 0
        self.seen = 0
        self.taken_bytes = 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets = array("q")
        self.times = array("q")  # in microseconds
        self.kinds = array("i")
        self.headers: list[Sequence[tuple[bytes, bytes | None]]] = []
        self.indexes = array("i")
        self.header_count = 0

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        while True:
            stopped = self._take_from(blocks[cursor.block], cursor)
            if stopped is not None:
                return stopped
            cursor.block += 1
            if cursor.block == len(blocks):
                return Stopped(Status.DONE)
            cursor.position, cursor.record, cursor.previous_delta = 0, 0, -1

    @abstractmethod
    def _take_from(self, block: Block, cursor: Cursor) -> Stopped | None:
        """Take records of one block; returns why this stopped before its end, else None."""

    def arrays(self) -> dict[str, pa.Array]:
        wanted, columns = self.wanted, {}
        if wanted.key:
            columns["key"] = arrow_columns.blobs(self.keys)
        if wanted.value:
            columns["value"] = arrow_columns.blobs(self.values)
        if wanted.offset:
            columns["offset"] = arrow_columns.numbers(arrow_columns.INT64, self.offsets)
        if wanted.timestamp:
            columns["timestamp"] = arrow_columns.numbers(arrow_columns.TIMESTAMP, self.times)
        if wanted.timestamp_type:
            columns["timestampType"] = arrow_columns.numbers(arrow_columns.INT32, self.kinds)
        if wanted.headers:
            columns["headers"] = arrow_columns.header_lists(self.headers)
        if wanted.inner_index:
            columns[arrow_columns.INNER_INDEX] = arrow_columns.numbers(arrow_columns.INT32, self.indexes)
        return columns


@dataclass(slots=True)
class _Scan:
    """Fields of records as stored: numbers still zigzag coded. *Not thread-safe.*"""

    times: list[int] = field(default_factory=list)
    deltas: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: dict[int, _Headers] = field(default_factory=dict)
    position: int = 0
    # Times of the wanted records, computed to see whether they fit.
    microseconds: array[int] = field(default_factory=partial(array, "q"))


def _scan(data: bytes, count: int, stop: int, wanted: WantedColumns) -> _Scan:
    """The leading good records of ``data``, up to ``count`` and ``stop``; offsets are not checked."""
    scan = _Scan()
    try:
        _scan_records(scan, data, count, stop, wanted)
    except (IndexError, _BadRecord):
        # `_why_not_more` examines the bad record.
        pass
    return scan


def _scan_records(scan: _Scan, data: bytes, count: int, stop: int, wanted: WantedColumns) -> None:
    """Append records to ``scan``; IndexError or _BadRecord at a bad one."""
    add_time, add_delta = scan.times.append, scan.deltas.append
    add_key, add_value = scan.keys.append, scan.values.append
    with_key, with_value = wanted.key, wanted.value
    pos = 0
    for index in range(count):
        if (size := data[pos]) < 128:
            pos += 1
        elif (high := data[pos + 1]) < 128:
            size, pos = size + (high - 1 << 7), pos + 2
        else:
            size, pos = _long(data, pos, 32)
        end = pos + (size >> 1)
        if end > stop:
            break
        if (time := data[pos + 1]) < 128:  # skips the attributes, which are unused
            pos += 2
        elif (high := data[pos + 2]) < 128:
            time, pos = time + (high - 1 << 7), pos + 3
        else:
            time, pos = _long(data, pos + 1, 64)
        if (delta := data[pos]) < 128:
            pos += 1
        elif (high := data[pos + 1]) < 128:
            delta, pos = delta + (high - 1 << 7), pos + 2
        else:
            delta, pos = _long(data, pos, 32)
        k, pos = (k, pos + 1) if (k := data[pos]) < 128 else _long(data, pos, 32)
        key_pos = pos
        if not k & 1:
            pos += k >> 1
        if (v := data[pos]) < 128:
            pos += 1
        elif (high := data[pos + 1]) < 128:
            v, pos = v + (high - 1 << 7), pos + 2
        else:
            v, pos = _long(data, pos, 32)
        value_pos = pos
        if not v & 1:
            pos += v >> 1
        headers_pos = pos
        if data[pos] == 0:
            pos += 1
        else:
            scan.headers[index], pos = _headers(data, pos, end)
        if pos != end or (size | delta) & 1:
            scan.headers.pop(index, None)
            break
        add_time(time)
        add_delta(delta)
        if with_key:
            add_key(None if k & 1 else data[key_pos : key_pos + (k >> 1)])
        if with_value:
            add_value(None if v & 1 else data[value_pos:headers_pos])
        scan.position = pos


def _long(data: bytes, pos: int, bits: int) -> tuple[int, int]:
    """The number at ``pos``, still zigzag coded, and the position after it; IndexError if cut short."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        if shift + 7 > bits and byte >> bits - shift:
            raise _BadRecord(Status.BAD_NUMBER)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def _number(data: bytes, pos: int, end: int, bits: int = 32) -> tuple[int, int]:
    try:
        value, after = _long(data, pos, bits)
    except IndexError:
        raise _BadRecord(Status.BAD_NUMBER) from None
    if after > end:
        raise _BadRecord(Status.BAD_NUMBER)
    return value >> 1 ^ -(value & 1), after


def _field(data: bytes, pos: int, end: int, *, nullable: bool = True) -> tuple[bytes | None, int]:
    size, pos = _number(data, pos, end)
    if size < 0 and nullable:
        return None, pos
    if not 0 <= size <= end - pos:
        raise _BadRecord(Status.BAD_FIELD, size)
    return data[pos : pos + size], pos + size


def _headers(data: bytes, pos: int, end: int) -> tuple[_Headers, int]:
    count, pos = _number(data, pos, end)
    if not 0 <= count <= (end - pos) // 2:
        raise _BadRecord(Status.BAD_HEADERS, count)
    headers: _Headers = []
    for _ in range(count):
        name, pos = _field(data, pos, end, nullable=False)
        value, pos = _field(data, pos, end)
        headers.append((name or b"", value))
    return headers, pos


class _RecordColumns(_ListColumns):
    def _take_from(self, block: Block, cursor: Cursor) -> Stopped | None:
        data = bytes(block.buffer[block.start + cursor.position : block.end])
        taken = self._take_good(data, block, cursor)
        return self._why_not_more(data[taken:], block, cursor)

    def _take_good(self, data: bytes, block: Block, cursor: Cursor) -> int:
        count = min(block.record_count - cursor.record, self.limits.records - self.seen)
        stop = min(len(data), self.limits.data_bytes - self.taken_bytes)
        scan = _scan(data, count, stop, self.wanted)
        while (good := self._good(scan, block, cursor.previous_delta)) < len(scan.deltas):
            scan = _scan(data, good, stop, self.wanted)
        if scan.deltas:
            self._add(scan, block)
            cursor.position += scan.position
            cursor.record += len(scan.deltas)
            cursor.previous_delta = scan.deltas[-1] >> 1
            self.taken_bytes += scan.position
            self.seen += len(scan.deltas)
        return scan.position

    def _good(self, scan: _Scan, block: Block, previous: int) -> int:
        """How many scanned records can be taken: offsets rise, times fit, headers have room."""
        deltas = scan.deltas
        good = len(deltas)
        if not good:
            return 0
        dense = deltas == list(range(deltas[0], deltas[0] + 2 * good, 2))
        if not dense or deltas[0] >> 1 <= previous or deltas[-1] >> 1 > block.last_delta:
            for index, delta in enumerate(deltas):
                if not previous < delta >> 1 <= block.last_delta:
                    good = index
                    break
                previous = delta >> 1
        first, last = _kept(deltas, good, block)
        if self.wanted.headers and scan.headers:
            room = self.limits.headers - self.header_count
            totals = accumulate(len(scan.headers.get(index, ())) for index in range(first, last))
            full = next((first + i for i, total in enumerate(totals) if total > room), None)
            if full is not None:
                good = last = full
        if self.wanted.timestamp:
            try:
                scan.microseconds = _microseconds(scan, block, first, last)
            except OverflowError:
                good = next(
                    i for i in range(first, last) if abs(_time(block, scan.times[i])) > MAX_TIMESTAMP_MS
                )
        return good

    def _add(self, scan: _Scan, block: Block) -> None:
        wanted, count = self.wanted, len(scan.deltas)
        first, last = _kept(scan.deltas, count, block)
        self.rows += last - first
        if wanted.key:
            self.keys += scan.keys[first:last]
        if wanted.value:
            self.values += scan.values[first:last]
        if wanted.offset:
            base = block.base_offset
            self.offsets.extend([base + (delta >> 1) for delta in scan.deltas[first:last]])
        if wanted.timestamp:
            self.times.extend(scan.microseconds)
        if wanted.timestamp_type:
            self.kinds.extend([block.append_time] * (last - first))
        if wanted.headers:
            headers = [scan.headers.get(index, []) for index in range(first, last)]
            self.headers += headers
            self.header_count += sum(map(len, headers))

    def _why_not_more(self, data: bytes, block: Block, cursor: Cursor) -> Stopped | None:
        """Why `take` stopped before the block's end, with ``data`` left; None if it did not."""
        if cursor.record == block.record_count:
            return Stopped(Status.TRAILING, number=len(data)) if data else None
        if self.seen == self.limits.records:
            return Stopped(Status.FULL)
        try:
            return self._why_full(data, block, cursor.previous_delta)
        except _BadRecord as e:
            return Stopped(e.status, number=e.number)

    def _why_full(self, data: bytes, block: Block, previous: int) -> Stopped:
        """Why the first record of ``data`` does not fit. In the kernel's order."""
        size, pos = _number(data, 0, len(data))
        if not 0 <= size <= len(data) - pos:
            raise _BadRecord(Status.BAD_LENGTH, size)
        end = pos + size
        if end > self.limits.data_bytes - self.taken_bytes:
            return Stopped(Status.FULL, need_bytes=end)
        time, pos = _number(data, pos + 1, end, 64)
        delta, pos = _number(data, pos, end)
        _, pos = _field(data, pos, end)
        _, pos = _field(data, pos, end)
        headers, pos = _headers(data, pos, end)
        if pos != end:
            raise _BadRecord(Status.LEFT_OVER, end - pos)
        if not previous < delta <= block.last_delta:
            raise _BadRecord(Status.BAD_OFFSET, delta)
        if self.wanted.headers and self.header_count + len(headers) > self.limits.headers:
            return Stopped(Status.FULL, need_headers=len(headers))
        return Stopped(Status.BAD_TIMESTAMP, number=time, offset_delta=delta)


def _kept(deltas: list[int], count: int, block: Block) -> tuple[int, int]:
    """The wanted part of the first ``count`` records: one piece, since offsets rise."""
    first = bisect_left(deltas, 2 * block.low, 0, count)
    return first, bisect_left(deltas, 2 * block.high, first, count)


def _time(block: Block, zigzag: int) -> int:
    return block.timestamp if block.append_time else block.timestamp + (zigzag >> 1 ^ -(zigzag & 1))


def _microseconds(scan: _Scan, block: Block, first: int, last: int) -> array[int]:
    """Times of records ``first`` to ``last``; OverflowError if one does not fit 64 bits."""
    base = block.timestamp * 1000
    if block.append_time:
        return array("q", [base] * (last - first))
    # 500 * t for even t and -500 * (t + 1) for odd t undo zigzag and convert to microseconds at once.
    return array("q", [base - 500 * (t + 1) if t & 1 else base + 500 * t for t in scan.times[first:last]])


_HEADER = struct.Struct(">qiIBBq")
"""The size of the smallest v0 message. In v0, key and value lengths stand in place of v1's time."""

_LENGTH = struct.Struct(">i")

_ENTRY = struct.Struct(">iBBI")
"""Header of 0.7's magic 1. Magic 0 has no attributes: its checksum begins there, one byte earlier."""

_CRC = struct.Struct(">I")


class _MessageColumns(_ListColumns):
    """Columns of v0 and v1 messages, which the walk has verified."""

    def _take_from(self, block: Block, cursor: Cursor) -> Stopped | None:
        wanted, unpack = self.wanted, _HEADER.unpack_from
        left = self.limits.data_bytes - self.taken_bytes
        first = block.start + cursor.position
        # Beyond the room only the next message's header is needed, for its size.
        data = bytes(block.buffer[first : min(block.end, first + left + legacy.MIN_ENTRY_BYTES)])
        pos, stopped = 0, None
        while cursor.record < block.record_count:
            if self.seen == self.limits.records:
                stopped = Stopped(Status.FULL)
                break
            offset, length, _, magic, attributes, time = unpack(data, pos)
            end = pos + legacy.ENTRY_OVERHEAD + length
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
                    self._add_fields(data, pos + legacy.KEY_POSITIONS[magic])
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
        for column in (self.keys, self.values):
            (length,) = _LENGTH.unpack_from(data, pos)
            pos += _LENGTH.size
            if length < 0:
                column.append(None)
            else:
                column.append(data[pos : pos + length])
                pos += length


def _time_and_kind(block: Block, magic: int, attributes: int, time: int) -> tuple[int, int]:
    if not magic:
        return NO_TIMESTAMP, NO_KIND
    if block.append_time == OWN_KIND:
        return time, int(bool(attributes & legacy.LOG_APPEND_TIME_BIT))
    if block.append_time == TimestampType.LOG_APPEND_TIME:
        return block.timestamp, TimestampType.LOG_APPEND_TIME
    return time, TimestampType.CREATE_TIME


class _EntryColumns(_ListColumns):
    """0.7 entries: a fast loop takes good ones; `_look_at` examines the first other in the kernel's order."""

    def _take_from(self, block: Block, cursor: Cursor) -> Stopped | None:
        while True:
            self._take_good(block, cursor)
            pos = block.start + cursor.position
            if pos >= min(block.high, block.end):
                return None
            stopped, payload, end = self._look_at(block.buffer[: block.end], pos)
            if stopped.status is not Status.DONE:
                return stopped
            self._add(block, cursor, [bytes(block.buffer[payload:end])], [0], pos, end - pos)

    def _take_good(self, block: Block, cursor: Cursor) -> None:
        begin, unpack = block.start + cursor.position, _ENTRY.unpack_from
        rows_left, room = self.limits.records - self.rows, self.limits.data_bytes - self.taken_bytes
        # Bytes beyond the room are not needed.
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
