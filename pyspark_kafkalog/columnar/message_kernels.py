"""The compiled engine's inner loops for messages before 0.11, compiled by numba.

`walk_messages` verifies v0 and v1 messages, `fill_messages` copies walked ones into an arena's columns: two
passes, the second in a warm cache, let a set be opened or an answer's end be known before columns are begun.
`fill_entries` does both for 0.7. All check every length before they read or write.

::

    offset:8 length:4 crc:4 magic:1 attributes:1 [timestamp:8] key_length:4 key value_length:4 value
    length:4 magic:1 [attributes:1] crc:4 payload                                           (0.7)

Positions and types are as in `record_kernels`.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.columnar import intrinsics as cpu
from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.column_types import NO_KIND, OWN_KIND
from pyspark_kafkalog.formats.v07 import CODEC_BITS
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

_OVERHEAD = 12  # bytes before those counted by a message's length
_MIN_LENGTH = 14  # for v0 without key and value; v1 has 8 more, the time
_NO_TIMESTAMP, _LOG_APPEND_TIME = NO_TIMESTAMP, int(TimestampType.LOG_APPEND_TIME)

_MAX_INT64, _ALL_BITS = (1 << 63) - 1, 0xFFFFFFFF
_CODEC_BITS = CODEC_BITS
_OWN_KIND, _NO_KIND = OWN_KIND, NO_KIND

_inlined = njit(nogil=True, forceinline=True)


@_inlined
def _read_field(pos, end):
    """(status, size, position) of a field with its size in front; -1 means null."""
    if end - pos < 4:
        return k.BAD_FIELD, end - pos, pos
    size = cpu.int32(pos)
    pos += 4
    if size < -1 or size > end - pos:
        return k.BAD_FIELD, size, pos
    return k.DONE, size, pos


@_inlined
def _read_message(at, end, stop, kind):
    """See `kernel_columns.filler`. The offset is returned as stored."""
    zero = np.int64(0)
    nothing = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    if end - at < _OVERHEAD + _MIN_LENGTH:
        return k.BAD_LENGTH, end - at, nothing
    length = cpu.int32(at + 8)
    has_time = np.int64(cpu.get8(at + 16) != 0)
    if length < _MIN_LENGTH + 8 * has_time or length > end - at - _OVERHEAD:
        return k.BAD_LENGTH, length, nothing
    end = at + _OVERHEAD + length
    if end > stop:
        return k.FULL, end - at, nothing
    time = np.int64(_NO_TIMESTAMP)
    if has_time:
        time = cpu.int64(at + 18)
        if kind == _OWN_KIND:
            kind = cpu.get8(at + 17) >> 3 & 1
    else:
        kind = np.int64(_NO_KIND)
    status, key_size, key = _read_field(at + 18 + 8 * has_time, end)
    if status != k.DONE:
        return status, key_size, nothing
    status, value_size, value = _read_field(key + max(key_size, 0), end)
    if status != k.DONE:
        return status, value_size, nothing
    if value + max(value_size, 0) != end:
        return k.LEFT_OVER, end - value - max(value_size, 0), nothing
    return k.DONE, zero, (end, time, cpu.int64(at), kind, key, key_size, value, value_size, zero)


@_inlined
def _time(base, fields, kind):
    if kind == _LOG_APPEND_TIME and fields[3] == _LOG_APPEND_TIME:
        return k.in_microseconds(base)
    return k.in_microseconds(fields[1])


@_inlined
def _fields_fit(pos, end):
    status, size, pos = _read_field(pos, end)
    if status != k.DONE:
        return False
    status, size, pos = _read_field(pos + max(size, 0), end)
    return status == k.DONE and pos + max(size, 0) == end


@_inlined
def _look_at(pos, end, below, previous, tables):
    """(why to stop before the message at ``pos`` or DONE, its offset, its end)."""
    zero = np.int64(0)
    if end - pos < _OVERHEAD + _MIN_LENGTH:
        return k.CUT, zero, zero
    offset, length = cpu.int64(pos), cpu.int32(pos + 8)
    if length < _MIN_LENGTH:
        return k.FAULT, zero, zero
    if length > end - pos - _OVERHEAD:
        return k.CUT, zero, zero
    magic = cpu.get8(pos + 16)
    if magic > 1:
        return k.OTHER, zero, zero
    if length < _MIN_LENGTH + 8 * magic or offset < 0 or offset == _MAX_INT64:
        return k.FAULT, zero, zero
    if cpu.get8(pos + 17) & 7:
        return k.COMPRESSED, zero, zero
    if offset >= below:
        return k.BEYOND, zero, zero
    if offset <= previous:
        return k.NOT_RISING, zero, zero
    end = pos + _OVERHEAD + length
    if cpu.crc32(tables, pos + 16, end - pos - 16) != cpu.int32(pos + 12) & 0xFFFFFFFF:
        return k.FAULT, zero, zero
    if not _fields_fit(pos + 18 + 8 * magic, end):
        return k.FAULT, zero, zero
    return k.DONE, offset, end


def walk_messages(source, start, stop, below, found):
    """Walk the messages that begin in ``[start, stop)``; ``found`` receives `column_types.Walk`."""
    size = source.shape[0]
    if not 0 <= start <= size or found.shape[0] != k.WALK_FIELDS:
        return k.BAD_LAYOUT
    data, tables = cpu.address(source), cpu.address(cpu.CRC32_TABLES)
    pos, end = data + start, data + size
    wanted = data + min(stop, size)
    first = last = np.int64(-1)
    count = np.int64(0)
    why = k.DONE
    while pos < wanted:
        why, offset, after = _look_at(pos, end, below, last, tables)
        if why != k.DONE:
            break
        if count == 0:
            first = offset
        last = offset
        count += 1
        pos = after
    found[k.WALK_END], found[k.WALK_COUNT] = pos - data, count
    found[k.WALK_FIRST_OFFSET], found[k.WALK_LAST_OFFSET] = first, last
    return why


@_inlined
def _write_message(fields, _, offset, time, arena, layout, state):
    k.write_row(fields, offset, time, arena, layout, state)
    if cpu.get64(layout, k.HEADER_STARTS) >= 0:
        k.write_no_headers(arena, layout, state)
    cpu.put64(state, k.ROWS, cpu.get64(state, k.ROWS) + 1)


_fill = k.filler("messages", _read_message, _time, _write_message)


def fill_messages(source, table, arena, layout, state):
    return _fill(source, table, arena, layout, state)


# --- 0.7


@_inlined
def _read_entry(pos, end):
    """(status, payload position, payload size) of the entry at ``pos`` in a set that ends at ``end``."""
    zero = np.int64(0)
    left = end - pos
    if left < 4:
        return k.CUT, zero, zero
    length = cpu.int32(pos)
    if length < 5:
        return k.FAULT, zero, zero
    if left < 5:
        return k.CUT, zero, zero
    magic = cpu.get8(pos + 4)
    codec = zero
    if magic == 1:
        if length < 6:
            return k.FAULT, zero, zero
        if left < 6:
            return k.CUT, zero, zero
        codec = cpu.get8(pos + 5) & _CODEC_BITS
    if magic > 1 or codec == _CODEC_BITS:
        return k.FAULT, zero, zero
    if length > left - 4:
        return k.CUT, zero, zero
    if codec != 0:
        return k.COMPRESSED, zero, zero
    payload = pos + 9 + magic
    return k.DONE, payload, pos + 4 + length - payload


def fill_entries(source, table, arena, layout, state):
    """Verify and copy the one block in ``table``. As a kernel of `kernel_columns.filler`, but capacity in
    bytes counts payloads, and the position stays where this ended.
    """
    if not k.regions_fit(layout, arena.shape[0]) or table.shape[0] != 1 or table.shape[1] != k.BLOCK_FIELDS:
        return k.BAD_LAYOUT
    start, size = table[0, k.BLOCK_START], table[0, k.BLOCK_END]
    first, base = table[0, k.BLOCK_LOW], table[0, k.BLOCK_BASE_OFFSET]
    inner = first >= 0
    position, record = state[k.AT_POSITION], state[k.AT_RECORD]
    rows, used = state[k.ROWS], state[k.VALUE_BYTES]
    capacity_rows, capacity_bytes = layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES]
    if not (
        0 <= start <= size <= source.shape[0]
        and 0 <= position <= size - start
        and 0 <= rows <= capacity_rows
        and 0 <= used <= capacity_bytes
    ):
        return k.BAD_LAYOUT
    data, columns, tables = cpu.address(source), cpu.address(arena), cpu.address(cpu.CRC32_TABLES)
    offsets, indexes = layout[k.OFFSETS], layout[k.INNER_INDEXES]
    starts, values = layout[k.VALUE_STARTS], layout[k.VALUE_DATA]
    records_before = record - rows
    pos, end = data + start + position, data + size
    wanted = data + min(table[0, k.BLOCK_HIGH], size)
    status = k.DONE
    while pos < wanted:
        status, payload, length = _read_entry(pos, end)
        if status != k.DONE:
            break
        if rows >= capacity_rows or length > capacity_bytes - used:
            status = k.FULL
            state[k.NUMBER] = length
            break
        if cpu.crc32(tables, payload, length) != cpu.int32(payload - 4) & _ALL_BITS:
            status = k.FAULT
            break
        if offsets >= 0:
            cpu.put64(columns + offsets, rows, base if inner else base + (pos - data))
        if indexes >= 0:
            cpu.put32(columns + indexes, rows, first + records_before + rows if inner else 0)
        if starts >= 0:
            cpu.put32(columns + starts, rows, used)
            cpu.copy(columns + values + used, payload, length)
        used += length
        rows += 1
        pos = payload + length
    if starts >= 0:
        cpu.put32(columns + starts, rows, used)
    state[k.AT_POSITION], state[k.AT_RECORD] = pos - data - start, records_before + rows
    state[k.ROWS], state[k.VALUE_BYTES] = rows, used
    return status


SIGNATURES = {
    "fill_messages": k.FILL_SIGNATURE,
    "fill_entries": k.FILL_SIGNATURE,
    "walk_messages": types.int64(
        types.Array(types.uint8, 1, "C", readonly=True),
        types.int64,
        types.int64,
        types.int64,
        types.Array(types.int64, 1, "C"),
    ),
}
