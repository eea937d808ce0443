"""The compiled engine's inner loops for v2 batches (since 0.11): `walk_batches` verifies batches;
`fill_columns` copies records into an *arena*, and checks every number and length, even after a good checksum.

Positions are addresses (`intrinsics` says why). Importing this needs numba; use `kernel_cache`.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.columnar import intrinsics as cpu
from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from pyspark_kafkalog.formats.record import MIN_RECORD_BYTES

_MAGIC_POSITION = 16
_MOST_BY_TABLES = 1 << 10  # without folding, the library sums larger batches faster
_ALL_BITS = 0xFFFFFFFF

_MAX_INT64 = (1 << 63) - 1
_MIN_INT64 = -(1 << 63)


# Code on the path of every record is inlined: LLVM's own choice, a call, costs 18 instead of 12 ns a record.
_compiled = njit(nogil=True)
_inlined = njit(nogil=True, forceinline=True)


@_compiled
def _long_number(pos, end, bits):
    """The zigzag varint at ``pos`` and the position after it, 0 if it is cut short or too long."""
    value = np.uint64(0)
    shift = 0
    while pos < end:
        part = np.uint64(cpu.get8(pos))
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
    """As `_long_number`, with a fast path for one and two bytes."""
    if pos < end:
        low = cpu.get8(pos)
        if low < 128:
            return (low >> 1) ^ -(low & 1), pos + 1
        if pos + 1 < end:
            high = cpu.get8(pos + 1)
            if high < 128:
                low += (high - 1) << 7
                return (low >> 1) ^ -(low & 1), pos + 2
    return _long_number(pos, end, bits)


@_inlined
def _read_field(pos, end, smallest):
    """(status, size, position) of a field with its size in front; a null has the size ``smallest``, -1."""
    size, pos = _read_number(pos, end, 32)
    if pos == 0:
        return k.BAD_NUMBER, np.int64(0), pos
    if smallest < 0:
        size = max(size, smallest)
    if size < smallest or size > end - pos:
        return k.BAD_FIELD, size, pos
    return k.DONE, size, pos


@_compiled
def _check_headers(pos, end):
    """(status, number of headers or faulty value) of the headers that fill a record from ``pos`` on."""
    count, pos = _read_number(pos, end, 32)
    if pos == 0:
        return k.BAD_NUMBER, np.int64(0)
    if count < 0 or count > (end - pos) // 2:
        return k.BAD_HEADERS, count
    for _ in range(count):
        status, size, pos = _read_field(pos, end, 0)
        if status != k.DONE:
            return status, size
        status, size, pos = _read_field(pos + size, end, -1)
        if status != k.DONE:
            return status, size
        pos += max(size, 0)
    if pos != end:
        return k.LEFT_OVER, np.int64(end - pos)
    return k.DONE, count


@_inlined
def _read_record(at, end, stop, kind):
    """See `kernel_columns.filler`."""
    zero = np.int64(0)
    nothing = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    size, pos = _read_number(at, end, 32)
    if pos == 0:
        return k.BAD_NUMBER, zero, nothing
    if size < 0 or size > end - pos:
        return k.BAD_LENGTH, size, nothing
    end = pos + size
    if end > stop:
        return k.FULL, end - at, nothing
    time_delta, pos = _read_number(pos + 1, end, 64)
    if pos == 0:
        return k.BAD_NUMBER, zero, nothing
    delta, pos = _read_number(pos, end, 32)
    if pos == 0:
        return k.BAD_NUMBER, zero, nothing
    status, key_size, key = _read_field(pos, end, -1)
    if status != k.DONE:
        return status, key_size, nothing
    status, value_size, value = _read_field(key + max(key_size, 0), end, -1)
    if status != k.DONE:
        return status, value_size, nothing
    headers = value + max(value_size, 0)
    count = zero
    if headers != end - 1 or cpu.get8(headers) != 0:
        status, count = _check_headers(headers, end)
    return status, count, (end, time_delta, delta, kind, key, key_size, value, value_size, headers)


@_inlined
def _time(base, fields, append_time):
    if append_time == 0:
        delta = fields[1]
        if delta > 0 and base > _MAX_INT64 - delta:
            return False, np.int64(0)
        if delta < 0 and base < _MIN_INT64 - delta:
            return False, np.int64(0)
        base += delta
    return k.in_microseconds(base)


@_compiled
def _write_headers(pos, end, count, arena, layout, state):
    _, pos = _read_number(pos, end, 32)
    capacity = cpu.get64(layout, k.CAPACITY_HEADERS)
    for _ in range(count):
        at, length = cpu.get64(state, k.HEADERS), cpu.get64(state, k.NAME_BYTES)
        size, pos = _read_number(pos, end, 32)
        cpu.put32(arena + cpu.get64(layout, k.NAME_STARTS), at, length)
        seen = np.int64(0)
        for i in range(size):
            seen |= cpu.get8(pos + i)
        cpu.copy(arena + cpu.get64(layout, k.NAME_DATA) + length, pos, size)
        cpu.put64(state, k.NAME_BYTES, length + size)
        cpu.put64(state, k.NAMES_NOT_ASCII, cpu.get64(state, k.NAMES_NOT_ASCII) | (seen >> 7))
        size, pos = _read_number(pos + size, end, 32)
        k.write_field(pos, size, arena, layout, k.CONTENT_STARTS, state, k.CONTENT_BYTES, at, capacity)
        pos += max(size, 0)
        cpu.put64(state, k.HEADERS, at + 1)


@_inlined
def _write_record(fields, headers, offset, time, arena, layout, state):
    k.write_row(fields, offset, time, arena, layout, state)
    if cpu.get64(layout, k.HEADER_STARTS) >= 0:
        if headers > 0:
            cpu.put32(
                arena + cpu.get64(layout, k.HEADER_STARTS),
                cpu.get64(state, k.ROWS),
                cpu.get64(state, k.HEADERS),
            )
            _write_headers(fields[8], fields[0], headers, arena, layout, state)
        else:
            k.write_no_headers(arena, layout, state)
    cpu.put64(state, k.ROWS, cpu.get64(state, k.ROWS) + 1)


_fill = k.filler("records", _read_record, _time, _write_record)


def fill_columns(source, table, arena, layout, state):
    return _fill(source, table, arena, layout, state)


@_inlined
def _header_fits(pos, left):
    """Whether a whole batch with a plausible header is at ``pos``, ``left`` bytes before the end."""
    if left < HEADER_SIZE or cpu.get8(pos + _MAGIC_POSITION) != MAGIC:
        return False
    length, last_delta, count = cpu.int32(pos + 8), cpu.int32(pos + 23), cpu.int32(pos + 57)
    return HEADER_SIZE - BATCH_OVERHEAD <= length <= left - BATCH_OVERHEAD and 0 <= count <= last_delta + 1


@_inlined
def _is_among(producer_id, suspects):
    for each in suspects:  # noqa: SIM110 - numba knows no generators within functions
        if each == producer_id:
            return True
    return False


def walk_batches(source, place, suspects, table):
    """Walk the batches in ``source``, one row of ``table`` per wanted one; see `column_types.Walks`."""
    if place.shape[0] != k.PLACE_FIELDS or table.shape[1] != k.BLOCK_FIELDS:
        return k.BAD_LAYOUT
    size = source.shape[0]
    pos, lowest, at = place[k.PLACE_POSITION], place[k.PLACE_LOWEST], place[k.PLACE_AT]
    asked, below, stop = place[k.PLACE_ASKED], place[k.PLACE_BELOW], place[k.PLACE_END]
    if not 0 <= pos <= size:
        return k.BAD_LAYOUT
    data, tables = cpu.address(source), cpu.address(cpu.CRC32C_TABLES)
    count, records, taken, codec = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    status = k.ODD
    while True:
        if at >= stop:
            status = k.DONE
            break
        here = data + pos
        if not _header_fits(here, size - pos):
            break
        length = BATCH_OVERHEAD + cpu.int32(here + 8)
        base, last_delta = cpu.int64(here), cpu.int32(here + 23)
        if base < lowest or base >= stop or base > _MAX_INT64 - last_delta - 1:
            break
        last = base + last_delta
        if last < asked or last >= below:
            break
        attributes, batch_records = cpu.get8(here + 22), cpu.int32(here + 57)
        in_transaction = attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)
        if in_transaction and _is_among(cpu.int64(here + 43), suspects):
            break
        if not cpu.FOLDS and length > _MOST_BY_TABLES:
            break
        if count > 0 and (
            records + batch_records > place[k.PLACE_MOST_RECORDS]
            or taken + length - HEADER_SIZE > place[k.PLACE_MOST_BYTES]
            or attributes & CODEC_BITS != codec
            or count >= table.shape[0]
        ):
            status = k.FULL
            break
        covered = length - ATTRIBUTES_POSITION
        if cpu.crc32c(tables, here + ATTRIBUTES_POSITION, covered) != cpu.int32(here + 17) & _ALL_BITS:
            break
        if not attributes & CONTROL_BIT and last >= at and (batch_records > 0 or length > HEADER_SIZE):
            codec, append_time = attributes & CODEC_BITS, attributes >> 3 & 1
            if codec == 0 and batch_records * MIN_RECORD_BYTES > length - HEADER_SIZE:
                break
            table[count, k.BLOCK_START], table[count, k.BLOCK_END] = pos + HEADER_SIZE, pos + length
            table[count, k.BLOCK_COUNT], table[count, k.BLOCK_LAST_DELTA] = batch_records, last_delta
            table[count, k.BLOCK_LOW] = max(0, at - base)
            table[count, k.BLOCK_HIGH] = min(last_delta + 1, stop - base)
            table[count, k.BLOCK_BASE_OFFSET] = base
            table[count, k.BLOCK_TIMESTAMP] = cpu.int64(here + 35 if append_time else here + 27)
            table[count, k.BLOCK_APPEND_TIME] = append_time
            count += 1
            records += batch_records
            taken += length - HEADER_SIZE
        lowest = last + 1
        at = max(at, lowest)
        pos += length
    place[k.PLACE_POSITION], place[k.PLACE_LOWEST], place[k.PLACE_AT] = pos, lowest, at
    place[k.PLACE_COUNT], place[k.PLACE_CODEC] = count, codec
    place[k.PLACE_RECORDS], place[k.PLACE_DATA_BYTES] = records, taken
    return status


SIGNATURES = {
    "fill_columns": k.FILL_SIGNATURE,
    "walk_batches": types.int64(
        types.Array(types.uint8, 1, "C", readonly=True),
        types.Array(types.int64, 1, "C"),
        types.Array(types.int64, 1, "C", readonly=True),
        types.Array(types.int64, 2, "C"),
    ),
}
