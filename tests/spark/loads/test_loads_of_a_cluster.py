"""Reads, a stream and a load over three brokers, of which one dies and returns meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from pyspark_kafkalog.client.admin import NewTopic, create_topics

pytestmark = pytest.mark.clusters

RECORDS = 20_000
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(3) as cluster:
        create_topics(cluster.bootstrap_servers, [NewTopic("flights", PARTITIONS)])
        with kafkalog.Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            for number in range(RECORDS):
                producer.send("flights", b"%d" % number, str(number).encode())
        yield cluster


@contextmanager
def restarting(cluster: EmbeddedCluster, broker: int) -> Iterator[None]:
    """A broker dies and returns, again and again, until the block has ended."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.2):
            cluster.brokers[broker].kill()
            time.sleep(0.5)
            cluster.brokers[broker].start()
            ended.wait(2)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.n) for row in frame.selectExpr("bigint(string(value)) n").collect())


def test_a_read_a_stream_and_a_load_miss_nothing_and_have_nothing_twice(
    spark: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "flights",
        "kafka.max.partition.fetch.bytes": "20000",
    }  # fmt: skip
    every = list(range(RECORDS))
    with restarting(cluster, 2):
        assert numbers(spark.read.format("kafkalog").options(**options).load()) == every
    with (
        restarting(cluster, 3),
        kafkalog.load(spark, name="flights", offsets=tmp_path / "offsets", **options) as load,
    ):
        load.write_parquet(tmp_path / "table")
    assert load.commit is not None
    assert load.commit.records == RECORDS
    assert numbers(kafkalog.read_load(spark, tmp_path / "table")) == every
    with restarting(cluster, 1):
        stream = spark.readStream.format("kafkalog").options(
            **options, startingOffsets="earliest", maxOffsetsPerTrigger=str(RECORDS // 4)
        )
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "streamed"))
        )
        assert query.awaitTermination(120)
    assert query.exception() is None
    assert numbers(spark.read.parquet(str(tmp_path / "streamed"))) == every
