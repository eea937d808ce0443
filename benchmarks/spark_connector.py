"""How does `kafkalog` compare with Spark's own Kafka connector, option for option, on one Apache Kafka?

Both read and write the same topics of one broker in one Spark session of two cores, in turn; the broker runs
on the same cores. The connector's JAR is of Spark 4.2.0, the newest there is, in this project's Spark.
Topics have two partitions and batches of 64 KiB. A value is random hexadecimal digits and then the same once
more, which every codec makes half of or less.

The session has this project's Python daemon. `first_row` is asked with Spark's own too.

What real topics look like is asked in parts of its own (`PARTS`), by size of the values and by records a
batch: producers that do not linger write one. A part is a chapter of its results and can be run alone:
``python -m benchmarks spark_connector.values_100``. `over_tls` reads with TLS, from an Apache Kafka with the
options of its own start script, whose compiler knows AES, and from the bundled broker. `many_partitions` has
a task with little to read for each partition; planning alone is measured at the bundled broker, which has
10,000 partitions in seconds.

Batch reads go to ``noop``; where the rows of a ready-made Arrow source (benchmarks/spark_read.py) come less
than three times as fast as the connector's, that source is what bounds us. The write's own time, which is
taken off both loads, is what writing the ready-made rows takes beyond reading them.
"""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import pyspark_kafkalog as kafkalog
from benchmarks.harness import Measurement, Row, compare, cost, interleave, shown
from benchmarks.raw_client import RawClient, batch, produce_request
from benchmarks.spark_read import BATCH_BYTES, KEY, noop, one_row, session
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.datasource import worker_daemon
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import NewRecord
from tests.support.foreign.apache_kafka import AS_SHIPPED, ApacheKafka, fetch
from tests.support.foreign.secure_kafka import TlsKafka
from tests.support.network.certificates import Authority
from tests.support.spark.spark_environments import connector_jars

CORES = 2
PARTITIONS = 2
READS = ((100, 20_000_000), (1000, 5_000_000))  # value bytes, and rows of the topic
WARM_UP_ROWS = 1_000_000
CODECS = (Codec.NONE, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD)
READ_GOAL, CEILING_GOAL, COLUMNS_GOAL, STREAM_GOAL, SINK_GOAL = 3.0, 0.8, 2.0, 2.0, 3.0
FULL = 0  # records a batch: as many as a broker takes by default, 1 MB of them
FULL_BYTES = 1_000_000
SHAPES = {
    100: {1: 1_000_000, 10: 5_000_000, 100: 10_000_000, FULL: 10_000_000},
    1000: {1: 1_000_000, 10: 2_000_000, 100: 2_000_000, FULL: 2_000_000},
    10_000: {1: 200_000, 10: 200_000, FULL: 200_000},
}
"""Rows of a topic, by bytes of a value and records a batch; a hundred of 10 kB are full."""
SHAPE_GOALS = {100: 3.0, 1000: 2.2, 10_000: 1.5}
STRICT = 1000  # bytes of the values whose goal does not depend on the ready-made batches
MANY, MANY_GOAL, RECORDS_IN_EACH = 200, 1.5, 200
PLANNED = (2000, 10_000)
DIRECT = ((100, 10_000_000, 3.0), (1000, 2_000_000, 2.0))
"""Bytes of a value, rows and goal of loads whose tasks write."""
TLS_READS, TLS_GOAL = ((100, 3_000_000), (1000, 1_000_000)), 2.0
ONE_ROW_GOAL = 0.9
BATCH_MORE = 0.1  # seconds that a trigger may take longer than the connector's
TRIGGER_ROWS, TRIGGERS = 100_000, 20
STREAM_ROWS = 2_000_000  # rows of a trigger where Spark's bookkeeping no longer counts
SINK_ROWS = 2_000_000
WARM_DAEMON = {"spark.python.daemon.module": worker_daemon.__name__}
FEW = 3  # rounds of what takes many seconds; asked for fewer, fewer
OURS, SPARKS, CEILING = "kafkalog", "Spark's connector", "ready-made Arrow batches"
ONE_ROW = "a Python source of one row"
SPARKS_DAEMON, OUR_DAEMON = "Spark's own daemon", "our daemon"
SOURCES = ((OURS, "kafkalog"), (SPARKS, "kafka"))


