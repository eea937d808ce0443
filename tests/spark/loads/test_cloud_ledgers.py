"""Loads whose ledger is in an object store, with a real session: driver and tasks both reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.ledger.stores import object_clients
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads import output_files, verification
from tests.support.datasource.spark_topics import Topic
from tests.support.ledger.s3_server import BUCKET, KEYS, s3_server
from tests.support.loads.file_lake import NAME, Lake
from tests.support.spark.spark_environments import s3a_configs

pytestmark = pytest.mark.long("several Spark jobs")


class CloudLake(Lake):
    """A table at a path, and its ledger in a bucket."""

    @property
    def offsets(self) -> Any:
        return f"s3a://{BUCKET}/{self.topic.name}"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def lake(
    port: int,
    spark: Any,
    server: Any,
    new_topic: Callable[..., Topic],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> CloudLake:
    topic = new_topic(partitions=2)
    topic.add(*range(10), partition=0)
    topic.add(*range(10, 15), partition=1)
    monkeypatch.setattr(spark.sparkContext, "environment", {**spark.sparkContext.environment})
    monkeypatch.setattr(object_clients, "_given", {})  # this bucket's settings are this test's alone
    session = spark.newSession()
    for name, value in s3a_configs(f"http://127.0.0.1:{port}").items():
        session.conf.set(name, value)
    return CloudLake(session, server.bootstrap_servers, topic, tmp_path)


def test_a_load_with_its_ledger_in_a_bucket_continues_where_the_last_one_ended(lake: CloudLake) -> None:
    first = lake.run()
    assert (first.number, first.mode, first.records) == (1, "dir", 15)
    lake.topic.add(15, 16, partition=1)
    with lake.load() as left:
        left.df.collect()
        plan = left.df._jdf.queryExecution().toString()
        left.keep()  # a plan with receipts, which the next load compares its own with
    second = lake.run()
    assert (second.number, second.records) == (2, 2)
    lake.assert_published([(1, n) for n in range(15)] + [(2, 15), (2, 16)])
    assert lake.ledger.verify() == []
    assert verification.verify_outputs(lake.ledger.lineage()) == []
    assert output_files.ledger_of(lake.table).location == f"s3a://{BUCKET}/{lake.topic.name}/{NAME}"
    (claim,) = lake.table.glob("_kafkalog*")
    store = open_store(lake.offsets)
    kept = [store.read(f"{NAME}/{name}") for name in ("load.json", "HEAD.json", "plans/00000002.json")]
    assert all(kept)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in f"{plan} {claim.read_text()} {kept}"


def test_plain_reads_and_streams_have_sparks_keys_where_they_are_asked_to(lake: CloudLake) -> None:
    kafkalog.use_spark_keys(lake.spark, lake.offsets)
    given = {
        "kafka.bootstrap.servers": lake.servers,
        "subscribe": lake.topic.name,
        "offsetsPath": lake.offsets,
    }
    source = lake.spark.read.format("kafkalog").options(**given, loadName=NAME, commitOffsets="stage")
    assert source.load().count() == 15
    head = lake.ledger.head()
    assert head is not None
    assert (head.number, head.mode, head.records) == (1, "stage", 15)

    seen: list[list[int]] = []

    def take(frame: Any, number: int) -> None:
        seen.append(sorted(int(row.value) for row in frame.collect()))
        if len(seen) == 1:
            raise RuntimeError("the sink fails")

    def run() -> None:
        frame = lake.spark.readStream.format("kafkalog").options(
            **given, streamName="query", startingOffsets="latest"
        )
        writer = frame.load().writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(lake.root / "checkpoint")).start()
        query.awaitTermination(150)

    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run()
    lake.topic.add(15)
    run()
    assert seen == [[], [], [15]]
    assert open_store(lake.offsets).names("query")
