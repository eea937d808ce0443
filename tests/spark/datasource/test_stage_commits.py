"""commitOffsets=stage with a real session and broker: what is committed, when, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as f

from pyspark_kafkalog.errors import IncompleteLoad
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.datasource.spark_topics import Topic
from tests.support.spark.frame_rows import assert_rows

NewTopic = Callable[..., Topic]
Load = Callable[..., Any]
LARGE = bytes(100_000)
"""A value of which 200 do not fit the buffers between Python and Spark."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.at(tmp_path / "offsets", "nightly")


@pytest.fixture
def stage(load: Load, tmp_path: Path) -> Load:
    """``stage(subscribe=topic.name)``: a DataFrame whose reading commits."""

    def read(**options: str) -> Any:
        where = {"loadName": "nightly", "offsetsPath": str(tmp_path / "offsets"), "commitOffsets": "stage"}
        return load(**{**where, **options})

    return read


@pytest.fixture
def two(new_topic: NewTopic) -> Topic:
    """0-9 in partition 0, 10-14 in partition 1."""
    topic = new_topic(partitions=2)
    topic.add(*range(10), partition=0)
    topic.add(*range(10, 15), partition=1)
    return topic


def values(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def positions(ledger: Ledger) -> dict[int, int]:
    head = ledger.head()
    assert head is not None
    return {p.partition: p.next for p in head.positions}


@pytest.mark.long("several Spark jobs")
def test_a_frame_that_is_joined_with_itself_is_one_load(
    two: Topic, stage: Load, ledger: Ledger, spark: Any
) -> None:
    stage(subscribe=two.name).createOrReplaceTempView("news")
    both = "select count(*) from news a join news b on a.partition = b.partition and a.offset = b.offset"
    assert spark.sql(both).first()[0] == 15
    assert spark.sql(both).first()[0] == 15  # and again, behind its commit
    assert (ledger.head_number(), positions(ledger)) == (1, {0: 10, 1: 5})
    two.add(15)
    new = stage(subscribe=two.name)
    assert new.alias("a").join(new.alias("b"), "offset").count() == 1
    assert ledger.head_number() == 2


def test_a_count_reads_everything_and_so_commits(two: Topic, stage: Load, ledger: Ledger) -> None:
    assert stage(subscribe=two.name).count() == 15
    assert positions(ledger) == {0: 10, 1: 5}


def test_an_action_that_spark_makes_several_jobs_of_is_one(
    new_topic: NewTopic, stage: Load, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ``show()`` reads one partition, then some more: each time in a job and a stage of its own."""
    topic = new_topic(partitions=4)
    for partition in range(4):
        topic.add(partition, partition=partition)
    stage(subscribe=topic.name).show()
    assert positions(ledger) == {0: 1, 1: 1, 2: 1, 3: 1}
    for partition in range(4):
        topic.add(partition, partition=partition)
    assert len(list(stage(subscribe=topic.name).toLocalIterator())) == 4
    assert positions(ledger) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_the_same_frame_is_the_same_load_and_a_new_one_sees_what_is_newer(
    two: Topic, stage: Load, ledger: Ledger
) -> None:
    frame = stage(subscribe=two.name)
    assert frame.count() == 15
    two.add(*range(15, 18))
    assert values(frame) == list(range(15))
    assert values(frame.union(frame)) == sorted([*range(15)] * 2)
    assert len(ledger.history()) == 1
    assert values(stage(subscribe=two.name)) == [15, 16, 17]


def test_a_limit_that_stops_early_commits_nothing(new_topic: NewTopic, stage: Load, ledger: Ledger) -> None:
    topic = new_topic()
    for _ in range(200):
        topic.add(LARGE)
    assert len(stage(subscribe=topic.name).limit(1).collect()) == 1
    pending = ledger.pending()
    assert pending is not None
    with pytest.raises(IncompleteLoad):
        ledger.receipts(pending)
    assert ledger.head() is None


def test_a_write_that_fails_in_its_middle_is_read_again_whole(
    new_topic: NewTopic, stage: Load, ledger: Ledger, spark: Any, tmp_path: Path
) -> None:
    topic, lake = new_topic(partitions=2), str(tmp_path / "lake")
    topic.add(*range(10), partition=0)
    for _ in range(200):
        topic.add(LARGE, partition=1)
    broken = stage(subscribe=topic.name).selectExpr(
        "partition", "offset", "if(partition = 1 and offset = 20, raise_error('disk on fire'), value) value"
    )
    with pytest.raises(Exception, match="disk on fire"):
        broken.write.parquet(lake)
    assert ledger.head() is None
    topic.add("later", partition=0)
    stage(subscribe=topic.name).write.mode("overwrite").parquet(lake)
    found = spark.read.parquet(lake).groupBy("partition")
    assert_rows(
        found.agg(f.max("offset").alias("last"), f.count("*").alias("count")),
        "partition int, last bigint, count bigint",
        [(0, 9, 10), (1, 199, 200)],
    )
    assert positions(ledger) == {0: 10, 1: 200}
    assert stage(subscribe=topic.name).count() == 1


def test_two_readers_of_one_load_commit_once(two: Topic, stage: Load, ledger: Ledger) -> None:
    one, other = stage(subscribe=two.name), stage(subscribe=two.name)
    assert (one.rdd.getNumPartitions(), other.rdd.getNumPartitions()) == (2, 2)
    assert values(one) == list(range(15))
    with pytest.raises(PythonException) as raised:
        other.collect()
    assert "another driver committed load 1" in str(raised.value)
    assert "discard this output" in str(raised.value)
    assert len(ledger.history()) == 1


@pytest.mark.parametrize(
    ("options", "tasks"), [({"minPartitions": "6"}, 6), ({"maxRecordsPerPartition": "4"}, 5)]
)
@pytest.mark.long("several Spark jobs")
def test_parts_of_partitions_have_receipts_of_their_own(
    two: Topic, stage: Load, ledger: Ledger, options: dict[str, str], tasks: int
) -> None:
    frame = stage(subscribe=two.name, **options)
    assert values(frame) == list(range(15))
    assert len(ledger.receipts(ledger.plan(1))) == tasks
    assert frame.rdd.getNumPartitions() == tasks
    assert positions(ledger) == {0: 10, 1: 5}
    assert ledger.verify() == []


def test_a_path_that_cannot_be_written_is_reported(two: Topic, stage: Load, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = str(tmp_path / "file" / "offsets")
    with pytest.raises(AnalysisException) as raised:
        stage(subscribe=two.name, offsetsPath=path).collect()
    assert f"{path}/nightly" in str(raised.value)
    assert "a part of the path is a file; choose another" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"offsetsPath": "ftp://host/offsets"}, "a ledger or table of loads cannot be at a URL of 'ftp'"),
        ({"loadName": "a/b"}, "loadName is 'a/b'"),
        ({"commitOffsets": "group"}, "commitOffsets=group needs kafka.group.id"),
        ({"loadPlan": "1"}, "commitOffsets is none; got 'stage'"),
    ],
)
def test_wrong_options_fail_at_load(stage: Load, options: dict[str, str], said: str) -> None:
    with pytest.raises(AnalysisException) as raised:
        stage(subscribe="t", **options)
    assert said in str(raised.value)
