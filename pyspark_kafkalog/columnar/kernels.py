"""The fast engine's inner loop: one pass over the records of many batches, compiled by numba.

`fill_columns` parses each record and copies what is wanted straight into the columns of one Arrow buffer (an
*arena*, see `arena`). It is given blocks whose checksum is right, and yet believes nothing: every number and
length is compared with its record, its block and the arena before a byte is read or written.

Constants stand here and not beside their other users: numba's cache looks at the time of this file alone.
Importing this needs numba; `compiled` gives the kernel or says why there is none.
"""

# ruff: noqa: PLR0912, PLR0915
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from pyspark_kafkalog.columnar.engine import MAX_TIMESTAMP_MS, Status

# Fields of the table of blocks, one row each.
BLOCK_FIELDS = 9
(
    BLOCK_START,
    BLOCK_END,
    BLOCK_COUNT,
    BLOCK_LAST_DELTA,
    BLOCK_LOW,
    BLOCK_HIGH,
    BLOCK_BASE_OFFSET,
    BLOCK_TIMESTAMP,
    BLOCK_APPEND_TIME,
) = range(BLOCK_FIELDS)

# The arena's regions: their position in bytes, or -1 where the column is not wanted.
LAYOUT_FIELDS = 20
(
    OFFSETS,
    TIMESTAMPS,
    TIMESTAMP_TYPES,
    KEY_STARTS,
    KEY_VALID,
    KEY_DATA,
    VALUE_STARTS,
    VALUE_VALID,
    VALUE_DATA,
    HEADER_STARTS,
    HEADER_VALID,
    NAME_STARTS,
    NAME_DATA,
    CONTENT_STARTS,
    CONTENT_VALID,
    CONTENT_DATA,
    # What fits each region: rows, bytes, headers; and the records to be looked at in this call.
    CAPACITY_ROWS,
    CAPACITY_BYTES,
    CAPACITY_HEADERS,
    CAPACITY_RECORDS,
) = range(LAYOUT_FIELDS)

# What a call leaves for the next one over the same arena.
STATE_FIELDS = 19
(
    AT_BLOCK,
    AT_POSITION,
    AT_RECORD,
    PREVIOUS_DELTA,
    ROWS,
    RECORDS,
    DATA_BYTES,
    KEY_BYTES,
    KEY_NULLS,
    VALUE_BYTES,
    VALUE_NULLS,
    HEADERS,
    HEADER_NULLS,
    NAME_BYTES,
    CONTENT_BYTES,
    CONTENT_NULLS,
    NAMES_ARE_ASCII,
    NUMBER,
    NEED,
) = range(STATE_FIELDS)

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


