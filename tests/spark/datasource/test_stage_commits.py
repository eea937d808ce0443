"""commitOffsets=stage with a real session and broker: what is committed, when, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as f

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_partitions, delete_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.errors import IncompleteLoad
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.datasource.spark_topics import Topic
from tests.support.formats.vectors import vector
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


@pytest.mark.long("several Spark jobs")
def test_two_loads_in_a_row_read_everything_once(
    two: Topic, stage: Load, ledger: Ledger, spark: Any, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    stage(subscribe=two.name).write.mode("append").parquet(lake)
    assert positions(ledger) == {0: 10, 1: 5}
    two.add(*range(15, 20), partition=0)
    two.add(*range(20, 30), partition=1)
    second = stage(subscribe=two.name)
    second.write.mode("append").parquet(lake)
    rows = spark.read.parquet(lake)
    assert values(rows) == list(range(30))
    assert rows.select("partition", "offset").distinct().count() == 30
    assert [(c.number, c.mode, c.records) for c in ledger.history()] == [(1, "stage", 15), (2, "stage", 15)]
    assert stage(subscribe=two.name).count() == 0
    assert ledger.verify() == []


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


def test_of_two_readers_of_one_load_one_wins(two: Topic, stage: Load, ledger: Ledger) -> None:
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


def test_a_pending_plan_is_replayed_refused_or_given_up(two: Topic, stage: Load, ledger: Ledger) -> None:
    stage(subscribe=two.name).rdd.getNumPartitions()
    two.add(15)
    with pytest.raises(AnalysisException) as raised:
        stage(subscribe=two.name, onPendingPlan="fail").collect()
    assert f"plan 1 of {ledger.location}" in str(raised.value)
    assert "onPendingPlan=replay reads the same offsets again" in str(raised.value)
    assert values(stage(subscribe=two.name)) == list(range(15))
    stage(subscribe=two.name).rdd.getNumPartitions()
    two.add(16)
    assert values(stage(subscribe=two.name, onPendingPlan="discard")) == [15, 16]
    assert [c.mode for c in ledger.history()] == ["stage", "discard", "stage"]


def test_columns_that_receipts_need_are_not_those_of_the_rows(
    two: Topic, stage: Load, ledger: Ledger
) -> None:
    frame = stage(subscribe=two.name, columns="partition,value")
    assert frame.columns == ["partition", "value"]
    assert values(frame) == list(range(15))
    first, _ = ledger.receipts(ledger.plan(1))
    assert (first.records, first.first_offset, first.last_offset, first.bytes) == (10, 0, 9, 10)


def test_a_look_without_commit_writes_nothing(
    two: Topic, stage: Load, ledger: Ledger, tmp_path: Path
) -> None:
    def look() -> list[int]:
        return values(stage(subscribe=two.name, commitOffsets="none"))

    assert look() == list(range(15))
    assert not (tmp_path / "offsets").exists()
    stage(subscribe=two.name, endingOffsets=two.offsets(p0=5, p1=5)).count()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert look() == look() == list(range(5, 10))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_committed_reads_continue_after_the_markers(spark: Any, tmp_path: Path, ledger: Ledger) -> None:
    log = ScriptedLog(vector("v2-txn-log.bin").data, aborted=[(4000, 0)], at_once=True)
    with serving(log) as broker:
        frame = (
            spark.read.format("kafkalog")
            .option("kafka.bootstrap.servers", broker.address)
            .option("subscribe", "t")
            .option("kafka.isolation.level", "read_committed")
            .options(loadName="nightly", offsetsPath=str(tmp_path / "offsets"), commitOffsets="stage")
            .load()
        )
        assert sorted(row.offset for row in frame.collect()) == [4, 5, 6, 7]
    assert positions(ledger) == {0: 9}


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


def test_the_ledger_of_another_cluster_is_refused(two: Topic, stage: Load, ledger: Ledger) -> None:
    stage(subscribe=two.name).count()
    with serving(ScriptedLog(batches(range(5)))) as broker:
        elsewhere = {"subscribe": "t", "kafka.bootstrap.servers": broker.address}
        for commit in ("stage", "none"):
            with pytest.raises(AnalysisException, match=r"ForeignCluster.*scripted"):
                stage(commitOffsets=commit, **elsewhere).collect()
    assert len(ledger.history()) == 1


@pytest.mark.long("several Spark jobs")
def test_a_recreated_topic_is_refused_or_read_from_its_beginning(
    two: Topic, stage: Load, server: EmbeddedBroker
) -> None:
    stage(subscribe=two.name).count()
    delete_topics(server.bootstrap_servers, [two.name])
    assert two.client.create_topic(two.name, 2).error_code == 0
    two.add(*range(100, 120), partition=0)
    with pytest.raises(AnalysisException, match="onTopicRecreated=earliest"):
        stage(subscribe=two.name).collect()
    assert stage(subscribe=two.name, onTopicRecreated="skip").count() == 0
    assert values(stage(subscribe=two.name, onTopicRecreated="earliest")) == list(range(100, 120))
    two.add(120)
    assert values(stage(subscribe=two.name)) == [120]


def test_offsets_that_aged_out_are_reported_or_left_out(stage: Load, ledger: Ledger) -> None:
    log = ScriptedLog(batches(range(5), range(5, 10), range(10, 15)))
    with serving(log) as broker:
        scripted = {"subscribe": "t", "kafka.bootstrap.servers": broker.address}
        assert stage(endingOffsets='{"t":{"0":5}}', **scripted).count() == 5
        log.keep(start=10)
        with pytest.raises(AnalysisException, match=r"OffsetsAgedOut.*5 offsets"):
            stage(**scripted).collect()
        assert values(stage(failOnDataLoss="false", **scripted)) == list(range(10, 15))
    assert ledger.plan(2).partitions[0].reason == "5 offsets aged out"


def test_a_partition_that_came_later_is_read_whole(two: Topic, stage: Load, server: EmbeddedBroker) -> None:
    first = {"startingOffsets": two.offsets(p0=8, p1=5)}
    assert values(stage(subscribe=two.name, **first)) == [8, 9]
    create_partitions(server.bootstrap_servers, {two.name: 3})
    two.add(20, 21, partition=2)
    two.add(22, partition=0)
    assert values(stage(subscribe=two.name, **first)) == [20, 21, 22]


def test_the_group_gets_the_offsets_and_a_read_may_begin_there(
    two: Topic, stage: Load, load: Load, server: EmbeddedBroker, ledger: Ledger
) -> None:
    group = f"group-of-{two.name}"
    grouped = {"subscribe": two.name, "kafka.group.id": group}
    assert stage(commitOffsets="group", **grouped).count() == 15
    cluster = Cluster(ClientConfig(bootstrap_servers=server.bootstrap_servers))
    try:
        told = committed_offsets(cluster, group)
    finally:
        cluster.close()
    assert {p: c.offset for p, c in told.items()} == {
        TopicPartition(two.name, 0): 10,
        TopicPartition(two.name, 1): 5,
    }
    two.add(15, 16, partition=1)
    at_group = load(startingOffsets="group", **grouped)
    assert values(at_group) == [15, 16]
    two.add(17, partition=0)
    assert values(at_group) == [15, 16, 17]
    at_files = load(startingOffsets=f"file:{ledger.location}/offsets", subscribe=two.name)
    assert values(at_files) == [15, 16, 17]
