"""Shared by kernels that turn blocks into columns; they call this module ``k``. A kernel takes three arrays:
the *table* with a row per block, the *layout* of the arena, and the *state* kept between calls.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.columnar.column_types import MAX_TIMESTAMP_MS, Status
from pyspark_kafkalog.columnar.intrinsics import address, copy, get8, get64, put8, put32, put64

# The table: fields of `column_types.Block` after its buffer.
BLOCK_FIELDS = 9
(
    BLOCK_START, BLOCK_END, BLOCK_COUNT, BLOCK_LAST_DELTA, BLOCK_LOW, BLOCK_HIGH, BLOCK_BASE_OFFSET,
    BLOCK_TIMESTAMP, BLOCK_APPEND_TIME,
) = range(BLOCK_FIELDS)  # fmt: skip

# The layout: start of each region in the arena in bytes, -1 for unwanted columns; then capacity in rows,
# bytes, headers, and records that one call may read.
LAYOUT_FIELDS = 21
(
    OFFSETS, TIMESTAMPS, TIMESTAMP_TYPES, INNER_INDEXES, KEY_STARTS, KEY_VALID, KEY_DATA, VALUE_STARTS,
    VALUE_VALID, VALUE_DATA, HEADER_STARTS, HEADER_VALID, NAME_STARTS, NAME_DATA, CONTENT_STARTS,
    CONTENT_VALID, CONTENT_DATA, CAPACITY_ROWS, CAPACITY_BYTES, CAPACITY_HEADERS, CAPACITY_RECORDS,
) = range(LAYOUT_FIELDS)  # fmt: skip

# The state: where a call continues and stops, what the arena holds, and the fault.
STATE_FIELDS = 19
(
    AT_BLOCK, AT_POSITION, AT_RECORD, PREVIOUS_DELTA, ROWS, RECORDS, DATA_BYTES, KEY_BYTES, KEY_NULLS,
    VALUE_BYTES, VALUE_NULLS, HEADERS, HEADER_NULLS, NAME_BYTES, CONTENT_BYTES, CONTENT_NULLS,
    NAMES_NOT_ASCII, NUMBER, NEED,
) = range(STATE_FIELDS)  # fmt: skip

# A walk over batches: the fields of `column_types.WalkPosition`, its limits, and its totals.
PLACE_FIELDS = 12
(
    PLACE_POSITION, PLACE_LOWEST, PLACE_ASKED, PLACE_BELOW, PLACE_AT, PLACE_END, PLACE_MOST_RECORDS,
    PLACE_MOST_BYTES, PLACE_COUNT, PLACE_RECORDS, PLACE_DATA_BYTES, PLACE_CODEC,
) = range(PLACE_FIELDS)  # fmt: skip

# Result of a walk over messages: `column_types.Walk` without its status.
WALK_FIELDS = 4
WALK_END, WALK_COUNT, WALK_FIRST_OFFSET, WALK_LAST_OFFSET = range(WALK_FIELDS)

BAD_LAYOUT = -1
(
    DONE, FULL, BAD_NUMBER, BAD_LENGTH, BAD_FIELD, BAD_HEADERS, LEFT_OVER, BAD_OFFSET, TRAILING,
    BAD_TIMESTAMP, CUT, OTHER, COMPRESSED, BEYOND, NOT_RISING, FAULT, ODD,
) = map(int, Status)  # fmt: skip


_MAX_MS = MAX_TIMESTAMP_MS
_MAX_INT64 = (1 << 63) - 1

_compiled = njit(nogil=True)
_inlined = njit(nogil=True, forceinline=True)


@_inlined
def in_microseconds(time):
    """(whether it fits 64 bits, ``time`` in microseconds), from milliseconds."""
    return -_MAX_MS <= time <= _MAX_MS, time * 1000


@_compiled
def _mark_null(valid, row, nulls, rows):
    """Clear the bit of ``row`` in a bitmap for ``rows``; the first null sets all others."""
    if nulls == 0:
        for i in range((rows + 7) // 8):
            put8(valid, i, 255)
    place = valid + (row >> 3)
    put8(place, 0, get8(place) & ~(1 << (row & 7)))


@_inlined
def write_field(source, size, arena, layout, region, state, used, row, rows):
    """Append bytes, or null if ``size`` is -1, to the column with this first region and first count."""
    length = get64(state, used)
    put32(arena + get64(layout, region), row, length)
    if size < 0:
        nulls = get64(state, used + 1)
        _mark_null(arena + get64(layout, region + 1), row, nulls, rows)
        put64(state, used + 1, nulls + 1)
    else:
        copy(arena + get64(layout, region + 2) + length, source, size)
        put64(state, used, length + size)


@_inlined
def write_row(fields, offset, time, arena, layout, state):
    """Append one record except its headers. The caller appends those, then counts the row."""
    _, _, _, kind, key, key_size, value, value_size, _ = fields
    row, rows = get64(state, ROWS), get64(layout, CAPACITY_ROWS)
    if get64(layout, OFFSETS) >= 0:
        put64(arena + get64(layout, OFFSETS), row, offset)
    if get64(layout, TIMESTAMPS) >= 0:
        put64(arena + get64(layout, TIMESTAMPS), row, time)
    if get64(layout, TIMESTAMP_TYPES) >= 0:
        put32(arena + get64(layout, TIMESTAMP_TYPES), row, kind)
    if get64(layout, KEY_STARTS) >= 0:
        write_field(key, key_size, arena, layout, KEY_STARTS, state, KEY_BYTES, row, rows)
    if get64(layout, VALUE_STARTS) >= 0:
        write_field(value, value_size, arena, layout, VALUE_STARTS, state, VALUE_BYTES, row, rows)


@_inlined
def write_no_headers(arena, layout, state):
    row, nulls = get64(state, ROWS), get64(state, HEADER_NULLS)
    put32(arena + get64(layout, HEADER_STARTS), row, get64(state, HEADERS))
    _mark_null(arena + get64(layout, HEADER_VALID), row, nulls, get64(layout, CAPACITY_ROWS))
    put64(state, HEADER_NULLS, nulls + 1)


@_compiled
def write_ends(arena, layout, state):
    rows, headers = get64(state, ROWS), get64(state, HEADERS)
    if get64(layout, KEY_STARTS) >= 0:
        put32(arena + get64(layout, KEY_STARTS), rows, get64(state, KEY_BYTES))
    if get64(layout, VALUE_STARTS) >= 0:
        put32(arena + get64(layout, VALUE_STARTS), rows, get64(state, VALUE_BYTES))
    if get64(layout, HEADER_STARTS) >= 0:
        put32(arena + get64(layout, HEADER_STARTS), rows, headers)
        put32(arena + get64(layout, NAME_STARTS), headers, get64(state, NAME_BYTES))
        put32(arena + get64(layout, CONTENT_STARTS), headers, get64(state, CONTENT_BYTES))


@_compiled
def regions_fit(layout, size):
    """Whether every wanted region lies within an arena of ``size`` bytes."""
    rows, data = layout[CAPACITY_ROWS], layout[CAPACITY_BYTES]
    headers = layout[CAPACITY_HEADERS]
    if rows < 0 or data < 0 or headers < 0 or max(rows, data, headers) > _MAX_INT64 >> 8:
        return False
    for region in range(CAPACITY_ROWS):
        if region in (KEY_DATA, VALUE_DATA, NAME_DATA, CONTENT_DATA):
            length = data
        elif region in (OFFSETS, TIMESTAMPS):
            length = 8 * rows
        elif region in (TIMESTAMP_TYPES, INNER_INDEXES):
            length = 4 * rows
        elif region in (KEY_VALID, VALUE_VALID, HEADER_VALID):
            length = (rows + 7) // 8
        elif region == CONTENT_VALID:
            length = (headers + 7) // 8
        elif region in (NAME_STARTS, CONTENT_STARTS):
            length = 4 * (headers + 1)
        else:
            length = 4 * (rows + 1)
        if layout[region] >= 0 and layout[region] > size - length:
            return False
    return True


def _named(function, name):
    """numba counts names per process: of two kernels from caches, one might run the other's functions."""
    function.__qualname__ = f"{function.__name__}_of_{name}"
    return _compiled(function)


