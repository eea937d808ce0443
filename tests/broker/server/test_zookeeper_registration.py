"""What a broker keeps of itself in ZooKeeper: through new topics, expired sessions and rivals."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.server.registration import Registration
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.zookeeper.paths import BrokerNode, JsonLayout, V07Layout
from pyspark_kafkalog.zookeeper.registries import BrokerIdInUse, brokers, partitions, topics
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.manual_clock import ManualClock
from tests.support.until import until
from tests.support.zookeeper import PATIENT, PATIENT_MS, expire, expire_broker, patient_session

PLAIN, JSON = V07Layout(), JsonLayout()
ADDRESSES = {"PLAINTEXT": ("kafka1", 9092), "KAFKA07": ("kafka1", 9093)}

DYING_BROKER = """
import os, sys
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from pyspark_kafkalog.zookeeper.paths import BrokerNode

session = ZooKeeperSession(sys.argv[1], session_timeout_ms=120_000).start()
node = BrokerNode(1, "kafka1", 9092, 5)
session.create(JsonLayout().broker(1), JsonLayout().write_broker(node), ephemeral=True)
os._exit(9)  # no goodbye: the server has to miss it
"""

Made = Callable[..., Registration]


def topic(count: int, generation: str) -> StoredTopic:
    return StoredTopic(uuid.uuid4(), tuple(range(count)), {}, generation)


@pytest.fixture
def session(zookeeper_connect: str) -> Iterator[ZooKeeperSession]:
    with patient_session(zookeeper_connect) as session:
        yield session


@pytest.fixture
def made(zookeeper_connect: str) -> Iterator[Made]:
    """Registrations that are connected, and stopped in the end."""
    all_of_them: list[Registration] = []

    def make(
        node: int = 1,
        protocols: tuple[str, ...] = ("PLAINTEXT", "KAFKA07"),
        clock: Clock = SYSTEM_CLOCK,
        **own: object,
    ) -> Registration:
        properties = {
            "zookeeper.connect": zookeeper_connect, "node.id": node, **PATIENT, **own,
        }  # fmt: skip
        registration = Registration(parse(BrokerConfig, properties, source="test"), protocols, clock)
        all_of_them.append(registration)
        registration.connect()
        return registration

    yield make
    for registration in all_of_them:
        registration.stop()


def values(session: ZooKeeperSession, *paths: str) -> dict[str, bytes | None]:
    found = {path: session.read(path) for path in paths}
    return {path: node.data if node is not None else None for path, node in found.items()}


def start(registration: Registration, *what: Any) -> None:
    """Register what it is given."""
    registration.prepare(*what)
    registration.start()


def test_each_listener_registers_in_its_spelling_with_the_topics_of_its_generation(
    session: ZooKeeperSession, made: Made
) -> None:
    have = {"old": topic(2, "0.7"), "new": topic(1, "0.8"), "__consumer_offsets": topic(1, "0.8")}
    began_ms = int(time.time() * 1000)
    start(made(), ADDRESSES, lambda: have)
    plain, later = brokers(session, PLAIN)[1], brokers(session, JSON)[1]
    assert (plain.host, plain.port) == ("kafka1", 9093)
    assert (later.host, later.port) == ("kafka1", 9092)
    assert began_ms <= plain.since_ms <= time.time() * 1000
    assert topics(session, PLAIN) == ["old"]
    assert topics(session, JSON) == ["new"]
    assert values(session, "/brokers/topics/old/1", "/brokers/ids/1") == {
        "/brokers/topics/old/1": b"2",
        "/brokers/ids/1": b"kafka1-%d:kafka1:9093" % plain.since_ms,
    }
    assert [p.name for p in partitions(session, JSON, "new")] == ["0"]


def test_a_broker_with_one_listener_registers_there_only(session: ZooKeeperSession, made: Made) -> None:
    start(made(protocols=("KAFKA07",)), ADDRESSES, lambda: {"old": topic(1, "0.7"), "new": topic(1, "0.8")})
    assert list(brokers(session, PLAIN)) == [1]
    assert topics(session, PLAIN) == ["old"]
    assert brokers(session, JSON) == {}
    assert session.children("/") == ["brokers"]


def test_prefixes_are_configured_and_must_differ(session: ZooKeeperSession, made: Made) -> None:
    registration = made(**{"zookeeper.prefix": "/new", "zookeeper.prefix.07": "/old/one"})
    start(registration, ADDRESSES, dict)
    assert list(brokers(session, V07Layout("/old/one"))) == list(brokers(session, JsonLayout("/new"))) == [1]
    with pytest.raises(InvalidConfig, match=r"zookeeper\.prefix and zookeeper\.prefix\.07 must differ"):
        made(**{"zookeeper.prefix": "/"})
    made(2, ("PLAINTEXT",), **{"zookeeper.prefix": "/"})


def test_topics_are_registered_when_they_are_made_grow_and_go(session: ZooKeeperSession, made: Made) -> None:
    have: Mapping[str, StoredTopic] = {"old": topic(1, "0.7"), "new": topic(1, "0.8")}
    registration = made()
    start(registration, ADDRESSES, lambda: have)
    have = {"old": topic(3, "0.7"), "new": topic(2, "0.8"), "old2": topic(1, "0.7")}
    registration.changed()
    until(lambda: topics(session, PLAIN) == ["old", "old2"])
    until(lambda: len(partitions(session, JSON, "new")) == 2)
    assert [p.name for p in partitions(session, PLAIN, "old")] == ["1-0", "1-1", "1-2"]
    have = {"old2": have["old2"]}
    registration.changed()
    # Nothing stays of a topic that was deleted.
    until(lambda: (topics(session, JSON), topics(session, PLAIN)) == ([], ["old2"]))


def test_another_brokers_partitions_of_a_deleted_topic_stay(session: ZooKeeperSession, made: Made) -> None:
    have = {"old": topic(1, "0.7")}
    one, two = made(1), made(2)
    start(one, ADDRESSES, lambda: have)
    start(
        two,
        {name: ("kafka2", port) for name, (_, port) in ADDRESSES.items()},
        lambda: {"old": topic(2, "0.7")},
    )
    have.clear()
    one.changed()
    until(lambda: [p.name for p in partitions(session, PLAIN, "old")] == ["2-0", "2-1"])


def test_an_id_in_use_is_an_error_that_names_the_other_broker(session: ZooKeeperSession, made: Made) -> None:
    start(made(), ADDRESSES, dict)
    clock = ManualClock()  # it would move if the rival waited for a session of its own to end
    rival = made(clock=clock)
    began = clock.monotonic()
    with pytest.raises(
        BrokerIdInUse,
        match=r"broker id 1 is in use by kafka1:9092 \(/kafka/brokers/ids/1 in ZooKeeper\): "
        r"give the broker at kafka2:19092 another node\.id, or stop the other one",
    ) as told:
        start(rival, {"PLAINTEXT": ("kafka2", 19092), "KAFKA07": ("kafka2", 19093)}, dict)
    assert told.value.other == brokers(session, JSON)[1]
    assert clock.monotonic() == began, "it does not wait for a session of its own to end"
    rival.stop()
    assert brokers(session, PLAIN)[1].host == "kafka1"


def test_what_a_dead_broker_left_at_our_address_is_waited_for(
    session: ZooKeeperSession, made: Made, zookeeper_connect: str, caplog: pytest.LogCaptureFixture
) -> None:
    subprocess.run([sys.executable, "-c", DYING_BROKER, zookeeper_connect], check=False, timeout=180)
    before = brokers(session, JSON)[1]
    registration = made(protocols=("PLAINTEXT",))
    registration.prepare(ADDRESSES, dict)
    starting = threading.Thread(target=registration.start)
    starting.start()
    until(lambda: "broker 1 at kafka1:9092 died lately" in caplog.text)
    expire_broker(zookeeper_connect, 1)
    starting.join()
    assert brokers(session, JSON)[1].since_ms > before.since_ms


def test_a_registration_comes_back_after_its_session_expired(session: ZooKeeperSession, made: Made) -> None:
    have = {"old": topic(2, "0.7"), "new": topic(1, "0.8")}
    registration = made()
    start(registration, ADDRESSES, lambda: have)
    node = session.read(PLAIN.broker(1))
    assert node is not None
    first = node.owner
    expire(registration.session)
    owners = until(lambda: _owners(session) and first not in _owners(session) and _owners(session))
    assert len(set(owners)) == 1
    assert list(brokers(session, PLAIN)) == list(brokers(session, JSON)) == [1]
    assert [p.name for p in partitions(session, PLAIN, "old")] == ["1-0", "1-1"]
    have["old"] = topic(3, "0.7")
    registration.changed()
    until(lambda: len(partitions(session, PLAIN, "old")) == 3)


def _owners(session: ZooKeeperSession) -> list[int]:
    """The sessions of the four nodes; empty until all are there."""
    paths = (PLAIN.broker(1), JSON.broker(1), "/brokers/topics/old/1", JSON.topic_child("new", "0"))
    nodes = [session.read(path) for path in paths]
    return [node.owner for node in nodes if node is not None] if all(nodes) else []


def test_a_rival_that_came_while_the_session_was_lost_is_reported_and_outlasted(
    session: ZooKeeperSession, made: Made, zookeeper_connect: str, caplog: pytest.LogCaptureFixture
) -> None:
    registration = made(protocols=("PLAINTEXT",))
    start(registration, ADDRESSES, dict)
    with patient_session(zookeeper_connect) as rival:
        # In the moment between the end of the old session and the new one.
        registration.session.listen(lambda event: event.value == "lost" and take(rival))
        expire(registration.session)
        until(lambda: "broker id 1 is in use by rival:1" in caplog.text)
        assert brokers(session, JSON)[1].host == "rival"
    until(lambda: 1 in brokers(session, JSON) and brokers(session, JSON)[1].host == "kafka1")


def take(rival: ZooKeeperSession) -> None:
    rival.create(JSON.broker(1), JSON.write_broker(BrokerNode(1, "rival", 1, 5)), ephemeral=True)


def test_a_clean_stop_withdraws_everything_at_once(session: ZooKeeperSession, made: Made) -> None:
    registration = made()
    start(registration, ADDRESSES, lambda: {"old": topic(2, "0.7")})
    registration.stop()
    assert brokers(session, PLAIN) == brokers(session, JSON) == {}
    assert partitions(session, PLAIN, "old") == []
    registration.stop()


def test_the_cluster_has_one_id_in_both_spellings(session: ZooKeeperSession, made: Made) -> None:
    first = made(1).agree_on_cluster(None)
    assert made(2).agree_on_cluster(None) == first
    assert made(3).agree_on_cluster(first) == first
    written = b'{"version":"1","id":"%s"}' % first.encode()
    assert list(values(session, "/cluster/id", "/kafka/cluster/id").values()) == [written, written]
    assert len(first) == 22
    with pytest.raises(InvalidConfig, match=f"belongs to cluster foreign, but .* are cluster {first}"):
        made(4).agree_on_cluster("foreign")


def test_a_topic_that_cannot_be_a_znode_keeps_no_other_from_being_registered(
    session: ZooKeeperSession, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    start(made(), ADDRESSES, lambda: {"a/b": topic(1, "0.7"), "ok": topic(1, "0.7")})
    assert topics(session, PLAIN) == ["ok"]
    assert "topic 'a/b' is not registered" in caplog.text


@pytest.mark.long("ZooKeeper, stopped and started")
def test_topics_that_were_made_while_zookeeper_was_away_are_registered_when_it_is_back(
    own_zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(
        zookeeper_connect=own_zookeeper.connect,
        zookeeper_connection_timeout_ms=PATIENT_MS,
        zookeeper_session_timeout_ms=PATIENT_MS,
    )
    registration = Registration(config, ["KAFKA07"], SYSTEM_CLOCK)
    registration.connect()
    have = {"old": topic(1, "0.7")}
    start(registration, ADDRESSES, lambda: have)
    registration.session._connect_ms = 500  # from now on: it was not to be missed by the start
    own_zookeeper.kill()
    have["late"] = topic(1, "0.7")
    registration.changed()
    until(lambda: "not registered in ZooKeeper, trying again" in caplog.text)
    own_zookeeper.start()
    with patient_session(own_zookeeper.connect) as session:
        until(lambda: [p.name for p in partitions(session, PLAIN, "late")] == ["0-0"])
        registration.stop()
        assert brokers(session, PLAIN) == {}


@pytest.mark.long("ZooKeeper, stopped and started")
def test_no_zookeeper_is_reported_at_the_start(own_zookeeper: ZooKeeperServer) -> None:
    own_zookeeper.kill()
    config = BrokerConfig(zookeeper_connect=own_zookeeper.connect, zookeeper_connection_timeout_ms=200)
    registration = Registration(config, ["PLAINTEXT"], SYSTEM_CLOCK)
    with pytest.raises(ConnectionLost, match=r"no ZooKeeper answers at .* within 200 ms"):
        registration.connect()
    registration.stop()
