"""`kafkalog.commit_on_success`: a load is committed when a write of it has succeeded, and not before."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.errors import IncompleteLoad
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.datasource.spark_topics import Topic

Load = Callable[..., Any]


@pytest.fixture
def two(new_topic: Callable[..., Topic]) -> Topic:
    """0-49 in partition 0, 50-99 in partition 1."""
    topic = new_topic(partitions=2)
    topic.add(*range(50), partition=0)
    topic.add(*range(50, 100), partition=1)
    return topic


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.at(tmp_path / "offsets", "nightly")


@pytest.fixture
def nightly(spark: Any, load: Load, tmp_path: Path) -> Load:
    """``nightly(subscribe=topic.name)``: a DataFrame of the next load, which a write commits."""

    def read(**options: str) -> Any:
        ours = kafkalog.commit_on_success(spark)
        return load(loadName="nightly", offsetsPath=str(tmp_path / "offsets"), **ours, **options)

    return read


@pytest.fixture
def told(spark: Any, ledger: Ledger) -> Callable[[], list[tuple[str, int]]]:
    """Mode and records of each commit, once the listener has been told of all that ended."""

    def commits() -> list[tuple[str, int]]:
        kafkalog.commit_on_success(spark)
        return [(commit.mode, commit.records) for commit in ledger.history()]

    return commits


def fail_for_partition_1(batches: Iterator[Any]) -> Iterator[Any]:
    """Reads all its input, as the tasks' receipts will say, and fails afterwards."""
    read = list(batches)
    if any((batch.partition == 1).any() for batch in read):
        raise ValueError("disk on fire")
    yield from read


def test_a_write_that_fails_after_everything_was_read_is_read_again(
    two: Topic, nightly: Load, ledger: Ledger, told: Any, spark: Any, tmp_path: Path
) -> None:
    frame, lake = nightly(subscribe=two.name, columns="partition,offset"), str(tmp_path / "lake")
    with pytest.raises(Exception, match="disk on fire"):
        frame.mapInPandas(fail_for_partition_1, frame.schema).write.parquet(lake)
    assert told() == []
    assert [r.records for r in ledger.receipts(ledger.plan(1))] == [50, 50]
    again = nightly(subscribe=two.name, columns="partition,offset")
    again.mapInPandas(lambda batches: batches, again.schema).write.mode("overwrite").parquet(lake)
    assert told() == [("stage", 100)]
    assert spark.read.parquet(lake).count() == 100
    assert nightly(subscribe=two.name).count() == 0
    assert ledger.verify() == []


