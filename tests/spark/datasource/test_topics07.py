"""Topics of Kafka 0.7 in Spark: two brokers that meet in ZooKeeper, each with partitions of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PythonException

from tests.support.classic.two_brokers07 import TwoBrokers07
from tests.support.protocol.wire07 import entry, zipped
from tests.support.spark.frame_rows import assert_rows

PACKED = zipped(entry(b"g1"), entry(b"g2"))
ROWS = [
    (b"a1", "clicks", 0, 0, 1, 0),
    (b"g1", "clicks", 0, 12, 1, 0),
    (b"g2", "clicks", 0, 12, 1, 1),
    (b"b1", "clicks", 1, 0, 2, 0),
    (b"b2", "clicks", 1, 12, 2, 0),
]
COLUMNS = "value binary, topic string, partition int, offset bigint, broker int, innerIndex int"

Load = Callable[..., Any]


@pytest.fixture(scope="module")
def brokers(brokers07: TwoBrokers07) -> TwoBrokers07:
    """With the topics clicks, long and views."""
    brokers07.put(1, "clicks", 0, entry(b"a1") + PACKED)
    brokers07.put(2, "clicks", 1, entry(b"b1"), entry(b"b2"))
    brokers07.put(1, "long", 0, *(entry(b"%d" % n * 490) for n in range(9)))
    brokers07.put(2, "views", 0, entry(b"v"))
    return brokers07


@pytest.fixture
def load(spark: Any, brokers: TwoBrokers07) -> Load:
    def read(schema: str | None = None, place: dict[str, str] | None = None, **options: str) -> Any:
        where = {"zookeeper.connect": brokers.place} if place is None else place
        reader = spark.read.format("kafkalog").options(protocol="0.7", **where, **options)
        return (reader.schema(schema) if schema else reader).load()

    return read


@pytest.mark.long("several Spark jobs")
def test_each_row_tells_its_broker_and_its_place(load: Load) -> None:
    frame = load(subscribe="clicks", includeBroker="true")
    assert frame.rdd.getNumPartitions() == 4
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "broker", "innerIndex",
    ]  # fmt: skip
    chosen = frame.select("value", "topic", "partition", "offset", "broker", "innerIndex")
    assert_rows(chosen, COLUMNS, ROWS)
    assert frame.where("key is null and timestamp is null and timestampType is null").count() == len(ROWS)
    # Without the broker there are the seven columns of Spark's connector, and a schema may ask for fewer.
    assert load(subscribe="clicks").columns == frame.columns[:7]
    fewer = load("innerIndex int, value binary", subscribe="clicks")
    assert_rows(fewer, "innerIndex int, value binary", [(row[5], row[0]) for row in ROWS])


def test_offsets_are_named_by_broker_and_partition(load: Load) -> None:
    start = json.dumps({"clicks": {"1-0": 12, "1-1": -2, "2-0": -2, "2-1": 12}})
    end = json.dumps({"clicks": {"1-0": -1, "1-1": -1, "2-0": -1, "2-1": 24}})
    frame = load(subscribe="clicks", startingOffsets=start, endingOffsets=end)
    assert sorted(row.value for row in frame.collect()) == [b"b2", b"g1", b"g2"]
    assigned = load(assign='{"clicks":["2-1"],"views":["2-0"]}')
    assert sorted(row.value for row in assigned.collect()) == [b"b1", b"b2", b"v"]


def test_topics_are_matched_in_zookeeper_or_listed_for_brokers(load: Load, brokers: TwoBrokers07) -> None:
    assert load(subscribePattern="(click|view)s").count() == 6
    place = {"broker.list": brokers.list}
    assert load(place=place, subscribe="clicks,views").count() == 6


def test_large_logs_are_read_by_several_tasks(load: Load) -> None:
    frame = load(subscribe="long", minPartitions="4")
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(0, 4500, 500))
    assert frame.rdd.getNumPartitions() == 3 + 1  # one for the partition that is empty


def test_a_frame_read_again_sees_what_came_since(load: Load, brokers: TwoBrokers07) -> None:
    brokers.put(1, "growing", 1, entry(b"1"))
    frame = load(place={"broker.list": f"1:127.0.0.1:{brokers.port(1)}"}, subscribe="growing")
    assert frame.count() == 1
    brokers.put(1, "growing", 1, entry(b"2"))
    assert frame.count() == 2


def test_a_start_within_a_message_is_reported_with_its_partition(load: Load) -> None:
    start = json.dumps({"clicks": {"1-0": 5, "1-1": -2, "2-0": -2, "2-1": -2}})
    with pytest.raises(PythonException) as raised:
        load(subscribe="clicks", startingOffsets=start).collect()
    assert "clicks-1-0: no message begins at offset 5" in str(raised.value)
    assert "Offsets of Kafka 0.7 are byte positions" in str(raised.value)
