"""What does a load cost above the read and the write that it is made of?

A load of 20 million records of 100 bytes, in eight tasks, goes to Parquet. Every call into its ledger is
timed, in the driver and in each task, with the fsyncs in it: how long the load waits for them, against its
duration. Two tasks run at once, so the load waits for half of what they wait. The same records are then
read and written without a load, in turn with whole loads: what is between the two is the ledger, the
counting of what was read, and forcing the files to disk. And a ledger with 10,000 commits is planned from,
against one with 10.

The broker's log is in memory; ledger and Parquet files of the loads are on the disk that holds temporary
files. In `PARTS` the ledger is in an object store besides, moto's, whose answers take 50 ms longer.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql.datasource import InputPartition

import pyspark_kafkalog as kafkalog
from benchmarks.broker import scratch
from benchmarks.harness import LIMIT, Row, compare, cost, interleave
from benchmarks.spark_read import fill, session
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.datasource import source
from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import PartitionFacts, Plan, make_plan
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.types import TopicPartition
from tests.support.ledger.s3_server import BUCKET, KEYS, Gate, s3_server
from tests.support.spark.spark_environments import s3a_keys

CORES = 2
TASKS = 8
ROWS = 20_000_000
VALUE_BYTES = 100
COMPARED_ROWS = 4_000_000
"""Enough for the comparison with a plain read and write, which is made several times."""
SHARE_GOAL = 20.0  # the load at least so many times as long as the calls into its ledger: a share of 5 %
COMMITS = (10, 10_000)
PARTITIONS = 8
PLANS_GOAL = 0.9
STORE_DELAY_S = 0.05
PLAN_LIMIT_S = 2.0  # limit for a plan and a commit after 10,000 others in a store with that delay
NOTES_VARIABLE = "KAFKALOG_BENCHMARK_NOTES"
"""Directory in which tasks note their seconds, in the environment of Spark's workers."""


def at_paths(rounds: int = 7) -> list[Row]:
    """Ledgers on the disk; about four minutes."""
    return [*_load_rows(rounds), _planning_row(rounds)]


def at_a_store(rounds: int = 7) -> list[Row]:
    """Ledgers in an object store; about six minutes."""
    with _slow_store() as gate:
        return [*_load_rows(rounds, f"s3a://{BUCKET}", gate), _planning_row_at(gate)]


PARTS: dict[str, Callable[[int], list[Row]]] = {"at_paths": at_paths, "at_a_store": at_a_store}


