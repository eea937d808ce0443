"""The first generation's clients with our own broker: both its wires, and ZooKeeper where it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.stream import MessageSet
from pyspark_kafkalog.classic.producer.async_producer import AsyncProducer
from pyspark_kafkalog.classic.producer.classic_producer import ClassicProducer, ProducerData
from pyspark_kafkalog.classic.producer.router import java_hash
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.errors import ConnectionLost, InvalidRequest, MessageTooLarge, OffsetOutOfRange
from pyspark_kafkalog.producer.routing import partition_for
from pyspark_kafkalog.protocol.v07 import FetchRequest
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.support.until import until
from tests.support.zookeeper import PATIENT

LISTENERS = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
SETTINGS: dict[str, object] = {
    "listeners": LISTENERS, "num.partitions": 3, "log.flush.interval": 1, "log.file.size": 2000,
}  # fmt: skip


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with start_broker(SETTINGS) as broker:
        yield broker


@pytest.fixture(params=["0.7", "0.8"])
def wire(request: pytest.FixtureRequest, kafka: EmbeddedBroker) -> tuple[int, dict[str, object]]:
    """Port and configuration for one of the two wires."""
    protocol = str(request.param)
    port = kafka.port_of("KAFKA07") if protocol == "0.7" else kafka.port
    return port, {"protocol": protocol}


def payloads(messages: MessageSet) -> list[bytes]:
    return [bytes(payload) for payload, _ in messages]


def everything(consumer: SimpleConsumer, topic: str, partition: int) -> list[bytes]:
    """All messages of a partition, by as many fetches as it takes."""
    (end,) = consumer.get_offsets_before(topic, partition, LATEST_TIMESTAMP)
    found, position = [], 0
    while position < end:
        messages = consumer.fetch(topic, partition, position, 500)
        found += payloads(messages)
        position = messages.next_offset
    return found


def test_any_partition_is_one_of_the_topic_s(wire: tuple[int, dict[str, object]], topic_name: str) -> None:
    port, config = wire
    with (
        SyncProducer("127.0.0.1", port, config) as producer,
        SimpleConsumer("127.0.0.1", port, config) as consumer,
    ):
        for n in range(100):  # 1 in 10**17 that chance leaves a partition out
            producer.multi_send(
                [ProducerRequest(topic_name, [b"%d" % n]), ProducerRequest(topic_name, [b"x"], 0)]
            )
        found = [everything(consumer, topic_name, partition) for partition in range(3)]
        sets = consumer.multifetch([FetchRequest(topic_name, p, 0, 100_000) for p in (2, 9, 0)])
    assert all(found)
    assert sorted(p for one in found for p in one if p != b"x") == sorted(b"%d" % n for n in range(100))
    assert [one.error is None for one in sets] == [True, False, True]
    assert payloads(sets[0])[0] == found[2][0]


def test_an_async_producer_delivers_all_of_it(wire: tuple[int, dict[str, object]], topic_name: str) -> None:
    port, config = wire
    with AsyncProducer(
        "127.0.0.1", port, {**config, "queue.time": 50, "compression.codec": "gzip"}
    ) as producer:
        for n in range(1000):
            producer.send(topic_name, b"%d" % n, n % 3)
    assert producer.lost_count == 0
    with SimpleConsumer("127.0.0.1", port, config) as consumer:
        for partition in range(3):
            assert everything(consumer, topic_name, partition) == [
                b"%d" % n for n in range(partition, 1000, 3)
            ]


def test_offsets_of_0_7_are_byte_positions_and_segments(kafka: EmbeddedBroker, topic_name: str) -> None:
    port = kafka.port_of("KAFKA07")
    with SyncProducer("127.0.0.1", port) as producer, SimpleConsumer("127.0.0.1", port) as consumer:
        for _ in range(3):
            producer.send(topic_name, [b"x" * 990] * 3, 0)
        assert consumer.get_offsets_before(topic_name, 0, LATEST_TIMESTAMP, 9) == [9000, 6000, 3000, 0]
        assert consumer.get_offsets_before(topic_name, 0, EARLIEST_TIMESTAMP, 9) == [0]
        assert [offset for _, offset in consumer.fetch(topic_name, 0, 1000)] == [2000, 3000]
        with pytest.raises(OffsetOutOfRange, match=r"offset 9001 is outside \[0, 9000\]"):
            consumer.fetch(topic_name, 0, 9001)
        with pytest.raises(ConnectionLost, match="a partition that it does not have"):
            consumer.get_offsets_before(topic_name, 9, LATEST_TIMESTAMP)
        with pytest.raises(ConnectionLost, match="for a partition that it does not have"):
            producer.send(topic_name, [b"x"], 9)
        assert payloads(consumer.fetch(topic_name, 0, 8000, 1)) == [b"x" * 990]
        with pytest.raises(MessageTooLarge):
            producer.send(topic_name, [b"x" * 1_000_001])


def test_a_wire_spoken_to_the_wrong_listener_is_an_error_in_time(kafka: EmbeddedBroker) -> None:
    config = {"socket.timeout.ms": 3000}
    for port, protocol in ((kafka.port, "0.7"), (kafka.port_of("KAFKA07"), "0.8")):
        consumer = SimpleConsumer("127.0.0.1", port, {**config, "protocol": protocol})
        with consumer, pytest.raises((ConnectionLost, InvalidRequest), match=f"127.0.0.1:{port}"):
            consumer.fetch("t", 0, 0)


def test_a_key_chooses_by_murmur2_on_today_s_wire_and_goes_with_the_message(
    kafka: EmbeddedBroker, topic_name: str
) -> None:
    config = {"protocol": "0.8", "broker.list": kafka.bootstrap_servers}
    with ClassicProducer(config) as producer:
        producer.send([ProducerData(topic_name, [b"%d" % n], key=f"key-{n}") for n in range(30)])
        assert producer.brokers == [0]
    with SimpleConsumer("127.0.0.1", kafka.port, {"protocol": "0.8"}) as consumer:
        found = {
            (record.key, record.value, partition)
            for partition in range(3)
            for record in consumer.fetch(topic_name, partition, 0).records()
        }
    expected = {(b"key-%d" % n, b"%d" % n, partition_for(b"key-%d" % n, 3)) for n in range(30)}
    assert found == expected


@pytest.mark.long("a broker that is started more than once")
def test_brokers_found_by_zookeeper_share_the_keys(zookeeper_connect: str, tmp_path: Path) -> None:
    """Two brokers of 0.7, each with its own partitions; then one of them goes."""
    settings = {**SETTINGS, **PATIENT, "zookeeper.connect": zookeeper_connect}
    first = start_broker({**settings, "node.id": 1}, data_dir=tmp_path / "1")
    second = start_broker({**settings, "node.id": 2}, data_dir=tmp_path / "2")
    properties = {
        **PATIENT, "zk.connect": zookeeper_connect, "producer.type": "async", "queue.time": 20,
    }  # fmt: skip
    with first, ClassicProducer(properties) as producer:
        with second:
            assert producer.brokers == [1, 2]
            # A topic that one of them has goes to that one: what has no key does not bring it to the other.
            for broker in (first, second):
                with SyncProducer(broker.host, broker.port_of("KAFKA07")) as one:
                    one.send("t", [b"warm-up"], partition=0)
            until(lambda: len(producer._router._directory.partitions("t")) == 6)  # type: ignore[attr-defined]
            for n in range(60):
                producer.send(ProducerData("t", [b"%d" % n], key=f"k{n}"))
            producer.flush(60)
            held = {
                (broker, partition): set(read(port, "t", partition))
                for broker, port in ((1, first.port_of("KAFKA07")), (2, second.port_of("KAFKA07")))
                for partition in range(3)
            }
            for n in range(60):
                place = divmod(abs(java_hash(f"k{n}")) % 6, 3)
                assert b"%d" % n in held[place[0] + 1, place[1]]
        until(lambda: producer.brokers == [1])
        for n in range(10):
            producer.send(ProducerData("t", [b"after %d" % n], key=f"k{n}"))
        producer.flush(60)
        found = {
            payload for partition in range(3) for payload in read(first.port_of("KAFKA07"), "t", partition)
        }
        assert {b"after %d" % n for n in range(10)} <= found


def read(port: int, topic: str, partition: int) -> list[bytes]:
    with SimpleConsumer("127.0.0.1", port) as consumer:
        return everything(consumer, topic, partition)
