"""Our producer, reader and admin calls against a real Apache Kafka."""

from __future__ import annotations

import pytest

from pyspark_kafkalog import NewTopic, Producer, create_partitions, create_topics, delete_topics
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.admin import describe_configs
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client import ConsumerConfig
from pyspark_kafkalog.errors import InvalidConfig, TopicAlreadyExists, UnknownTopicOrPartition
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Record, TopicPartition
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, Message, messages
from tests.support.foreign.old_clients import OLD_CODECS, as_told
from tests.support.until import until

READ_COMMITTED = "read_committed"


def offset(cluster: Cluster, tp: TopicPartition, timestamp: int) -> int:
    return list_offsets(cluster, {tp: timestamp})[tp].offset


def read(servers: str, topic: str, partition: int = 0, isolation: str = "read_uncommitted") -> list[Record]:
    """Every record, by the fetcher and decoder that Spark's tasks use, without Spark."""
    config = ConsumerConfig(bootstrap_servers=servers, isolation_level=isolation)
    cluster = Cluster(config)
    tp = TopicPartition(topic, partition)
    try:
        ranges = {tp: (offset(cluster, tp, EARLIEST_TIMESTAMP), offset(cluster, tp, LATEST_TIMESTAMP))}
        return [record for _, batch in read_ranges(cluster, ranges, config) for record in batch]
    finally:
        cluster.close()


def said(records: list[Record]) -> list[Message]:
    return [Message(r.value, r.key, r.timestamp, r.headers) for r in records]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_what_our_producer_sends_our_reader_and_a_foreign_one_get(
    servers: str, topic: str, codec: str, idempotent: bool
) -> None:
    sent = messages()
    config = {
        "bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": idempotent,
        "linger.ms": 5, "batch.size": 4000,
    }  # fmt: skip
    if not idempotent:
        # Requests behind one that fails pass it then, as Kafka documents: the leader must be there already.
        assert read(servers, topic, 1) == []
    with Producer(config) as out:
        for m in sent:
            out.send(topic, m.value, m.key, partition=1, headers=m.headers, timestamp_ms=m.timestamp)
    found = read(servers, topic, 1)
    assert said(found) == sent
    assert [record.offset for record in found] == list(range(len(sent)))
    assert CLIENTS[0].consume(servers, topic, 1, 0, len(sent)) == sent
    assert read(servers, topic, 0) == []


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_our_message_sets_are_taken(servers: str, topic: str, magic: int, codec: str) -> None:
    sent = [m._replace(headers=()) for m in messages()]
    config = {
        "bootstrap.servers": servers, "compression.type": codec, "message.format": f"v{magic}",
        "linger.ms": 5, "batch.size": 4000,
    }  # fmt: skip
    assert read(servers, topic, 1) == [], "the leader is there already"
    with Producer(config) as out:
        for m in sent:
            out.send(topic, m.value, m.key, partition=1, timestamp_ms=m.timestamp)
    found = read(servers, topic, 1)
    assert said(found) == as_told(sent, magic)
    assert [record.offset for record in found] == list(range(len(sent)))
    assert CLIENTS[0].consume(servers, topic, 1, 0, len(sent)) == as_told(sent, magic)


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_foreign_producer_sends_our_reader_gets(servers: str, topic: str, codec: str) -> None:
    sent = messages()
    CLIENTS[0].produce(servers, topic, 0, sent, codec, idempotent=True)
    assert said(read(servers, topic)) == sent


def test_topics_are_made_widened_described_and_deleted(
    servers: str, cluster: Cluster, topic_name: str
) -> None:
    create_topics(servers, [NewTopic(topic_name, 3, configs={"retention.ms": "3600000"})])
    assert len(cluster.metadata().topics[topic_name].partitions) == 3
    with pytest.raises(TopicAlreadyExists, match=topic_name):
        create_topics(servers, [NewTopic(topic_name, 1)])
    with pytest.raises(InvalidConfig):
        create_topics(servers, [NewTopic(f"{topic_name}-x", 1, configs={"no.such.property": "1"})])
    assert describe_configs(cluster, topic=topic_name)["retention.ms"].value == "3600000"
    create_partitions(servers, {topic_name: 5})
    until(lambda: len(CLIENTS[0].topics(servers)) and widened(servers, topic_name) == 5)
    delete_topics(servers, [topic_name])
    until(lambda: topic_name not in CLIENTS[0].topics(servers))
    with pytest.raises(UnknownTopicOrPartition):
        delete_topics(servers, [topic_name])


def widened(servers: str, topic: str) -> int:
    cluster = Cluster(ConsumerConfig(bootstrap_servers=servers))
    try:
        return len(cluster.metadata().topics[topic].partitions)
    finally:
        cluster.close()


def test_offsets_are_looked_up_by_time(servers: str, cluster: Cluster, topic: str) -> None:
    sent = messages()
    CLIENTS[0].produce(servers, topic, 0, sent, "none", idempotent=True)
    tp = TopicPartition(topic, 0)
    assert offset(cluster, tp, EARLIEST_TIMESTAMP) == 0
    assert offset(cluster, tp, LATEST_TIMESTAMP) == len(sent)
    for number in (0, 17, 119):
        assert offset(cluster, tp, sent[number].timestamp) == number
        assert offset(cluster, tp, sent[number].timestamp - 6) == number


def test_what_a_transaction_aborted_is_not_read_as_committed(servers: str, topic: str) -> None:
    from confluent_kafka import Producer as Foreign

    out = Foreign({"bootstrap.servers": servers, "transactional.id": topic})
    out.init_transactions(30)
    kept = []
    for number in range(6):
        out.begin_transaction()
        values = [b"%d of transaction %d" % (i, number) for i in range(20)]
        for value in values:
            out.produce(topic, value, partition=0)
        out.flush(30)
        if number % 2:
            out.abort_transaction(30)
        else:
            out.commit_transaction(30)
            kept += values
    committed = read(servers, topic, isolation=READ_COMMITTED)
    assert [record.value for record in committed] == kept
    assert len(read(servers, topic)) == 120
    # A marker takes the offset after each transaction.
    assert [record.offset for record in committed] == [
        number * 21 + i for number in range(0, 6, 2) for i in range(20)
    ]


def test_what_is_not_yet_committed_is_not_read_as_committed(servers: str, topic: str) -> None:
    from confluent_kafka import Producer as Foreign

    CLIENTS[0].produce(servers, topic, 0, messages(3), "none", idempotent=True)
    out = Foreign({"bootstrap.servers": servers, "transactional.id": topic})
    out.init_transactions(30)
    out.begin_transaction()
    out.produce(topic, b"not yet", partition=0)
    out.flush(30)
    committed = ConsumerConfig(bootstrap_servers=servers, isolation_level=READ_COMMITTED)
    cluster = Cluster(committed)
    tp = TopicPartition(topic, 0)
    stable = list_offsets(cluster, {tp: LATEST_TIMESTAMP}, isolation=committed.isolation)[tp].offset
    assert stable == 3
    out.commit_transaction(30)
    until(
        lambda: list_offsets(cluster, {tp: LATEST_TIMESTAMP}, isolation=committed.isolation)[tp].offset == 5
    )
    cluster.close()
    assert [record.value for record in read(servers, topic, isolation=READ_COMMITTED)][-1] == b"not yet"
