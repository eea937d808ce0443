"""Decodes fetch answers to `pyarrow.RecordBatch` with exactly the schema Spark expects of its Kafka rows: a
`Generation` selects walker and columns, an engine fills them, and this module adds the constant ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import pyarrow as pa

from pyspark_kafkalog.columnar import column_types
from pyspark_kafkalog.columnar.arrow_columns import (
    BINARY,
    COLUMNS,
    COLUMNS_07,
    HEADERS,
    INNER_INDEX,
    INT32,
    TIMESTAMP,
    Constant,
    arrow_schema,
)
from pyspark_kafkalog.columnar.batch_walk import BatchWalk
from pyspark_kafkalog.columnar.entry_walk import EntryWalk
from pyspark_kafkalog.columnar.kernel_cache import KernelName, kernel
from pyspark_kafkalog.columnar.python_engine import PlainEngine
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.message_set import MAX_BATCH_BYTES, ExpectedOffsets
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

DECOMPRESSED_BYTES = 64 << 20
DECOMPRESSED_RATIO = 16
"""Limit for one answer's decompressed size, the larger of bytes and ratio; the reader asks again for the
rest. Common data stays far below; a compression bomb does not."""

ROWS = 1 << 16
DATA_BYTES = 5 << 18
HEADER_COUNT = 1 << 16
"""Size of a record batch: it stays in the caches, and is a quarter more than a usual answer of 1 MiB, or
barely compressed data would make one large record batch and one small one."""

WARM_UP_RECORDS = 200_000
"""Records that ``auto`` decodes in plain Python before loading numba. Import and kernel take about 0.4 s, in
half of which plain Python decodes that many: small reads start at once."""

EngineName = Literal["auto", "numba", "plain"]

_PLAIN = PlainEngine()


class EngineChoice:
    """Chooses this process's engine. *Thread-safe: the lock guards `_records` and `_compiled`.*"""

    def __init__(self, kernel_name: KernelName) -> None:
        self._kernel_name: KernelName = kernel_name
        self._lock = threading.Lock()
        self._records = 0
        self._compiled: column_types.Engine | None = None

    def chooser(self, name: EngineName) -> Callable[[], column_types.Engine]:
        """A function that returns the engine of this name; call it before each answer."""
        if name == "auto":
            return self._automatic
        if name not in ("plain", "numba"):
            raise InvalidConfig(f"unknown engine {name!r}; allowed: auto, numba, plain")
        engine = _PLAIN if name == "plain" else self._made()
        if engine is None:
            raise InvalidConfig(f"the engine numba cannot be had here: {kernel(self._kernel_name)[1]}")
        return lambda: engine

    def warm_up(self) -> None:
        """Let ``auto`` be the compiled engine from now on, where it can be had."""
        with self._lock:
            self._compiled = self._made() or _PLAIN

    def decoded(self, records: int) -> None:
        with self._lock:
            self._records += records

    def _automatic(self) -> column_types.Engine:
        with self._lock:
            if self._compiled is None:
                if self._records < WARM_UP_RECORDS:
                    return _PLAIN
                self._compiled = self._made() or _PLAIN
            return self._compiled

    def _made(self) -> column_types.Engine | None:
        if kernel(self._kernel_name)[0] is None:
            return None
        from pyspark_kafkalog.columnar.numba_engine import CompiledEngine

        return CompiledEngine(_PLAIN)


@dataclass(frozen=True)
class Generation:
    """What distinguishes a generation's answers: walker, columns, and columns that are always null."""

    walk: Callable[[column_types.Answer], column_types.Walker]
    engines: EngineChoice
    columns: Sequence[str] = COLUMNS
    nulls: Mapping[str, pa.DataType] = field(default_factory=dict)
    broker_owns: bool = False  # whether partitions belong to a broker, not the cluster, and are named so


SINCE_08 = Generation(BatchWalk, EngineChoice("fill_columns"))
"""v2 record batches, and v0 and v1 messages among them."""

KAFKA_07 = Generation(
    EntryWalk,
    EngineChoice("fill_entries"),
    COLUMNS_07,
    {"key": BINARY, "timestamp": TIMESTAMP, "timestampType": INT32, "headers": HEADERS},
    broker_owns=True,
)
"""0.7 messages. An offset is the byte position of an entry in its log: an answer's first byte has the
requested offset, and an entry belongs to the range in which it begins."""


class Decoded(msgspec.Struct, frozen=True):
    """One fetch answer as Arrow. ``next_offset``, where reading continues, may be inside the answer if the
    rest would take too much memory. If it equals the requested offset, not even one batch was whole.
    """

    batches: list[pa.RecordBatch]
    next_offset: int
    records: int


