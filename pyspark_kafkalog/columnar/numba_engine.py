"""The fast engine: kernels fill columns in one Arrow buffer, the *arena*. Each region is on a 64-byte
boundary, and each for bytes has room for all: unwritten parts cost address space, not memory.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.arrow_columns import (
    BINARY,
    INNER_INDEX,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    blobs,
    header_names,
    headers,
)
from pyspark_kafkalog.columnar.column_types import (
    BatchRun,
    Block,
    BlockTable,
    ColumnLimits,
    Columns,
    Cursor,
    Engine,
    Kind,
    Status,
    Stopped,
    Walk,
    WalkPosition,
    WantedColumns,
)
from pyspark_kafkalog.columnar.kernel_cache import Kernel, KernelName, kernel
from pyspark_kafkalog.formats.batch import HEADER_SIZE

ALIGNMENT = 64

_KEPT_BYTES = 32 << 20
_USUAL_BYTES = 6 << 20  # minimum allocation, so that the next call can reuse it whatever its records are like


class Pool:
    """*Thread-safe: deque operations are atomic.* Reuses arenas: new memory costs more than decoding."""

    def __init__(self) -> None:
        self._free: deque[Any] = deque()

    def take(self, size: int) -> Any:
        """At least ``size`` bytes, aligned. They return to the pool when nothing refers to them any more."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = None
        if memory is None or len(memory) < size:
            raw = np.empty(max(size, _USUAL_BYTES) + ALIGNMENT, np.uint8)
            skip = -raw.ctypes.data % ALIGNMENT
            memory = raw[skip : len(raw) - ALIGNMENT + skip]
        lease = memory[:]
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return lease

    def _give_back(self, memory: Any) -> None:
        # A copy: another thread may take or return one meanwhile.
        if len(memory) + sum(map(len, self._free.copy())) <= _KEPT_BYTES:
            self._free.append(memory)


arenas = Pool()


_FILL: dict[Kind, KernelName] = {
    Kind.RECORDS: "fill_columns",
    Kind.MESSAGES: "fill_messages",
    Kind.ENTRIES: "fill_entries",
}


_DONE = Stopped(Status.DONE)


