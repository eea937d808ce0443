"""Structured Streaming on a real session: what Spark itself does with the source.

Everything that is the source's alone is in tests/broker/datasource, which replays Spark's calls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.types import encode_id
from tests.support.datasource.spark_topics import Topic
from tests.support.until import until

NewTopic = Callable[..., Topic]
SECONDS = 150


class Query:
    """Runs of one query on one checkpoint; ``batches`` has the values of each batch. *Not thread-safe.*"""

    def __init__(self, spark: Any, server: EmbeddedBroker, directory: Path) -> None:
        self._spark, self._server, self._directory = spark, server, directory
        self.batches: dict[int, list[str]] = {}
        self.fails_in: int | None = None

    @property
    def checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def frame(self, **options: str) -> Any:
        given = {"kafka.bootstrap.servers": self._server.bootstrap_servers, **options}
        return self._spark.readStream.format("kafkalog").options(**given).load()

    def start(self, frame: Any, name: str | None = None, **trigger: Any) -> Any:
        writer = frame.writeStream.foreachBatch(self._take).trigger(**trigger)
        if name is not None:
            writer = writer.queryName(name)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self, frame: Any, **trigger: Any) -> list[list[str]]:
        """Start, wait for the end, and the batches of this run."""
        self.batches = {}
        assert self.start(frame, **(trigger or {"availableNow": True})).awaitTermination(SECONDS)
        return [self.batches[number] for number in sorted(self.batches)]

    def _take(self, batch: Any, number: int) -> None:
        if number == self.fails_in:
            raise RuntimeError("the sink fails")
        self.batches[number] = sorted(
            (row.value.decode() for row in batch.select("value").collect()), key=int
        )


@pytest.fixture
def query(spark: Any, server: EmbeddedBroker, tmp_path: Path) -> Iterator[Query]:
    yield Query(spark, server, tmp_path)
    for running in spark.streams.active:
        running.stop()


def numbers(*ranges: range) -> list[str]:
    return [str(n) for r in ranges for n in r]


def test_s2_available_now_and_s13_a_restart_and_once(new_topic: NewTopic, query: Query) -> None:
    topic = new_topic()
    topic.add(*range(15))
    options = {"subscribe": topic.name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    frame = query.frame(**options)
    found = query.run(frame)
    assert found == [numbers(range(5)), numbers(range(5, 10)), numbers(range(10, 15))]
    end = json.loads((query.checkpoint / "offsets" / "2").read_text().splitlines()[-1])
    topic_id = encode_id(topic.client.topic_id(topic.name))
    assert end == {"version": 2, "offsets": {topic.name: {"0": 15}}, "topicIds": {topic.name: topic_id}}
    assert query.run(frame) == []
    topic.add(*range(15, 27))
    assert query.run(frame, once=True) == [numbers(range(15, 27))]  # S9: without limits


@pytest.mark.long("several Spark jobs")
def test_s6_the_first_batch_is_repeated_from_where_it_began(new_topic: NewTopic, query: Query) -> None:
    topic = new_topic()
    topic.add(1)
    frame = query.frame(
        subscribe=topic.name,
        startingOffsets="latest",
        offsetsPath=str(query.checkpoint.parent / "starts"),
        streamName="query",
    )
    query.fails_in = 0
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        query.run(frame)
    assert (query.checkpoint / "offsets" / "0").exists()
    topic.add(2, 3)
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        query.run(frame)
    query.fails_in = None
    assert query.run(frame) == [[], ["2", "3"]]


def test_s11_s35_s38_a_running_query_tells_its_lag_and_stops_promptly(
    new_topic: NewTopic, query: Query, spark: Any, server: EmbeddedBroker
) -> None:
    topic = new_topic(partitions=2)
    topic.add(*range(30))
    group = f"group-{topic.name}"
    options = {
        "subscribe": topic.name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10",
        "kafka.group.id": group, "commitOffsets": "group",
    }  # fmt: skip
    frame = query.frame(**options)
    seen: list[kafkalog.SourceLag] = []
    read = threading.Event()

    def on_lag(lag: kafkalog.SourceLag) -> None:
        seen.append(lag)
        if lag.max_offsets_behind == 0:
            read.set()

    servers = {"kafka.bootstrap.servers": server.bootstrap_servers}
    listener = kafkalog.LagListener(on_lag, commit={**servers, **options}, query=group)
    spark.streams.addListener(listener)
    try:
        running = query.start(frame, name=group, processingTime="100 milliseconds")
        assert read.wait(SECONDS)
        assert [lag.max_offsets_behind for lag in seen][:3] == [20, 10, 0]
        assert seen[0].min_offsets_behind == 0
        assert sum(len(batch) for batch in query.batches.values()) == 30
        cluster = Cluster(ClientConfig(bootstrap_servers=server.bootstrap_servers))
        until(lambda: {c.offset for c in committed_offsets(cluster, group).values()} == {30, 0})
        cluster.close()
        running.stop()
        assert not running.isActive
    finally:
        spark.streams.removeListener(listener)
    assert running.exception() is None


@pytest.mark.long("several Spark jobs")
def test_s23_two_sources_in_a_union_and_s26_a_join_with_itself(
    new_topic: NewTopic, query: Query, tmp_path: Path
) -> None:
    busy, quiet = new_topic(), new_topic()
    busy.add(1, 2)
    quiet.add(10)
    both = query.frame(subscribe=busy.name, startingOffsets="earliest").union(
        query.frame(subscribe=quiet.name, startingOffsets="earliest")
    )
    assert query.run(both) == [["1", "2", "10"]]
    busy.add(3)
    assert query.run(both) == [["3"]]
    ends = (query.checkpoint / "offsets" / "1").read_text().splitlines()[-2:]
    assert [json.loads(end)["offsets"] for end in ends] == [{busy.name: {"0": 3}}, {quiet.name: {"0": 1}}]

    joined = Query(query._spark, query._server, tmp_path / "joined")
    frame = joined.frame(subscribe=busy.name, startingOffsets="earliest")
    left = frame.select("value", "offset")
    right = frame.select(f.col("offset").alias("at"), f.col("partition").alias("of"))
    assert joined.run(left.join(right, left["offset"] == right["at"])) == [["1", "2", "3"]]


@pytest.mark.long("several Spark jobs")
def test_s21_times_make_windows_and_watermarks(new_topic: NewTopic, query: Query, spark: Any) -> None:
    topic = new_topic()
    topic.add(*range(6), timestamp=1_700_000_000_000, step=5000)
    frame = query.frame(subscribe=topic.name, startingOffsets="earliest")
    counted = (
        frame.withWatermark("timestamp", "1 second")
        .groupBy(f.window("timestamp", "10 seconds"))
        .count()
        .select(f.col("count").cast("string").cast("binary").alias("value"))
    )
    first = query.run(counted)
    # The last window is open until a later time has come.
    assert [value for batch in first for value in batch] == ["2", "2"]
    topic.add(9, timestamp=1_700_000_100_000)
    assert [value for batch in query.run(counted) for value in batch] == ["2"]


def test_s25_and_s73_what_only_a_stream_or_a_batch_may_say_is_reported_when_it_starts(
    new_topic: NewTopic, query: Query
) -> None:
    topic = new_topic()
    with pytest.raises(StreamingQueryException, match="ending offset not valid in streaming queries"):
        query.run(query.frame(subscribe=topic.name, endingOffsets="latest"))
