"""Fetch answers to `pyarrow.RecordBatch` with exactly the schema Spark expects of its Kafka rows.

The bytes pass through a walker, which finds what may be read (`answers`), and an engine, which makes columns
of it (`engine`); here the columns that are the same in every row are added. A `Generation` says which walker
and columns there are; all else is the same for all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

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
from pyspark_kafkalog.columnar.types import (
    ANY_OFFSETS,
    Aborted,
    Answer,
    ColumnLimits,
    Columns,
    Cursor,
    Engine,
    Status,
    Stopped,
    Walker,
    WantedColumns,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

MAX_BATCH_BYTES = 128 << 20
"""What one batch may decompress to, unless the caller says otherwise: no client sends batches near it."""

DECOMPRESSED_BYTES = 64 << 20
DECOMPRESSED_RATIO = 16
"""How much one answer may become at once, the larger of the two: bytes, and so many times its own size. A
reader asks again for what follows. Common data stays far below; a producer's bombs do not."""

ROWS = 1 << 16
DATA_BYTES = 5 << 18
HEADER_COUNT = 1 << 16
"""The size of a record batch: Spark gains nothing from larger ones, and its memory stays in the caches.

Its bytes are a quarter more than those of a usual answer, 1 MiB: what was hardly compressed would otherwise
become one large record batch and one small one.
"""

WARM_UP_RECORDS = 200_000
"""What ``auto`` decodes in plain Python before it loads numba: importing it and loading the kernel takes
some 0.4 s, and plain Python decodes about so many records in half of that. Small reads thus start at once."""

EngineName = Literal["auto", "numba", "plain"]

_PLAIN = PlainEngine()


class EngineChoice:
    """Which engine decodes a generation in this process: the compiled one where it pays and can be had.

    *Thread-safe: the lock guards `_records` and `_compiled`.* What it counts is this process's work.
    """

    def __init__(self, kernel_name: KernelName) -> None:
        """Without the kernel of this name there is no compiled engine."""
        self._kernel_name: KernelName = kernel_name
        self._lock = threading.Lock()
        self._records = 0
        self._compiled: Engine | None = None

    def chooser(self, name: EngineName) -> Callable[[], Engine]:
        """What gives the engine of this name, to be asked before each answer."""
        if name == "auto":
            return self._automatic
        if name not in ("plain", "numba"):
            raise InvalidConfig(f"unknown engine {name!r}; allowed: auto, numba, plain")
        engine = _PLAIN if name == "plain" else self._made()
        if engine is None:
            raise InvalidConfig(f"the engine numba cannot be had here: {kernel(self._kernel_name)[1]}")
        return lambda: engine

    def decoded(self, records: int) -> None:
        """Note that so many records were decoded, by whichever engine."""
        with self._lock:
            self._records += records

    def _automatic(self) -> Engine:
        with self._lock:
            if self._compiled is None:
                if self._records < WARM_UP_RECORDS:
                    return _PLAIN
                self._compiled = self._made() or _PLAIN
            return self._compiled

    def _made(self) -> Engine | None:
        if kernel(self._kernel_name)[0] is None:
            return None
        from pyspark_kafkalog.columnar.numba_engine import CompiledEngine

        return CompiledEngine(_PLAIN)


@dataclass(frozen=True)
class Generation:
    """What distinguishes a generation's answers: its walker, its columns, and those that are null in it."""

    walk: Callable[[Answer], Walker]
    engines: EngineChoice
    columns: Sequence[str] = COLUMNS
    nulls: Mapping[str, pa.DataType] = field(default_factory=dict)
    broker_owns: bool = False
    """Whether partitions are a broker's, not the cluster's, and are named so."""


SINCE_08 = Generation(BatchWalk, EngineChoice("fill_columns"))
"""Record batches of v2, and messages of v0 and v1 among them."""

KAFKA_07 = Generation(
    EntryWalk,
    EngineChoice("fill_entries"),
    COLUMNS_07,
    {"key": BINARY, "timestamp": TIMESTAMP, "timestampType": INT32, "headers": HEADERS},
    broker_owns=True,
)
"""Messages of 0.7. An offset is the byte at which an entry lies in its log: an answer's first byte has the
offset asked for, and entries belong to the range in which they begin."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One fetch answer as Arrow.

    ``next_offset`` is where reading goes on: after all that was read, also where no row came of it. That
    may be in the middle of the answer, if the rest would have taken too much memory at once. Where it is the
    offset asked for, not even the first batch was whole: more bytes must be fetched.
    """

    batches: list[pa.RecordBatch]
    next_offset: int
    records: int


