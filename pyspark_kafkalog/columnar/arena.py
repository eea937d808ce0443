"""The fast engine: columns made by the compiled kernel in one Arrow buffer, the *arena*.

One piece of memory holds all columns of a record batch, each region on a 64-byte boundary as Arrow likes
it; the arrays are slices of it. Regions for bytes have room for everything that is read, since how it
divides into keys and values is known only afterwards; what is not written costs address space, not memory.
"""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_kafkalog.columnar import engine as m
from pyspark_kafkalog.columnar import kernel_columns as k
from pyspark_kafkalog.columnar.columns import (
    BINARY,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    blobs,
    header_names,
    headers,
)
from pyspark_kafkalog.columnar.engine import Block, Cursor, Engine, Filled, Limits, Status, Wanted
from pyspark_kafkalog.columnar.kernel_cache import Kernel, kernel

ALIGNMENT = 64
"""Where Arrow likes a buffer to begin, in bytes."""

_KEPT_BYTES = 32 << 20
_USUAL_BYTES = 6 << 20
"""What is allocated at least, so that the next call finds it large enough whatever its records are like."""


class Pool:
    """Memory for arenas, used again when the last Arrow array in it is gone.

    *Thread-safe: appending to a deque and popping from it are.* New memory costs a page fault for every 4
    KiB, more than decoding does, and Arrow's own allocator gives it back to the system while a reader waits
    for Spark or the broker.
    """

    def __init__(self) -> None:
        self._free: deque[Any] = deque()

    def take(self, size: int) -> Any:
        """An array of ``size`` bytes or more, on an `ALIGNMENT` boundary. It comes back by itself: what
        refers to it keeps it from doing so.
        """
        memory = self._free.pop() if self._free else None
        if memory is None or len(memory) < size:
            raw = np.empty(max(size, _USUAL_BYTES) + ALIGNMENT, np.uint8)
            skip = -raw.ctypes.data % ALIGNMENT
            memory = raw[skip : len(raw) - ALIGNMENT + skip]
        lease = memory[:]
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return lease

    def _give_back(self, memory: Any) -> None:
        if len(memory) + sum(map(len, self._free)) <= _KEPT_BYTES:
            self._free.append(memory)


arenas = Pool()
"""One for the process."""


class CompiledEngine:
    """Blocks to columns by compiled kernels. *Thread-safe:* it holds the one for v2 batches only.

    Those for messages of v0 and v1 are loaded when such are met, which most readers never do. Where they
    cannot be had, ``instead`` does their work.
    """

    name = "numba"

    def __init__(self, fill_columns: Kernel, instead: Engine) -> None:
        self._fill_columns, self._instead = fill_columns, instead

    def fill(self, blocks: Sequence[Block], cursor: Cursor, limits: Limits, wanted: Wanted) -> Filled:
        """Columns of the records from ``cursor`` on; see `engine.Engine`."""
        fill = self._fill_columns
        if blocks[cursor.block].is_messages:
            fill_messages, _ = kernel("fill_messages")
            if fill_messages is None:
                return self._instead.fill(blocks, cursor, limits, wanted)
            fill = fill_messages
        arena = _Arena(blocks[cursor.block :], limits, wanted)
        state = arena.state
        state[k.AT_POSITION], state[k.AT_RECORD] = cursor.position, cursor.record
        state[k.PREVIOUS_DELTA] = cursor.previous_delta
        status, before = Status.DONE, cursor.block
        for _, run in groupby(blocks[cursor.block :], key=_buffer_of):
            rows = list(run)
            state[k.AT_BLOCK] = 0
            data = np.frombuffer(rows[0].buffer, np.uint8)
            data.flags.writeable = False
            status = Status(fill(data, _table(rows), arena.bytes, arena.layout, state))
            cursor.block = before + int(state[k.AT_BLOCK])
            if status is not Status.DONE:
                break
            before += len(rows)
        cursor.position, cursor.record = int(state[k.AT_POSITION]), int(state[k.AT_RECORD])
        cursor.previous_delta = int(state[k.PREVIOUS_DELTA])
        full = status is Status.FULL
        return Filled(
            status,
            int(state[k.ROWS]),
            arena.columns(wanted) if status <= Status.FULL else {},
            number=0 if full else int(state[k.NUMBER]),
            need_bytes=int(state[k.NUMBER]) if full else 0,
            need_headers=int(state[k.NEED]) if full else 0,
            offset_delta=int(state[k.NEED]) if status is Status.BAD_TIMESTAMP else 0,
        )

    def walk(self, data: memoryview, start: int, stop: int, below: int) -> m.Walk:
        """Messages that follow each other; see `engine.Engine.walk`."""
        walk_messages, _ = kernel("walk_messages")
        if walk_messages is None:
            return self._instead.walk(data, start, stop, below)
        found = np.zeros(m.WALK_FIELDS, np.int64)
        source = np.frombuffer(data, np.uint8)
        source.flags.writeable = False
        why = m.Stop(walk_messages(source, start, stop, below, found))
        return m.Walk(why, *found.tolist())


def _buffer_of(block: Block) -> int:
    return id(block.buffer)


def _table(blocks: Sequence[Block]) -> Any:
    """The blocks as the kernel's table; all lie in one buffer."""
    fields = array("q")
    for block in blocks:
        # Its fields between the first and the last are those of a row, in the same order.
        fields.extend(block[1:-1])
    table = np.frombuffer(fields, np.int64).reshape(-1, k.BLOCK_FIELDS)
    table.flags.writeable = False
    return table


