"""The fast engine's inner loop: one pass over the records of many batches, compiled by numba.

`fill_columns` parses each record and copies what is wanted straight into the columns of one Arrow buffer (an
*arena*, see `arena`). It is given blocks whose checksum is right, and yet believes nothing: every number and
length is compared with its record, its block and the arena before a byte is read or written.

Positions are addresses (`intrinsics` says why). Importing this needs numba; `kernel_cache` gives the compiled
kernel, or says why there is none. mypy cannot follow compiled functions: their parameters are 64-bit
numbers, but for the arrays of `fill_columns`. ``k`` is where things stand in those arrays.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit

from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.engine import Status
from pyspark_kafkalog.columnar.intrinsics import copy, get8, get64, put32, put64
from pyspark_kafkalog.columnar.kernel_columns import (
    FILL_SIGNATURE,
    filler,
    in_microseconds,
    write_field,
    write_no_headers,
    write_row,
)

_DONE = int(Status.DONE)
_FULL = int(Status.FULL)
_BAD_NUMBER = int(Status.BAD_NUMBER)
_BAD_LENGTH = int(Status.BAD_LENGTH)
_BAD_FIELD = int(Status.BAD_FIELD)
_BAD_HEADERS = int(Status.BAD_HEADERS)
_LEFT_OVER = int(Status.LEFT_OVER)

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
def _read_record(at, end, stop, kind):
    """(status, number, fields) of the record at ``at``; see `kernel_columns.filler`."""
    zero = np.int64(0)
    nothing = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
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
    return status, count, (end, time_delta, delta, kind, key, key_size, value, value_size, headers)


@_inlined
def _time(base, fields, append_time):
    """(whether it fits, the time in microseconds) of a record; see `kernel_columns.filler`."""
    if append_time == 0:
        delta = fields[1]
        if delta > 0 and base > _MAX_INT64 - delta:
            return False, np.int64(0)
        if delta < 0 and base < _MIN_INT64 - delta:
            return False, np.int64(0)
        base += delta
    return in_microseconds(base)


# --- writing


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
        write_field(pos, size, arena, layout, k.CONTENT_STARTS, state, k.CONTENT_BYTES, at, capacity)
        pos += max(size, 0)
        put64(state, k.HEADERS, at + 1)


@_inlined
def _write_record(fields, headers, offset, time, arena, layout, state):
    """Append one record to the columns that are wanted; see `kernel_columns.filler`."""
    write_row(fields, offset, time, arena, layout, state)
    if get64(layout, k.HEADER_STARTS) >= 0:
        if headers > 0:
            put32(arena + get64(layout, k.HEADER_STARTS), get64(state, k.ROWS), get64(state, k.HEADERS))
            _write_headers(fields[8], fields[0], headers, arena, layout, state)
        else:
            write_no_headers(arena, layout, state)
    put64(state, k.ROWS, get64(state, k.ROWS) + 1)


# --- the whole


_fill = filler("records", _read_record, _time, _write_record)


def fill_columns(source, table, arena, layout, state):
    """Records of the blocks in ``table``, all in ``source``, into ``arena``; see `kernel_columns.filler`."""
    return _fill(source, table, arena, layout, state)


SIGNATURES = {"fill_columns": FILL_SIGNATURE}
