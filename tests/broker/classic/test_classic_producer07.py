"""The producer over several brokers on 0.7's wire: where it sends, and how it follows brokers and topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.classic.producer.async_producer import CallbackHandler, QueueClosed, QueueItem
from pyspark_kafkalog.classic.producer.classic_producer import ClassicProducer, ProducerData
from pyspark_kafkalog.classic.producer.router import java_hash
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, InvalidPartitions, ServerError
from pyspark_kafkalog.protocol.v07 import ProduceRequest
from pyspark_kafkalog.zookeeper.paths import BrokerNode, V07Layout
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.client.broker07 import Broker07
from tests.support.until import until
from tests.support.zookeeper import expire, patient_session

LAYOUT = V07Layout("/")


class Cluster07:
    """Brokers in memory, registered in ZooKeeper as brokers of 0.7 register; each by a session of its own."""

    def __init__(self, connect: str) -> None:
        self.connect = connect
        self.brokers: dict[int, Broker07] = {}
        self.sessions: dict[int, ZooKeeperSession] = {}

    def add(self, id: int, topics: dict[str, int] | None = None) -> Broker07:
        broker = self.brokers[id] = Broker07(partitions=4)
        self.register(id, topics)
        return broker

    def register(self, id: int, topics: dict[str, int] | None = None) -> None:
        session = self.sessions[id] = patient_session(self.connect).start()
        node = BrokerNode(id, "127.0.0.1", self.brokers[id].port, 1)
        session.create(LAYOUT.broker(id), LAYOUT.write_broker(node), ephemeral=True)
        for topic, partitions in (topics or {}).items():
            self.take_up(id, topic, partitions)

    def take_up(self, id: int, topic: str, partitions: int) -> None:
        for path, data in LAYOUT.topic_nodes(topic, id, partitions).items():
            self.sessions[id].create(path, data, ephemeral=True)

    def withdraw(self, id: int) -> None:
        self.sessions.pop(id).close()

    def kill(self, id: int) -> None:
        self.brokers[id].close()
        self.withdraw(id)

    def close(self) -> None:
        for id in list(self.sessions):
            self.withdraw(id)
        for broker in self.brokers.values():
            broker.close()

    def payloads(self, topic: str) -> list[bytes]:
        return [payload for _, broker in sorted(self.brokers.items()) for payload in broker.payloads(topic)]


@pytest.fixture
def cluster(zookeeper_connect: str) -> Iterator[Cluster07]:
    cluster = Cluster07(zookeeper_connect)
    yield cluster
    cluster.close()


def producer_of(
    cluster: Cluster07, hooks: CallbackHandler | None = None, **properties: Any
) -> ClassicProducer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return ClassicProducer({"zk.connect": cluster.connect, **named}, callback_handler=hooks)


# --- broker.list


def test_without_zookeeper_messages_go_to_random_partitions_of_random_brokers() -> None:
    with Broker07() as one, Broker07() as two:
        listed = f"0:{one.address},1:{two.address}"
        with ClassicProducer({"broker.list": listed}) as producer:
            assert producer.brokers == [0, 1]
            for n in range(40):
                producer.send(ProducerData("t", [b"%d" % n], key="the same"))
        assert all({r.partition for r in broker.received(ProduceRequest)} == {-1} for broker in (one, two))
        assert min(len(one.payloads("t")), len(two.payloads("t"))) > 0
        assert sorted(one.payloads("t") + two.payloads("t")) == sorted(b"%d" % n for n in range(40))


def test_a_message_for_a_dead_broker_fails() -> None:
    with Broker07() as dead:
        pass
    with ClassicProducer({"broker.list": f"7:{dead.address}"}) as producer:
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=dead.address):
                producer.send(ProducerData("t", [b"x"]))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "either zookeeper.connect or broker.list must be given; neither is"),
        ({"zk.connect": "a:1", "broker.list": "0:a:1"}, "either .* must be given; both are"),
        ({"broker.list": "0:a:1", "partitioner.class": "x.Y"}, "partitioner.class needs zookeeper.connect"),
        ({"broker.list": "0:a:1,0:b:1"}, "broker.list=.* is not allowed; allowed: id:host:port"),
        ({"broker.list": "0:a:1,b:1"}, "broker.list=.* is not allowed; allowed: id:host:port"),
        ({"broker.list": "a"}, "broker.list=a is not allowed"),
        ({"broker.list": "0:a:1", "producer.type": "later"}, "producer.type=later .*one of sync, async"),
        ({"broker.list": "0:a:1", "compression.codec": "lz4"}, "compression.codec=lz4 .*none, gzip, snappy"),
        ({"broker.list": "0:a:1", "compression.codec": 3}, "compression.codec=3 .*none, gzip, snappy"),
        ({"broker.list": "0:a:1", "callback.handler.props": "a"}, "callback.handler.props=a .*name=value"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(properties: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        ClassicProducer(properties)


# --- ZooKeeper


def test_the_partitioner_indexes_the_partitions_sorted_by_broker_and_number(cluster: Cluster07) -> None:
    cluster.add(10, {"t": 2})
    cluster.add(2, {"t": 3})
    places = [(2, 0), (2, 1), (2, 2), (10, 0), (10, 1)]
    with producer_of(cluster) as producer:
        assert producer.brokers == [2, 10]
        for n in range(30):
            producer.send(ProducerData("t", [b"key-%d" % n], key=f"key-{n}"))
    for n in range(30):
        broker, partition = places[abs(java_hash(f"key-{n}")) % 5]
        assert b"key-%d" % n in cluster.brokers[broker].payloads("t", partition)


def test_without_a_key_the_partition_is_random(cluster: Cluster07) -> None:
    cluster.add(1, {"t": 2})
    cluster.add(2, {"t": 2})
    with producer_of(cluster) as producer:
        producer.send([ProducerData("t", [b"%d-a" % n, b"%d-b" % n]) for n in range(40)])
    found = [broker.payloads("t", p) for broker in cluster.brokers.values() for p in (0, 1)]
    assert all(found)
    assert sorted(payload for one in found for payload in one) == sorted(
        b"%d-%c" % (n, c) for n in range(40) for c in b"ab"
    )
    for one in found:
        assert {p[:-2] for p in one if p.endswith(b"a")} == {p[:-2] for p in one if p.endswith(b"b")}


def test_an_own_partitioner_chooses(cluster: Cluster07) -> None:
    class ByLength:
        def partition(self, key: Any, partition_count: int) -> int:
            return len(key)

    cluster.add(1, {"t": 3})
    with ClassicProducer({"zk.connect": cluster.connect}, partitioner=ByLength()) as producer:
        producer.send(ProducerData("t", [b"x"], key="ab"))
        with pytest.raises(
            InvalidPartitions, match=r"t: the partitioner chose 3 for key 'abc'; allowed: 0 to 2"
        ):
            producer.send(ProducerData("t", [b"y"], key="abc"))
    assert cluster.brokers[1].payloads("t", 2) == [b"x"]


def test_a_topic_that_is_not_there_goes_to_the_first_partition_of_a_live_broker(cluster: Cluster07) -> None:
    cluster.add(1)
    cluster.add(2)
    with producer_of(cluster) as producer:
        for n in range(60):  # 1 in 10**18 that chance leaves a broker out
            producer.send(ProducerData("new", [b"%d" % n]))
        assert all(len(broker.payloads("new", 0)) > 0 for broker in cluster.brokers.values())
        assert len(cluster.payloads("new")) == 60
        cluster.take_up(1, "new", 4)
        until(
            lambda: bool(producer.send(ProducerData("new", [b"x"])) or cluster.brokers[1].payloads("new", 3))
        )
        assert cluster.brokers[2].payloads("new", 3) == []


def test_the_pool_grows_and_shrinks_with_the_live_brokers(cluster: Cluster07) -> None:
    cluster.add(1, {"t": 1})
    with producer_of(cluster) as producer:
        assert producer.brokers == [1]
        cluster.add(2, {"t": 1})
        until(lambda: producer.brokers == [1, 2])
        cluster.kill(1)
        until(lambda: producer.brokers == [2])
        for _ in range(10):
            producer.send(ProducerData("t", [b"to 2"]))
        assert len(cluster.brokers[2].payloads("t")) == 10


def test_a_broker_that_moves_under_its_id_is_followed(cluster: Cluster07) -> None:
    old = cluster.add(1, {"t": 1})
    with producer_of(cluster) as producer:
        producer.send(ProducerData("t", [b"old"], key="k"))
        cluster.kill(1)
        new = cluster.add(1, {"t": 1})
        until(lambda: _sends(producer, b"new") and new.payloads("t"))
        assert old.payloads("t") == [b"old"]


def _sends(producer: ClassicProducer, payload: bytes) -> bool:
    try:
        producer.send(ProducerData("t", [payload], key="k"))
    except (ConnectionLost, ServerError, QueueClosed):
        return False
    return True


def test_no_live_broker_is_an_error(cluster: Cluster07) -> None:
    with (
        producer_of(cluster) as producer,
        pytest.raises(
            ServerError, match=r"BROKER_NOT_AVAILABLE: no broker is registered in ZooKeeper at .*/ids"
        ),
    ):
        producer.send(ProducerData("t", [b"x"]))


def test_a_partition_of_a_broker_that_is_not_registered_is_an_error_after_looking_again(
    cluster: Cluster07,
) -> None:
    cluster.add(1)
    cluster.take_up(1, "t", 1)
    orphan = LAYOUT.topic_nodes("t", 9, 5)
    for path, data in orphan.items():
        cluster.sessions[1].create(path, data, ephemeral=True)
    with producer_of(cluster) as producer:
        # abs("f".hashCode()) % 6 is 0 of broker 1, that of "a" 1 of broker 9.
        producer.send(ProducerData("t", [b"x"], key="f"))
        with pytest.raises(ServerError, match="t: broker 9 of the chosen partition is not live"):
            producer.send(ProducerData("t", [b"x"], key="a"))


def test_a_session_that_expires_does_no_harm(cluster: Cluster07) -> None:
    cluster.add(1, {"t": 1})
    with producer_of(cluster) as producer:
        producer.send(ProducerData("t", [b"before"]))
        expire(producer._router._directory._session)  # type: ignore[attr-defined]
        cluster.add(2, {"t": 1})
        until(lambda: producer.brokers == [1, 2])
        producer.send(ProducerData("t", [b"after"]))
    assert sorted(cluster.payloads("t")) == [b"after", b"before"]


# --- producer.type=async


def test_what_was_queued_waits_for_a_broker_when_none_is_left(cluster: Cluster07) -> None:
    cluster.add(1, {"t": 1})
    with producer_of(cluster, producer_type="async", queue_time=3_600_000) as producer:
        producer.send([ProducerData("t", [b"%d" % n]) for n in range(5)])
        cluster.kill(1)
        until(lambda: producer.brokers == [])
        again = cluster.add(2, {"t": 1})
        until(lambda: producer.brokers == [2])
    assert sorted(again.payloads("t")) == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(QueueClosed):
        producer.send(ProducerData("t", [b"late"]))


def test_what_a_hook_raises_fails_the_send_but_not_other_brokers_parts(cluster: Cluster07) -> None:
    class Refusing(CallbackHandler):
        def before_enqueue(self, item: QueueItem) -> QueueItem:
            if item.data == b"1":
                raise PermissionError("not this one")
            return item

    cluster.add(1, {"t": 1})
    cluster.add(2, {"t": 1})
    producer = producer_of(cluster, Refusing(), producer_type="async")
    with producer, pytest.raises(PermissionError, match="not this one"):
        producer.send([ProducerData("t", [b"%d" % n], key=n) for n in (1, 2)])
    assert cluster.payloads("t") == [b"2"]


def test_data_is_a_list_of_events() -> None:
    with pytest.raises(TypeError, match="data must be a list or tuple of events, not bytes"):
        ProducerData("t", b"one")