class _Arena:
    """One buffer with a region for each part of each column. *Not thread-safe: one call fills it.*"""

    def __init__(self, blocks: Sequence[Block], limits: Limits, wanted: Wanted) -> None:
        rows = min(limits.records, sum(block.record_count for block in blocks))
        size = min(limits.data_bytes, sum(block.end - block.start for block in blocks))
        headers = limits.headers if wanted.headers else 0
        layout = np.full(k.LAYOUT_FIELDS, -1, np.int64)
        layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES] = rows, size
        layout[k.CAPACITY_HEADERS], layout[k.CAPACITY_RECORDS] = headers, limits.records
        starts, bits = 4 * (rows + 1), (rows + 7) // 8
        at = 0
        for asked, regions in (
            (wanted.offset, ((k.OFFSETS, 8 * rows),)),
            (wanted.timestamp, ((k.TIMESTAMPS, 8 * rows),)),
            (wanted.timestamp_type, ((k.TIMESTAMP_TYPES, 4 * rows),)),
            (wanted.key, ((k.KEY_STARTS, starts), (k.KEY_VALID, bits), (k.KEY_DATA, size))),
            (wanted.value, ((k.VALUE_STARTS, starts), (k.VALUE_VALID, bits), (k.VALUE_DATA, size))),
            (
                wanted.headers,
                (
                    (k.HEADER_STARTS, starts),
                    (k.HEADER_VALID, bits),
                    (k.NAME_STARTS, 4 * (headers + 1)),
                    (k.NAME_DATA, size),
                    (k.CONTENT_STARTS, 4 * (headers + 1)),
                    (k.CONTENT_VALID, (headers + 7) // 8),
                    (k.CONTENT_DATA, size),
                ),
            ),
        ):
            if asked:
                for region, length in regions:
                    layout[region] = at
                    at += -(-length // ALIGNMENT) * ALIGNMENT
        self.bytes = arenas.take(at)
        self._buffer = pa.py_buffer(self.bytes)
        self.state = np.zeros(k.STATE_FIELDS, np.int64)
        layout.flags.writeable = False
        self.layout = layout

    def columns(self, wanted: Wanted) -> dict[str, pa.Array]:
        """The columns as far as they are filled."""
        rows = int(self.state[k.ROWS])
        columns = {}
        if wanted.offset:
            columns["offset"] = self._fixed(INT64, k.OFFSETS, rows, 8)
        if wanted.timestamp:
            columns["timestamp"] = self._fixed(TIMESTAMP, k.TIMESTAMPS, rows, 8)
        if wanted.timestamp_type:
            columns["timestampType"] = self._fixed(INT32, k.TIMESTAMP_TYPES, rows, 4)
        if wanted.key:
            valid = self._valid(k.KEY_VALID, k.KEY_NULLS, rows)
            columns["key"] = self._variable(BINARY, rows, k.KEY_STARTS, k.KEY_DATA, k.KEY_BYTES, *valid)
        if wanted.value:
            valid = self._valid(k.VALUE_VALID, k.VALUE_NULLS, rows)
            columns["value"] = self._variable(
                BINARY, rows, k.VALUE_STARTS, k.VALUE_DATA, k.VALUE_BYTES, *valid
            )
        if wanted.headers:
            columns["headers"] = self._headers(rows)
        return columns

    def _headers(self, rows: int) -> pa.Array:
        count = int(self.state[k.HEADERS])
        if count:
            valid = self._valid(k.CONTENT_VALID, k.CONTENT_NULLS, count)
            contents = self._variable(
                BINARY, count, k.CONTENT_STARTS, k.CONTENT_DATA, k.CONTENT_BYTES, *valid
            )
            names = self._names(count)
        else:
            names, contents = blobs([], STRING), blobs([])
        valid_bits, nulls = self._valid(k.HEADER_VALID, k.HEADER_NULLS, rows)
        starts = self._slice(k.HEADER_STARTS, 4 * (rows + 1))
        return headers(rows, valid_bits, starts, nulls, names, contents)

    def _names(self, count: int) -> pa.Array:
        parts = (count, k.NAME_STARTS, k.NAME_DATA, k.NAME_BYTES)
        names = self._variable(STRING, *parts)
        if self.state[k.NAMES_NOT_ASCII]:
            try:
                names.validate(full=True)
            except pa.ArrowInvalid:
                names = header_names(self._variable(BINARY, *parts).to_pylist())
        return names

    def _slice(self, region: int, size: int) -> pa.Buffer:
        return self._buffer.slice(int(self.layout[region]), size)

    def _valid(self, region: int, nulls_field: int, rows: int) -> tuple[pa.Buffer | None, int]:
        nulls = int(self.state[nulls_field])
        return (self._slice(region, (rows + 7) // 8), nulls) if nulls else (None, 0)

    def _fixed(self, kind: pa.DataType, region: int, rows: int, width: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, self._slice(region, rows * width)], 0)

    def _variable(
        self,
        kind: pa.DataType,
        rows: int,
        starts: int,
        data: int,
        size_field: int,
        valid: pa.Buffer | None = None,
        nulls: int = 0,
    ) -> pa.Array:
        content = self._slice(data, int(self.state[size_field]))
        return pa.Array.from_buffers(kind, rows, [valid, self._slice(starts, 4 * (rows + 1)), content], nulls)
