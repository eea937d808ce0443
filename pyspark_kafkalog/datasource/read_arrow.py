"""`read_arrow`: the batch read for programs without Spark, as a `pyarrow.RecordBatchReader` (docs/arrow.md).
Options, rows and errors are those of ``spark.read.format("kafkalog")``, by the same code. Instead of tasks,
one reader goes from partition to partition.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS, COLUMNS_07, arrow_schema
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.topics_and_offsets import OffsetsByPartition
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.start_positions import asked_ranges, bounds_now
from pyspark_kafkalog.errors import InvalidConfig, briefly

log = logging.getLogger(__name__)

FETCH_BYTES = 2 << 20
"""Default ``kafka.max.partition.fetch.bytes``.

Spark's tasks, which wait for the JVM, use 8 MiB; without waits decoding from the processor's cache is 50 %
faster (``benchmarks/read_arrow.py``).
"""
_FETCH_OPTION = "kafka.max.partition.fetch.bytes"
_OF_TASKS = ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "topicPartitionsPerTask")


@briefly
def read_arrow(
    servers: str | Iterable[str] | None = None,
    topics: str | Iterable[str] | None = None,
    *,
    pattern: str | None = None,
    options: Mapping[str, object] | None = None,
    **more_options: object,
) -> pa.RecordBatchReader:
    """The records of Kafka topics as Arrow record batches of about 1 MiB, partition by partition.

    ``servers``, ``topics`` and ``pattern`` are the options ``kafka.bootstrap.servers``, ``subscribe`` and
    ``subscribePattern``. All other options of ``spark.read.format("kafkalog")`` are keywords, or, if their
    names have dots, in ``options``. Values may be Python's own: True, 5, a list for names separated by
    commas, a mapping for JSON; None means not given.

    The reader ends at the logs' ends at the time of this call. It holds connections from its first batch
    until it has read everything, has failed, or is closed: use it in a ``with`` block. *Thread-safe.*

    Raises:
        InvalidConfig: an option is wrong, or does not fit the existing partitions.
        KafkaError: the cluster did not answer, or a topic does not exist. Reading raises the same errors.
    """
    named = {
        "servers": ("kafka.bootstrap.servers", servers),
        "topics": ("subscribe", topics),
        "pattern": ("subscribePattern", pattern),
    }
    given: list[tuple[str, str, object]] = [
        (f"the argument {argument}", name, value) for argument, (name, value) in named.items()
    ]
    given += [(f"options[{name!r}]", name, value) for name, value in (options or {}).items()]
    given += [(f"the keyword {name}", name, value) for name, value in more_options.items()]
    parsed = _parsed(_texts(given))
    schema = arrow_schema(parsed.row_columns, COLUMNS_07 if parsed.per_broker else COLUMNS)
    return ArrowReader(schema, _Batches(_rows(parsed, *_planned(parsed))))


def _texts(given: Iterable[tuple[str, str, object]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    for place, name, value in given:
        if value is None:
            continue
        first = places.setdefault(name.lower(), place)
        if first != place:
            raise InvalidConfig(f"option '{name}' is given twice, as {first} and as {place}; leave one out")
        texts[name] = _text(name, value)
    return texts


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, os.PathLike)):
        return str(value)
    if isinstance(value, Mapping):
        with suppress(TypeError, ValueError):
            return json.dumps(value)
    elif isinstance(value, Iterable):
        with suppress(TypeError):
            return ",".join(value)
    raise InvalidConfig(
        f"option '{name}' is text, a whole number, True or False, a list of names or a mapping; got {value!r}"
    )


def _parsed(texts: Mapping[str, str]) -> BatchOptions:
    options, given = parse_batch_options(texts), {name.lower() for name in texts}
    if isinstance(options.wire, ConsumerConfig) and _FETCH_OPTION not in given:
        options = replace(options, wire=replace(options.wire, max_partition_fetch_bytes=FETCH_BYTES))
    for name in _OF_TASKS:
        if name.lower() in given:
            log.warning("option %s has no meaning in read_arrow, which has no tasks, and is ignored", name)
    if options.load is None:
        return options
    if not options.load.looks_back:
        raise InvalidConfig(
            f"loadName={options.load.name} names a load, which is read and committed with Spark, by "
            "kafkalog.load(); read_arrow commits nothing. With between, asOf or startingOffsets=commit:N it "
            "reads again what loads have read"
        )
    # Imported here: other reads need no ledger.
    from pyspark_kafkalog.datasource.batch.load_planning import read_again

    return read_again(options, options.load)


def _planned(options: BatchOptions) -> tuple[list[OffsetRange], OffsetsByPartition]:
    """The ranges, and where they start now: a start may stay a placeholder, since retention may delete
    records before their turn.
    """
    with closing(open_cluster(options)) as cluster:
        asked = asked_ranges(options, cluster, sorted(cluster.leaders()))
        bounds = bounds_now(cluster, asked)
    ranges = [(r, *bounds[r.topic_partition]) for r in asked]
    wanted = [OffsetRange(r.topic_partition, r.start, end) for r, start, end in ranges if start < end]
    return wanted, {partition: start for partition, (start, _) in bounds.items()}


def _rows(
    options: BatchOptions, ranges: Sequence[OffsetRange], starts: OffsetsByPartition
) -> Generator[pa.RecordBatch, None, None]:
    with closing(open_cluster(options, is_task=True)) as cluster:
        yield from cluster.rows_of_all(ranges, options.row_columns, options.topic_ids or {}, starts)


class _Batches(Iterator[pa.RecordBatch]):
    """*Thread-safe by its lock.* After a failure it fails again: its end would look like the topics' end."""

    def __init__(self, rows: Generator[pa.RecordBatch, None, None]) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    @briefly
    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                return next(self._rows)
            except StopIteration:
                raise
            except BaseException as e:
                self._failure = e
                raise

    def close(self) -> None:
        """Close the connections; waits for a batch that is being read."""
        with self._lock:
            self._rows.close()
            self._failure = ValueError("this reader of Kafka topics is closed")


