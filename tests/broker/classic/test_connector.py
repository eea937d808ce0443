"""The consumer of a group with our own brokers and a real ZooKeeper, on both wires."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.stream import Blacklist, ConsumerTimeout, MessageStream, Whitelist
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, InvalidRequest
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import JsonLayout, V07Layout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.protocol.wire07 import Wire07, fetch, produce
from tests.support.until import until
from tests.support.zookeeper import PATIENT, PATIENT_MS, expire, patient_session

PLAIN, JSON = V07Layout(), JsonLayout()
SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0", "num.partitions": 2, "node.id": 1,
    "log.flush.interval": 1,
}  # fmt: skip

Connect = Callable[..., ConsumerConnector]
Write = Callable[[str, int, list[bytes]], None]


@pytest.fixture(scope="module")
def where(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.connect}/connectors"


@pytest.fixture(scope="module")
def kafka(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    directory = tmp_path_factory.mktemp("broker")
    with start_broker({**SETTINGS, **PATIENT, "zookeeper.connect": where}, data_dir=directory) as broker:
        yield broker


@pytest.fixture
def session(where: str) -> Iterator[ZooKeeperSession]:
    with patient_session(where) as session:
        yield session


@pytest.fixture
def connect(where: str, topic_name: str) -> Iterator[Connect]:
    """Consumers of a group of the test's own, shut down in the end."""
    made: list[ConsumerConnector] = []

    def one(**properties: object) -> ConsumerConnector:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        defaults = {
            "zk.connect": where, "groupid": f"g-{topic_name}", "consumer.timeout.ms": 60_000,
            "fetcher.backoff.ms": 20, "rebalance.backoff.ms": 100, **PATIENT,
        }  # fmt: skip
        made.append(ConsumerConnector(defaults | named))
        return made[-1]

    yield one
    for connector in made:
        connector.shutdown()