def run(rounds: int = 7) -> list[Row]:
    """All codecs, streams, loads and the sink; about forty minutes, a quarter of an hour with one round."""
    with _apache_kafka() as servers, session(CORES, _jars() | WARM_DAEMON) as spark:
        rows: list[Row] = []
        for answer in Contest(spark, servers, rounds).answers():
            rows += shown(answer)
    return rows


def first_row(rounds: int = 7) -> list[Row]:
    """One row of a warm session, with workers from Spark's own daemon and from ours; about two minutes."""
    rows: list[Row] = []
    with _apache_kafka() as servers:
        for daemon, settings in ((SPARKS_DAEMON, {}), (OUR_DAEMON, WARM_DAEMON)):
            with session(CORES, _jars() | settings) as spark:
                rows += shown(Contest(spark, servers, rounds).first_rows(daemon))
    return rows


def _values(value_bytes: int, rounds: int) -> list[Row]:
    """Batches of all sizes with values of one size; about five minutes with five rounds."""
    rows: list[Row] = []
    with _apache_kafka() as servers, session(CORES, _jars() | WARM_DAEMON) as spark:
        contest = Contest(spark, servers, rounds)
        contest.warm_up(parquet=False)
        for per_batch, count in SHAPES[value_bytes].items():
            rows += shown(contest.batches(value_bytes, per_batch, count))
    return rows


def many_partitions(rounds: int = 7) -> list[Row]:
    """A task for each of many partitions, and planning alone; about three minutes."""
    with _apache_kafka() as servers, session(CORES, _jars() | WARM_DAEMON) as spark:
        rows = shown(Contest(spark, servers, rounds).small_tasks())
    with (
        tempfile.TemporaryDirectory() as directory,
        start_broker({"log.retention.ms": -1}, data_dir=Path(directory)) as running,
        session(CORES, _jars() | WARM_DAEMON) as spark,
    ):
        contest = Contest(spark, running.bootstrap_servers, rounds)
        for count in PLANNED:
            rows += shown(contest.planning(count))
    return rows


def direct_loads(rounds: int = 7) -> list[Row]:
    """Loads into Parquet whose tasks write, in Spark and without it; about five minutes."""
    rows: list[Row] = []
    with _apache_kafka() as servers, session(CORES, _jars() | WARM_DAEMON) as spark:
        contest = Contest(spark, servers, rounds)
        contest.warm_up()
        for value_bytes, count, goal in DIRECT:
            with contest.topic(value_bytes, count, Codec.NONE) as name:
                rows += shown(contest.direct(name, value_bytes, count, goal))
    return rows