def _block_filler(name, read, time_of, write):

    def fill_from_block(data, block, arena, layout, state):
        start, end = data + get64(block, BLOCK_START), data + get64(block, BLOCK_END)
        count, last_delta = get64(block, BLOCK_COUNT), get64(block, BLOCK_LAST_DELTA)
        low, high = get64(block, BLOCK_LOW), get64(block, BLOCK_HIGH)
        base_offset, base_time = get64(block, BLOCK_BASE_OFFSET), get64(block, BLOCK_TIMESTAMP)
        append_time = get64(block, BLOCK_APPEND_TIME)
        first = pos = start + get64(state, AT_POSITION)
        first_record = record = get64(state, AT_RECORD)
        previous = get64(state, PREVIOUS_DELTA)
        # A record beyond this call's share is left for the next call.
        stop = min(end, pos + get64(layout, CAPACITY_BYTES) - get64(state, DATA_BYTES))
        until = min(count, record + get64(layout, CAPACITY_RECORDS) - get64(state, RECORDS))
        status, number, need = DONE, np.int64(0), np.int64(0)
        while record < until:
            status, number, fields = read(pos, end, stop, append_time)
            if status != DONE:
                break
            delta = fields[2]
            if delta <= previous or delta > last_delta:
                status, number = BAD_OFFSET, delta
                break
            if low <= delta < high:
                if get64(state, ROWS) >= get64(layout, CAPACITY_ROWS) or (
                    get64(layout, HEADER_STARTS) >= 0
                    and get64(state, HEADERS) + number > get64(layout, CAPACITY_HEADERS)
                ):
                    status, need = FULL, number
                    number = np.int64(0)
                    break
                fits, time = time_of(base_time, fields, append_time)
                if not fits and get64(layout, TIMESTAMPS) >= 0:
                    status, number, need = BAD_TIMESTAMP, fields[1], delta
                    break
                write(fields, number, base_offset + delta, time, arena, layout, state)
            previous = delta
            record += 1
            pos = fields[0]
        if status == DONE and record < count:
            status, number = FULL, np.int64(0)
        elif status == DONE and pos != end:
            status, number = TRAILING, np.int64(end - pos)
        put64(state, DATA_BYTES, get64(state, DATA_BYTES) + pos - first)
        put64(state, RECORDS, get64(state, RECORDS) + record - first_record)
        put64(state, AT_POSITION, pos - start)
        put64(state, AT_RECORD, record)
        put64(state, PREVIOUS_DELTA, previous)
        put64(state, NUMBER, number)
        put64(state, NEED, need)
        return status

    return _named(fill_from_block, name)


