"""Fetch answers to `pyarrow.RecordBatch` with exactly the schema Spark expects of its Kafka rows.

The way of the bytes: `blocks` walks the answer and says what may be seen, an engine (`arena` over
`kernels`, or `plain`) turns records into columns, and here the columns that are the same in every row are
added.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import pyarrow as pa

from pyspark_kafkalog.columnar.batch_walk import AbortedTransactions, Answer
from pyspark_kafkalog.columnar.columns import COLUMNS, Constant, arrow_schema
from pyspark_kafkalog.columnar.engine import Block, Cursor, Engine, Filled, Limits, Status, Wanted, describe
from pyspark_kafkalog.columnar.kernel_cache import KernelName, kernel
from pyspark_kafkalog.columnar.plain import PlainEngine
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, InvalidTimestamp, KafkaError
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.types import TopicPartition

__all__ = ["COLUMNS", "Decoded", "RecordBatchDecoder", "arrow_schema"]

MAX_BATCH_BYTES = 128 << 20
"""What one batch may decompress to, unless the caller says otherwise: no client sends batches near it."""

ROWS = 1 << 16
DATA_BYTES = 5 << 18
HEADERS = 1 << 16
"""The size of a record batch: Spark gains nothing from larger ones, and its memory stays in the caches.

Its bytes are a quarter more than those of a usual answer, 1 MiB: what was hardly compressed would otherwise
become one large record batch and one small one.
"""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One fetch answer as Arrow.

    ``next_offset`` is where reading goes on: behind all that was read, also where no row came of it. That
    may be in the middle of the answer, if the rest would have taken too much memory at once.
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
        *,
        topic: str,
        partition: int,
        columns: Sequence[str],
        broker: int | None = None,
        read_committed: bool = False,
        engine: EngineName = "auto",
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """``columns`` in the order wanted. A batch may decompress to ``max_batch_bytes``.

        ``engine``: ``numba`` or ``plain`` as said; ``auto`` begins plain and loads numba, if it is
        installed, once this process has decoded enough records for that to pay.

        Raises:
            InvalidConfig: a column that does not exist, an unknown engine, or ``numba`` where it cannot be
            had.
        """
        self.schema = arrow_schema(columns)
        self._log = TopicPartition(topic, partition)
        self._read_committed = read_committed
        self._max_batch_bytes = max_batch_bytes
        self._wanted = Wanted(
            *(name in columns for name in ("key", "value", "offset", "timestamp", "timestampType", "headers"))
        )
        self._constant = {
            name: Constant(value)
            for name, value in (("topic", topic), ("partition", partition), ("broker", broker))
            if name in columns
        }
        self._choose = chooser(engine)
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
        aborted: Sequence[tuple[int, int]] | AbortedTransactions | None = (),
        place: ExpectedOffsets = ExpectedOffsets(),  # noqa: B008
    ) -> Decoded:
        """The rows of one fetch answer with offsets in ``[start, end)``.

        ``aborted`` is what the answer lists: (producer id, first offset); looked at only with
        ``read_committed``. ``place`` is what the offsets of the first batch must be. An incomplete batch at
        the end is left out. ``data`` may be used again as soon as this returns.

        Raises:
            CorruptMessage: a checksum, length, count or offset is wrong.
            MessageTooLarge: a batch decompresses to more than the limit.
            UnsupportedCompression: a codec is unknown, or its library not installed.
            InvalidTimestamp: a time that is wanted does not fit 64 bits in microseconds.
        """
        answer = self._answer(data, start, end, aborted, place)
        batches = list(self._decoded(answer))
        return Decoded(batches, answer.next_offset, sum(batch.num_rows for batch in batches))

    def stream(
        self,
        data: memoryview,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] | AbortedTransactions | None = (),
        place: ExpectedOffsets = ExpectedOffsets(),  # noqa: B008
        whole: bool = False,
    ) -> Generator[pa.RecordBatch, None, int]:
        """The same rows one record batch at a time; its value at the end is where reading goes on.

        An answer may be compressed a hundredfold: this holds no more of it than makes one record batch, which
        is `DATA_BYTES` at most or else one of the log's batches. ``data`` must stay as it is until the end.
        ``whole``: no rows of a batch of the log are given out before all of it was decoded.
        """
        self.given_to = start
        answer = self._answer(data, start, end, aborted, place, streamed=True)
        yield from self._decoded(answer, whole=whole)
        return answer.next_offset

    def _answer(
        self,
        data: memoryview,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] | AbortedTransactions | None,
        place: ExpectedOffsets,
        streamed: bool = False,
    ) -> Answer:
        return Answer(
            memoryview(data).cast("B"),
            self._log,
            start,
            end,
            aborted=(aborted or ()) if self._read_committed else None,
            max_batch_bytes=self._max_batch_bytes,
            streamed=streamed,
            place=place,
        )

    def _decoded(self, answer: Answer, *, whole: bool = False) -> Iterator[pa.RecordBatch]:
        engine = self._choose()
        for group in _groups(answer.blocks(engine.walk)):
            batches = self._batches(group, engine)
            for batch in list(batches) if whole else batches:
                decoded(batch.num_rows)
                yield batch
            self.given_to = group[-1].base_offset + group[-1].last_delta + 1

    def _batches(self, blocks: Sequence[Block], engine: Engine) -> Iterator[pa.RecordBatch]:
        """The record batches of some blocks: one, unless a single block is larger than that."""
        cursor, usual = Cursor(), Limits(ROWS, DATA_BYTES, HEADERS)
        limits, status = usual, Status.FULL
        while status is Status.FULL:
            before = cursor.record, cursor.block
            filled = engine.fill(blocks, cursor, limits, self._wanted)
            status = filled.status
            if status > Status.FULL:
                raise self._fault(blocks[cursor.block], cursor, filled)
            if filled.rows:
                yield self._record_batch(filled)
            if (cursor.record, cursor.block) != before:
                limits = usual
            else:
                # One record alone is larger than all that a record batch usually has. Its lengths are
                # checked.
                limits = Limits(
                    usual.records,
                    max(limits.data_bytes, filled.need_bytes),
                    max(limits.headers, filled.need_headers),
                )

    def _record_batch(self, filled: Filled) -> pa.RecordBatch:
        columns = [
            filled.columns[name] if name in filled.columns else self._constant[name].rows(filled.rows)
            for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _fault(self, block: Block, cursor: Cursor, filled: Filled) -> KafkaError:
        where = f"record {cursor.record} of {block.record_count} in the batch at offset {block.base_offset}"
        if filled.status is Status.BAD_TIMESTAMP:
            time = block.timestamp if block.append_time == 1 else block.timestamp + filled.number
            offset = block.base_offset + filled.offset_delta
            return InvalidTimestamp(
                f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] topic {self._log.topic}, partition"
                f" {self._log.partition}, offset {offset}: the record's timestamp of {time} ms does not fit"
                " 64 bits in microseconds. Kafka's timestamps are milliseconds since the epoch; perhaps the"
                " producer set it in another unit. SQLSTATE: 22008"
            )
        return CorruptMessage(f"{self._log}, {where}: {describe(filled.status, filled.number)}")


def _groups(blocks: Iterator[Block]) -> Iterator[list[Block]]:
    """Blocks of one kind by as many as fit one record batch; a larger block is alone.

    A call has a price of its own, some 20 us: one per batch would cost more than the records.
    """
    group: list[Block] = []
    records = size = 0
    are_messages = False
    for block in blocks:
        records += block.record_count
        size += block.end - block.start
        if records > ROWS or size > DATA_BYTES or block.is_messages is not are_messages:
            if group:
                yield group
            group, records, size = [], block.record_count, block.end - block.start
            are_messages = block.is_messages
        group.append(block)
    if group:
        yield group


EngineName = Literal["auto", "numba", "plain"]

WARM_UP_RECORDS = 200_000
"""What ``auto`` decodes in plain Python before it loads numba: importing it and loading the kernel takes
some 0.4 s, and plain Python decodes about so many records in half of that. Small reads thus start at once."""

_PLAIN = PlainEngine()

_E = TypeVar("_E")


def compiled_engine() -> Engine | None:
    """The engine over the compiled kernels; None where there is none."""
    found, _ = kernel()
    if found is None:
        return None
    from pyspark_kafkalog.columnar.arena import CompiledEngine

    return CompiledEngine(found, _PLAIN)


class Choice(Generic[_E]):
    """Which of a generation's two engines decodes in this process.

    *Thread-safe: the lock guards `_records` and `_compiled`.* One per process and generation: what it counts
    is this process's work.
    """

    def __init__(self, plain: _E, compiled: Callable[[], _E | None], kernel_name: KernelName) -> None:
        """``compiled`` makes the other engine, or gives None where there is no kernel of this name."""
        self._plain, self._make, self._kernel_name = plain, compiled, kernel_name
        self._lock = threading.Lock()
        self._records = 0
        self._compiled: _E | None = None

    def chooser(self, name: EngineName) -> Callable[[], _E]:
        """What gives the engine of this name, to be asked before each answer.

        Raises:
            InvalidConfig: there is none of this name, or it cannot be had here.
        """
        if name == "auto":
            return self.engine
        if name == "plain":
            return lambda: self._plain
        if name != "numba":
            raise InvalidConfig(f"unknown engine {name!r}; allowed: auto, numba, plain")
        engine = self._make()
        if engine is None:
            raise InvalidConfig(f"the engine numba cannot be had here: {kernel(self._kernel_name)[1]}")
        found: _E = engine
        return lambda: found

    def engine(self) -> _E:
        """The engine for the next answer, where nothing else is said."""
        with self._lock:
            if self._compiled is None:
                if self._records < WARM_UP_RECORDS:
                    return self._plain
                self._compiled = self._make() or self._plain
            return self._compiled

    def decoded(self, records: int) -> None:
        """Note that so many records were decoded, by whichever engine."""
        with self._lock:
            self._records += records


_automatic: Choice[Engine] = Choice(_PLAIN, compiled_engine, "fill_columns")


def decoded(records: int) -> None:
    """Note that so many records of v2 batches were decoded in this process, by whichever engine."""
    _automatic.decoded(records)


def chooser(name: EngineName) -> Callable[[], Engine]:
    """What gives the engine of this name for v2 batches; as `Choice.chooser`."""
    return _automatic.chooser(name)