def over_tls(rounds: int = 7) -> list[Row]:
    """Reads over TLS, of both brokers; about four minutes with five rounds."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory, session(CORES, _jars() | WARM_DAEMON) as spark:
        authority = Authority.made(Path(directory, "certificates"))
        trust = {"ssl.truststore.location": str(authority.file), "ssl.truststore.type": "PEM"}
        for broker, running in (("Apache Kafka", _kafka_over_tls), ("the bundled broker", _own_over_tls)):
            with running(Path(directory, broker), authority) as (servers, secured):
                given = {"bootstrap.servers": secured, "security.protocol": "SSL", **trust}
                options = {f"kafka.{name}": value for name, value in given.items()}
                contest = Contest(spark, servers, rounds, options)
                contest.warm_up(parquet=False)
                for value_bytes, count in TLS_READS:
                    with contest.topic(value_bytes, count, Codec.NONE) as name:
                        what = f"TLS, {broker}: read {count // 10**6} M x {value_bytes} B to noop"
                        answers = contest.contest(
                            what, name, value_bytes, count, goal=TLS_GOAL, rounds=rounds, strict=True
                        )
                        rows += shown([answers[0], answers[-1]])
    return rows


@contextmanager
def _kafka_over_tls(directory: Path, authority: Authority) -> Iterator[tuple[str, str]]:
    """An Apache Kafka: where it listens without TLS, and with it."""
    kafka = TlsKafka(fetch(), directory, authority, options=AS_SHIPPED)
    kafka.start()
    try:
        yield kafka.bootstrap_servers, kafka.servers["TLS"]
    finally:
        kafka.stop()


@contextmanager
def _own_over_tls(directory: Path, authority: Authority) -> Iterator[tuple[str, str]]:
    """The bundled broker, likewise."""
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("bundled", "127.0.0.1"),
        "log.retention.ms": -1,
    }
    with start_broker(properties, data_dir=directory) as running:
        yield running.bootstrap_servers, f"127.0.0.1:{running.port_of('SSL')}"


PARTS: dict[str, Callable[[int], list[Row]]] = {
    "codecs_and_streams": run,
    "first_row": first_row,
    **{f"values_{value_bytes}": partial(_values, value_bytes) for value_bytes in SHAPES},
    "direct_loads": direct_loads,
    "many_partitions": many_partitions,
    "over_tls": over_tls,
}
"""Each a chapter of its own."""


def _jars() -> dict[str, str]:
    return {"spark.jars": ",".join(map(str, connector_jars()))}


@contextmanager
def _apache_kafka() -> Iterator[str]:
    """The address of a broker of its own."""
    with tempfile.TemporaryDirectory() as directory:
        kafka = ApacheKafka(fetch(), Path(directory)).start()
        try:
            yield kafka.bootstrap_servers
        finally:
            kafka.stop()


class Contest:
    """The questions, in one session against one broker."""

    _numbers = itertools.count(1)  # of topics, whoever asks: the broker takes its time to delete one

    def __init__(
        self, spark: Any, servers: str, rounds: int, options: Mapping[str, str] | None = None
    ) -> None:
        """``options`` of both sources go before theirs: topics are written without them."""
        self.spark, self.servers, self.options = spark, servers, options or {}
        self.rounds, self.few = rounds, min(rounds, FEW)

    def first_rows(self, daemon: str) -> list[Row]:
        """Beside the connector's, and beside that of a Python source which has one row and asks nobody."""
        self.spark.dataSource.register(one_row())
        with self.topic(READS[0][0], WARM_UP_ROWS, Codec.NONE) as name:
            frames = {what: partial(self.frame, source, name) for what, source in SOURCES}
            frames[ONE_ROW] = self.spark.read.format("one_row").load
            calls = {
                what: partial(lambda frame: frame().limit(1).collect(), frame)
                for what, frame in frames.items()
            }
            took = interleave(calls, self.rounds, warm_up=2)
        what = f"First row of a warm session, workers from {daemon}"
        return [
            cost(what, took[OURS].median, took[other].median, "s", goal, f"peer: {other}")
            for other, goal in ((SPARKS, 1.0), (ONE_ROW, ONE_ROW_GOAL))
        ]

    def answers(self) -> Iterator[list[Row]]:
        """The rows of one question after the other."""
        self.warm_up()
        for value_bytes, count in READS:
            for codec in CODECS:
                with self.topic(value_bytes, count, codec) as name:
                    yield self.read(name, value_bytes, count, codec)
                    if (value_bytes, codec) == (READS[0][0], Codec.NONE):
                        yield [self.columns(name, count)]
                        yield self.stream(name)
                        yield self.load(name, value_bytes, count)
        yield self.sink()

    def warm_up(self, *, parquet: bool = True) -> None:
        """Start workers, load kernels and compile, with a topic that takes seconds and not minutes."""
        for codec in (Codec.LZ4, Codec.NONE):
            with self.topic(READS[0][0], WARM_UP_ROWS, codec) as name, tempfile.TemporaryDirectory() as place:
                for frame in (self.frame("kafkalog", name), self.frame("kafka", name)):
                    for _ in range(2):
                        noop(frame)
                        if parquet:
                            frame.write.mode("overwrite").parquet(place)

    def batches(self, value_bytes: int, per_batch: int, count: int) -> list[Row]:
        """A topic of so many records a batch, and the first row of it."""
        size = per_batch or FULL_BYTES // (value_bytes + len(KEY) + 10)
        what = f"{value_bytes} B, {f'full batches ({size})' if per_batch == FULL else f'{size} a batch'}"
        with self.topic(value_bytes, count, Codec.NONE, per_batch=size) as name:
            rows = self.contest(
                what, name, value_bytes, count,
                goal=SHAPE_GOALS[value_bytes], rounds=self.rounds, strict=value_bytes == STRICT,
            )  # fmt: skip
            return [*rows, self.first_row(name, f"{what}: first row")]

    def small_tasks(self) -> list[Row]:
        """A task for each of many partitions with little in it."""
        data, _ = batch(RECORDS_IN_EACH * 110 + 61, 100)
        name = f"measured-{next(self._numbers)}"
        with RawClient(self.port) as client:
            client.create_topic(name, MANY)
            _until_led(partial(client.produce, name, data, 1, partition=MANY - 1))
            client.call(produce_request(name, data, range(MANY - 1)))
        ready = self.spark.read.format("ready_made")
        ready = ready.options(rows=RECORDS_IN_EACH, valuebytes=100, tasks=MANY).load()
        calls: dict[str, Callable[[], None]] = {
            OURS: lambda: noop(self.frame("kafkalog", name)),
            SPARKS: lambda: noop(self.frame("kafka", name)),
            CEILING: lambda: noop(ready),
        }
        took = interleave(calls, self.rounds, MANY)
        what = f"{MANY} partitions of {RECORDS_IN_EACH} x 100 B"
        note = f"{took[OURS].median / MANY * 1000:.1f} and {took[SPARKS].median / MANY * 1000:.1f} ms a task"
        return [
            compare(what, took[OURS], took[SPARKS], "tasks/s", MANY_GOAL, note),
            compare(what, took[OURS], took[CEILING], "tasks/s"),
        ]

    def planning(self, count: int) -> list[Row]:
        """What comes before the first task: ``count`` partitions with a record in each."""
        name, (data, _) = f"planned-{count}", batch(200, 100)
        with RawClient(self.port) as client:
            client.create_topic(name, count)
            for first in range(0, count, 500):
                client.call(produce_request(name, data, range(first, min(count, first + 500))))

        def plan(source: str, **options: str) -> None:
            assert self.frame(source, name, **options).rdd.getNumPartitions() == count

        rows = []
        # With the option both have to know how much there is.
        divided = {"maxRecordsPerPartition": "1000"}
        for what, options in (("", {}), (", maxRecordsPerPartition", divided)):
            calls = {name: partial(plan, source, **options) for name, source in SOURCES}
            ours, sparks = interleave(calls, self.rounds, count).values()
            note = f"{ours.median:.2f} and {sparks.median:.2f} s"
            rows.append(compare(f"plan {count:,} partitions{what}", ours, sparks, "partitions/s", note=note))
        return rows

    @property
    def port(self) -> int:
        return int(self.servers.rpartition(":")[2])

    @contextmanager
    def topic(
        self, value_bytes: int, count: int, codec: Codec, *, per_batch: int | None = None
    ) -> Iterator[str]:
        """A topic of about ``count`` records, and only for as long as it is measured. Batches are of 64 KiB
        unless ``per_batch`` says how many records they have.
        """
        name = f"measured-{next(self._numbers)}"
        digits = random.Random(value_bytes)
        per_batch = per_batch or BATCH_BYTES // (value_bytes + len(KEY) + 10)
        halves = ["".join(digits.choices("0123456789abcdef", k=value_bytes // 2)) for _ in range(per_batch)]
        rows = [NewRecord(2 * half.encode(), KEY, 1_700_000_000_000 + i) for i, half in enumerate(halves)]
        data = encode_batch(rows, codec=codec)
        with RawClient(self.port) as client:
            client.create_topic(name, PARTITIONS)
            for number in range(PARTITIONS):
                _until_led(partial(client.produce, name, data, 1, partition=number))
                client.produce(name, data, max(1, count // per_batch // PARTITIONS), partition=number)
            yield name
            client.delete_topic(name)

    def read(self, topic: str, value_bytes: int, count: int, codec: Codec) -> list[Row]:
        what = f"Read {count // 10**6} M x {value_bytes} B, {codec.name.lower()}, to noop"
        return self.contest(what, topic, value_bytes, count, goal=READ_GOAL, rounds=self.few)

    def contest(
        self,
        what: str,
        topic: str,
        value_bytes: int,
        count: int,
        *,
        goal: float,
        rounds: int,
        strict: bool = False,
    ) -> list[Row]:
        """Rows per second and processor time of a whole read, against the connector and the ceiling.

        The goal is lower where the ceiling is, unless it is ``strict``.
        """
        frames = {OURS: self.frame("kafkalog", topic), SPARKS: self.frame("kafka", topic)}
        frames[CEILING] = self.ready_made(value_bytes, count)
        calls = {name: partial(noop, frame) for name, frame in frames.items()}
        took, spent = spending(calls, rounds, count)
        ceiling = took[CEILING].rate / took[SPARKS].rate
        spread = f"spread {took[OURS].spread:.1f}x and {took[SPARKS].spread:.1f}x"
        note = f"ready-made batches: {ceiling:.2f}x; {spread}"
        if not strict and CEILING_GOAL * ceiling < goal:
            goal = CEILING_GOAL * ceiling
            note = f"goal: 80 % of the ready-made batches' {ceiling:.2f}x; {spread}"
        return [
            compare(what, took[OURS], took[SPARKS], "Mrows/s", goal, note),
            compare(what, took[OURS], took[CEILING], "Mrows/s", CEILING_GOAL),
            _spent_row(what, spent, count),
        ]

    def first_row(self, topic: str, what: str) -> Row:
        """One row of a warm session, everything from ``load()`` on."""
        calls = {
            name: partial(lambda source: self.frame(source, topic).limit(1).collect(), source)
            for name, source in SOURCES
        }
        took = interleave(calls, self.rounds, warm_up=2)
        return cost(what, took[OURS].median, took[SPARKS].median, "s", note=f"peer: {SPARKS}")

    def columns(self, topic: str, count: int) -> Row:
        frames = {
            "offset and timestamp": self.frame("kafkalog", topic, columns="offset,timestamp"),
            "all columns": self.frame("kafkalog", topic),
        }
        calls = {name: partial(noop, frame) for name, frame in frames.items()}
        took = interleave(calls, self.few, count, warm_up=0)
        return compare("columns=offset,timestamp", *took.values(), "Mrows/s", COLUMNS_GOAL)

    def load(self, topic: str, value_bytes: int, count: int) -> list[Row]:
        """The topic into Parquet, whole and without the write's own time."""
        ready = self.ready_made(value_bytes, count)
        with tempfile.TemporaryDirectory() as directory:

            def write(frame: Any) -> None:
                frame.write.mode("overwrite").parquet(str(Path(directory) / "table"))

            calls: dict[str, Callable[[], None]] = {
                OURS: lambda: write(self.frame("kafkalog", topic)),
                SPARKS: lambda: write(self.frame("kafka", topic)),
                "write": lambda: write(ready),
                "read": lambda: noop(ready),
            }
            took = interleave(calls, self.few, count, warm_up=0)
        own = took["write"].median - took["read"].median
        ours, sparks = (max(took[name].median - own, 1e-9) for name in (OURS, SPARKS))
        what = f"{count // 10**6} M x {value_bytes} B to Parquet"
        note = f"peer: {SPARKS}; the write's own time is {own:.1f} s"
        return [
            compare(what, took[OURS], took[SPARKS], "Mrows/s"),
            cost(f"{what}, without the write's own time", ours, sparks, "s", READ_GOAL, note),
        ]

    def direct(self, topic: str, value_bytes: int, count: int, goal: float) -> list[Row]:
        """The topic into Parquet by our tasks, files forced to disk, against Spark's reader and writer."""
        with tempfile.TemporaryDirectory() as directory:

            def load(spark: Any) -> None:
                place = Path(directory, uuid.uuid4().hex)
                options = {"kafka.bootstrap.servers": self.servers, "subscribe": topic}
                with kafkalog.load(spark, name="direct", offsets=place / "offsets", **options) as loading:
                    loading.write_parquet(place / "table", compression="snappy")
                shutil.rmtree(place)

            def write() -> None:
                self.frame("kafka", topic).write.mode("overwrite").parquet(f"{directory}/theirs")

            calls: dict[str, Callable[[], None]] = {
                "tasks in Spark": lambda: load(self.spark),
                "tasks without Spark": lambda: load(None),
                SPARKS: write,
            }
            took = interleave(calls, self.few, count, warm_up=1)
        what = f"load of {count // 10**6} M x {value_bytes} B to Parquet (snappy)"
        return [
            compare(f"{what}, {name}", took[name], took[SPARKS], "Mrows/s", goal)
            for name in ("tasks in Spark", "tasks without Spark")
        ]

    def stream(self, topic: str) -> list[Row]:
        """Triggers of a stream that has all its rows before it begins."""
        triggers: dict[str, list[float]] = {OURS: [], SPARKS: []}
        sustained = {OURS: Measurement(OURS), SPARKS: Measurement(SPARKS)}
        for name, source in SOURCES * self.few:
            small = self.progress(source, topic, TRIGGER_ROWS, TRIGGERS)
            # The first triggers start workers and compile.
            triggers[name] += [each["durationMs"]["triggerExecution"] / 1000 for each in small[3:]]
            large = self.progress(source, topic, STREAM_ROWS, 6)[1:]
            seconds = sum(each["durationMs"]["triggerExecution"] for each in large) / 1000
            sustained[name].seconds.append(seconds / sum(each["numInputRows"] for each in large))
        took = {name: Measurement(name, 1.0, seconds) for name, seconds in triggers.items()}
        question = f"Stream, {STREAM_ROWS // 10**6} M rows a trigger: sustained"
        return [
            _not_much_later(f"Stream, {TRIGGER_ROWS} rows a trigger: a trigger", took, BATCH_MORE),
            compare(question, sustained[OURS], sustained[SPARKS], "Mrows/s", STREAM_GOAL),
        ]

    def progress(self, source: str, topic: str, rows: int, triggers: int) -> list[Any]:
        """The reports of so many triggers of a new query that had rows."""
        seen: list[Any] = []
        end = str(rows * triggers // PARTITIONS)
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows)}
        reader = self.spark.readStream.format(source).option("kafka.bootstrap.servers", self.servers)
        frame = reader.option("subscribe", topic).options(**options).load().where(f"offset < {end}")
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
                .trigger(processingTime="0 seconds").start()
            )  # fmt: skip
            try:
                while len(seen) < triggers:
                    if query.exception() is not None:
                        raise RuntimeError(str(query.exception()))
                    known = {each["batchId"] for each in seen}
                    for each in query.recentProgress:
                        if each["numInputRows"] and each["batchId"] not in known:
                            seen.append(each)
                    query.awaitTermination(0.05)
            finally:
                query.stop()
        return seen[:triggers]

    def sink(self) -> list[Row]:
        """Rows that Spark makes, written to a topic, and the processor time of it."""
        rows = self.spark.range(SINK_ROWS).selectExpr(
            "CAST(id AS STRING) AS key", "repeat(CAST(id AS STRING), 15) AS value"
        )
        with self.topic(100, 1, Codec.NONE) as name:

            def write(source: str) -> None:
                writer = rows.write.format(source).option("kafka.bootstrap.servers", self.servers)
                writer.option("topic", name).mode("append").save()

            writes = {OURS: partial(write, "kafkalog"), SPARKS: partial(write, "kafka")}
            for each in writes.values():
                each()
            took, spent = spending(writes, self.few, SINK_ROWS)
        what = f"Write {SINK_ROWS // 10**6} M rows of about 100 B to a topic"
        return [compare(what, *took.values(), "Mrows/s", SINK_GOAL), _spent_row(what, spent, SINK_ROWS)]

    def frame(self, source: str, topic: str, **options: str) -> Any:
        reader = self.spark.read.format(source).option("kafka.bootstrap.servers", self.servers)
        return reader.options(subscribe=topic, **self.options, **options).load()

    def ready_made(self, value_bytes: int, count: int) -> Any:
        options = {"rows": count // PARTITIONS, "valuebytes": value_bytes, "tasks": PARTITIONS}
        return self.spark.read.format("ready_made").options(**options).load()


def _spent_row(what: str, spent: Mapping[str, Spent], count: int) -> Row:
    million = {name: Spent(*(1e6 / count * seconds for seconds in each)) for name, each in spent.items()}
    ours, sparks = million[OURS], million[SPARKS]
    note = (
        f"peer: {SPARKS}; JVM {ours.jvm:.2f}, Python {ours.workers:.2f}; the broker's beside it: "
        f"{ours.broker:.2f}, for the peer {sparks.broker:.2f}"
    )
    if CEILING in million:
        note += f"; ready-made: {million[CEILING].spark:.2f}"
    question = f"{what}: processor seconds for a million rows"
    return cost(question, ours.spark, sparks.spark, "s", note=note)


def _until_led(produce: Callable[[], object]) -> None:
    """A topic that was just made has no leader yet."""
    deadline = time.monotonic() + 10
    while True:
        try:
            produce()
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _not_much_later(question: str, took: dict[str, Measurement], more: float) -> Row:
    ours, sparks = took[OURS].median, took[SPARKS].median
    allowed = f"{question}, {more} s more allowed"
    return Row(allowed, ours, sparks, (sparks + more) / ours, 1.0, "s", f"peer: {SPARKS}")


class Spent(NamedTuple):
    """Processor seconds, by who used them."""

    jvm: float
    workers: float
    broker: float

    @property
    def spark(self) -> float:
        return self.jvm + self.workers


def spending(
    calls: Mapping[str, Callable[[], object]], rounds: int, amount: float = 1.0, *, warm_up: int = 0
) -> tuple[dict[str, Measurement], dict[str, Spent]]:
    """As `interleave`, with the median processor seconds of a call.

    Process by process: Spark ends workers that were idle for a minute, and nobody keeps what they had used.
    """
    spent: dict[str, list[Spent]] = {name: [] for name in calls}

    def noted(name: str) -> None:
        before = _cpu_seconds()
        calls[name]()
        used = dict.fromkeys(Spent._fields, 0.0)
        for process, (kind, seconds) in _cpu_seconds().items():
            used[kind] += seconds - before.get(process, (kind, 0.0))[1]
        spent[name].append(Spent(**used))

    took = interleave({name: partial(noted, name) for name in calls}, rounds, amount, warm_up=warm_up)
    counted = {name: zip(*each[warm_up:], strict=True) for name, each in spent.items()}
    return took, {name: Spent(*map(statistics.median, each)) for name, each in counted.items()}


def _cpu_seconds() -> dict[psutil.Process, tuple[str, float]]:
    """Of each process, what it is to us and what it has used."""
    found = {}
    for child in psutil.Process().children():
        command = " ".join(child.cmdline())
        if "spark.deploy" in command:
            found[child] = "jvm", sum(child.cpu_times()[:2])
            for worker in child.children(recursive=True):
                found[worker] = "workers", sum(worker.cpu_times()[:2])
        elif "kafka.Kafka" in command or start_broker.__module__ in command:
            found[child] = "broker", sum(child.cpu_times()[:2])
    return found
