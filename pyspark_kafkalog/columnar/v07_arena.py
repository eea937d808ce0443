"""The fast engine for messages of Kafka 0.7: columns made by the compiled kernel in one Arrow buffer.

As in `arena`, one piece of memory holds all columns of a record batch and the arrays are slices of it. Here
several calls of the kernel fill one: a set that was compressed is another buffer for the same columns.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_kafkalog.columnar import arena
from pyspark_kafkalog.columnar import v07_engine as k
from pyspark_kafkalog.columnar.arena import ALIGNMENT
from pyspark_kafkalog.columnar.columns import BINARY, INNER_INDEX, INT32, INT64
from pyspark_kafkalog.columnar.kernel_cache import Kernel
from pyspark_kafkalog.columnar.v07_engine import Limits, Span, Status, Wanted


class CompiledEngine:
    """Entries to columns by the compiled kernel. *Thread-safe:* it holds the kernel only."""

    name = "numba"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def columns(self, limits: Limits, wanted: Wanted) -> _Arena:
        """Empty ones; see `v07_engine.Engine`."""
        return _Arena(self._kernel, limits, wanted)


class _Arena:
    """One buffer with a region for each column. *Not thread-safe: one decoder's call fills it.*"""

    def __init__(self, kernel: Kernel, limits: Limits, wanted: Wanted) -> None:
        self._kernel = kernel
        rows, size = limits
        layout = np.full(k.LAYOUT_FIELDS, -1, np.int64)
        layout[k.CAPACITY_ROWS], layout[k.CAPACITY_BYTES] = rows, size
        at = 0
        for asked, region, length in (
            (wanted.offset, k.OFFSETS, 8 * rows),
            (wanted.inner_index, k.INDEXES, 4 * rows),
            (wanted.value, k.VALUE_STARTS, 4 * (rows + 1)),
            (wanted.value, k.VALUE_DATA, size),
        ):
            if asked:
                layout[region] = at
                at += -(-length // ALIGNMENT) * ALIGNMENT
        self._bytes = arena.arenas.take(at)
        self._buffer = pa.py_buffer(self._bytes)
        self._state = np.zeros(k.STATE_FIELDS, np.int64)
        layout.flags.writeable = False
        self._layout, self._wanted = layout, wanted

    @property
    def rows(self) -> int:
        """Rows so far."""
        return int(self._state[k.ROWS])

    @property
    def need_bytes(self) -> int:
        """After FULL: the payload for which there was no room."""
        return int(self._state[k.NEED])

    def take(self, span: Span) -> Status:
        """Append the messages from where ``span`` stands; see `v07_engine.Columns`."""
        state = self._state
        state[k.POSITION], state[k.INDEX] = span.position, span.index
        data = np.frombuffer(span.data, np.uint8)
        data.flags.writeable = False
        found = self._kernel(data, span.stop, span.offset, span.inner, self._bytes, self._layout, state)
        span.position, span.index = int(state[k.POSITION]), int(state[k.INDEX])
        return Status(found)

    def arrays(self) -> dict[str, pa.Array]:
        """The columns as far as they are filled."""
        rows, columns = self.rows, {}
        if self._wanted.value:
            parts = [
                self._slice(k.VALUE_STARTS, 4 * (rows + 1)),
                self._slice(k.VALUE_DATA, int(self._state[k.VALUE_BYTES])),
            ]
            columns["value"] = pa.Array.from_buffers(BINARY, rows, [None, *parts], 0)
        if self._wanted.offset:
            columns["offset"] = self._fixed(INT64, k.OFFSETS, rows, 8)
        if self._wanted.inner_index:
            columns[INNER_INDEX] = self._fixed(INT32, k.INDEXES, rows, 4)
        return columns

    def _slice(self, region: int, size: int) -> pa.Buffer:
        return self._buffer.slice(int(self._layout[region]), size)

    def _fixed(self, kind: pa.DataType, region: int, rows: int, width: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, self._slice(region, rows * width)], 0)