class CompiledEngine:
    """Compiled kernels, loaded for the first block of a kind; ``instead`` serves without. *Thread-safe.*"""

    name = "numba"

    def __init__(self, instead: Engine) -> None:
        self._instead = instead

    def columns(self, blocks: Sequence[Block], limits: ColumnLimits, wanted: WantedColumns) -> Columns:
        fill, _ = kernel(_FILL[blocks[0].kind])
        if fill is None:
            return self._instead.columns(blocks, limits, wanted)
        return _Arena(fill, blocks, limits, wanted)

    def walk_batches(
        self, data: memoryview, place: WalkPosition, limits: ColumnLimits, suspects: Collection[int]
    ) -> BatchRun:
        walk_batches, _ = kernel("walk_batches")
        if walk_batches is None:
            return self._instead.walk_batches(data, place, limits, suspects)
        most = min(max(limits.records, 1), (len(data) - place.position) // HEADER_SIZE + 1)
        table = np.empty((most, k.BLOCK_FIELDS), np.int64)
        numbers = np.array((*astuple(place), limits.records, limits.data_bytes, 0, 0, 0, 0), np.int64)
        listed = np.array(tuple(suspects), np.int64)
        status = Status(walk_batches(np.frombuffer(data, np.uint8), numbers, listed, table))
        place.position, place.lowest, _, _, place.at, _, _, _, count, *sums, codec = numbers.tolist()
        return BatchRun(status, BlockTable(data, table[:count], *sums) if count else None, codec)

    def walk_messages(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        walk_messages, _ = kernel("walk_messages")
        if walk_messages is None:
            return self._instead.walk_messages(data, start, stop, below)
        found = np.zeros(k.WALK_FIELDS, np.int64)
        status = Status(walk_messages(np.frombuffer(data, np.uint8), start, stop, below, found))
        return Walk(status, *found.tolist())


@lru_cache(64)
def _layout(
    wanted: WantedColumns, rows: int, size: int, headers: int, records: int
) -> tuple[Any, list[int], int]:
    """Region offsets of an arena of this capacity, for the kernel and for Python, and its size."""
    layout = [-1] * k.LAYOUT_FIELDS
    layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES] = rows, size
    layout[k.CAPACITY_HEADERS], layout[k.CAPACITY_RECORDS] = headers, records
    starts, bits = 4 * (rows + 1), (rows + 7) // 8
    of_headers = (
        (k.HEADER_STARTS, starts), (k.HEADER_VALID, bits), (k.NAME_STARTS, 4 * (headers + 1)),
        (k.NAME_DATA, size), (k.CONTENT_STARTS, 4 * (headers + 1)), (k.CONTENT_VALID, (headers + 7) // 8),
        (k.CONTENT_DATA, size),
    )  # fmt: skip
    at = 0
    for asked, regions in (
        (wanted.offset, ((k.OFFSETS, 8 * rows),)),
        (wanted.timestamp, ((k.TIMESTAMPS, 8 * rows),)),
        (wanted.timestamp_type, ((k.TIMESTAMP_TYPES, 4 * rows),)),
        (wanted.inner_index, ((k.INNER_INDEXES, 4 * rows),)),
        (wanted.key, ((k.KEY_STARTS, starts), (k.KEY_VALID, bits), (k.KEY_DATA, size))),
        (wanted.value, ((k.VALUE_STARTS, starts), (k.VALUE_VALID, bits), (k.VALUE_DATA, size))),
        (wanted.headers, of_headers),
    ):
        if asked:
            for region, length in regions:
                layout[region] = at
                at += -(-length // ALIGNMENT) * ALIGNMENT
    numbers = np.array(layout, np.int64)
    numbers.flags.writeable = False
    return numbers, layout, at


def _tables(blocks: Sequence[Block]) -> Iterator[tuple[memoryview, Any]]:
    """The blocks as tables, one per buffer, to save kernel calls."""
    if isinstance(blocks, BlockTable):
        yield blocks.buffer, blocks.rows
        return
    # A block's fields without the first and last are a row, in this order.
    table = np.array([block[1:-1] for block in blocks], np.int64)
    at = 0
    while at < len(blocks):
        buffer, after = blocks[at].buffer, at + 1
        while after < len(blocks) and blocks[after].buffer is buffer:
            after += 1
        yield buffer, table[at:after]
        at = after


class _Arena:
    """One buffer with a region per part of each column. *Not thread-safe: one call fills it.*"""

    def __init__(
        self, fill: Kernel, blocks: Sequence[Block], limits: ColumnLimits, wanted: WantedColumns
    ) -> None:
        self._fill, self._wanted = fill, wanted
        rows, size, headers = limits.records, limits.data_bytes, limits.headers if wanted.headers else 0
        if isinstance(blocks, BlockTable):
            rows, size = min(rows, blocks.record_count), min(size, blocks.data_bytes)
        elif blocks[0].kind is not Kind.ENTRIES:
            rows = min(rows, sum(block.record_count for block in blocks))
            size = min(size, sum(block.end - block.start for block in blocks))
        self._layout, self._places, length = _layout(wanted, rows, size, headers, limits.records)
        self._bytes = arenas.take(length)
        self._buffer = pa.py_buffer(self._bytes)
        self._state = np.zeros(k.STATE_FIELDS, np.int64)
        self._filled: list[int] = self._state.tolist()

    @property
    def rows(self) -> int:
        return self._filled[k.ROWS]

    def take(self, blocks: Sequence[Block], cursor: Cursor) -> Stopped:
        state, code, done = self._state, 0, cursor.block
        state[: k.ROWS] = (0, cursor.position, cursor.record, cursor.previous_delta)
        for buffer, rows in _tables(blocks[done:]):
            if done > cursor.block:
                state[: k.ROWS] = (0, 0, 0, -1)
            code = self._fill(np.frombuffer(buffer, np.uint8), rows, self._bytes, self._layout, state)
            if code:
                break
            done += len(rows)
        self._filled = filled = state.tolist()
        within, cursor.position, cursor.record, cursor.previous_delta = filled[: k.ROWS]
        cursor.block = done + within if code else done
        if not code:
            return _DONE
        status, number, need = Status(code), filled[k.NUMBER], filled[k.NEED]
        if status is Status.FULL:
            return Stopped(status, 0, number, need)
        return Stopped(status, number, 0, 0, need if status is Status.BAD_TIMESTAMP else 0)

    def arrays(self) -> dict[str, pa.Array]:
        rows, wanted, columns = self.rows, self._wanted, {}
        if wanted.offset:
            columns["offset"] = self._fixed(INT64, k.OFFSETS, rows, 8)
        if wanted.timestamp:
            columns["timestamp"] = self._fixed(TIMESTAMP, k.TIMESTAMPS, rows, 8)
        if wanted.timestamp_type:
            columns["timestampType"] = self._fixed(INT32, k.TIMESTAMP_TYPES, rows, 4)
        if wanted.inner_index:
            columns[INNER_INDEX] = self._fixed(INT32, k.INNER_INDEXES, rows, 4)
        if wanted.key:
            columns["key"] = self._blobs(rows, k.KEY_STARTS, k.KEY_BYTES)
        if wanted.value:
            columns["value"] = self._blobs(rows, k.VALUE_STARTS, k.VALUE_BYTES)
        if wanted.headers:
            columns["headers"] = self._headers(rows)
        return columns

    def _headers(self, rows: int) -> pa.Array:
        count = self._filled[k.HEADERS]
        if count:
            names, contents = self._names(count), self._blobs(count, k.CONTENT_STARTS, k.CONTENT_BYTES)
        else:
            names, contents = blobs([], STRING), blobs([])
        starts = self._slice(k.HEADER_STARTS, 4 * (rows + 1))
        return headers(rows, *self._valid(rows, k.HEADER_VALID, k.HEADER_NULLS), starts, names, contents)

    def _names(self, count: int) -> pa.Array:
        starts = self._slice(k.NAME_STARTS, 4 * (count + 1))
        buffers = [None, starts, self._slice(k.NAME_DATA, self._filled[k.NAME_BYTES])]
        names = pa.Array.from_buffers(STRING, count, buffers, 0)
        if self._filled[k.NAMES_NOT_ASCII]:
            try:
                names.validate(full=True)
            except pa.ArrowInvalid:
                names = header_names(pa.Array.from_buffers(BINARY, count, buffers, 0).to_pylist())
        return names

    def _slice(self, region: int, size: int) -> pa.Buffer:
        return self._buffer.slice(self._places[region], size)

    def _valid(self, rows: int, region: int, nulls_field: int) -> tuple[pa.Buffer | None, int]:
        nulls = self._filled[nulls_field]
        return (self._slice(region, (rows + 7) // 8), nulls) if nulls else (None, 0)

    def _fixed(self, kind: pa.DataType, region: int, rows: int, width: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, self._slice(region, rows * width)], 0)

    def _blobs(self, rows: int, starts: int, used: int) -> pa.Array:
        """A column of bytes, by its first region and count; see `kernel_columns.write_field`."""
        valid, nulls = self._valid(rows, starts + 1, used + 1)
        buffers = [valid, self._slice(starts, 4 * (rows + 1)), self._slice(starts + 2, self._filled[used])]
        return pa.Array.from_buffers(BINARY, rows, buffers, nulls)
