"""What today's clients are told of a topic of 0.7: why they cannot use it, at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.errors import UnsupportedForMessageFormatError

from broker.embedded import EmbeddedBroker, start_broker
from tests.support.raw_client import RawClient

REFUSED = KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    listeners = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
    with start_broker(listeners=listeners) as broker:
        with RawClient(broker.port) as client:
            assert client.create_topic("old", configs={"generation": "0.7"}).error_code == 0
        yield broker


def test_librdkafkas_producer_gives_the_error_instead_of_trying_again(broker: EmbeddedBroker) -> None:
    told: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("old", b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0
    assert [error.code() for error in told] == [REFUSED]


def test_librdkafkas_consumer_gives_the_error_instead_of_waiting(broker: EmbeddedBroker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    try:
        consumer.assign([TopicPartition("old", 0, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error().code() == REFUSED
    finally:
        consumer.close()


def test_kafka_pythons_producer_raises_the_error_with_its_reason(broker: EmbeddedBroker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    try:
        with pytest.raises(UnsupportedForMessageFormatError, match=r"holds messages of generation 0\.7"):
            producer.send("old", b"x").get(20)
    finally:
        producer.close()