@pytest.fixture(params=["0.7", "0.8"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def write(kafka: EmbeddedBroker, protocol: str) -> Write:
    """Append messages to a partition by the wire of the test."""

    def old(topic: str, partition: int, payloads: list[bytes]) -> None:
        with Wire07(kafka.port_of("KAFKA07")) as wire:
            wire.send(produce(topic, partition, encode_set(payloads)))
            assert wire.ask(fetch(topic, partition, 0, 100)), "the broker has dealt with it"

    def new(topic: str, partition: int, payloads: list[bytes]) -> None:
        with RawClient(kafka.port) as client:
            client.create_topic(topic, partitions=2)
            client.produce(topic, batch(*payloads), partition=partition)

    return old if protocol == "0.7" else new


def take(stream: MessageStream, count: int) -> list[bytes]:
    return [next(stream)[0] for _ in range(count)]


def patiently(stream: MessageStream, count: int) -> list[bytes]:
    """The same of a stream whose ``consumer.timeout.ms`` is short."""

    def attempt() -> list[bytes]:
        try:
            return take(stream, 1)
        except ConsumerTimeout:
            return []

    return [until(attempt)[0] for _ in range(count)]


def layout_of(protocol: str) -> V07Layout | JsonLayout:
    return PLAIN if protocol == "0.7" else JSON


def name_of(protocol: str, partition: int) -> str:
    return f"1-{partition}" if protocol == "0.7" else str(partition)


def test_messages_come_with_where_they_are_from(
    connect: Connect, write: Write, protocol: str, topic_name: str
) -> None:
    write(topic_name, 0, [b"a", b"b"])
    write(topic_name, 1, [b"c"])
    (stream,) = connect(protocol=protocol).create_message_streams({topic_name: 1})[topic_name]
    found = [next(stream) for _ in range(3)]
    step = 11 if protocol == "0.7" else 1
    assert sorted((m, d.topic, d.broker, d.partition, d.offset, d.next_offset) for m, d in found) == [
        (b"a", topic_name, 1, 0, 0, step),
        (b"b", topic_name, 1, 0, step, 2 * step),
        (b"c", topic_name, 1, 1, 0, step),
    ]
    keys = {metadata.record.key for _, metadata in found}
    assert keys == ({None} if protocol == "0.7" else {b"k0", b"k1"})


def test_a_group_continues_where_it_committed(
    connect: Connect, write: Write, protocol: str, topic_name: str, session: ZooKeeperSession
) -> None:
    write(topic_name, 0, [b"1", b"2", b"3"])
    first = connect(protocol=protocol, autocommit_enable=False)
    (stream,) = first.create_message_streams({topic_name: 1})[topic_name]
    assert take(stream, 2) == [b"1", b"2"]
    first.commit_offsets()
    offset = registries.read_group_offset(
        session, layout_of(protocol), f"g-{topic_name}", topic_name, name_of(protocol, 0)
    )
    assert offset == (22 if protocol == "0.7" else 2)
    assert take(stream, 1) == [b"3"]
    first.shutdown()
    assert list(stream) == []
    (stream,) = connect(protocol=protocol).create_message_streams({topic_name: 1})[topic_name]
    assert take(stream, 1) == [b"3"]


def test_offsets_are_committed_now_and_then(
    connect: Connect, write: Write, protocol: str, topic_name: str, session: ZooKeeperSession
) -> None:
    write(topic_name, 0, [b"1", b"2"])
    connector = connect(protocol=protocol, autocommit_interval_ms=50, consumer_timeout_ms=300)
    (stream,) = connector.create_message_streams({topic_name: 1})[topic_name]
    assert patiently(stream, 2) == [b"1", b"2"]
    with pytest.raises(ConsumerTimeout, match="no message within 300 ms"):
        next(stream)
    layout, end = layout_of(protocol), 22 if protocol == "0.7" else 2
    stored = lambda: registries.group_offsets(session, layout, f"g-{topic_name}", topic_name)  # noqa: E731
    until(lambda: stored().get(name_of(protocol, 0)) == end)
    write(topic_name, 0, [b"3"])
    assert patiently(stream, 1) == [b"3"], "a stream goes on after a timeout"


def test_two_consumers_share_the_partitions_and_one_gets_them_back(
    connect: Connect, write: Write, protocol: str, topic_name: str, session: ZooKeeperSession
) -> None:
    write(topic_name, 0, [b"0"])
    write(topic_name, 1, [b"1"])
    layout, group, names = layout_of(protocol), f"g-{topic_name}", [name_of(protocol, n) for n in (0, 1)]
    one = connect(protocol=protocol, consumerid="a")
    (stream,) = one.create_message_streams({topic_name: 1})[topic_name]
    assert sorted(take(stream, 2)) == [b"0", b"1"]
    threading.Thread(target=lambda: list(stream), daemon=True).start()
    two = connect(protocol=protocol, consumerid="b")
    (other,) = two.create_message_streams({topic_name: 1})[topic_name]
    until(lambda: len(one.owned) == len(two.owned) == 1)
    shared = {names[0]: f"{group}_a-0", names[1]: f"{group}_b-0"}
    until(lambda: registries.owners(session, layout, group, topic_name) == shared)
    write(topic_name, 1, [b"more"])
    assert take(other, 1) == [b"more"], "the other one was finished with what came before"
    two.shutdown()
    until(lambda: len(one.owned) == 2)
    assert registries.consumers(session, layout, group).keys() == {f"{group}_a"}


def test_filters_join_topics_as_they_appear(
    connect: Connect, write: Write, protocol: str, topic_name: str
) -> None:
    write(f"{topic_name}-one", 0, [b"1"])
    write(f"not-{topic_name}", 0, [b"no"])
    (stream,) = connect(protocol=protocol).create_message_streams_by_filter(
        Whitelist(f"{topic_name}-.*, nothing"), 1
    )
    assert take(stream, 1) == [b"1"]
    write(f"{topic_name}-two", 1, [b"2"])
    message, metadata = next(stream)
    assert (message, metadata.topic, metadata.partition) == (b"2", f"{topic_name}-two", 1)
    blacklist = connect(protocol=protocol, groupid=f"black-{topic_name}")
    (rest,) = blacklist.create_message_streams_by_filter(Blacklist(f"(?!not-{topic_name}).*"), 1)
    assert take(rest, 1) == [b"no"]


@pytest.mark.parametrize(("reset", "expected"), [("smallest", b"old"), ("largest", b"new")])
def test_a_group_without_offsets_begins_where_configured(
    connect: Connect,
    write: Write,
    protocol: str,
    topic_name: str,
    session: ZooKeeperSession,
    reset: str,
    expected: bytes,
) -> None:
    write(topic_name, 0, [b"old"])
    connector = connect(protocol=protocol, autooffset_reset=reset)
    (stream,) = connector.create_message_streams({topic_name: 1})[topic_name]
    offsets = lambda: registries.group_offsets(session, layout_of(protocol), f"g-{topic_name}", topic_name)  # noqa: E731
    until(lambda: len(offsets()) == 2)  # kept at once: whoever follows begins there too
    write(topic_name, 0, [b"new"])
    assert take(stream, 1) == [expected]


def test_without_a_reset_the_stream_raises_until_there_is_an_offset(
    connect: Connect, write: Write, protocol: str, topic_name: str
) -> None:
    write(topic_name, 0, [b"1"])
    connector = connect(protocol=protocol, autooffset_reset="none")
    (stream,) = connector.create_message_streams({topic_name: 1})[topic_name]
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"group g-{topic_name} has no offset for .*reset is none"):
            next(stream)


def test_an_offset_that_the_log_does_not_hold_is_reset(
    connect: Connect, write: Write, protocol: str, topic_name: str, session: ZooKeeperSession
) -> None:
    write(topic_name, 0, [b"1"])
    group, layout, name = f"g-{topic_name}", layout_of(protocol), name_of(protocol, 0)
    registries.write_group_offset(session, layout, group, topic_name, name, 10_000)
    (stream,) = connect(protocol=protocol).create_message_streams({topic_name: 1})[topic_name]
    assert take(stream, 1) == [b"1"]
    assert registries.read_group_offset(session, layout, group, topic_name, name) == 0


def test_an_expired_session_joins_again_and_nothing_is_lost(
    connect: Connect, write: Write, protocol: str, topic_name: str, session: ZooKeeperSession
) -> None:
    write(topic_name, 0, [b"1", b"2"])
    connector = connect(protocol=protocol)
    (stream,) = connector.create_message_streams({topic_name: 1})[topic_name]
    assert take(stream, 2) == [b"1", b"2"]
    connector.commit_offsets()
    layout, group = layout_of(protocol), f"g-{topic_name}"
    before = session.read(layout.consumer(group, connector.consumer_id))
    assert before is not None
    expire(connector._session)
    write(topic_name, 0, [b"3"])
    assert take(stream, 1) == [b"3"]
    after = session.read(layout.consumer(group, connector.consumer_id))
    assert after is not None
    assert after.owner != before.owner
    until(
        lambda: (
            list(registries.owners(session, layout, group, topic_name).values())
            == [f"{connector.consumer_id}-0"] * 2
        )
    )


def test_the_way_to_offsets_in_kafka_and_back_loses_no_position(
    connect: Connect, where: str, kafka: EmbeddedBroker, topic_name: str, session: ZooKeeperSession
) -> None:
    with RawClient(kafka.port) as client:
        client.create_topic(topic_name)
        client.produce(topic_name, batch(*(b"%d" % n for n in range(6))))
    ways: list[dict[str, Any]] = [
        {"offsets_storage": "zookeeper"},
        {"offsets_storage": "kafka", "dual_commit_enabled": True},
        {"offsets_storage": "kafka"},
        {"offsets_storage": "zookeeper", "dual_commit_enabled": True},
        {"offsets_storage": "zookeeper"},
    ]
    for number, way in enumerate(ways):
        connector = connect(protocol="0.8", **way)
        (stream,) = connector.create_message_streams({topic_name: 1})[topic_name]
        assert take(stream, 1) == [b"%d" % number]
        connector.commit_offsets()
        connector.shutdown()
        in_zookeeper = registries.read_group_offset(session, JSON, f"g-{topic_name}", topic_name, "0")
        assert in_zookeeper == (number if number == 2 else number + 1)
    with SimpleConsumer("127.0.0.1", kafka.port, {"protocol": "0.8"}) as consumer:
        tp = TopicPartition(topic_name, 0)
        assert consumer.fetch_offsets(f"g-{topic_name}", [tp])[tp].offset == 4


def test_streams_are_created_once_and_settings_are_checked(connect: Connect, topic_name: str) -> None:
    connector = connect()
    connector.create_message_streams({topic_name: 1})
    with pytest.raises(InvalidRequest, match="creates streams once, for all its topics"):
        connector.create_message_streams_by_filter(Whitelist("x"))
    with pytest.raises(InvalidConfig, match=r"offsets\.storage=kafka is not allowed with protocol=0\.7"):
        connect(offsets_storage="kafka")
    with pytest.raises(InvalidConfig, match=r"zookeeper\.connect is missing"):
        ConsumerConnector({"groupid": "g"})
    with pytest.raises(InvalidConfig, match="is not a regular expression"):
        Whitelist("[")


def test_a_consumer_whose_id_is_in_use_may_be_tried_again(
    connect: Connect, write: Write, protocol: str, topic_name: str, session: ZooKeeperSession
) -> None:
    """As one that was killed and started anew, before ZooKeeper has missed it."""
    write(topic_name, 0, [b"1"])
    layout, group = layout_of(protocol), f"g-{topic_name}"
    registries.register_consumer(session, layout, group, f"{group}_c", Whitelist("x").subscription(1), 5)
    connector = connect(protocol=protocol, consumerid="c")
    with pytest.raises(registries.ConsumerIdInUse, match=f"group {group} already has a consumer {group}_c"):
        connector.create_message_streams({topic_name: 1})
    registries.unregister_consumer(session, layout, group, f"{group}_c")
    (stream,) = connector.create_message_streams({topic_name: 1})[topic_name]
    assert take(stream, 1) == [b"1"]


def test_nothing_is_given_out_while_zookeeper_is_silent(
    own_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Somebody else may be reading the same partitions by then: better late than twice."""
    properties = {
        "zk.connect": own_zookeeper.connect, "groupid": "g", "consumer.timeout.ms": 1000,
        "fetcher.backoff.ms": 20, **PATIENT,
    }  # fmt: skip
    settings = {**SETTINGS, **PATIENT, "zookeeper.connect": own_zookeeper.connect}
    with start_broker(settings, data_dir=tmp_path) as broker, Wire07(broker.port_of("KAFKA07")) as wire:
        wire.send(produce("t", 0, encode_set([b"1", b"2"])))
        with ConsumerConnector(properties) as connector:
            (stream,) = connector.create_message_streams({"t": 1})["t"]
            assert patiently(stream, 1) == [b"1"]
            own_zookeeper.kill()
            until(lambda: not connector._session.connected)
            until(lambda: not connector._lease.held())
            connector._session._connect_ms = 500  # from now on: the start was to wait for its answers
            with pytest.raises(ConsumerTimeout):
                next(stream)
            with pytest.raises(ConnectionLost, match="ZooKeeper does not answer"):
                connector.commit_offsets()
            own_zookeeper.start()
            connector._session._connect_ms = PATIENT_MS
            (found,) = patiently(stream, 1)
            assert found in (b"1", b"2"), "in the same session it goes on, in a new one it begins again"
