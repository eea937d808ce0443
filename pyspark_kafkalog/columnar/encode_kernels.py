"""Encodes Arrow rows as v2 records (`formats.record`) and hashes keys (`producer.routing.murmur2`), by numba.
A cell is its start in the column's data and its length, -1 for null; the caller makes room for the output.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.columnar.intrinsics import address, copy, get8, put8, read32

_numbers = types.Array(types.int64, 1, "C", readonly=True)
SIGNATURES = {
    "encode_records": (
        types.int64, _numbers, _numbers, types.int64, _numbers, _numbers, _numbers, _numbers,
        types.int64, types.int64, types.Array(types.uint8, 1, "C"),
    ),
    "choose_partitions": (types.int64, _numbers, _numbers, types.int64, types.Array(types.int64, 1, "C")),
}  # fmt: skip

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF

_inlined = njit(nogil=True, forceinline=True)


@_inlined
def _size_of(value):
    left = np.uint64(value << 1 ^ value >> 63)
    size = 1
    while left >= np.uint64(128):
        left >>= np.uint64(7)
        size += 1
    return size


@_inlined
def _put_number(at, value):
    left = np.uint64(value << 1 ^ value >> 63)
    while left >= np.uint64(128):
        put8(at, 0, np.int64(left & np.uint64(127)) | 128)
        left >>= np.uint64(7)
        at += 1
    put8(at, 0, np.int64(left))
    return at + 1


@_inlined
def _put_cell(at, data, start, length):
    at = _put_number(at, length)
    if length > 0:
        copy(at, data + start, length)
        at += length
    return at


def encode_records(
    value_data,
    value_starts,
    value_lengths,
    key_data,
    key_starts,
    key_lengths,
    rows,
    times,
    base_time,
    delta,
    out,
):
    """Write ``rows`` as records, one of ``times`` each; returns their size. ``key_lengths`` may be empty."""
    begin = address(out)
    at = begin
    keyed = len(key_lengths) > 0
    for index in range(len(rows)):
        row = rows[index]
        length = value_lengths[row]
        key = key_lengths[row] if keyed else np.int64(-1)
        time = times[index] - base_time
        size = 2 + _size_of(time) + _size_of(delta) + _size_of(key) + _size_of(length)
        size += max(key, np.int64(0)) + max(length, np.int64(0))
        at = _put_number(at, size)
        put8(at, 0, 0)
        at = _put_number(at + 1, time)
        at = _put_number(at, delta)
        at = _put_cell(at, key_data, key_starts[row] if keyed else np.int64(0), key)
        at = _put_cell(at, value_data, value_starts[row], length)
        put8(at, 0, 0)
        at += 1
        delta += 1
    return at - begin


@_inlined
def _murmur2(at, length):
    found = _SEED ^ length
    words = length >> 2
    for index in range(words):
        word = read32(at + 4 * index) * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        found = found * _MULTIPLIER & _MASK ^ word
    at += words << 2
    rest = length & 3
    if rest:
        if rest == 3:
            found ^= get8(at + 2) << 16
        if rest >= 2:
            found ^= get8(at + 1) << 8
        found = (found ^ get8(at)) * _MULTIPLIER & _MASK
    found = (found ^ found >> 13) * _MULTIPLIER & _MASK
    return found ^ found >> 15


def choose_partitions(key_data, key_starts, key_lengths, partition_count, out):
    for row in range(len(key_lengths)):
        length = key_lengths[row]
        if length >= 0:
            out[row] = (_murmur2(key_data + key_starts[row], length) & 0x7FFFFFFF) % partition_count
    return 0
