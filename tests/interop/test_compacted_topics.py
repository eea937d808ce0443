"""A compacted topic, read by a foreign client while the cleaner works, and its records without a key."""

from __future__ import annotations

import time

import pytest

from pyspark_kafkalog.client import admin as own_admin
from tests.support.foreign.foreign_face import WAIT_SECONDS

KEYS = 7


@pytest.fixture
def servers() -> object:
    """A broker whose cleaner hardly rests, with segments of some KiB."""
    from kafkalog_broker.embedded import start_broker

    properties = {"log.cleaner.backoff.ms": 100, "log.cleaner.min.cleanable.ratio": 0.01}
    with start_broker({**properties, "log.retention.ms": -1}) as broker:
        yield broker.bootstrap_servers


def test_librdkafka_reads_the_last_value_of_each_key(servers: str, topic_name: str) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

    config = {"cleanup.policy": "compact", "segment.bytes": "4000"}
    own_admin.create_topics(servers, [own_admin.NewTopic(topic_name, 1, 1, config)])
    refused = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "batch.size": 600})
    producer.produce(topic_name, b"no key", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(WAIT_SECONDS) == 0
    assert refused[0].code() == KafkaError.INVALID_RECORD
    for number in range(600):
        producer.produce(topic_name, b"value %d" % number, b"key %d" % (number % KEYS))
        if number % 10 == 0:
            producer.poll(0)
            producer.flush(WAIT_SECONDS)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "any", "enable.partition.eof": True})
    deadline = time.monotonic() + WAIT_SECONDS
    count = 600
    while count > 200 and time.monotonic() < deadline:
        consumer.assign([TopicPartition(topic_name, 0, OFFSET_BEGINNING)])
        found: list[tuple[int, bytes, bytes]] = []
        while (message := consumer.poll(WAIT_SECONDS)) is not None and message.error() is None:
            found.append((message.offset(), message.key(), message.value()))
        count = len(found)
        last = {key: (offset, value) for offset, key, value in found}
        assert last == {b"key %d" % (n % KEYS): (n, b"value %d" % n) for n in range(593, 600)}
        assert [value for _, _, value in found] == [b"value %d" % offset for offset, _, _ in found]
    consumer.close()
    assert count <= 200