def test_only_writes_of_everything_commit(
    two: Topic, nightly: Load, told: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = nightly(subscribe=two.name)
    assert frame.count() == frame.rdd.count() == len(list(frame.toLocalIterator())) == 100
    frame.createOrReplaceTempView("news")
    frame.sparkSession.sql("CACHE TABLE cached_news AS SELECT * FROM news")
    frame.sparkSession.sql("UNCACHE TABLE cached_news")
    with caplog.at_level(logging.WARNING):
        frame.limit(3).write.parquet(str(tmp_path / "three"))
        assert told() == []
    assert "load 1 of " in caplog.text
    assert "is not committed: its write has a LIMIT" in caplog.text
    frame.sparkSession.createDataFrame(frame.rdd, frame.schema).write.parquet(str(tmp_path / "of rdd"))
    frame.localCheckpoint().write.parquet(str(tmp_path / "of checkpoint"))
    assert told() == []
    frame.write.parquet(str(tmp_path / "all"))
    assert told() == [("stage", 100)]


def test_a_write_commits_however_spark_plans_it(
    two: Topic, nightly: Load, told: Any, spark: Any, tmp_path: Path
) -> None:
    """Behind a shuffle, in a subquery, from a view, in a cache, into a table, a V2 sink, a database."""
    spark.sql("CREATE TABLE sums (value STRING, offset BIGINT) USING parquet")
    derby = {"url": "jdbc:derby:memory:commits;create=true", "dbtable": "sums"}

    def shuffled(frame: Any) -> None:
        frame.groupBy("partition").count().write.parquet(str(tmp_path / "shuffled"))

    def in_a_subquery(frame: Any) -> None:
        frame.createOrReplaceTempView("news")
        spark.sql("INSERT INTO sums SELECT 'last', (SELECT max(offset) FROM news)")

    def cached(frame: Any) -> None:
        frame.persist()
        assert frame.count() == 2
        frame.write.parquet(str(tmp_path / "cached"))
        frame.unpersist()

    def joined(frame: Any) -> None:
        frame.alias("a").join(frame.alias("b"), "offset").select("offset").write.format("noop").mode(
            "append"
        ).save()

    writes: list[Callable[[Any], None]] = [
        shuffled, in_a_subquery, cached, joined,
        lambda frame: frame.select("offset").write.saveAsTable("copies"),
        lambda frame: frame.select("offset").write.format("jdbc").options(**derby).save(),
    ]  # fmt: skip
    try:
        for number, write in enumerate(writes, 1):
            write(nightly(subscribe=two.name))
            assert told() == [("stage", 100), *[("stage", 2)] * (number - 1)]
            two.add(number, partition=0)
            two.add(number, partition=1)
    finally:
        for table in ("sums", "copies"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_a_frame_commits_its_own_load_once(
    two: Topic, nightly: Load, ledger: Ledger, told: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = nightly(subscribe=two.name)
    first.write.parquet(str(tmp_path / "1"))
    assert told() == [("stage", 100)]
    two.add(100, 101)
    second = nightly(subscribe=two.name)
    assert second.count() == 2  # all of the second load is read
    first.write.parquet(str(tmp_path / "again"))
    assert told() == [("stage", 100)]
    second.write.parquet(str(tmp_path / "2"))
    assert told() == [("stage", 100), ("stage", 2)]
    assert caplog.text == ""


def test_a_commit_that_fails_is_an_error_that_says_what_to_do(
    two: Topic,
    nightly: Load,
    ledger: Ledger,
    told: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IncompleteLoad("the store is away")

    frame = nightly(subscribe=two.name)
    with monkeypatch.context() as away:
        away.setattr(Ledger, "commit", fail)
        frame.write.parquet(str(tmp_path / "1"))
        assert told() == []
    assert "a write of load 1 of " in caplog.text
    assert "the next one reads the same rows again" in caplog.text
    assert "the store is away" in caplog.text
    assert nightly(subscribe=two.name).count() == 100


_PROGRAM = """
import os, signal, sys
from pyspark.sql import SparkSession
import pyspark_kafkalog as kafkalog

servers, topic, root, end = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
ours = kafkalog.commit_on_success(spark)
assert ours == kafkalog.commit_on_success(spark)
if end == "is killed":
    kafkalog.Ledger.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
where = {"loadName": "nightly", "offsetsPath": root + "/offsets", "subscribe": topic}
news = spark.read.format("kafkalog").options(**{"kafka.bootstrap.servers": servers}, **where, **ours)
news.load().write.parquet(root + "/lake")
spark.stop()
"""


@pytest.mark.long("a Spark driver for each end")
@pytest.mark.parametrize(
    ("end", "code", "committed"), [("stops", 0, [100]), ("is killed", -signal.SIGKILL, [])]
)
def test_a_session_that_stops_commits_first_and_a_driver_that_dies_does_not(
    two: Topic, server: Any, ledger: Ledger, tmp_path: Path, end: str, code: int, committed: list[int]
) -> None:
    arguments = [server.bootstrap_servers, two.name, str(tmp_path), end]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        env=dict(os.environ, PYSPARK_PYTHON=sys.executable),
        timeout=600,
        check=False,
    )
    assert done.returncode == code
    assert [commit.records for commit in ledger.history()] == committed
    assert [r.records for r in ledger.receipts(ledger.plan(1))] == [50, 50]