class RecordBatchDecoder:
    """Decodes the fetch answers of one partition, each alone. *Not thread-safe: belongs to one reader.*"""

    def __init__(
        self,
        generation: Generation = SINCE_08,
        *,
        topic: str,
        partition: int,
        columns: Sequence[str],
        broker: int | None = None,
        read_committed: bool = False,
        engine: EngineName = "auto",
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """``columns`` in the order wanted. One batch (0.7: one entry with all its levels) may decompress to
        ``max_batch_bytes``. ``engine``: ``numba``, ``plain``, or ``auto``, which starts plain and loads
        numba, if installed, once this process has decoded `WARM_UP_RECORDS`. Raises `InvalidConfig`.
        """
        self.schema = arrow_schema(columns, generation.columns)
        owner = broker if generation.broker_owns else None
        self._log = TopicPartition(topic, partition, NO_BROKER if owner is None else owner)
        self._generation = generation
        self._read_committed = read_committed
        self._max_batch_bytes = max_batch_bytes
        self._wanted = column_types.WantedColumns(
            *(
                name in columns and name not in generation.nulls
                for name in ("key", "value", "offset", "timestamp", "timestampType", "headers", INNER_INDEX)
            )
        )
        same = {"topic": Constant(topic), "partition": Constant(partition), "broker": Constant(broker)}
        same |= {name: Constant(None, kind) for name, kind in generation.nulls.items()}
        self._constant = {name: column for name, column in same.items() if name in columns}
        self._choose = generation.engines.chooser(engine)
        self.given_to = 0  # where reading continues after the rows that `stream` yielded, also if it raised

    @property
    def engine(self) -> str:
        return self._choose().name

    def decode(
        self,
        data: memoryview,
        start: int,
        end: int,
        aborted: column_types.Aborted = (),
        expected: ExpectedOffsets = column_types.ANY_OFFSETS,
    ) -> Decoded:
        """The rows of one fetch answer with offsets in ``[start, end)``, without an incomplete last batch.

        ``aborted`` lists (producer id, first offset), used only with ``read_committed``. ``expected`` bounds
        the offsets of the first batch. 0.7 has neither. ``data`` may be reused once this returns. Raises
        `CorruptMessage`, `MessageTooLarge`, `UnsupportedCompression`, and `InvalidTimestamp` if a time does
        not fit 64 bits in microseconds.
        """
        answer = self._answer(data, start, end, aborted, expected)
        answer.room = max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * len(data))
        walk = self._generation.walk(answer)
        batches = list(self._decoded(walk))
        return Decoded(batches, walk.next_offset, sum(batch.num_rows for batch in batches))

    def stream(
        self,
        data: memoryview,
        start: int,
        end: int,
        aborted: column_types.Aborted = (),
        expected: ExpectedOffsets = column_types.ANY_OFFSETS,
        whole: bool = False,
    ) -> Generator[pa.RecordBatch, None, int]:
        """The same rows, one record batch at a time: `DATA_BYTES`, or one larger batch of the log; returns
        where reading continues. ``data`` must not change until the end. ``whole``: decode each batch of the
        log completely before yielding its rows.
        """
        self.given_to = start
        walk = self._generation.walk(self._answer(data, start, end, aborted, expected))
        yield from self._decoded(walk, whole=whole)
        return walk.next_offset

    def _answer(
        self, data: memoryview, start: int, end: int, aborted: column_types.Aborted, expected: ExpectedOffsets
    ) -> column_types.Answer:
        listed, most = (aborted or ()) if self._read_committed else None, self._max_batch_bytes
        view = memoryview(data).cast("B")
        return column_types.Answer(view, self._log, start, end, most, aborted=listed, expected=expected)

    def _decoded(self, walk: column_types.Walker, *, whole: bool = False) -> Iterator[pa.RecordBatch]:
        engine, usual = self._choose(), column_types.ColumnLimits(ROWS, DATA_BYTES, HEADER_COUNT)
        held: list[pa.RecordBatch] = []
        columns: column_types.Columns | None = None
        for blocks in walk.groups(engine, usual):
            cursor, limits, status = column_types.Cursor(), usual, column_types.Status.FULL
            while status is column_types.Status.FULL:
                before = cursor.block, cursor.position
                if columns is None:
                    columns = engine.columns(blocks[cursor.block :], limits, self._wanted)
                stopped = columns.take(blocks, cursor)
                status = stopped.status
                reached = walk.took(blocks, cursor, stopped)
                if status is not column_types.Status.FULL and walk.columns_go_on:
                    break
                if columns.rows:
                    held.append(self._record_batch(columns))
                # If nothing was taken, the next record, whose lengths are checked, exceeds the limits alone.
                moved = columns.rows or (cursor.block, cursor.position) != before
                limits, columns = usual if moved else _larger(limits, stopped), None
                if reached is not None or not whole:
                    yield from held
                    held.clear()
                if reached is not None:
                    self.given_to = reached
        if columns is not None and columns.rows:
            held.append(self._record_batch(columns))
        yield from held

    def _record_batch(self, columns: column_types.Columns) -> pa.RecordBatch:
        made, rows = columns.arrays(), columns.rows
        self._generation.engines.decoded(rows)
        arrays = [
            made[name] if name in made else self._constant[name].rows(rows) for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _larger(limits: column_types.ColumnLimits, stopped: column_types.Stopped) -> column_types.ColumnLimits:
    return column_types.ColumnLimits(
        limits.records, max(limits.data_bytes, stopped.need_bytes), max(limits.headers, stopped.need_headers)
    )
