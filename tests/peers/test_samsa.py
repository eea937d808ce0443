"""samsa, of Kafka 0.7's time, with our brokers through ZooKeeper: what they register, and its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.zookeeper_group import range_assign
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import V07Layout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.foreign.clients07 import Driver
from tests.support.protocol.wire07 import Wire07, fetch, produce
from tests.support.until import until

LAYOUT = V07Layout()
PARTITIONS = ["1-0", "1-1", "2-0", "2-1"]
SETTLED_SECONDS = 30.0
"""samsa waits 1 s, then 4 s, before it claims again what was still owned."""


@pytest.fixture(scope="module")
def where(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.connect}/samsa"


@pytest.fixture(scope="module")
def brokers(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, EmbeddedBroker]]:
    """Two, each with two partitions of a topic."""
    running: dict[int, EmbeddedBroker] = {}
    try:
        for node in (1, 2):
            properties = {
                "listeners": "KAFKA07://127.0.0.1:0", "num.partitions": 2, "log.flush.interval": 1,
                "node.id": node, "zookeeper.connect": where,
            }  # fmt: skip
            running[node] = start_broker(properties, data_dir=tmp_path_factory.mktemp(f"broker-{node}"))
        yield running
    finally:
        for broker in running.values():
            broker.stop()


@pytest.fixture
def session(where: str) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(where) as session:
        yield session


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def samsa(python2_clients: Driver) -> Ask:
    return lambda do, **arguments: python2_clients.ask("samsa", do, **arguments)


def write(broker: EmbeddedBroker, topic: str, partition: int, *payloads: bytes) -> None:
    """When it returns, they can be read."""
    with Wire07(broker.port) as wire:
        wire.send(produce(topic, partition, encode_set(payloads, magic=0)))
        assert wire.ask(fetch(topic, partition, 0, 1)) is not None


def write_to_all(brokers: dict[int, EmbeddedBroker], topic: str, *texts: bytes) -> list[bytes]:
    """The texts to each partition, behind its name; what was written, sorted."""
    written = []
    for node, broker in brokers.items():
        for partition in (0, 1):
            payloads = [b"%d-%d %s" % (node, partition, text) for text in texts]
            write(broker, topic, partition, *payloads)
            written += payloads
    return sorted(written)


def ends(brokers: dict[int, EmbeddedBroker], topic: str) -> dict[str, int]:
    found = {}
    for node, broker in brokers.items():
        with SimpleConsumer("127.0.0.1", broker.port) as consumer:
            for partition in (0, 1):
                (found[f"{node}-{partition}"],) = consumer.get_offsets_before(topic, partition, -1)
    return found


def committed(session: ZooKeeperSession, group: str, topic: str) -> dict[str, int | None]:
    return {
        name: registries.read_group_offset(session, LAYOUT, group, topic, name) for name in PARTITIONS
    }  # fmt: skip


def taken(answer: dict[str, Any]) -> list[bytes]:
    return sorted(bytes.fromhex(payload) for payload in answer["payloads"])


def named(partitions: list[list[int]]) -> list[str]:
    return [f"{node}-{number}" for node, number in partitions]


def wait_for_registration(session: ZooKeeperSession, topic: str, count: int) -> None:
    until(lambda: len(session.children(LAYOUT.topic(topic))) == count)


def test_it_finds_our_brokers_and_their_partitions(
    samsa: Ask, brokers: dict[int, EmbeddedBroker], session: ZooKeeperSession, where: str, topic_name: str
) -> None:
    write(brokers[1], topic_name, 0, b"x")
    wait_for_registration(session, topic_name, 1)
    found = samsa("cluster", zookeeper=where, topic=topic_name)
    assert found["brokers"] == {
        str(node): ["127.0.0.1", broker.port] for node, broker in brokers.items()
    }  # fmt: skip
    # Of a broker that has not registered the topic it expects one partition.
    assert named(found["partitions"]) == ["1-0", "1-1", "2-0"]
    write(brokers[2], topic_name, 0, b"x")
    wait_for_registration(session, topic_name, 2)
    assert named(samsa("cluster", zookeeper=where, topic=topic_name)["partitions"]) == PARTITIONS


def test_what_it_publishes_by_the_registry_arrives_in_some_partition(
    samsa: Ask, brokers: dict[int, EmbeddedBroker], session: ZooKeeperSession, where: str, topic_name: str
) -> None:
    sent = [b"published %d" % number for number in range(40)]
    samsa("publish", zookeeper=where, topic=topic_name, payloads=[payload.hex() for payload in sent])

    def stored() -> list[bytes]:
        found = []
        for broker in brokers.values():
            with SimpleConsumer("127.0.0.1", broker.port) as consumer:
                for partition in (0, 1):
                    found += [bytes(p) for p, _ in consumer.fetch(topic_name, partition, 0)]
        return sorted(found)

    until(lambda: len(stored()) == len(sent))
    assert stored() == sorted(sent)


def test_its_groups_share_our_partitions_as_ours_do(
    samsa: Ask, brokers: dict[int, EmbeddedBroker], session: ZooKeeperSession, where: str, topic_name: str
) -> None:
    group = f"g-{topic_name}"
    written = write_to_all(brokers, topic_name, b"one", b"two")
    wait_for_registration(session, topic_name, 2)
    ids = {"a": samsa("join", zookeeper=where, topic=topic_name, group=group, member="a")["id"]}
    assert named(samsa("owned", member="a")["partitions"]) == PARTITIONS
    assert taken(samsa("take", member="a", count=len(written))) == written
    ids["b"] = samsa("join", zookeeper=where, topic=topic_name, group=group, member="b")["id"]

    wanted = range_assign(PARTITIONS, sorted(ids.values()))

    def owned() -> dict[str, list[str]]:
        return {id_: named(samsa("owned", member=member)["partitions"]) for member, id_ in ids.items()}

    until(lambda: owned() == wanted, seconds=SETTLED_SECONDS)
    assert registries.owners(session, LAYOUT, group, topic_name) == {
        name: id_ for id_, names in wanted.items() for name in names
    }
    more = write_to_all(brokers, topic_name, b"three")
    found = {member: taken(samsa("take", member=member, count=2)) for member in ids}
    assert {member: [p.decode().split()[0] for p in payloads] for member, payloads in found.items()} == {
        member: wanted[id_] for member, id_ in ids.items()
    }
    assert sorted(found["a"] + found["b"]) == more
    for member in ids:
        samsa("leave", member=member)
    assert committed(session, group, topic_name) == ends(brokers, topic_name)
    assert registries.owners(session, LAYOUT, group, topic_name) == {}


@pytest.fixture
def read_with_ours(where: str) -> Callable[[str, str, int], list[bytes]]:
    """So many messages by a consumer of ours in the group, which then leaves it; sorted."""

    def read(topic: str, group: str, count: int) -> list[bytes]:
        config = {
            "zk.connect": where,
            "groupid": group,
            "consumer.timeout.ms": 10_000,
            "fetcher.backoff.ms": 20,
        }
        with ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams({topic: 1})[topic]
            found = [bytes(message) for message, _ in (next(stream) for _ in range(count))]
            connector.commit_offsets()
        return sorted(found)

    return read


def test_each_side_continues_where_the_others_group_stopped(
    samsa: Ask, brokers: dict[int, EmbeddedBroker], session: ZooKeeperSession, where: str, topic_name: str,
    read_with_ours: Callable[[str, str, int], list[bytes]],
) -> None:  # fmt: skip
    group = f"g-{topic_name}"
    written = write_to_all(brokers, topic_name, b"one", b"two")
    wait_for_registration(session, topic_name, 2)
    samsa("join", zookeeper=where, topic=topic_name, group=group, member="first")
    assert taken(samsa("take", member="first", count=len(written))) == written
    samsa("leave", member="first")

    written = write_to_all(brokers, topic_name, b"three")
    assert read_with_ours(topic_name, group, len(written)) == written
    assert committed(session, group, topic_name) == ends(brokers, topic_name)

    written = write_to_all(brokers, topic_name, b"four", b"five")
    samsa("join", zookeeper=where, topic=topic_name, group=group, member="second")
    assert taken(samsa("take", member="second", count=len(written))) == written
    samsa("leave", member="second")
    assert committed(session, group, topic_name) == ends(brokers, topic_name)
