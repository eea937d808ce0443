"""The fast engine's inner loop: one pass over the records of many batches, compiled by numba.

`fill_columns` parses each record and copies what is wanted straight into the columns of one Arrow buffer (an
*arena*, see `arena`). It is given blocks whose checksum is right, and yet believes nothing: every number and
length is compared with its record, its block and the arena before a byte is read or written.

Positions are addresses (`memory` says why). Importing this needs numba; `kernel_cache` gives the compiled
kernel, or says why there is none. mypy cannot follow compiled functions: their parameters are 64-bit
numbers, but for the arrays of `fill_columns`. ``k`` is where things stand in those arrays.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.columnar import layout as k
from pyspark_kafkalog.columnar.engine import MAX_TIMESTAMP_MS, Status
from pyspark_kafkalog.columnar.memory import address, copy, get8, get64, put8, put32, put64

BAD_LAYOUT = -1
_DONE = int(Status.DONE)
_FULL = int(Status.FULL)
_BAD_NUMBER = int(Status.BAD_NUMBER)
_BAD_LENGTH = int(Status.BAD_LENGTH)
_BAD_FIELD = int(Status.BAD_FIELD)
_BAD_HEADERS = int(Status.BAD_HEADERS)
_LEFT_OVER = int(Status.LEFT_OVER)
_BAD_OFFSET = int(Status.BAD_OFFSET)
_TRAILING = int(Status.TRAILING)
_BAD_TIMESTAMP = int(Status.BAD_TIMESTAMP)

_MAX_MS = MAX_TIMESTAMP_MS
_MAX_INT64 = (1 << 63) - 1
_MIN_INT64 = -(1 << 63)


# What each record passes through is inlined: left alone, LLVM calls it, at 18 instead of 12 ns a record.
_compiled = njit(nogil=True)
_inlined = njit(nogil=True, forceinline=True)


# --- reading


@_compiled
def _long_number(pos, end, bits):
    """The number at ``pos``, zigzag undone, and the position after it; that is 0 where it is cut or too
    long.
    """
    value = np.uint64(0)
    shift = 0
    while pos < end:
        part = np.uint64(get8(pos))
        pos += 1
        if shift + 7 > bits and (part >> np.uint64(bits - shift)) != np.uint64(0):
            break
        value |= (part & np.uint64(127)) << np.uint64(shift)
        if part < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), pos
        shift += 7
    return np.int64(0), np.int64(0)


@_compiled
def _read_number(pos, end, bits):
    """As `_long_number`, quick for numbers of one or two bytes."""
    if pos < end:
        low = get8(pos)
        if low < 128:
            return (low >> 1) ^ -(low & 1), pos + 1
        if pos + 1 < end:
            high = get8(pos + 1)
            if high < 128:
                low += (high - 1) << 7
                return (low >> 1) ^ -(low & 1), pos + 2
    return _long_number(pos, end, bits)


@_inlined
def _read_field(pos, end, smallest):
    """(status, size, position) of a field that begins with its size, of which -1 means null."""
    size, pos = _read_number(pos, end, 32)
    if pos == 0:
        return _BAD_NUMBER, np.int64(0), pos
    if size < smallest or size > end - pos:
        return _BAD_FIELD, size, pos
    return _DONE, size, pos


@_compiled
def _check_headers(pos, end):
    """(status, number of headers or what is wrong) of the headers that fill a record from ``pos`` on."""
    count, pos = _read_number(pos, end, 32)
    if pos == 0:
        return _BAD_NUMBER, np.int64(0)
    if count < 0 or count > (end - pos) // 2:
        return _BAD_HEADERS, count
    for _ in range(count):
        status, size, pos = _read_field(pos, end, 0)
        if status != _DONE:
            return status, size
        status, size, pos = _read_field(pos + size, end, -1)
        if status != _DONE:
            return status, size
        pos += max(size, 0)
    if pos != end:
        return _LEFT_OVER, np.int64(end - pos)
    return _DONE, count


@_inlined
def _read_record(at, end, stop):
    """(status, number, fields) of the record at ``at``, which may go as far as ``end`` and is wanted up to
    ``stop``.

    ``fields``: end of the record, time delta, offset delta, key's place and size, value's place and size,
    headers' place. ``number`` is the count of headers, or what is wrong, or the size of a record that goes
    beyond ``stop``.
    """
    zero = np.int64(0)
    nothing = (zero, zero, zero, zero, zero, zero, zero, zero)
    size, pos = _read_number(at, end, 32)
    if pos == 0:
        return _BAD_NUMBER, zero, nothing
    if size < 0 or size > end - pos:
        return _BAD_LENGTH, size, nothing
    end = pos + size
    if end > stop:
        return _FULL, end - at, nothing
    time_delta, pos = _read_number(pos + 1, end, 64)
    if pos == 0:
        return _BAD_NUMBER, zero, nothing
    delta, pos = _read_number(pos, end, 32)
    if pos == 0:
        return _BAD_NUMBER, zero, nothing
    status, key_size, key = _read_field(pos, end, -1)
    if status != _DONE:
        return status, key_size, nothing
    status, value_size, value = _read_field(key + max(key_size, 0), end, -1)
    if status != _DONE:
        return status, value_size, nothing
    headers = value + max(value_size, 0)
    count = zero
    if headers != end - 1 or get8(headers) != 0:
        status, count = _check_headers(headers, end)
    return status, count, (end, time_delta, delta, key, key_size, value, value_size, headers)


@_inlined
def _microseconds(base, delta, append_time):
    """(whether it fits 64 bits, the time ``delta`` after ``base`` in microseconds); both are milliseconds."""
    if append_time == 0:
        if delta > 0 and base > _MAX_INT64 - delta:
            return False, np.int64(0)
        if delta < 0 and base < _MIN_INT64 - delta:
            return False, np.int64(0)
        base += delta
    return -_MAX_MS <= base <= _MAX_MS, base * 1000


# --- writing


@_compiled
def _mark_null(valid, row, nulls, rows):
    """Clear the bit of ``row`` in a bitmap for ``rows``; before the first null all bits are set."""
    if nulls == 0:
        for i in range((rows + 7) // 8):
            put8(valid, i, 255)
    place = valid + (row >> 3)
    put8(place, 0, get8(place) & ~(1 << (row & 7)))


@_inlined
def _write_field(source, size, arena, layout, region, state, used, row, rows):
    """Append bytes, or null where ``size`` is -1, to the column whose first region and first count are given.

    A column's regions follow each other: starts, validity, data; so do its counts: bytes, nulls.
    """
    length = get64(state, used)
    put32(arena + get64(layout, region), row, length)
    if size < 0:
        nulls = get64(state, used + 1)
        _mark_null(arena + get64(layout, region + 1), row, nulls, rows)
        put64(state, used + 1, nulls + 1)
    else:
        copy(arena + get64(layout, region + 2) + length, source, size)
        put64(state, used, length + size)


@_compiled
def _write_headers(pos, end, count, arena, layout, state):
    """Append the ``count`` headers at ``pos``, which `_check_headers` has passed."""
    _, pos = _read_number(pos, end, 32)
    capacity = get64(layout, k.CAPACITY_HEADERS)
    for _ in range(count):
        at, length = get64(state, k.HEADERS), get64(state, k.NAME_BYTES)
        size, pos = _read_number(pos, end, 32)
        put32(arena + get64(layout, k.NAME_STARTS), at, length)
        seen = np.int64(0)
        for i in range(size):
            seen |= get8(pos + i)
        copy(arena + get64(layout, k.NAME_DATA) + length, pos, size)
        put64(state, k.NAME_BYTES, length + size)
        put64(state, k.NAMES_NOT_ASCII, get64(state, k.NAMES_NOT_ASCII) | (seen >> 7))
        size, pos = _read_number(pos + size, end, 32)
        _write_field(pos, size, arena, layout, k.CONTENT_STARTS, state, k.CONTENT_BYTES, at, capacity)
        pos += max(size, 0)
        put64(state, k.HEADERS, at + 1)


@_inlined
def _write_row(fields, headers, offset, time, append_time, arena, layout, state):
    """Append one record to the columns that are wanted. There is room: the caller has seen to it."""
    end, _, _, key, key_size, value, value_size, headers_pos = fields
    row, rows = get64(state, k.ROWS), get64(layout, k.CAPACITY_ROWS)
    if get64(layout, k.OFFSETS) >= 0:
        put64(arena + get64(layout, k.OFFSETS), row, offset)
    if get64(layout, k.TIMESTAMPS) >= 0:
        put64(arena + get64(layout, k.TIMESTAMPS), row, time)
    if get64(layout, k.TIMESTAMP_TYPES) >= 0:
        put32(arena + get64(layout, k.TIMESTAMP_TYPES), row, append_time)
    if get64(layout, k.KEY_STARTS) >= 0:
        _write_field(key, key_size, arena, layout, k.KEY_STARTS, state, k.KEY_BYTES, row, rows)
    if get64(layout, k.VALUE_STARTS) >= 0:
        _write_field(value, value_size, arena, layout, k.VALUE_STARTS, state, k.VALUE_BYTES, row, rows)
    if get64(layout, k.HEADER_STARTS) >= 0:
        put32(arena + get64(layout, k.HEADER_STARTS), row, get64(state, k.HEADERS))
        if headers > 0:
            _write_headers(headers_pos, end, headers, arena, layout, state)
        else:
            nulls = get64(state, k.HEADER_NULLS)
            _mark_null(arena + get64(layout, k.HEADER_VALID), row, nulls, rows)
            put64(state, k.HEADER_NULLS, nulls + 1)
    put64(state, k.ROWS, row + 1)


@_compiled
def _write_ends(arena, layout, state):
    """Close the starts of each column with where its data ends."""
    rows, headers = get64(state, k.ROWS), get64(state, k.HEADERS)
    if get64(layout, k.KEY_STARTS) >= 0:
        put32(arena + get64(layout, k.KEY_STARTS), rows, get64(state, k.KEY_BYTES))
    if get64(layout, k.VALUE_STARTS) >= 0:
        put32(arena + get64(layout, k.VALUE_STARTS), rows, get64(state, k.VALUE_BYTES))
    if get64(layout, k.HEADER_STARTS) >= 0:
        put32(arena + get64(layout, k.HEADER_STARTS), rows, headers)
        put32(arena + get64(layout, k.NAME_STARTS), headers, get64(state, k.NAME_BYTES))
        put32(arena + get64(layout, k.CONTENT_STARTS), headers, get64(state, k.CONTENT_BYTES))


# --- the whole


@_compiled
def _regions_fit(layout, size):
    """Whether every region that is there lies within an arena of ``size`` bytes."""
    rows, data = layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES]
    headers = layout[k.CAPACITY_HEADERS]
    if rows < 0 or data < 0 or headers < 0 or max(rows, data, headers) > _MAX_INT64 >> 8:
        return False
    for region in range(k.CAPACITY_ROWS):
        if region in (k.KEY_DATA, k.VALUE_DATA, k.NAME_DATA, k.CONTENT_DATA):
            length = data
        elif region in (k.OFFSETS, k.TIMESTAMPS):
            length = 8 * rows
        elif region in (k.KEY_VALID, k.VALUE_VALID, k.HEADER_VALID):
            length = (rows + 7) // 8
        elif region == k.CONTENT_VALID:
            length = (headers + 7) // 8
        elif region in (k.NAME_STARTS, k.CONTENT_STARTS):
            length = 4 * (headers + 1)
        else:
            length = 4 * (rows + 1)
        if layout[region] > size - length:
            return False
    return True


@_compiled
def _fill_from_block(data, block, arena, layout, state):
    """The records of the block whose table row is at ``block``, from where ``state`` stands on."""
    start, end = data + get64(block, k.BLOCK_START), data + get64(block, k.BLOCK_END)
    count, last_delta = get64(block, k.BLOCK_COUNT), get64(block, k.BLOCK_LAST_DELTA)
    low, high = get64(block, k.BLOCK_LOW), get64(block, k.BLOCK_HIGH)
    base_offset, base_time = get64(block, k.BLOCK_BASE_OFFSET), get64(block, k.BLOCK_TIMESTAMP)
    append_time = get64(block, k.BLOCK_APPEND_TIME)
    first = pos = start + get64(state, k.AT_POSITION)
    first_record = record = get64(state, k.AT_RECORD)
    previous = get64(state, k.PREVIOUS_DELTA)
    # Where this call's share ends: a record that begins before and ends behind it is left for the next call.
    stop = min(end, pos + get64(layout, k.CAPACITY_BYTES) - get64(state, k.DATA_BYTES))
    until = min(count, record + get64(layout, k.CAPACITY_RECORDS) - get64(state, k.RECORDS))
    status, number, need = _DONE, np.int64(0), np.int64(0)
    while record < until:
        status, number, fields = _read_record(pos, end, stop)
        if status != _DONE:
            break
        delta = fields[2]
        if delta <= previous or delta > last_delta:
            status, number = _BAD_OFFSET, delta
            break
        if low <= delta < high:
            if get64(state, k.ROWS) >= get64(layout, k.CAPACITY_ROWS) or (
                get64(layout, k.HEADER_STARTS) >= 0
                and get64(state, k.HEADERS) + number > get64(layout, k.CAPACITY_HEADERS)
            ):
                status, need = _FULL, number
                number = np.int64(0)
                break
            fits, time = _microseconds(base_time, fields[1], append_time)
            if not fits and get64(layout, k.TIMESTAMPS) >= 0:
                status, number, need = _BAD_TIMESTAMP, fields[1], delta
                break
            _write_row(fields, number, base_offset + delta, time, append_time, arena, layout, state)
        previous = delta
        record += 1
        pos = fields[0]
    if status == _DONE and record < count:
        status, number = _FULL, np.int64(0)
    elif status == _DONE and pos != end:
        status, number = _TRAILING, np.int64(end - pos)
    put64(state, k.DATA_BYTES, get64(state, k.DATA_BYTES) + pos - first)
    put64(state, k.RECORDS, get64(state, k.RECORDS) + record - first_record)
    put64(state, k.AT_POSITION, pos - start)
    put64(state, k.AT_RECORD, record)
    put64(state, k.PREVIOUS_DELTA, previous)
    put64(state, k.NUMBER, number)
    put64(state, k.NEED, need)
    return status


def fill_columns(source, table, arena, layout, state):
    """Records of the blocks in ``table``, all in ``source``, into ``arena``; returns the `Status` it ends
    with.

    It goes on from where ``state`` stands, and leaves there where it stopped, how much the arena holds, and
    what was wrong. FULL: NUMBER is the size of the record for which there was no room, or NEED its count of
    headers.
    """
    if not _regions_fit(layout, arena.shape[0]) or table.shape[1] != k.BLOCK_FIELDS:
        return BAD_LAYOUT
    data, rows, columns = address(source), address(table), address(arena)
    status = _DONE
    while state[k.AT_BLOCK] < table.shape[0]:
        block = state[k.AT_BLOCK]
        start, end = table[block, k.BLOCK_START], table[block, k.BLOCK_END]
        if not 0 <= start <= end <= source.shape[0] or not 0 <= state[k.AT_POSITION] <= end - start:
            status = BAD_LAYOUT
            break
        row = rows + 8 * k.BLOCK_FIELDS * block
        status = _fill_from_block(data, row, columns, address(layout), address(state))
        if status != _DONE:
            break
        state[k.AT_BLOCK] += 1
        state[k.AT_POSITION], state[k.AT_RECORD], state[k.PREVIOUS_DELTA] = 0, 0, -1
    _write_ends(columns, address(layout), address(state))
    return status


SIGNATURE = types.int64(
    types.Array(types.uint8, 1, "C", readonly=True),
    types.Array(types.int64, 2, "C", readonly=True),
    types.Array(types.uint8, 1, "C"),
    types.Array(types.int64, 1, "C", readonly=True),
    types.Array(types.int64, 1, "C"),
)
"""Arguments of `fill_columns`. Read-only ones take both kinds of arrays; others would refuse a fetch's
bytes."""
