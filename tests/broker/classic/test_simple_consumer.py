"""The same consumer on the wire since 0.8."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.stream import MessageSet
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.groups import CommittedOffset
from pyspark_kafkalog.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.v07 import FetchRequest
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_BROKER, TopicPartition
from pyspark_kafkalog.zookeeper.paths import JsonLayout, RegistryLayout, V07Layout
from pyspark_kafkalog.zookeeper.registries import group_offsets, write_group_offset
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.zookeeper import PATIENT


@pytest.fixture
def topic(running_broker: EmbeddedBroker, topic_name: str) -> str:
    """Two partitions; the first holds m0 to m9 in one compressed batch, of the seconds 1000 to 1009."""
    create_topics(running_broker.bootstrap_servers, [NewTopic(topic_name, 2)])
    properties = {
        "bootstrap.servers": running_broker.bootstrap_servers,
        "compression.type": "gzip",
        "linger.ms": 1000,
    }
    with Producer(properties) as producer:
        for n in range(10):
            producer.send(topic_name, b"m%d" % n, b"k", partition=0, timestamp_ms=1_000_000 + 1000 * n)
    return topic_name


@pytest.fixture
def consumer(running_broker: EmbeddedBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", running_broker.port, {"protocol": "0.8"}) as consumer:
        yield consumer


def listed(messages: MessageSet) -> list[tuple[bytes, int]]:
    return [(bytes(payload), offset) for payload, offset in messages]


def test_each_message_has_an_offset_of_its_own(consumer: SimpleConsumer, topic: str) -> None:
    found = consumer.fetch(topic, 0, 0)
    assert listed(found) == [(b"m%d" % n, n + 1) for n in range(10)]
    assert found.next_offset == 10
    assert listed(consumer.fetch(topic, 0, 7)) == [(b"m%d" % n, n + 1) for n in (7, 8, 9)]
    assert listed(consumer.fetch(topic, 0, 10)) == []
    records = list(consumer.fetch(topic, 0, 9, 1).records())
    assert [(r.offset, r.key, r.value, r.timestamp) for r in records] == [(9, b"k", b"m9", 1_009_000)]


def test_committed_records_end_before_the_first_open_transaction(
    running_broker: EmbeddedBroker, consumer: SimpleConsumer, topic_name: str
) -> None:
    create_topics(running_broker.bootstrap_servers, [NewTopic(topic_name, 1)])
    properties = {"bootstrap.servers": running_broker.bootstrap_servers, "transactional.id": topic_name}
    read_committed = {"protocol": "0.8", "isolation.level": "read_committed"}
    with (
        Producer(properties) as producer,
        SimpleConsumer("127.0.0.1", running_broker.port, read_committed) as committed,
    ):
        producer.init_transactions()
        for value, end in [(b"good", "commit"), (b"bad", "abort"), (b"open", "")]:
            producer.begin_transaction()
            producer.send(topic_name, value)
            producer.flush()
            if end:
                getattr(producer, f"{end}_transaction")()
        found = committed.fetch(topic_name, 0, 0)
        assert listed(found) == listed(found) == [(b"good", 1)], "each time it is read"
        assert found.next_offset == 4
        assert listed(committed.fetch(topic_name, 0, 4)) == []
        assert committed.get_offsets_before(topic_name, 0, LATEST_TIMESTAMP) == [4]
        assert listed(consumer.fetch(topic_name, 0, 0)) == [(b"good", 1), (b"bad", 3), (b"open", 5)]
        assert consumer.get_offsets_before(topic_name, 0, LATEST_TIMESTAMP) == [5]
        producer.commit_transaction()
        assert listed(committed.fetch(topic_name, 0, 4)) == [(b"open", 5)]


def test_several_partitions_are_fetched_at_once(consumer: SimpleConsumer, topic: str) -> None:
    sets = consumer.multifetch(
        [FetchRequest(topic, 0, 8, 1000), FetchRequest(topic, 1, 0, 1000), FetchRequest(topic, 5, 0, 1000),
         FetchRequest(topic, 0, 99, 1000), FetchRequest(topic, 0, 9, 1000)]
    )  # fmt: skip
    assert listed(sets[0]) == [(b"m8", 9), (b"m9", 10)]
    assert listed(sets[1]) == []
    assert isinstance(sets[2].error, UnknownTopicOrPartition)
    assert isinstance(sets[3].error, OffsetOutOfRange)
    assert (sets[3].error.start, sets[3].error.end) == (0, 10)
    assert listed(sets[4]) == [(b"m9", 10)], "the same partition, asked for from several offsets"


FAR = 1 << 42  # in milliseconds: the year 2109


@pytest.fixture
def segments(running_broker: EmbeddedBroker, topic_name: str) -> str:
    """30 records of the year 1970 in 8 segments."""
    create_topics(
        running_broker.bootstrap_servers, [NewTopic(topic_name, 1, configs={"segment.bytes": "60"})]
    )
    properties = {"bootstrap.servers": running_broker.bootstrap_servers, "linger.ms": 1000}
    with Producer(properties) as producer:
        for n in range(30):
            producer.send(topic_name, b"m%d" % n, timestamp_ms=n)
            if n % 4 == 3:
                producer.flush()
    return topic_name


def test_offsets_before_a_time_are_the_segments_the_newest_first(
    consumer: SimpleConsumer, segments: str
) -> None:
    starts = [30, 28, 24, 20, 16, 12, 8, 4, 0]
    for time in (LATEST_TIMESTAMP, FAR):
        assert consumer.get_offsets_before(segments, 0, time, 99) == starts
        assert consumer.get_offsets_before(segments, 0, time, 3) == [30, 28, 24]
        assert consumer.get_offsets_before(segments, 0, time) == [30]
        assert consumer.get_offsets_before(segments, 0, time, 0) == []
    assert consumer.get_offsets_before(segments, 0, EARLIEST_TIMESTAMP, 9) == [0]
    assert consumer.get_offsets_before(segments, 0, 1_000, 9) == [], "no segment was written by then"
    with pytest.raises(UnknownTopicOrPartition, match=f"{segments}-5"):
        consumer.get_offsets_before(segments, 5, LATEST_TIMESTAMP)


def test_offsets_before_a_time_end_before_the_first_open_transaction(
    running_broker: EmbeddedBroker, segments: str
) -> None:
    properties = {"bootstrap.servers": running_broker.bootstrap_servers, "transactional.id": segments}
    read_committed = {"protocol": "0.8", "isolation.level": "read_committed"}
    with (
        Producer(properties) as producer,
        SimpleConsumer("127.0.0.1", running_broker.port, read_committed) as committed,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(9):
            producer.send(segments, b"open" * 9)
            producer.flush()
        for time in (LATEST_TIMESTAMP, FAR):
            assert committed.get_offsets_before(segments, 0, time, 3) == [30, 28, 24]
            assert committed.get_offsets_before(segments, 0, time) == [30]
        producer.abort_transaction()


def test_a_broker_without_the_first_listoffsets_knows_only_the_ends(
    consumer: SimpleConsumer, segments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "served", lambda *_: (1, 7))
    assert consumer.get_offsets_before(segments, 0, LATEST_TIMESTAMP, 9) == [30, 0]
    assert consumer.get_offsets_before(segments, 0, LATEST_TIMESTAMP) == [30]
    assert consumer.get_offsets_before(segments, 0, EARLIEST_TIMESTAMP, 9) == [0]
    with pytest.raises(UnsupportedVersion, match="a time need ListOffsets 0, and the broker serves 1 to 7"):
        consumer.get_offsets_before(segments, 0, FAR)


def test_offsets_of_a_group_are_kept_by_kafka(consumer: SimpleConsumer, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    assert consumer.fetch_offsets(topic, [tp]) == {}
    consumer.commit_offsets(topic, {tp: 4})
    assert {tp: kept.offset for tp, kept in consumer.fetch_offsets(topic).items()} == {tp: 4}


def patient(zookeeper_connect: str, **more: str) -> dict[str, object]:
    return {**PATIENT, "zookeeper.connect": zookeeper_connect, **more}


@pytest.mark.parametrize(
    ("protocol", "layout", "partition"),
    [("0.7", V07Layout(), TopicPartition("t", 0, 3)), ("0.8", JsonLayout(), TopicPartition("t", 12))],
)
def test_offsets_of_a_group_may_be_kept_in_zookeeper(
    session: ZooKeeperSession,
    zookeeper_connect: str,
    protocol: str,
    layout: RegistryLayout,
    partition: TopicPartition,
) -> None:
    with SimpleConsumer("localhost", 1, patient(zookeeper_connect, protocol=protocol)) as consumer:
        assert consumer.fetch_offsets("g") == {}
        consumer.commit_offsets("g", {partition: 4})
        assert group_offsets(session, layout, "g", "t") == {partition.number: 4}
        write_group_offset(session, layout, "g", "other", partition.number, 7)
        other = partition._replace(topic="other")
        assert consumer.fetch_offsets("g") == {
            other: CommittedOffset(7, -1, ""), partition: CommittedOffset(4, -1, "")
        }  # fmt: skip
        assert list(consumer.fetch_offsets("g", iter([partition]))) == [partition]
        wrong = partition._replace(broker=3 if protocol == "0.8" else NO_BROKER)
        with pytest.raises(InvalidRequest, match=f"protocol={protocol} a partition has"):
            consumer.commit_offsets("g", {wrong: 9})
        assert group_offsets(session, layout, "g", "t") == {partition.number: 4}


def test_offsets_of_a_group_are_kept_where_offsets_storage_says(
    running_broker: EmbeddedBroker, session: ZooKeeperSession, zookeeper_connect: str, topic: str
) -> None:
    tp = TopicPartition(topic, 0)

    def consumer(**more: str) -> SimpleConsumer:
        config = patient(zookeeper_connect, protocol="0.8", **more)
        return SimpleConsumer("127.0.0.1", running_broker.port, config)

    with consumer(**{"offsets.storage": "kafka"}) as kafka, consumer() as zookeeper:
        zookeeper.commit_offsets(topic, {tp: 4})
        assert kafka.fetch_offsets(topic) == {}
        kafka.commit_offsets(topic, {tp: 6})
        assert zookeeper.fetch_offsets(topic)[tp].offset == 4
        with consumer(**{"dual.commit.enabled": "true"}) as both:
            assert both.fetch_offsets(topic)[tp].offset == 6
            both.commit_offsets(topic, {tp: 8})
        assert zookeeper.fetch_offsets(topic)[tp].offset == kafka.fetch_offsets(topic)[tp].offset == 8