class RecordBatchDecoder:
    """Decodes the fetch answers of one partition.

    *Not thread-safe: belongs to one reader.* It holds no state of the log, only the columns that are the
    same in every row; each answer stands for itself.
    """

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
        """``columns`` in the order wanted. A batch (in 0.7: an entry, all levels together) may decompress to
        ``max_batch_bytes``.

        ``engine``: ``numba`` or ``plain`` as said; ``auto`` begins plain and loads numba, if it is
        installed, once this process has decoded enough records for that to pay.

        Raises:
            InvalidConfig: a column that does not exist, an unknown engine, or ``numba`` where it cannot be
            had.
        """
        self.schema = arrow_schema(columns, generation.columns)
        owner = broker if generation.broker_owns else None
        self._log = TopicPartition(topic, partition, NO_BROKER if owner is None else owner)
        self._generation = generation
        self._read_committed = read_committed
        self._max_batch_bytes = max_batch_bytes
        self._wanted = WantedColumns(
            *(
                name in columns and name not in generation.nulls
                for name in ("key", "value", "offset", "timestamp", "timestampType", "headers", INNER_INDEX)
            )
        )
        same = {"topic": Constant(topic), "partition": Constant(partition), "broker": Constant(broker)}
        same |= {name: Constant(None, kind) for name, kind in generation.nulls.items()}
        self._constant = {name: column for name, column in same.items() if name in columns}
        self._choose = generation.engines.chooser(engine)
        self.given_to = 0
        """Where reading goes on after the rows that `stream` has given out, also where that raised."""

    @property
    def engine(self) -> str:
        """``numba`` or ``plain``: which one the next answer is decoded with."""
        return self._choose().name

    def decode(
        self,
        data: memoryview,
        start: int,
        end: int,
        aborted: Aborted = (),
        expected: ExpectedOffsets = ANY_OFFSETS,
    ) -> Decoded:
        """The rows of one fetch answer with offsets in ``[start, end)``.

        ``aborted`` is what the answer lists: (producer id, first offset); looked at only with
        ``read_committed``. ``expected`` is what the offsets of the first batch must be. 0.7 has neither. An
        incomplete batch at the end is left out. ``data`` may be used again as soon as this returns.

        Raises:
            CorruptMessage: a checksum, length, count or offset is wrong, or compressed data is damaged.
            MessageTooLarge: a batch decompresses to more than the limit.
            UnsupportedCompression: a codec is unknown, or its library not installed.
            InvalidTimestamp: a time that is wanted does not fit 64 bits in microseconds.
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
        aborted: Aborted = (),
        expected: ExpectedOffsets = ANY_OFFSETS,
        whole: bool = False,
    ) -> Generator[pa.RecordBatch, None, int]:
        """The same rows one record batch at a time; its value at the end is where reading goes on.

        An answer may be compressed a hundredfold: this holds no more of it than makes one record batch, which
        is `DATA_BYTES` at most or else one of the log's batches. ``data`` must stay as it is until the end.
        ``whole``: no rows of a batch of the log are given out before all of it was decoded.
        """
        self.given_to = start
        walk = self._generation.walk(self._answer(data, start, end, aborted, expected))
        yield from self._decoded(walk, whole=whole)
        return walk.next_offset

    def _answer(
        self, data: memoryview, start: int, end: int, aborted: Aborted, expected: ExpectedOffsets
    ) -> Answer:
        listed, most = (aborted or ()) if self._read_committed else None, self._max_batch_bytes
        view = memoryview(data).cast("B")
        return Answer(view, self._log, start, end, most, aborted=listed, expected=expected)

    def _decoded(self, walk: Walker, *, whole: bool = False) -> Iterator[pa.RecordBatch]:
        engine, usual = self._choose(), ColumnLimits(ROWS, DATA_BYTES, HEADER_COUNT)
        held: list[pa.RecordBatch] = []
        columns: Columns | None = None
        for blocks in walk.groups(engine, usual):
            cursor, limits, status = Cursor(), usual, Status.FULL
            while status is Status.FULL:
                before = cursor.block, cursor.position
                if columns is None:
                    columns = engine.columns(blocks[cursor.block :], limits, self._wanted)
                stopped = columns.take(blocks, cursor)
                status = stopped.status
                reached = walk.took(blocks, cursor, stopped)
                if status is not Status.FULL and walk.columns_go_on:
                    break
                if columns.rows:
                    held.append(self._record_batch(columns))
                # Where nothing was taken, the next record alone is larger than all that a record batch
                # usually has. Its lengths are checked.
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

    def _record_batch(self, columns: Columns) -> pa.RecordBatch:
        made, rows = columns.arrays(), columns.rows
        self._generation.engines.decoded(rows)
        arrays = [
            made[name] if name in made else self._constant[name].rows(rows) for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _larger(limits: ColumnLimits, stopped: Stopped) -> ColumnLimits:
    """Room for the record for which there was none."""
    return ColumnLimits(
        limits.records,
        max(limits.data_bytes, stopped.need_bytes),
        max(limits.headers, stopped.need_headers),
    )
