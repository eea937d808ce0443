"""The engine in plain Python: the fallback where numba is absent, and the oracle of the kernel.

`_scan` takes all good records in one loop that checks only what it must, since in Python a check costs as
much as the work: lengths that are not negative and end exactly where the record ends have all been inside
it. At the first record that is not good it stops, and `_RecordColumns._why_not_more` looks at that one
slowly, in the kernel's order, to say what is wrong. `plain_messages` has the columns of older generations.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from pyspark_kafkalog.columnar.columns import ListColumns
from pyspark_kafkalog.columnar.engine import (
    MAX_TIMESTAMP_MS,
    Block,
    Columns,
    Cursor,
    Kind,
    Limits,
    Status,
    Stopped,
    Walk,
    Wanted,
)
from pyspark_kafkalog.columnar.message_walk import walk_messages
from pyspark_kafkalog.columnar.plain_messages import EntryColumns, MessageColumns

_NULL = 1
"""-1 in zigzag: the length of what is null."""

_Headers = list[tuple[bytes, "bytes | None"]]


class _BadRecord(Exception):
    """What is wrong with the record at hand: status and the number that is wrong."""

    def __init__(self, status: Status, number: int = 0) -> None:
        super().__init__(status, number)
        self.status, self.number = status, number


class PlainEngine:
    """Blocks to columns without compiled code. *Thread-safe:* it holds nothing."""

    name = "plain"

    def columns(self, blocks: Sequence[Block], limits: Limits, wanted: Wanted) -> Columns:
        """Empty ones; see `engine.Engine`."""
        made: dict[Kind, Callable[[Limits, Wanted], Columns]] = {
            Kind.RECORDS: _RecordColumns,
            Kind.MESSAGES: MessageColumns,
            Kind.ENTRIES: EntryColumns,
        }
        return made[blocks[0].kind](limits, wanted)

    def walk(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        """Messages that follow each other; see `engine.Engine.walk`."""
        return walk_messages(data, start, stop, below)


class _Scan:
    """Fields of records as they stand in the data: numbers still zigzag coded. *Not thread-safe.*"""

    __slots__ = ("deltas", "headers", "keys", "microseconds", "position", "times", "values")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.deltas: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, _Headers] = {}
        self.position = 0
        self.microseconds = array("q")
        """The times of those that are wanted: they are computed to see whether they fit."""


def _scan(data: bytes, count: int, stop: int, wanted: Wanted) -> _Scan:
    """The leading good records of ``data``, at most ``count`` of them, that end at ``stop`` or before.

    Whether offsets rise, and whether times can be had in microseconds, is the caller's to check.
    """
    scan = _Scan()
    try:
        _scan_records(scan, data, count, stop, wanted)
    except (IndexError, _BadRecord):
        # What went before is good; `_why_not_more` has a closer look at the record that is not.
        pass
    return scan


def _scan_records(scan: _Scan, data: bytes, count: int, stop: int, wanted: Wanted) -> None:
    """Append the records to ``scan``, one after the other.

    Raises:
        IndexError, _BadRecord: the next one is not a good record.
    """
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
        if (time := data[pos + 1]) < 128:  # the byte before it is the attributes, which say nothing
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
        if k != _NULL:
            pos += k >> 1
        if (v := data[pos]) < 128:
            pos += 1
        elif (high := data[pos + 1]) < 128:
            v, pos = v + (high - 1 << 7), pos + 2
        else:
            v, pos = _long(data, pos, 32)
        value_pos = pos
        if v != _NULL:
            pos += v >> 1
        headers_pos = pos
        if data[pos] == 0:
            pos += 1
        else:
            scan.headers[index], pos = _headers(data, pos, end)
        if pos != end or (size | delta) & 1 or (k & 1 and k != _NULL) or (v & 1 and v != _NULL):
            scan.headers.pop(index, None)
            break
        add_time(time)
        add_delta(delta)
        if with_key:
            add_key(None if k == _NULL else data[key_pos : key_pos + (k >> 1)])
        if with_value:
            add_value(None if v == _NULL else data[value_pos:headers_pos])
        scan.position = pos


def _long(data: bytes, pos: int, bits: int) -> tuple[int, int]:
    """The number at ``pos``, still zigzag coded, and the position after it.

    Raises:
        _BadRecord: it is longer than ``bits`` need. IndexError: it is cut short.
    """
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
    """The number at ``pos``, which ends at ``end`` or before, and the position after it.

    Raises:
        _BadRecord: it is cut short or longer than ``bits`` need.
    """
    try:
        value, after = _long(data, pos, bits)
    except IndexError:
        raise _BadRecord(Status.BAD_NUMBER) from None
    if after > end:
        raise _BadRecord(Status.BAD_NUMBER)
    return value >> 1 ^ -(value & 1), after


def _field(data: bytes, pos: int, end: int, smallest: int = -1) -> tuple[bytes | None, int]:
    """The bytes that begin with their length at ``pos``, None for a length of -1, and the position after
    them.

    Raises:
        _BadRecord: the length is below ``smallest`` or more than there is before ``end``.
    """
    size, pos = _number(data, pos, end)
    if not smallest <= size <= end - pos:
        raise _BadRecord(Status.BAD_FIELD, size)
    return (None, pos) if size < 0 else (data[pos : pos + size], pos + size)


def _headers(data: bytes, pos: int, end: int) -> tuple[_Headers, int]:
    """The headers that begin with their count at ``pos``, and the position after them.

    Raises:
        _BadRecord: their lengths or their count do not fit what there is before ``end``.
    """
    count, pos = _number(data, pos, end)
    if not 0 <= count <= (end - pos) // 2:
        raise _BadRecord(Status.BAD_HEADERS, count)
    headers: _Headers = []
    for _ in range(count):
        name, pos = _field(data, pos, end, smallest=0)
        value, pos = _field(data, pos, end)
        headers.append((name or b"", value))
    return headers, pos


class _RecordColumns(ListColumns):
    """Of the records of v2 batches."""

    def __init__(self, limits: Limits, wanted: Wanted) -> None:
        super().__init__(limits, wanted)
        self._header_count = 0

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        """See `engine.Columns`."""
        while cursor.block < len(blocks):
            block = blocks[cursor.block]
            data = bytes(block.buffer[block.start + cursor.position : block.end])
            taken = self._take_good(data, block, cursor)
            stopped = self._why_not_more(data[taken:], block, cursor)
            if stopped is not None:
                return stopped
            cursor.block += 1
            cursor.position, cursor.record, cursor.previous_delta = 0, 0, -1
        return Stopped(Status.DONE)

    def _take_good(self, data: bytes, block: Block, cursor: Cursor) -> int:
        """Take the good records that ``data`` begins with and move ``cursor`` past them; their bytes.

        ``data`` is the block from ``cursor`` on.
        """
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
        """How many of the scanned records can be taken: offsets rise, times fit, there is room for
        headers.
        """
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
            room = self.limits.headers - self._header_count
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
        """Append the scanned records, as far as their offsets are asked for, to the columns."""
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
            self._header_count += sum(map(len, headers))

    def _why_not_more(self, data: bytes, block: Block, cursor: Cursor) -> Stopped | None:
        """What stopped `take` before the end of the block, of which ``data`` is left; None if nothing did."""
        if cursor.record == block.record_count:
            return Stopped(Status.TRAILING, number=len(data)) if data else None
        if self.seen == self.limits.records:
            return Stopped(Status.FULL)
        try:
            return self._why_full(data, block, cursor.previous_delta)
        except _BadRecord as e:
            return Stopped(e.status, number=e.number)

    def _why_full(self, data: bytes, block: Block, previous: int) -> Stopped:
        """Which room the record that ``data`` begins with did not find. In the kernel's order.

        Raises:
            _BadRecord: it is not a good record.
        """
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
        if self.wanted.headers and self._header_count + len(headers) > self.limits.headers:
            return Stopped(Status.FULL, need_headers=len(headers))
        return Stopped(Status.BAD_TIMESTAMP, number=time, offset_delta=delta)


def _kept(deltas: list[int], count: int, block: Block) -> tuple[int, int]:
    """The first ``count`` records' part within the range asked for. Offsets rise, so it is one piece."""
    first = bisect_left(deltas, 2 * block.low, 0, count)
    return first, bisect_left(deltas, 2 * block.high, first, count)


def _time(block: Block, zigzag: int) -> int:
    """A record's time in milliseconds."""
    return block.timestamp if block.append_time else block.timestamp + (zigzag >> 1 ^ -(zigzag & 1))


def _microseconds(scan: _Scan, block: Block, first: int, last: int) -> array[int]:
    """The times of records ``first`` to ``last``.

    Raises:
        OverflowError: one does not fit 64 bits.
    """
    base = block.timestamp * 1000
    if block.append_time:
        return array("q", [base] * (last - first))
    # Half of what is even, minus half of what follows what is odd: that undoes zigzag, and is in
    # microseconds.
    return array("q", [base - 500 * (t + 1) if t & 1 else base + 500 * t for t in scan.times[first:last]])
