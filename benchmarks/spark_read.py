"""How much of what Spark can take from any Python source does reading Kafka reach?

The peer is a source that yields one ready-made Arrow batch again and again: same columns, same sizes, the
same number of rows and tasks, no network and no decoding. Both are written to ``noop`` in one session, in
turn. What is between the two is everything this project does: fetching from the bundled broker and decoding.
Records have a 10-byte key and lie uncompressed in batches of 64 KiB; the broker runs on the same cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.broker import scratch
from benchmarks.harness import Measurement, Row, compare, interleave
from benchmarks.raw_client import RawClient
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.datasource.options.row_schema import column_names, spark_schema
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.java_runtime import ensure_java
from pyspark_kafkalog.types import NewRecord

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = column_names(None, include_headers=False, include_broker=False)
KEY = b"key-123456"
BATCH_BYTES = 64 << 10
YIELDED_BYTES = 1 << 20  # about what our decoder makes one record batch of
CORES = 2
ROWS_BY_VALUE_BYTES = {100: 5_000_000, 1000: 800_000}  # rows of one task; a run then takes seconds
GOAL = 0.8


def run(rounds: int = 7) -> list[Row]:
    """All rows of this question; about three minutes."""
    rows = []
    with (
        scratch() as directory,
        start_broker({"log.retention.ms": -1}, data_dir=directory) as running,
        session(CORES) as spark,
    ):
        for value_bytes, count in ROWS_BY_VALUE_BYTES.items():
            topics = [f"{value_bytes}-{number}" for number in range(CORES)]
            for topic in topics:
                fill(running.port, topic, value_bytes, count)
            contest = Contest(spark, running.bootstrap_servers, value_bytes, count, rounds)
            rows += [contest.against_ready_made(topics[:1]), contest.against_ready_made(topics)]
            if value_bytes == min(ROWS_BY_VALUE_BYTES):
                rows.append(contest.pruned(topics[:1]))
    return rows


class Contest:
    """One size of values, read in one session from one broker."""

    def __init__(self, spark: Any, servers: str, value_bytes: int, count: int, rounds: int) -> None:
        self.spark, self.servers = spark, servers
        self.value_bytes, self.count, self.rounds = value_bytes, count, rounds

    def against_ready_made(self, topics: Sequence[str]) -> Row:
        """A task for each topic, against as many tasks of the ready-made source."""
        total = self.count * len(topics)
        ready = (
            self.spark.read.format("ready_made")
            .options(rows=self.count, valuebytes=self.value_bytes, tasks=len(topics))
            .load()
        )
        contestants = {"kafkalog": self.frame(topics), "ready-made Arrow batches": ready}
        measured = self._measure(contestants, total)
        tasks = f"{len(topics)} task{'s' if len(topics) > 1 else ''}"
        question = f"Spark read to noop, values of {self.value_bytes} B, {tasks}"
        return compare(question, *measured, "Mrows/s", GOAL)

    def pruned(self, topics: Sequence[str]) -> Row:
        contestants = {
            "two": self.frame(topics, columns="offset,timestamp"),
            "all columns": self.frame(topics),
        }
        measured = self._measure(contestants, self.count * len(topics))
        return compare(f"columns=offset,timestamp, values of {self.value_bytes} B", *measured, "Mrows/s")

    def frame(self, topics: Sequence[str], **options: str) -> Any:
        return (
            self.spark.read.format("kafkalog")
            .option("kafka.bootstrap.servers", self.servers)
            .options(subscribe=",".join(topics), **options)
            .load()
        )

    def _measure(self, frames: dict[str, Any], total: int) -> Iterable[Measurement]:
        calls = {name: partial(noop, frame) for name, frame in frames.items()}
        return interleave(calls, self.rounds, total).values()


def fill(port: int, topic: str, value_bytes: int, count: int) -> None:
    """A topic of ``count`` records and up to a batch more: the same batch again and again."""
    value = bytes(i % 251 for i in range(value_bytes))
    rows = range(BATCH_BYTES // (value_bytes + len(KEY) + 10))
    data = encode_batch([NewRecord(value, KEY, 1_700_000_000_000 + n) for n in rows])
    with RawClient(port) as client:
        client.create_topic(topic)
        client.produce(topic, data, -(-count // len(rows)))


class ReadyMade(DataSource):
    """``rows`` rows with values of ``valuebytes`` from each of ``tasks`` tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> Any:
        return spark_schema(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  (Spark names it)
        return ReadyMadeReader(*(int(self.options[name]) for name in ("rows", "valuebytes", "tasks")))


class ReadyMadeReader(DataSourceReader):
    """Makes one batch and yields it until all rows are there."""

    def __init__(self, rows: int, value_bytes: int, tasks: int) -> None:
        self.rows, self.value_bytes, self.tasks = rows, value_bytes, tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks)]

    def read(self, _: InputPartition) -> Iterator[Any]:
        batch = ready_made(YIELDED_BYTES // (self.value_bytes + len(KEY) + 10), self.value_bytes)
        left = self.rows
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def one_row() -> type[DataSource]:
    """A source of one row. Made here, so that it is pickled by value: a worker imports nothing for it."""

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002  (Spark names it)
            yield (1,)

    class OneRow(DataSource):
        @classmethod
        def name(cls) -> str:
            return "one_row"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  (Spark names it)
            return Reader()

    return OneRow


def ready_made(rows: int, value_bytes: int) -> Any:
    """A record batch as the decoder makes it."""
    import pyarrow as pa

    from pyspark_kafkalog.columnar.decoder import arrow_schema

    columns = {
        "key": [KEY] * rows, "value": [bytes(i % 251 for i in range(value_bytes))] * rows,
        "topic": ["measured"] * rows, "partition": [0] * rows, "offset": range(rows),
        "timestamp": [1_700_000_000_000_000 + 1000 * i for i in range(rows)], "timestampType": [0] * rows,
    }  # fmt: skip
    schema = arrow_schema(COLUMNS)
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


@contextmanager
def session(cores: int, configs: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A quiet session whose workers can import this module."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), str(ROOT / "broker"), os.environ.get("PYTHONPATH")])
    )
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config(map=dict(configs or {}))
        .getOrCreate()
    )
    try:
        spark.dataSource.register(ReadyMade)
        yield spark
    finally:
        spark.stop()


def noop(frame: Any) -> None:
    """Read all of it, as a write would."""
    frame.write.format("noop").mode("overwrite").save()
