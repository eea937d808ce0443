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
def consumer(broker: Broker07) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        yield consumer


def test_what_is_produced_is_the_scala_client_s(broker: Broker07) -> None:
    with SyncProducer("127.0.0.1", broker.port, {"request.required.acks": 0}) as producer:
        producer.send("plain", [b"hello", b"world"], 0)
        producer.send("gz", [b"after"], 0)
        producer.multi_send([ProducerRequest("plain", [b"mp1"], 0), ProducerRequest("other", [b"mp2"], 1)])
        producer.confirm()
    names = ("produce", "produce-3", "multiproduce")
    assert broker.frames[:3] == [captured(f"scala-0.7.2-{name}") for name in names]


def test_what_a_consumer_asks_is_the_scala_client_s(broker: Broker07, consumer: SimpleConsumer) -> None:
    for topic in ("plain", "gz", "sn"):
        consumer.fetch(topic, 0, 0, 65536)
    consumer.multifetch(
        [FetchRequest("plain", 0, 0, 1000), FetchRequest("other", 1, 0, 1000),
         FetchRequest("nosuch", 0, 0, 100), FetchRequest("plain", 0, 99999, 100),
         FetchRequest("plain", 7, 0, 100)]
    )  # fmt: skip
    assert broker.frames[:4] == [
        captured(f"scala-0.7.2-{name}") for name in ("fetch", "fetch-2", "fetch-3", "multifetch")
    ]
    broker.frames.clear()
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
