"""The fast engine's inner loop for messages of Kafka 0.7, compiled by numba: one pass over their entries.

`fill_entries` verifies each message's CRC-32 and copies its payload into the columns of one Arrow buffer (an
*arena*, see `v07_arena`). It believes nothing that the entries say: every length is compared with the set
and with the arena before a byte is read or written.

Positions are addresses (`memory` says why). mypy cannot follow compiled functions: their parameters are
64-bit numbers, but for the arrays of `fill_entries`. ``k`` is where things stand in those arrays.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.columnar import v07_engine as k
from pyspark_kafkalog.columnar.intrinsics import address, copy, get8, put32, put64
from pyspark_kafkalog.columnar.kernel_crc import CRC_TABLES, crc32
from pyspark_kafkalog.columnar.v07_engine import Status
from pyspark_kafkalog.formats.v07 import CODEC_BITS

BAD_LAYOUT = -1
_DONE = int(Status.DONE)
_CUT = int(Status.CUT)
_FULL = int(Status.FULL)
_COMPRESSED = int(Status.COMPRESSED)
_FAULT = int(Status.FAULT)
_CODEC_BITS = CODEC_BITS
_ALL_BITS = 0xFFFFFFFF

_compiled = njit(nogil=True)
_inlined = njit(nogil=True, forceinline=True)


# --- reading


@_inlined
def _number(pos):
    """The signed 32-bit number at ``pos``."""
    value = get8(pos) << 24 | get8(pos + 1) << 16 | get8(pos + 2) << 8 | get8(pos + 3)
    return value - ((value >> 31) << 32)


@_inlined
def _read_entry(pos, end):
    """(status, place of the payload, its size) of the entry at ``pos`` of a set that ends at ``end``."""
    zero = np.int64(0)
    left = end - pos
    if left < 4:
        return _CUT, zero, zero
    length = _number(pos)
    if length < 5:
        return _FAULT, zero, zero
    if left < 5:
        return _CUT, zero, zero
    magic = get8(pos + 4)
    codec = zero
    if magic == 1:
        if length < 6:
            return _FAULT, zero, zero
        if left < 6:
            return _CUT, zero, zero
        codec = get8(pos + 5) & _CODEC_BITS
    if magic > 1 or codec == _CODEC_BITS:
        return _FAULT, zero, zero
    if length > left - 4:
        return _CUT, zero, zero
    if codec != 0:
        return _COMPRESSED, zero, zero
    payload = pos + 9 + magic
    return _DONE, payload, pos + 4 + length - payload


# --- the whole


@_compiled
def _regions_fit(layout, size):
    """Whether every region that is there lies within an arena of ``size`` bytes."""
    rows, data = layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES]
    if rows < 0 or data < 0 or max(rows, data) > 1 << 40:
        return False
    return (
        layout[k.OFFSETS] <= size - 8 * rows
        and layout[k.INDEXES] <= size - 4 * rows
        and layout[k.VALUE_STARTS] <= size - 4 * (rows + 1)
        and layout[k.VALUE_DATA] <= size - data
    )


def fill_entries(source, stop, offset, inner, arena, layout, state):
    """Messages of the set in ``source``, one `Span`, into ``arena``; returns the `Status` it ends with.

    It goes on from where ``state`` stands, and leaves there where it stopped and how much the arena holds.
    """
    size = source.shape[0]
    position, rows, used = state[k.POSITION], state[k.ROWS], state[k.VALUE_BYTES]
    capacity_rows, capacity_bytes = layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES]
    if not (
        _regions_fit(layout, arena.shape[0])
        and 0 <= position <= size
        and 0 <= rows <= capacity_rows
        and 0 <= used <= capacity_bytes
    ):
        return BAD_LAYOUT
    data, columns, tables = address(source), address(arena), address(CRC_TABLES)
    offsets, indexes = layout[k.OFFSETS], layout[k.INDEXES]
    starts, values = layout[k.VALUE_STARTS], layout[k.VALUE_DATA]
    index = state[k.INDEX]
    pos, end = data + position, data + size
    wanted = data + min(stop, size)
    status = _DONE
    while pos < wanted:
        status, payload, length = _read_entry(pos, end)
        if status != _DONE:
            break
        if rows >= capacity_rows or length > capacity_bytes - used:
            status = _FULL
            state[k.NEED] = length
            break
        if crc32(tables, payload, length) != _number(payload - 4) & _ALL_BITS:
            status = _FAULT
            break
        if offsets >= 0:
            put64(columns + offsets, rows, offset if inner else offset + (pos - data))
        if indexes >= 0:
            put32(columns + indexes, rows, index)
        if starts >= 0:
            put32(columns + starts, rows, used)
            copy(columns + values + used, payload, length)
        used += length
        rows += 1
        index += inner
        pos = payload + length
    if starts >= 0:
        put32(columns + starts, rows, used)
    state[k.POSITION], state[k.INDEX] = pos - data, index
    state[k.ROWS], state[k.VALUE_BYTES] = rows, used
    return status


SIGNATURES = {
    "fill_entries": types.int64(
        types.Array(types.uint8, 1, "C", readonly=True),
        types.int64,
        types.int64,
        types.int64,
        types.Array(types.uint8, 1, "C"),
        types.Array(types.int64, 1, "C", readonly=True),
        types.Array(types.int64, 1, "C"),
    )
}
"""Arguments. Read-only ones take both kinds of arrays."""
