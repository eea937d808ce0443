"""On the wire our clients are as Kafka 0.7.2's own: what they send is what its Scala client sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.protocol.v07 import FetchRequest
from tests.support.client.broker07 import Broker07
from tests.support.formats.captures_07 import captured


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07() as broker:
        yield broker


@pytest.fixture
def producer(broker: Broker07) -> Iterator[SyncProducer]:
    with SyncProducer("127.0.0.1", broker.port, {"request.required.acks": 0}) as producer:
        yield producer


@pytest.fixture
def consumer(broker: Broker07) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        yield consumer


def test_a_produce_is_the_scala_client_s(broker: Broker07, producer: SyncProducer) -> None:
    producer.send("plain", [b"hello", b"world"], 0)
    producer.send("gz", [b"after"], 0)
    producer.confirm()
    assert broker.frames[:2] == [captured("scala-0.7.2-produce"), captured("scala-0.7.2-produce-3")]


def test_a_multiproduce_is_the_scala_client_s(broker: Broker07, producer: SyncProducer) -> None:
    producer.multi_send([ProducerRequest("plain", [b"mp1"], 0), ProducerRequest("other", [b"mp2"], 1)])
    producer.confirm()
    assert broker.frames[0] == captured("scala-0.7.2-multiproduce")


def test_fetches_are_the_scala_client_s(broker: Broker07, consumer: SimpleConsumer) -> None:
    for topic in ("plain", "gz", "sn"):
        consumer.fetch(topic, 0, 0, 65536)
    names = ("scala-0.7.2-fetch", "scala-0.7.2-fetch-2", "scala-0.7.2-fetch-3")
    assert broker.frames == [captured(name) for name in names]


def test_a_multifetch_is_the_scala_client_s(broker: Broker07, consumer: SimpleConsumer) -> None:
    consumer.multifetch(
        [FetchRequest("plain", 0, 0, 1000), FetchRequest("other", 1, 0, 1000),
         FetchRequest("nosuch", 0, 0, 100), FetchRequest("plain", 0, 99999, 100),
         FetchRequest("plain", 7, 0, 100)]
    )  # fmt: skip
    assert broker.frames == [captured("scala-0.7.2-multifetch")]


def test_offset_requests_are_the_scala_client_s(broker: Broker07, consumer: SimpleConsumer) -> None:
    for time in (-1, -2, 1795173905563, 1000):
        consumer.get_offsets_before("plain", 0, time, 10)
    names = ("offsets", "offsets-2", "offsets-3", "offsets-4")
    assert broker.frames == [captured(f"scala-0.7.2-{name}") for name in names]


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ("plain", [(b"hello", 15), (b"world", 30), (b"mp1", 43)]),
        ("gz", [(b"hello", 0), (b"world", 56), (b"g1", 56), (b"g2", 56), (b"g3", 115), (b"after", 130)]),
        ("sn", [(b"s1", 0), (b"s2", 0), (b"s3", 65), (b"after", 80)]),
    ],
)
def test_what_a_real_broker_stored_is_read_with_the_offsets_it_gave_out(
    broker: Broker07, consumer: SimpleConsumer, segment: str, expected: list[tuple[bytes, int]]
) -> None:
    broker.append("t", 0, captured(f"broker-0.7.2-segment-{segment}-0"))
    assert [(bytes(payload), offset) for payload, offset in consumer.fetch("t", 0, 0)] == expected
