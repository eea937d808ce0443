"""Fetch answers of Kafka 0.7 to `pyarrow.RecordBatch` with the schema that Spark expects of its Kafka rows.

An offset is the byte at which an entry lies in its log. Messages of a compressed entry share the entry's, and
the column `innerIndex` counts them; of a plain entry it is 0. Key, timestamp, timestampType and headers are
null: 0.7 has none of them.

An engine (`v07_arena` over `v07_kernels`, or `v07_plain`) walks entries; here those that are compressed are
opened, sets within sets too, and faults are put into words.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa

from pyspark_kafkalog.columnar.batch_walk import DECOMPRESSED_BYTES, DECOMPRESSED_RATIO
from pyspark_kafkalog.columnar.columns import (
    BINARY,
    COLUMNS_07,
    HEADERS,
    INNER_INDEX,
    INT32,
    TIMESTAMP,
    Constant,
    arrow_schema,
)
from pyspark_kafkalog.columnar.decoder import DATA_BYTES, MAX_BATCH_BYTES, ROWS, Choice, Decoded, EngineName
from pyspark_kafkalog.columnar.kernel_cache import kernel
from pyspark_kafkalog.columnar.v07_engine import Columns, Engine, Limits, Span, Status, Wanted
from pyspark_kafkalog.columnar.v07_plain import PlainEngine
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.compression import decompress
from pyspark_kafkalog.formats.v07 import entries, verify_entry
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

__all__ = ["COLUMNS_07", "V07BatchDecoder"]

_NULLS = {"key": BINARY, "timestamp": TIMESTAMP, "timestampType": INT32, "headers": HEADERS}
"""The columns that 0.7 has nothing for."""


def _compiled_engine() -> Engine | None:
    found, _ = kernel("fill_entries")
    if found is None:
        return None
    from pyspark_kafkalog.columnar.v07_arena import CompiledEngine

    return CompiledEngine(found)


_engines: Choice[Engine] = Choice(PlainEngine(), _compiled_engine, "fill_entries")


class V07BatchDecoder:
    """Decodes the fetch answers of one partition of a broker.

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
        engine: EngineName = "auto",
        max_entry_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """``columns`` in the order wanted, of `COLUMNS_07`. An entry may decompress to ``max_entry_bytes``,
        all levels together. ``engine`` as in `record_batches.RecordBatchDecoder`.

        Raises:
            InvalidConfig: a column that does not exist, an unknown engine, or ``numba`` where it cannot be
            had.
        """
        self.schema = arrow_schema(columns, COLUMNS_07)
        self._log = TopicPartition(topic, partition, NO_BROKER if broker is None else broker)
        self._max_entry_bytes = max_entry_bytes
        self._wanted = Wanted(*(name in columns for name in ("value", "offset", INNER_INDEX)))
        self._constant = {
            name: Constant(value)
            for name, value in (("topic", topic), ("partition", partition), ("broker", broker))
        }
        self._constant |= {name: Constant(None, kind) for name, kind in _NULLS.items()}
        self._choose = _engines.chooser(engine)
        self.given_to = 0
        """Where reading goes on after the rows that `stream` has given out, also where that raised."""

    @property
    def engine(self) -> str:
        """``numba`` or ``plain``: which one the next answer is decoded with."""
        return self._choose().name

    def decode(self, data: memoryview, start: int, end: int) -> Decoded:
        """The messages of one fetch answer, whose first byte has offset ``start``: those in entries that
        begin before ``end``.

        An incomplete entry at the end is left out; so is what follows once much was decompressed: the reader
        goes on at `Decoded.next_offset`. Where that is ``start``, it must ask for more bytes. ``data`` may
        be used again as soon as this returns.

        Raises:
            CorruptMessage: a length, magic, codec or checksum is wrong, or compressed data is damaged.
            MessageTooLarge: an entry decompresses to more than the limit.
            UnsupportedCompression: a codec's library is not installed.
        """
        answer = _Answer(memoryview(data).cast("B"), self._log, start, end, self._max_entry_bytes)
        answer.room = max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * len(data))
        batches = list(self._decoded(answer))
        return Decoded(batches, answer.next_offset, sum(batch.num_rows for batch in batches))

    def stream(
        self, data: memoryview, start: int, end: int, *, whole: bool = False
    ) -> Generator[pa.RecordBatch, None, int]:
        """The same rows one record batch at a time; its value at the end is where reading goes on.

        This holds no more than one record batch and what one entry decompresses to. ``data`` must stay as it
        is until the end. ``whole``: no rows of an entry are given out before all of it was decoded.
        """
        self.given_to = start
        answer = _Answer(memoryview(data).cast("B"), self._log, start, end, self._max_entry_bytes)
        yield from self._whole_entries(answer) if whole else self._decoded(answer)
        return answer.next_offset

    def _whole_entries(self, answer: _Answer) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for batch in self._decoded(answer):
            held.append(batch)
            if not answer.within_entry:
                yield from held
                held.clear()
                self.given_to = answer.next_offset

    def _decoded(self, answer: _Answer) -> Iterator[pa.RecordBatch]:
        engine, usual = self._choose(), Limits(ROWS, DATA_BYTES)
        limits, status = usual, Status.FULL
        while status is Status.FULL:
            columns = engine.columns(limits, self._wanted)
            status = answer.fill(columns)
            if columns.rows:
                _engines.decoded(columns.rows)
                limits = usual
                yield self._record_batch(columns)
            else:
                # One message alone is larger than all that a record batch usually has. It is there whole.
                limits = Limits(usual.rows, max(usual.data_bytes, columns.need_bytes))

    def _record_batch(self, columns: Columns) -> pa.RecordBatch:
        made, rows = columns.arrays(), columns.rows
        arrays = [
            made[name] if name in made else self._constant[name].rows(rows) for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Answer:
    """One fetch answer. *Not thread-safe: one caller walks it, once.*

    ``next_offset`` is right whenever `fill` has returned; ``room`` is what may still be decompressed, in
    bytes, None without bound.
    """

    def __init__(
        self, data: memoryview, log: TopicPartition, start: int, end: int, max_entry_bytes: int
    ) -> None:
        self._log, self._start = log, start
        self._outer = Span(data, max(0, end - start), start)
        self._inner: list[Span] = []
        """The sets within the entry at hand, each within the one before."""
        self._resume = 0
        """Where the entry at hand ends."""
        self._max_entry_bytes = self._left = max_entry_bytes
        self.room: int | None = None

    @property
    def next_offset(self) -> int:
        """Where reading goes on: behind the last entry of which all messages were given."""
        return self._start + self._outer.position

    @property
    def within_entry(self) -> bool:
        """Whether some messages of the entry at hand were given, and others not yet."""
        return bool(self._inner)

    def fill(self, columns: Columns) -> Status:
        """Append messages until the answer ends or the columns are full: DONE or FULL.

        Raises:
            KafkaError: as `V07BatchDecoder.decode` says.
        """
        try:
            while True:
                span = self._inner[-1] if self._inner else self._outer
                status = columns.take(span)
                if status is Status.FULL:
                    return status
                if status is Status.COMPRESSED:
                    if not self._inner and self.room is not None and self.room <= 0:
                        return Status.DONE
                    self._open(span)
                elif status is Status.FAULT or (status is Status.CUT and span.inner and not span.position):
                    raise _fault(span)
                elif not self._inner:
                    return Status.DONE
                else:
                    self._close()
        except KafkaError as e:
            raise type(e)(f"{self._log}, entry at offset {self.next_offset}: {e}") from e

    def _open(self, span: Span) -> None:
        """Go into the compressed entry at which ``span`` stands."""
        entry = next(entries(span.data[span.position :]))
        verify_entry(entry)
        if not self._inner:
            self._left = self._max_entry_bytes
            self._resume = span.position + entry.size
        data = memoryview(decompress(entry.codec, entry.payload, self._left))
        self._left -= len(data)
        if self.room is not None:
            self.room -= len(data)
        if self._inner:
            span.position += entry.size
        self._inner.append(Span(data, len(data), self.next_offset, inner=True, index=span.index))

    def _close(self) -> None:
        """Leave a set whose messages were all given."""
        done = self._inner.pop()
        if self._inner:
            self._inner[-1].index = done.index
        else:
            self._outer.position = self._resume


def _fault(span: Span) -> CorruptMessage:
    """What is wrong with the entry at which ``span`` stands."""
    where = f"byte {span.position} of the set in it" if span.inner else "its first byte"
    try:
        entry = next(entries(span.data[span.position :]), None)
        if entry is None:
            return CorruptMessage(f"the first of the {len(span.data)} bytes in it is incomplete")
        verify_entry(entry)
    except CorruptMessage as e:
        return CorruptMessage(f"counted from {where}: {e}")
    raise RuntimeError(f"an engine found fault with a good message, at {where}")