class ArrowReader(pa.ipc.RecordBatchStreamReader):  # type: ignore[misc]  # pyarrow has no types
    """The reader of `read_arrow`: a `pyarrow.RecordBatchReader` whose `close` closes the connections.

    Readers of `RecordBatchReader.from_batches` have a `close` that does nothing, and only readers of IPC
    streams can be subclassed. So Arrow's C++ library reads such a stream, which costs one copy. Iteration,
    tables, and the C stream for DuckDB and Polars avoid it.
    """

    def __init__(self, schema: pa.Schema, batches: _Batches) -> None:
        self._batches = batches
        super().__init__(pa.PythonFile(_IpcStream(schema, batches), mode="r"))

    def read_next_batch(self) -> pa.RecordBatch:
        return next(self._batches)

    def read_all(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, self.schema)

    def close(self) -> None:
        self._batches.close()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        exported = pa.RecordBatchReader.from_batches(self.schema, self._batches)
        return exported.__arrow_c_stream__(requested_schema)


class _IpcStream:
    """*Not thread-safe.* Batches as a read-only file in Arrow's streaming format."""

    closed = False

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._messages = self._encoded(schema, batches)
        self._left = memoryview(b"")

    @staticmethod
    def _encoded(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
        yield schema.serialize()
        for batch in batches:
            yield batch.serialize()

    def read_buffer(self, size: int) -> pa.Buffer:
        """The next ``size`` bytes of a message; pyarrow asks for no others, and for bytes after the last."""
        if not self._left:
            self._left = memoryview(next(self._messages, b""))
        part, self._left = self._left[:size], self._left[size:]
        return pa.py_buffer(part)

    def read(self, size: int) -> bytes:
        return bytes(self.read_buffer(size))

    def close(self) -> None:
        """Does nothing: the reader closes its batches."""
