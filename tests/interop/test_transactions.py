"""Transactional producers of foreign clients: read, process, write with offsets, aborted and committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.types import TopicPartition
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import WAIT_SECONDS

Rounds = list[tuple[bytes, bool]]
"""A value, and whether its transaction is committed; the number of the round is the offset of the group."""

ROUNDS: Rounds = [(b"one", True), (b"two", False), (b"three", True), (b"four", False)]
KEPT, ALL = [b"one", b"three"], [b"one", b"two", b"three", b"four"]


def by_librdkafka(servers: str, topic: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as Theirs

    member = Consumer({"bootstrap.servers": servers, "group.id": topic})
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(WAIT_SECONDS)
    for number, (value, commit) in enumerate(ROUNDS):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(WAIT_SECONDS)
        group = member.consumer_group_metadata()
        producer.send_offsets_to_transaction([Theirs(topic, 0, number)], group, WAIT_SECONDS)
        (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_SECONDS)
    member.close()


def by_kafka_python(servers: str, topic: str) -> None:
    from kafka import KafkaProducer, OffsetAndMetadata
    from kafka import TopicPartition as Theirs

    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    producer.init_transactions()
    for number, (value, commit) in enumerate(ROUNDS):
        producer.begin_transaction()
        producer.send(topic, value, partition=0).get(WAIT_SECONDS)
        offsets = {Theirs(topic, 0): OffsetAndMetadata(number, "", -1)}
        producer.send_offsets_to_transaction(offsets, topic)
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.close()


def by_aiokafka(servers: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka import TopicPartition as Theirs

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic)
        await producer.start()
        try:
            for number, (value, commit) in enumerate(ROUNDS):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value, partition=0)
                await producer.send_offsets_to_transaction({Theirs(topic, 0): number}, topic)
                await (producer.commit_transaction if commit else producer.abort_transaction)()
        finally:
            await producer.stop()

    asyncio.run(run())


def read_by_librdkafka(servers: str, topic: str, isolation: str) -> list[bytes]:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import TopicPartition as Theirs

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([Theirs(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
    finally:
        consumer.close()


def read_by_aiokafka(servers: str, topic: str, isolation: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Theirs

    async def run() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation)
        await consumer.start()
        try:
            where = Theirs(topic, 0)
            consumer.assign([where])
            await consumer.seek_to_beginning(where)
            found: list[bytes] = []
            while len(found) < (len(KEPT) if isolation == "read_committed" else len(ALL)):
                message = await asyncio.wait_for(consumer.getone(), WAIT_SECONDS)
                found.append(message.value)
            return found
        finally:
            await consumer.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("produce", [by_librdkafka, by_kafka_python, by_aiokafka])
def test_only_what_is_committed_is_read_and_counts(
    servers: str, topic_name: str, produce: Callable[[str, str], None]
) -> None:
    CLIENTS[0].create_topic(servers, topic_name, 1)
    produce(servers, topic_name)
    for read in (read_by_librdkafka, read_by_aiokafka):
        assert read(servers, topic_name, "read_committed") == KEPT
        assert read(servers, topic_name, "read_uncommitted") == ALL
    cluster = Cluster(ClientConfig(bootstrap_servers=servers))
    try:
        tp = TopicPartition(topic_name, 0)
        assert committed_offsets(cluster, topic_name, [tp], stable=True)[tp].offset == 2
    finally:
        cluster.close()


def test_an_open_transaction_holds_back_readers_and_the_next_producer_aborts_it(
    servers: str, topic_name: str
) -> None:
    from confluent_kafka import KafkaException, Producer

    CLIENTS[0].create_topic(servers, topic_name, 1)
    settings = {"bootstrap.servers": servers, "transactional.id": topic_name, "log_level": 0}
    zombie = Producer(settings)
    zombie.init_transactions(WAIT_SECONDS)
    zombie.begin_transaction()
    zombie.produce(topic_name, b"of the zombie", partition=0)
    zombie.flush(WAIT_SECONDS)
    assert read_by_librdkafka(servers, topic_name, "read_committed") == []
    second = Producer(settings)
    second.init_transactions(WAIT_SECONDS)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(WAIT_SECONDS)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic_name, b"of the second", partition=0)
    second.commit_transaction(WAIT_SECONDS)
    assert read_by_librdkafka(servers, topic_name, "read_committed") == [b"of the second"]
