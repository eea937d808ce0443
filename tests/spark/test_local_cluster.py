"""On a cluster of two executors, each a process with one core; one of them is killed during a load."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.datasource.spark_topics import Topic
from tests.support.foreign.fetched import ROOT
from tests.support.loads.armed_faults import FAULTS_VARIABLE, ArmedFaults, Fault
from tests.support.spark.spark_environments import SparkProcess
from tests.support.spark.spark_jvm import flags_of_executors, spark_home

pytestmark = pytest.mark.clusters

NewTopic = Callable[..., Topic]
Errand = Callable[..., Any]
Options = Callable[..., dict[str, str]]

PARTITIONS, ROWS = 2, 300


@pytest.fixture(scope="module")
def fault_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def do(fault_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Errand]:
    """``do("read", options=...)``: an errand of `spark_errands`, in a program whose tasks are elsewhere."""
    directory = tmp_path_factory.mktemp("cluster")
    configs = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.extraJavaOptions": flags_of_executors(),
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory / "local"),
        # No task before both are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.python.daemon.module": "tests.support.loads.faulty_workers",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        f"spark.executorEnv.{FAULTS_VARIABLE}": str(fault_directory),
    }
    process = SparkProcess(directory / "spark.log", configs=configs)
    application = ""
    try:
        application = process.call("tests.support.spark.spark_errands:application")
        yield lambda errand, /, **named: process.call(f"tests.support.spark.spark_errands:{errand}", **named)
    finally:
        process.close()
        if application:
            # Its workers keep their files in Spark's own directory, whatever they are told.
            shutil.rmtree(spark_home() / "work" / application, ignore_errors=True)


@pytest.fixture
def topic(new_topic: NewTopic) -> Topic:
    """`PARTITIONS` partitions of `ROWS` records, each in batches of ten."""
    made = new_topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        for first in range(0, ROWS, 10):
            made.add(*range(first, first + 10), partition=partition)
    return made


@pytest.fixture
def options(server: EmbeddedBroker) -> Options:
    """``options(topic, minPartitions="4")``: what names the broker and the topic, and more."""

    def of(topic: Topic, **more: str) -> dict[str, str]:
        named = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic.name}
        return {**named, **more}

    return of


EVERY_PLACE = {(partition, offset): 1 for partition in range(PARTITIONS) for offset in range(ROWS)}


@pytest.mark.parametrize(
    ("more", "tasks"),
    [({"minPartitions": "6"}, 6), ({"maxBytesPerPartition": "3000"}, 4)],
    ids=["minPartitions", "maxBytesPerPartition"],
)
def test_both_executors_read_a_batch_and_each_row_is_there_once(
    do: Errand, topic: Topic, options: Options, more: dict[str, str], tasks: int
) -> None:
    found = do("executors", options=options(topic, **more))
    assert Counter((partition, offset) for _, _, partition, offset in found) == EVERY_PLACE
    assert len({task for _, task, _, _ in found}) == tasks
    assert len({executor for executor, _, _, _ in found}) == 2


def test_executors_leave_the_receipts_of_a_load(
    do: Errand, topic: Topic, options: Options, tmp_path: Path
) -> None:
    given = options(topic, minPartitions="6")
    answer = do("load", options=given, name="spread", offsets=str(tmp_path / "o"), path=str(tmp_path / "t"))
    assert answer["records"] == PARTITIONS * ROWS
    assert Counter((partition, offset) for _, partition, offset, _ in answer["rows"]) == EVERY_PLACE
    assert len({executor for *_, executor in answer["rows"]}) == 2
    ledger = Ledger.at(tmp_path / "o", "spread")
    assert [r.records for r in ledger.receipts(ledger.plan(1))] == [100] * 6
    assert ledger.verify() == []


def test_a_stream_into_a_topic_has_each_row_once(
    do: Errand, topic: Topic, server: EmbeddedBroker, new_topic: NewTopic, options: Options, tmp_path: Path
) -> None:
    target = new_topic(partitions=2)
    query = {
        "options": options(topic, startingOffsets="earliest", maxOffsetsPerTrigger="400"),
        "target": {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": target.name},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    assert do("stream", **query, name="streamed") == {"batches": [400, 200], "behind": [100, 0]}
    written = Counter(int(value) for _, _, value in do("read", options=options(target))["rows"])
    assert written == dict.fromkeys(range(ROWS), PARTITIONS)


def test_a_batch_is_written_by_tasks(
    do: Errand, server: EmbeddedBroker, new_topic: NewTopic, options: Options
) -> None:
    topic = new_topic()
    do("write", target={"kafka.bootstrap.servers": server.bootstrap_servers, "topic": topic.name}, count=20)
    assert sorted(int(value) for _, _, value in do("read", options=options(topic))["rows"]) == list(range(20))


def test_executors_write_into_one_sqlite_file(
    do: Errand, topic: Topic, options: Options, tmp_path: Path
) -> None:
    database = tmp_path / "loaded.db"
    load = {"name": "sql", "offsets": str(tmp_path / "o"), "url": f"sqlite:///{database}", "table": "clicks"}
    assert do("load_sql", options=options(topic, minPartitions="6"), **load) == PARTITIONS * ROWS
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute('SELECT "partition", "offset" FROM clicks').fetchall()
    assert Counter(found) == EVERY_PLACE


def test_a_load_has_each_offset_once_although_an_executor_was_killed(
    do: Errand, fault_directory: Path, topic: Topic, options: Options, tmp_path: Path
) -> None:
    faults, kill = ArmedFaults(fault_directory), Fault("row", "kill executor", rows=50)
    faults.arm(kill)
    # Small answers, so that the executor dies with some of a task's rows read and others not.
    given = options(topic, **{"minPartitions": "4", "kafka.max.partition.fetch.bytes": "800"})
    answer = do("load", options=given, name="killed", offsets=str(tmp_path / "o"), path=str(tmp_path / "t"))
    (struck,) = faults.hits(kill)
    faults.disarm()
    assert answer["records"] == PARTITIONS * ROWS
    executors = {(partition, offset): executor for _, partition, offset, executor in answer["rows"]}
    assert Counter((partition, offset) for _, partition, offset, _ in answer["rows"]) == EVERY_PLACE
    ledger = Ledger.at(tmp_path / "o", "killed")
    assert ledger.verify() == []
    # What the dead one was reading is there, from one that lives: nothing of its half is.
    (again,) = (r for r in ledger.plan(1).ranges if f"{r.key} from {r.start}" == struck)
    by = {executors[again.partition, offset] for offset in range(again.start, again.end)}
    assert [psutil.pid_exists(pid) for pid in by] == [True]
