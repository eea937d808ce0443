"""Our producer and our fetcher with our broker: what goes in comes out, also when the broker is killed."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import kafkalog_broker
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import PartitionFetcher
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.producer.columns import Kernels
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.producer.routing import partition_for
from pyspark_kafkalog.types import LATEST_TIMESTAMP, Record, TopicPartition


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with kafkalog_broker.start_broker() as running:
        yield running


def read(running: EmbeddedBroker, topic: str, partition: int = 0, **changes: Any) -> list[Record]:
    config = ConsumerConfig(bootstrap_servers=running.bootstrap_servers, **changes)
    cluster = Cluster(config)
    tp = TopicPartition(topic, partition)
    try:
        end = list_offsets(cluster, {tp: LATEST_TIMESTAMP})[tp].offset
        return [
            record
            for fetched in PartitionFetcher(cluster, tp, 0, end, config=config)
            for record in records(fetched.data, start_offset=fetched.offset, max_bytes=1 << 28)
        ]
    finally:
        cluster.close()


def producer(running: EmbeddedBroker, **properties: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return Producer({"bootstrap.servers": running.bootstrap_servers, **named})


def test_a_topic_is_made_when_it_is_first_sent_to(kafka: EmbeddedBroker) -> None:
    with producer(kafka) as out:
        assert out.send("made-on-the-way", b"v").result(90).offset == 0
    assert [r.value for r in read(kafka, "made-on-the-way")] == [b"v"]


def test_a_killed_broker_costs_neither_records_nor_order() -> None:
    with kafkalog_broker.start_broker() as running:
        create_topics(running.bootstrap_servers, [NewTopic("t", 2)])
        out = producer(running, linger_ms=1, retry_backoff_ms=10, retry_backoff_max_ms=100)
        out.send("t", b"0 first", partition=0).result(90)
        deliveries = []
        count = 2 * 1000
        for number in range(1, count + 1):
            deliveries.append(out.send("t", b"%d" % number, partition=number % 2))
            if number % 1000 == 400:
                running.kill()
            if number % 1000 == 0:
                running.restart()
        out.flush(90)
        for delivery in deliveries:
            delivery.result(0)
        out.close()
        for partition in (0, 1):
            expected = [b"%d" % i for i in range(1, count + 1) if i % 2 == partition]
            found = [r.value for r in read(running, "t", partition)]
            assert found == ([b"0 first", *expected] if partition == 0 else expected)


@pytest.mark.long("brokers that are killed")
def test_reading_continues_after_the_broker_was_killed() -> None:
    with kafkalog_broker.start_broker() as running:
        with producer(running, batch_size=1000) as out:
            for i in range(5000):
                out.send("t", b"%d" % i)
        tp = TopicPartition("t", 0)
        config = ConsumerConfig(
            bootstrap_servers=running.bootstrap_servers, max_partition_fetch_bytes=5000, retry_backoff_ms=10
        )
        cluster = Cluster(config)
        found: list[bytes | None] = []
        for number, fetched in enumerate(PartitionFetcher(cluster, tp, 0, 5000, config=config)):
            found += [r.value for r in records(fetched.data, start_offset=fetched.offset, max_bytes=1 << 20)]
            if number == 3:
                running.kill()
                running.restart()
        cluster.close()
        assert found == [b"%d" % i for i in range(5000)]


def test_every_row_of_an_arrow_table_is_sent(kafka: EmbeddedBroker) -> None:
    start = datetime.datetime(2013, 1, 1, tzinfo=datetime.timezone.utc)
    count = 2500
    table = pa.table(
        {
            "value": [f"value {i}" for i in range(count)],
            "key": pa.array([None if i % 3 == 0 else b"k%d" % i for i in range(count)], pa.binary()),
            "timestamp": [start + datetime.timedelta(milliseconds=i) for i in range(count)],
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % i}] if i % 2 else None for i in range(count)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "partition": pa.array([0] * count, pa.int32()),
        }
    )
    told: list[Any] = []
    with producer(kafka, batch_size=5000) as out:
        delivery = out.send_arrow("arrow", table, on_delivery=told.append)
        ranges = delivery.result(90)
    assert told == [delivery]
    assert sum(part.record_count for part in ranges) == count
    assert (ranges[0].first_offset, ranges[-1].last_offset) == (0, count - 1)
    found = read(kafka, "arrow")
    first_ms = int(start.timestamp() * 1000)
    assert [r.value for r in found] == [b"value %d" % i for i in range(count)]
    assert [r.key for r in found] == [None if i % 3 == 0 else b"k%d" % i for i in range(count)]
    assert [r.timestamp for r in found] == [first_ms + i for i in range(count)]
    assert [r.headers for r in found] == [(("n", b"%d" % i),) if i % 2 else () for i in range(count)]


def test_arrow_rows_without_keys_are_spread(kafka: EmbeddedBroker) -> None:
    create_topics(kafka.bootstrap_servers, [NewTopic("spread", 4)])
    with producer(kafka) as out:
        ranges = out.send_arrow("spread", pa.table({"value": [bytes(100)] * 100_000})).result(90)
    counts = [sum(part.record_count for part in ranges if part.partition == p) for p in range(4)]
    assert sum(counts) == 100_000
    assert min(counts) > 10_000


@pytest.mark.parametrize("warm", [0, 1 << 30])
def test_rows_of_a_table_keep_their_order_whether_they_have_keys_or_not(
    kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, warm: int
) -> None:
    """By compiled code, where there is any, and by plain Python."""
    monkeypatch.setattr("pyspark_kafkalog.producer.columns.KERNELS", Kernels(warm))
    topic = f"in-order-{warm}"
    create_topics(kafka.bootstrap_servers, [NewTopic(topic, 3)])
    keys = [None if n % 3 else b"%d" % (n % 7) for n in range(3000)]
    table = pa.table({"key": keys, "value": [b"%d" % n for n in range(3000)]})
    with producer(kafka) as out:
        ranges = [out.send_arrow(topic, table).result(90) for _ in range(2)]
        out.send(topic, b"3000", partition=0)
    assert sum(one.record_count for sent in ranges for one in sent) == 6000
    found = [read(kafka, topic, partition) for partition in range(3)]
    for part in found:
        numbers = [int(record.value or b"") for record in part]
        turn = next(place for place in range(1, len(numbers)) if numbers[place] < numbers[place - 1])
        assert numbers[:turn] == sorted(numbers[:turn])
        assert numbers[turn:] == sorted(numbers[turn:])
    assert sorted(int(r.value or b"") for part in found for r in part) == sorted([*range(3000)] * 2 + [3000])
    by_key = {(r.key, partition) for partition, part in enumerate(found) for r in part if r.key}
    assert by_key == {(key, partition_for(key, 3)) for key in keys if key}