def filler(name, read, time_of, write):
    """A kernel that reads records with ``read`` and appends them with ``write``; ``name`` must be unique.

    ``read(at, end, stop, kind)`` returns (status, number, fields) of the record at ``at``, which may extend
    to ``end`` and is wanted up to ``stop``. ``fields``: end of the record; time and offset relative to the
    block's; kind of time; key position and size; value position and size; headers position. ``number`` is the
    header count, the faulty value, or the size of a record beyond ``stop``. ``kind`` is the block's
    `BLOCK_APPEND_TIME`.

    ``time_of(base, fields, kind)`` returns (whether it fits, time in microseconds); ``base`` is the block's
    time in milliseconds.

    ``write(fields, headers, offset, time, arena, layout, state)`` appends one record to the wanted columns.
    The kernel has checked that there is room.

    The kernel copies the blocks in ``table``, all in ``source``, into ``arena`` and returns the final
    `Status`. It continues from ``state`` and leaves its end, the arena's contents and any fault there. FULL:
    NUMBER is the size of the record that did not fit, or NEED its header count.
    """
    fill_from_block = _block_filler(name, read, time_of, write)

    def fill(source, table, arena, layout, state):
        if not regions_fit(layout, arena.shape[0]) or table.shape[1] != BLOCK_FIELDS:
            return BAD_LAYOUT
        data, rows, columns = address(source), address(table), address(arena)
        status = DONE
        while state[AT_BLOCK] < table.shape[0]:
            block = state[AT_BLOCK]
            start, end = table[block, BLOCK_START], table[block, BLOCK_END]
            if not 0 <= start <= end <= source.shape[0] or not 0 <= state[AT_POSITION] <= end - start:
                status = BAD_LAYOUT
                break
            row = rows + 8 * BLOCK_FIELDS * block
            status = fill_from_block(data, row, columns, address(layout), address(state))
            if status != DONE:
                break
            state[AT_BLOCK] += 1
            state[AT_POSITION], state[AT_RECORD], state[PREVIOUS_DELTA] = 0, 0, -1
        write_ends(columns, address(layout), address(state))
        return status

    return _named(fill, name)


FILL_SIGNATURE = types.int64(
    types.Array(types.uint8, 1, "C", readonly=True),
    types.Array(types.int64, 2, "C", readonly=True),
    types.Array(types.uint8, 1, "C"),
    types.Array(types.int64, 1, "C", readonly=True),
    types.Array(types.int64, 1, "C"),
)
"""Arguments of a `filler` kernel. Read-only parameters accept both kinds of arrays; others would refuse a
fetch's bytes."""
