"""`start_cluster`: several brokers for tests and notebooks, with clients of other people's."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import broker
from broker.embedded import EmbeddedCluster
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.zookeeper import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with broker.start_cluster(3) as running:
        yield running


def test_records_with_keys_are_all_read_from_any_broker(cluster: EmbeddedCluster) -> None:
    one, two, three = (each.bootstrap_servers for each in cluster.brokers.values())
    assert cluster.bootstrap_servers == f"{one},{two},{three}"
    admin = AdminClient({"bootstrap.servers": two})
    for made in admin.create_topics([NewTopic("keys", 5, 1), NewTopic("single", 1, 1)]).values():
        made.result(20)
    producer = Producer({"bootstrap.servers": three})
    for n in range(500):
        producer.produce("keys", key=b"k%d" % (n % 50), value=b"%d" % n)
        producer.produce("single", value=b"%d" % n)
    assert producer.flush(30) == 0
    assert read(one, "keys", 500) == read(two, "keys", 500) == {b"%d" % n for n in range(500)}
    assert read(three, "single", 500) == {b"%d" % n for n in range(500)}
    admin.create_partitions([NewPartitions("single", 3)])["single"].result(20)
    other_admin = AdminClient({"bootstrap.servers": one})
    assert sorted(other_admin.list_topics("single", 20).brokers) == [1, 2, 3]
    until(lambda: len(other_admin.list_topics("single", 20).topics["single"].partitions) == 3)


def read(servers: str, topic: str, count: int) -> set[bytes]:
    """So many values of a topic, from the beginning."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"{topic}-{servers}", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        found: set[bytes] = set()
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {count}"
            assert message.error() is None, message.error()
            found.add(message.value())
        return found
    finally:
        consumer.close()


def test_one_broker_dies_and_returns_while_the_others_serve(cluster: EmbeddedCluster) -> None:
    second = cluster.brokers[2]
    with RawClient(cluster.brokers[1].port) as client:
        client.create_topic("t", partitions=3)
        (owned,) = until(lambda: [p for p in range(3) if took(second.port, p, b"a")])
        second.kill()
        took_b = [took(cluster.brokers[n].port, p, b"b") for n in (1, 3) for p in range(3)]
        assert sum(took_b) == 2, "the others take theirs, and nobody takes that one's"
        second.restart()
    with RawClient(second.port) as of_second:
        assert [r.value for r in of_second.read("t", partition=owned)] == [b"a"]


def took(port: int, partition: int, value: bytes) -> bool:
    """Whether the broker stores a record there."""
    with RawClient(port) as client:
        return bool(client.produce("t", batch(value), partition).error_code == ErrorCode.NONE)


def test_what_only_one_broker_can_have_is_refused_and_nothing_runs() -> None:
    before = {each.pid for each in psutil.Process().children()}
    with pytest.raises(InvalidConfig, match=r"start_cluster: node\.id is each broker's own"):
        broker.start_cluster(**{"node.id": 5})
    with pytest.raises(InvalidConfig, match="at least 1 broker, not 0"):
        broker.start_cluster(0)
    with pytest.raises(InvalidConfig, match=r"no property num\.partition"):
        broker.start_cluster(2, **{"num.partition": 5})
    assert {each.pid for each in psutil.Process().children()} == before
