"""Whole brokers with ZooKeeper: joining, making topics, dying and coming back."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kafkalog_broker.embedded import BrokerNotStarted, EmbeddedBroker, start_broker
from pyspark_kafkalog.client.admin import NewTopic, create_partitions, create_topics, delete_topics
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.zookeeper.paths import JsonLayout, V07Layout
from pyspark_kafkalog.zookeeper.registries import agree_on_cluster, brokers, partitions, topics
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.client.scripted_server import refusing_port
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.stopping import still_there
from tests.support.until import until
from tests.support.zookeeper import PATIENT, impatient_broker, patient_session

PLAIN, JSON = V07Layout(), JsonLayout()
BOTH = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"


def with_zookeeper(
    connect: str, node: int = 1, data_dir: Path | None = None, **own: object
) -> EmbeddedBroker:
    properties = {
        "listeners": BOTH, "node.id": node, "zookeeper.connect": connect,
        **PATIENT, **own,
    }  # fmt: skip
    return start_broker(properties, data_dir=data_dir)


def test_a_broker_registers_both_its_wires_and_its_topics_as_they_are_made(
    session: ZooKeeperSession, zookeeper_connect: str
) -> None:
    with with_zookeeper(zookeeper_connect) as broker:
        plain, later = brokers(session, PLAIN)[1], brokers(session, JSON)[1]
        assert (plain.host, plain.port) == ("127.0.0.1", broker.port_of("KAFKA07"))
        assert (later.host, later.port) == ("127.0.0.1", broker.port_of("PLAINTEXT"))
        create_topics(broker.bootstrap_servers, [
            NewTopic("old", 2, configs={"generation": "0.7"}), NewTopic("new", 1),
        ])  # fmt: skip
        until(lambda: [p.name for p in partitions(session, PLAIN, "old")] == ["1-0", "1-1"])
        until(lambda: [p.name for p in partitions(session, JSON, "new")] == ["0"])
        create_partitions(broker.bootstrap_servers, {"new": 3})
        until(lambda: [p.name for p in partitions(session, JSON, "new")] == ["0", "1", "2"])
        delete_topics(broker.bootstrap_servers, ["old"])
        until(lambda: topics(session, PLAIN) == [])
    assert brokers(session, PLAIN) == brokers(session, JSON) == {}
    assert partitions(session, JSON, "new") == []


@pytest.mark.long("ZooKeeper, stopped and started")
def test_data_of_another_cluster_is_refused(
    session: ZooKeeperSession, zookeeper_connect: str, tmp_path: Path
) -> None:
    start_broker(data_dir=tmp_path / "alone").stop()
    agree_on_cluster(session, PLAIN, None, "another")
    said = r"the data directory belongs to cluster .* use another chroot"
    with pytest.raises(BrokerNotStarted, match=said):
        with_zookeeper(zookeeper_connect, 0, tmp_path / "alone")


@pytest.mark.long("ZooKeeper, stopped and started")
def test_without_zookeeper_a_broker_does_not_start_and_leaves_nothing_behind(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    own = {"zookeeper.connection.timeout.ms": 300}
    said = r"no ZooKeeper answers at .* within 300 ms"
    with refusing_port() as port, pytest.raises(BrokerNotStarted, match=said):
        with_zookeeper(f"127.0.0.1:{port}", 1, tmp_path / "data", **own)
    with with_zookeeper(zookeeper_connect, 1, tmp_path / "data"):
        pass


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_broker_serves_on_and_stops_while_zookeeper_is_away(own_zookeeper: ZooKeeperServer) -> None:
    own = {"zookeeper.connect": own_zookeeper.connect, "listeners": BOTH, "node.id": 1}
    with impatient_broker({**own, "zookeeper.connection.timeout.ms": 3000}) as broker:
        create_topics(broker.bootstrap_servers, [NewTopic("early", 1)])
        own_zookeeper.kill()
        with RawClient(broker.port_of("PLAINTEXT")) as client:
            assert client.produce("early", batch(b"while it is away")).error_code == ErrorCode.NONE
            assert client.create_topic("old", configs={"generation": "0.7"}).error_code == ErrorCode.NONE
            # It would be no topic of the cluster: nobody can be asked.
            assert client.create_topic("late").error_code == ErrorCode.REQUEST_TIMED_OUT
            own_zookeeper.start()
            until(lambda: client.create_topic("late").error_code == ErrorCode.NONE)
        with patient_session(own_zookeeper.connect) as session:
            # The name of the topic of 0.7 is taken in the whole cluster.
            until(lambda: topics(session, JSON) == ["early", "late", "old"])
            assert partitions(session, JSON, "old") == []
            until(lambda: topics(session, PLAIN) == ["old"])
        own_zookeeper.kill()
        process = psutil.Process(broker.pid)
        process.terminate()
        # Nobody helps it along, as the context manager does after a while.
        assert still_there([process]) == []