@contextmanager
def _slow_store() -> Iterator[Gate]:
    """A server of S3 whose answers take `STORE_DELAY_S` longer, and the environment that names it."""
    with s3_server() as port:
        gate = Gate(port)
        with _environment({**KEYS, "AWS_ENDPOINT_URL": gate.endpoint}):
            gate.delay_s = STORE_DELAY_S
            yield gate
        gate.close()


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    yield
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def _load_rows(rounds: int, store: str | None = None, gate: Gate | None = None) -> list[Row]:
    with (
        scratch() as log_dir,
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryDirectory() as notes,
        _environment({NOTES_VARIABLE: notes}),
        start_broker({"log.retention.ms": -1}, data_dir=log_dir) as running,
        session(CORES) as spark,
    ):
        for number in range(TASKS):
            fill(running.port, f"large-{number}", VALUE_BYTES, ROWS // TASKS)
            fill(running.port, f"small-{number}", VALUE_BYTES, COMPARED_ROWS // TASKS)
        # Not by the environment: the JVM may be older than this benchmark.
        spark.sparkContext.environment[NOTES_VARIABLE] = notes
        for key, value in s3a_keys(gate.endpoint).items() if gate else ():
            spark.conf.set(key, value)
        loads = _Loads(spark, running.bootstrap_servers, Path(directory), store or directory, gate)
        spark.dataSource.register(TimedSource)
        # A load at a store registers the source by itself.
        with mock.patch.object(source, "DefaultSource", TimedSource):
            return [loads.share("large", min(rounds, 3)), loads.against_plain("small", min(rounds, 3))]


class _Loads:
    """Loads of the topics that begin with a word, each with a ledger and a path of its own."""

    def __init__(self, spark: Any, servers: str, directory: Path, ledgers: str, gate: Gate | None) -> None:
        """``ledgers`` is where they are, ``gate`` before that store."""
        self.spark, self.servers, self.directory = spark, servers, directory
        self.ledgers, self.gate = ledgers, gate
        self.seconds, self.requests = 0.0, 0

    def options(self, topics: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": ",".join(f"{topics}-{number}" for number in range(TASKS)),
        }

    def new_path(self) -> str:
        return str(self.directory / uuid.uuid4().hex)

    def load(self, topics: str) -> kafkalog.Load:
        """One whole load into Parquet, the first one of its ledger."""
        return self.next_load(topics, f"{self.ledgers}/{uuid.uuid4().hex}", self.new_path())

    def next_load(self, topics: str, offsets: str, path: str, **limit: str) -> kafkalog.Load:
        """The next load of a ledger into Parquet; the calls into the ledger are timed."""
        options = {**self.options(topics), **limit}
        began, requests = time.perf_counter(), self.gate.count if self.gate else 0
        load = kafkalog.load(self.spark, name="measured", offsets=offsets, **options)
        load.ledger = Timed(load.ledger)
        with load:
            load.write_parquet(path, engine="spark")  # whose tasks are timed by their source
        self.seconds = time.perf_counter() - began
        self.requests = self.gate.count - requests if self.gate else 0
        return load

    def plain(self, topics: str) -> None:
        read = self.spark.read.format("kafkalog").options(**self.options(topics)).load()
        read.write.parquet(self.new_path())

    def share(self, topics: str, rounds: int) -> Row:
        """How long a load waits for its ledger: the round with the median share."""
        self.load("small")  # Spark and its workers are started, the kernels are loaded
        rows = sorted((self._share(topics) for _ in range(rounds)), key=lambda row: row.ratio)
        return rows[len(rows) // 2]

    def _share(self, topics: str) -> Row:
        offsets, path = f"{self.ledgers}/{uuid.uuid4().hex}", self.new_path()
        # The first load of a ledger tries the store.
        self.next_load(topics, offsets, path, maxRecordsPerLoad=str(TASKS))
        load, seconds = self.next_load(topics, offsets, path), self.seconds
        planning, *tasks = seconds_in_spark(load.ledger.location)[-TASKS - 1 :]
        in_driver = load.ledger.seconds + planning
        waits = in_driver + sum(tasks) / CORES
        counted = f"; {self.requests} requests" if self.gate else ""
        where = f", in a store with {STORE_DELAY_S * 1e3:.0f} ms to each answer" if self.gate else ""
        question = (
            f"load of {load.commit.records / 1e6:.0f} M records of {VALUE_BYTES} B to Parquet, against its "
            f"waits for the ledger{where}"
        )
        note = (
            f"ledger: {waits / seconds:.2%} of it; driver {in_driver * 1e3:.0f} ms, {len(tasks)} tasks, "
            f"{CORES} at once, {sum(tasks) / len(tasks) * 1e3:.0f} ms each{counted}"
        )
        return Row(question, seconds, waits, seconds / waits, SHARE_GOAL, "s", note)

    def against_plain(self, topics: str, rounds: int) -> Row:
        """A load against the same read and write without one: for information."""
        contestants: dict[str, Callable[[], object]] = {
            "with": partial(self.load, topics),
            "read and written without a load": partial(self.plain, topics),
        }
        question = f"load of {COMPARED_ROWS / 1e6:.0f} M records to Parquet, files forced to disk"
        return compare(question, *interleave(contestants, rounds, COMPARED_ROWS).values(), "Mrows/s")


class Timed:
    """A ledger whose calls are timed; ``seconds`` is their sum."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        return partial(self._call, found) if callable(found) else found

    @contextmanager
    def hold(self, what: str = "a load") -> Iterator[None]:
        """The lock; taking and releasing it are timed."""
        lock = self._ledger.hold(what)
        self._call(lock.__enter__)
        try:
            yield
        finally:
            self._call(lock.__exit__, None, None, None)

    def _call(self, method: Callable[..., object], *args: object, **named: object) -> object:
        began = time.perf_counter()
        try:
            return method(*args, **named)
        finally:
            self.seconds += time.perf_counter() - began


class TimedSource(DefaultSource):
    """The source itself; readers of loads say how long their tasks were inside the ledger."""

    def reader(self, schema: Any) -> Any:
        reader = super().reader(schema)
        if isinstance(reader, LoadReader):
            reader.__class__ = TimedReader
        return reader


class TimedReader(LoadReader):
    """Leaves a file for the planning and for each task beside the ledger: the seconds of its calls."""

    def partitions(self) -> Sequence[InputPartition]:
        with self._noted():
            return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with self._noted():
            yield from super().read(partition)

    def rows_of(
        self, task: LoadInputPartition, plan: Callable[[], Plan], *, run: str = ""
    ) -> Generator[Any, None, Any]:
        # Another thread reads it meanwhile: what counts is how long the rows wait for it.
        return super().rows_of(task, partial(self._ledger._call, plan), run=run)  # type: ignore[attr-defined]

    @contextmanager
    def _noted(self) -> Iterator[None]:
        ledger = self._ledger
        self._ledger = timed = Timed(ledger)  # type: ignore[assignment]
        yield
        self._ledger = ledger
        notes = _notes_of(ledger.location)
        notes.mkdir(exist_ok=True)
        (notes / uuid.uuid4().hex).write_text(repr(timed.seconds))


def seconds_in_spark(location: str) -> list[float]:
    """What `TimedReader` left, in order."""
    notes = sorted(_notes_of(location).iterdir(), key=lambda note: note.stat().st_mtime_ns)
    return [float(note.read_text()) for note in notes]


def _notes_of(location: str) -> Path:
    return Path(os.environ[NOTES_VARIABLE], hashlib.sha256(location.encode()).hexdigest())


def _planning_row(rounds: int) -> Row:
    # In memory, where no fsync hides what depends on the number of commits.
    with scratch() as directory:
        calls = {f"{commits:,} commits": _planner(directory, commits) for commits in COMMITS}
        few, many = interleave(calls, max(rounds, 20)).values()
    question = f"next plan of a ledger of {COMMITS[1]:,} commits, {PARTITIONS} partitions"
    return compare(question, many, few, "plans/s", PLANS_GOAL)


def _planning_row_at(gate: Gate) -> Row:
    """A plan and a commit in a store that has 10,000 of them."""
    url = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
    with scratch() as directory:
        _planner(directory, COMMITS[1])
        store, delay_s = open_store(url), gate.delay_s
        root = directory / str(COMMITS[1])
        files = [path for path in root.rglob("*") if path.is_file()]
        gate.delay_s = 0
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda path: store.replace(str(path.relative_to(root)), path.read_bytes()), files))
        gate.delay_s = delay_s
    seconds, counts = [], []
    for _ in range(5):
        ledger, requests = Ledger.at(url, "long"), gate.count
        began = time.perf_counter()
        plan = ledger.write_plan(_next_plan(ledger))
        seconds.append(time.perf_counter() - began)
        counts.append(gate.count - requests)
        ledger.commit(plan, mode="job", run="benchmark", receipts=False)
    where = f"in a store with {STORE_DELAY_S * 1e3:.0f} ms to each answer"
    question = f"next plan of a ledger of {COMMITS[1]:,} commits {where}"
    note = f"{LIMIT}; {max(counts)} requests"
    return cost(question, statistics.median(seconds), PLAN_LIMIT_S, "s", 1.0, note)


def _planner(directory: Path, commits: int) -> Callable[[], None]:
    """Makes a ledger with so many commits; the call plans and commits one more."""
    ledger = Ledger.at(directory / str(commits), "long")
    ledger.identify("benchmark", {"subscribe": "t"})

    def one_more() -> None:
        plan = ledger.write_plan(_next_plan(ledger))
        ledger.commit(plan, mode="job", run="benchmark", receipts=False)

    for _ in range(commits):
        one_more()
    return one_more


def _next_plan(ledger: Ledger) -> Plan:
    head = ledger.head()
    number = 0 if head is None else head.number
    end = 100 * (number + 1)
    partitions = [TopicPartition("t", p) for p in range(PARTITIONS)]
    plan = make_plan(
        number=number + 1, parent=number, created="2026-01-01T00:00:00.000Z", cluster_id="benchmark",
        isolation_level="read_uncommitted", stored={} if head is None else head.stored,
        facts={p: PartitionFacts("topic", 0, "127.0.0.1:9092", 0, 0, end) for p in partitions},
        first_starts=dict.fromkeys(partitions, 0), ends=dict.fromkeys(partitions, end),
        fail_on_data_loss=True, on_topic_recreated="fail", split=lambda ranges: ranges,
    )  # fmt: skip
    assert plan is not None
    return plan