@intrinsic
def _copy(typingctx: Any, target: Any, target_pos: Any, source: Any, source_pos: Any, size: Any) -> Any:
    """``memcpy`` between byte arrays. The caller has checked both ranges."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = context.make_array(signature.args[0])(context, builder, args[0])
        of = context.make_array(signature.args[2])(context, builder, args[2])
        cgutils.raw_memcpy(
            builder, builder.gep(to.data, [args[1]]), builder.gep(of.data, [args[3]]), args[4], 1
        )
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), codegen


@njit(nogil=True)
def _long_number(data, pos, end, bits):  # type: ignore[no-untyped-def]
    """The number at ``pos``, zigzag undone, and the position after it; position -1 if cut or too long."""
    value = np.uint64(0)
    shift = 0
    while pos < end:
        byte = np.uint64(data[pos])
        pos += 1
        if shift + 7 > bits and (byte >> np.uint64(bits - shift)) != np.uint64(0):
            break
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            half = np.int64(value >> np.uint64(1))
            return half ^ -np.int64(value & np.uint64(1)), pos
        shift += 7
    return np.int64(0), -1


@njit(nogil=True)
def _number(data, pos, end, bits):  # type: ignore[no-untyped-def]
    """As `_long_number`, quick for numbers of one or two bytes."""
    if pos < end:
        low = np.int64(data[pos])
        if low < 128:
            return (low >> 1) ^ -(low & 1), pos + 1
        if pos + 1 < end:
            high = np.int64(data[pos + 1])
            if high < 128:
                low += (high - 1) << 7
                return (low >> 1) ^ -(low & 1), pos + 2
    return _long_number(data, pos, end, bits)


@njit(nogil=True)
def _mark_null(valid, row, nulls):  # type: ignore[no-untyped-def]
    """Clear the bit of ``row``; the bitmap is all ones, made so before the first null."""
    if nulls == 0:
        valid[:] = np.uint8(255)
    valid[row >> 3] &= np.uint8(~(1 << (row & 7)) & 255)


@njit(nogil=True)
def _check_headers(data, pos, end):  # type: ignore[no-untyped-def]
    """(status, number of headers or what is wrong, bytes after them in the record) of the headers at ``pos``."""
    count, pos = _number(data, pos, end, 32)
    if pos < 0:
        return _BAD_NUMBER, np.int64(0)
    if count < 0 or count > (end - pos) // 2:
        return _BAD_HEADERS, count
    for _ in range(count):
        size, pos = _number(data, pos, end, 32)
        if pos < 0:
            return _BAD_NUMBER, np.int64(0)
        if size < 0 or size > end - pos:
            return _BAD_FIELD, size
        pos += size
        size, pos = _number(data, pos, end, 32)
        if pos < 0:
            return _BAD_NUMBER, np.int64(0)
        if size < -1 or size > end - pos:
            return _BAD_FIELD, size
        if size > 0:
            pos += size
    if pos != end:
        return _LEFT_OVER, np.int64(end - pos)
    return _DONE, count


@njit(nogil=True)
def _region(arena, at, size):  # type: ignore[no-untyped-def]
    """``size`` bytes of the arena at ``at``; none where the column is not wanted or would not fit."""
    if at < 0 or size < 0 or at + size > arena.shape[0]:
        return arena[0:0]
    return arena[at : at + size]


@njit(nogil=True)
def _copy_headers(data, pos, end, arena, layout, state):  # type: ignore[no-untyped-def]
    """Write the headers at ``pos``, which `_check_headers` has passed, behind those in the arena."""
    capacity = layout[CAPACITY_HEADERS]
    name_starts = _region(arena, layout[NAME_STARTS], 4 * (capacity + 1)).view(np.int32)
    names = _region(arena, layout[NAME_DATA], layout[CAPACITY_BYTES])
    content_starts = _region(arena, layout[CONTENT_STARTS], 4 * (capacity + 1)).view(np.int32)
    content_valid = _region(arena, layout[CONTENT_VALID], (capacity + 7) // 8)
    contents = _region(arena, layout[CONTENT_DATA], layout[CAPACITY_BYTES])
    at, name_bytes, content_bytes = state[HEADERS], state[NAME_BYTES], state[CONTENT_BYTES]
    count, pos = _number(data, pos, end, 32)
    for _ in range(count):
        size, pos = _number(data, pos, end, 32)
        name_starts[at] = name_bytes
        for i in range(size):
            byte = data[pos + i]
            names[name_bytes + i] = byte
            if byte > 127:
                state[NAMES_ARE_ASCII] = 0
        pos += size
        name_bytes += size
        size, pos = _number(data, pos, end, 32)
        content_starts[at] = content_bytes
        if size < 0:
            _mark_null(content_valid, at, state[CONTENT_NULLS])
            state[CONTENT_NULLS] += 1
        else:
            _copy(contents, content_bytes, data, pos, size)
            pos += size
            content_bytes += size
        at += 1
    name_starts[at] = name_bytes
    content_starts[at] = content_bytes
    state[HEADERS], state[NAME_BYTES], state[CONTENT_BYTES] = at, name_bytes, content_bytes


def fill_columns(data, table, arena, layout, state):  # type: ignore[no-untyped-def]
    """Records of the blocks in ``table`` from where ``state`` stands on, into ``arena``; the `Status` it ends with.

    All blocks lie in ``data``. On return ``state`` holds where the kernel stopped, how much the arena holds,
    and what was wrong; the columns' last start positions are written.
    """
    row_cap = layout[CAPACITY_ROWS]
    byte_cap = layout[CAPACITY_BYTES]
    with_offset, with_time = layout[OFFSETS] >= 0, layout[TIMESTAMPS] >= 0
    with_type, with_key = layout[TIMESTAMP_TYPES] >= 0, layout[KEY_STARTS] >= 0
    with_value, with_headers = layout[VALUE_STARTS] >= 0, layout[HEADER_STARTS] >= 0
    offsets = _region(arena, layout[OFFSETS], 8 * row_cap).view(np.int64)
    times = _region(arena, layout[TIMESTAMPS], 8 * row_cap).view(np.int64)
    time_types = _region(arena, layout[TIMESTAMP_TYPES], 4 * row_cap).view(np.int32)
    key_starts = _region(arena, layout[KEY_STARTS], 4 * (row_cap + 1)).view(np.int32)
    key_valid = _region(arena, layout[KEY_VALID], (row_cap + 7) // 8)
    keys = _region(arena, layout[KEY_DATA], byte_cap)
    value_starts = _region(arena, layout[VALUE_STARTS], 4 * (row_cap + 1)).view(np.int32)
    value_valid = _region(arena, layout[VALUE_VALID], (row_cap + 7) // 8)
    values = _region(arena, layout[VALUE_DATA], byte_cap)
    header_starts = _region(arena, layout[HEADER_STARTS], 4 * (row_cap + 1)).view(np.int32)
    header_valid = _region(arena, layout[HEADER_VALID], (row_cap + 7) // 8)

    row, key_bytes, value_bytes = state[ROWS], state[KEY_BYTES], state[VALUE_BYTES]
    key_nulls, value_nulls = state[KEY_NULLS], state[VALUE_NULLS]
    block, position, record = state[AT_BLOCK], state[AT_POSITION], state[AT_RECORD]
    previous = state[PREVIOUS_DELTA]
    taken, seen = state[DATA_BYTES], state[RECORDS]
    status, number, need = _DONE, np.int64(0), np.int64(0)
    while block < table.shape[0]:
        start, end, count = table[block, BLOCK_START], table[block, BLOCK_END], table[block, BLOCK_COUNT]
        if start < 0 or end < start or end > data.shape[0] or position < 0 or position > end - start:
            status = _BAD_LENGTH
            break
        last_delta, low, high = table[block, BLOCK_LAST_DELTA], table[block, BLOCK_LOW], table[block, BLOCK_HIGH]
        base_offset, base_time = table[block, BLOCK_BASE_OFFSET], table[block, BLOCK_TIMESTAMP]
        append_time = table[block, BLOCK_APPEND_TIME]
        first = start + position
        pos = first
        # Where this call's share of bytes ends: nothing that begins before it and ends behind it is taken.
        stop = min(end, first + byte_cap - taken)
        until = min(count, record + layout[CAPACITY_RECORDS] - seen)
        first_record = record
        while record < until:
            at = pos
            size, pos = _number(data, pos, end, 32)
            if pos < 0:
                status = _BAD_NUMBER
                break
            if size < 0 or size > end - pos:
                status, number = _BAD_LENGTH, size
                break
            record_end = pos + size
            if record_end > stop:
                status, need = _FULL, record_end - at
                break
            time_delta, pos = _number(data, pos + 1, record_end, 64)
            if pos < 0:
                status = _BAD_NUMBER
                break
            delta, pos = _number(data, pos, record_end, 32)
            if pos < 0:
                status = _BAD_NUMBER
                break
            key_size, pos = _number(data, pos, record_end, 32)
            if pos < 0:
                status = _BAD_NUMBER
                break
            if key_size < -1 or key_size > record_end - pos:
                status, number = _BAD_FIELD, key_size
                break
            key_pos = pos
            if key_size > 0:
                pos += key_size
            value_size, pos = _number(data, pos, record_end, 32)
            if pos < 0:
                status = _BAD_NUMBER
                break
            if value_size < -1 or value_size > record_end - pos:
                status, number = _BAD_FIELD, value_size
                break
            value_pos = pos
            if value_size > 0:
                pos += value_size
            headers_pos = pos
            header_count = np.int64(0)
            if pos != record_end - 1 or data[pos] != 0:
                status, header_count = _check_headers(data, pos, record_end)
                if status != _DONE:
                    number = header_count
                    break
            if delta <= previous or delta > last_delta:
                status, number = _BAD_OFFSET, delta
                break
            if low <= delta < high:
                if row >= row_cap:
                    status = _FULL
                    break
                if with_headers and state[HEADERS] + header_count > layout[CAPACITY_HEADERS]:
                    status, number = _FULL, header_count
                    break
                if with_time:
                    time = base_time
                    if append_time == 0:
                        if time_delta > 0 and base_time > _MAX_INT64 - time_delta:
                            status, number, need = _BAD_TIMESTAMP, time_delta, delta
                            break
                        if time_delta < 0 and base_time < _MIN_INT64 - time_delta:
                            status, number, need = _BAD_TIMESTAMP, time_delta, delta
                            break
                        time += time_delta
                    if time > _MAX_MS or time < -_MAX_MS:
                        status, number, need = _BAD_TIMESTAMP, time_delta, delta
                        break
                    times[row] = time * 1000
                if with_offset:
                    offsets[row] = base_offset + delta
                if with_type:
                    time_types[row] = append_time
                if with_key:
                    key_starts[row] = key_bytes
                    if key_size >= 0:
                        _copy(keys, key_bytes, data, key_pos, key_size)
                        key_bytes += key_size
                    else:
                        _mark_null(key_valid, row, key_nulls)
                        key_nulls += 1
                if with_value:
                    value_starts[row] = value_bytes
                    if value_size >= 0:
                        _copy(values, value_bytes, data, value_pos, value_size)
                        value_bytes += value_size
                    else:
                        _mark_null(value_valid, row, value_nulls)
                        value_nulls += 1
                if with_headers:
                    header_starts[row] = state[HEADERS]
                    if header_count == 0:
                        _mark_null(header_valid, row, state[HEADER_NULLS])
                        state[HEADER_NULLS] += 1
                    else:
                        _copy_headers(data, headers_pos, record_end, arena, layout, state)
                row += 1
            previous = delta
            record += 1
            pos = record_end
            position = pos - start
        taken += position - (first - start)
        seen += record - first_record
        if status == _DONE and record < count:
            status = _FULL
        if status == _DONE and position != end - start:
            status, number = _TRAILING, end - start - position
        if status != _DONE:
            break
        block += 1
        position = np.int64(0)
        record = np.int64(0)
        previous = np.int64(-1)
    if with_key:
        key_starts[row] = key_bytes
    if with_value:
        value_starts[row] = value_bytes
    if with_headers:
        header_starts[row] = state[HEADERS]
    state[ROWS], state[KEY_BYTES], state[VALUE_BYTES] = row, key_bytes, value_bytes
    state[KEY_NULLS], state[VALUE_NULLS] = key_nulls, value_nulls
    state[AT_BLOCK], state[AT_POSITION], state[AT_RECORD] = block, position, record
    state[PREVIOUS_DELTA] = previous
    state[DATA_BYTES], state[RECORDS] = taken, seen
    state[NUMBER], state[NEED] = number, need
    return status


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_ARENA = types.Array(types.uint8, 1, "C")
_LAYOUT = types.Array(types.int64, 1, "C", readonly=True)
_STATE = types.Array(types.int64, 1, "C")

SIGNATURE = types.int64(_BYTES, _TABLE, _ARENA, _LAYOUT, _STATE)
