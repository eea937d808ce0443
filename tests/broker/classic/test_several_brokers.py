"""The papers' clients on today's wire, at brokers of one cluster: a death and a return lose nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, EmbeddedCluster, start_cluster
from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.classic.consumer.stream import MessageStream
from pyspark_kafkalog.classic.mirror import Mirror
from pyspark_kafkalog.classic.producer.classic_producer import ClassicProducer, ProducerData
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.mirror_config import mirror_config
from pyspark_kafkalog.consumer.consumer import Consumer
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import TopicPartition
from tests.support.classic.mirroring import Side
from tests.support.two_brokers import await_all
from tests.support.until import until
from tests.support.zookeeper import PATIENT, expire_broker

pytestmark = pytest.mark.long("several brokers and their ZooKeeper")

PARTITIONS = 6
MESSAGES = 300
PROMPT = {
    **PATIENT, "protocol": "0.8", "socket.timeout.ms": 2000,
    "rebalance.backoff.ms": 100, "fetcher.backoff.ms": 20, "autocommit.interval.ms": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(3, PATIENT) as cluster:
        await_all(cluster)
        yield cluster


class Reader:
    """A thread that reads one stream into ``found``."""

    def __init__(self, stream: MessageStream) -> None:
        self.found: list[tuple[int, int, bytes]] = []
        """Partition, offset and message."""
        self._stream = stream
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def messages(self) -> set[bytes]:
        return {message for _, _, message in self.found}

    def join(self) -> None:
        self._thread.join(60)

    def _run(self) -> None:
        for message, where in self._stream:
            self.found.append((where.partition, where.offset, bytes(message)))


def leaders(cluster: EmbeddedCluster, topic: str) -> set[int]:
    client = Cluster(ClientConfig(bootstrap_servers=cluster.bootstrap_servers))
    try:
        found = client.metadata([topic], refresh=True).topics[topic].partitions.values()
        return {partition.leader for partition in found}
    finally:
        client.close()


def test_a_send_through_a_load_balancer_goes_to_what_the_chosen_broker_leads(
    cluster: EmbeddedCluster, topic_name: str
) -> None:
    create_topics(cluster.bootstrap_servers, [NewTopic(topic_name, PARTITIONS)])
    until(lambda: leaders(cluster, topic_name) == {*cluster.brokers})
    for broker in cluster.brokers.values():
        # Not the address that it has in the cluster, like a balancer's.
        with SyncProducer("localhost", broker.port, {"protocol": "0.8"}) as producer:
            for _ in range(10):
                producer.send(topic_name, [b"x"])
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers}) as consumer:
        partitions = [TopicPartition(topic_name, number) for number in range(PARTITIONS)]
        assert sum(consumer.end_offsets(partitions).values()) == 30


def test_consumers_read_from_few_brokers_if_all_ask_for_it(cluster: EmbeddedCluster, topic_name: str) -> None:
    create_topics(cluster.bootstrap_servers, [NewTopic(topic_name, PARTITIONS)])
    until(lambda: leaders(cluster, topic_name) == {*cluster.brokers})
    given = PROMPT | {
        "zookeeper.connect": cluster.zookeeper_connect, "groupid": topic_name,
        "partition.assignment.strategy": "range-by-broker",
    }  # fmt: skip
    connectors = [ConsumerConnector({**given, "consumerid": str(number)}) for number in range(3)]
    try:
        for connector in connectors:
            connector.create_message_streams({topic_name: 1})
        until(lambda: [len(connector.owned) for connector in connectors] == [2, 2, 2])
        with closing(Cluster(ClientConfig(bootstrap_servers=cluster.bootstrap_servers))) as client:
            led = client.metadata([topic_name], refresh=True).topics[topic_name].partitions
        assert [
            {led[key.number].leader for key in connector.owned} for connector in connectors
        ] == [{broker} for broker in sorted(cluster.brokers)]  # fmt: skip
    finally:
        for connector in connectors:
            connector.shutdown()


def write(cluster: EmbeddedCluster, topic: str, kill: int) -> set[bytes]:
    """Messages with keys, what was acknowledged of them; a broker dies after a third and is there again
    after two thirds.
    """
    acknowledged = set()
    # By ZooKeeper, where brokers come and go.
    settings = {
        **PATIENT, "zookeeper.connect": cluster.zookeeper_connect, "protocol": "0.8",
        "socket.timeout.ms": 2000,
    }  # fmt: skip
    with ClassicProducer(settings) as producer:
        for number in range(MESSAGES):
            if number == MESSAGES // 3:
                cluster.brokers[kill].kill()
                expire_broker(cluster.zookeeper_connect, kill)
            if number == 2 * MESSAGES // 3:
                cluster.brokers[kill].start()
                until(lambda: -1 not in leaders(cluster, topic))
            try:
                producer.send(ProducerData(topic, [b"%d" % number], key=str(number)))
            except KafkaError:
                continue
            acknowledged.add(b"%d" % number)
    return acknowledged


def test_every_acknowledged_message_is_read_by_a_group_of_two(
    cluster: EmbeddedCluster, topic_name: str
) -> None:
    """Where its offsets are kept is another test's."""
    create_topics(cluster.bootstrap_servers, [NewTopic(topic_name, PARTITIONS)])
    until(
        lambda: leaders(cluster, topic_name) == {*cluster.brokers}
    )  # its owners make it one after the other
    given = PROMPT | {
        "zookeeper.connect": cluster.zookeeper_connect, "groupid": topic_name,
    }  # fmt: skip
    connectors = [ConsumerConnector(given) for _ in range(2)]
    readers = [
        Reader(stream)
        for connector in connectors
        for stream in connector.create_message_streams({topic_name: 1})[topic_name]
    ]
    try:
        acknowledged = write(cluster, topic_name, kill=2)
        assert len(acknowledged) > MESSAGES // 2
        until(lambda: acknowledged <= readers[0].messages | readers[1].messages)
    finally:
        for connector in connectors:
            connector.shutdown()
        for reader in readers:
            reader.join()
    assert all(reader.found for reader in readers), "both had partitions"
    for reader in readers:
        for partition in range(PARTITIONS):
            read = list(dict.fromkeys(at for number, at, _ in reader.found if number == partition))
            assert read == sorted(read), "in order, but for what comes twice"


def test_a_mirror_reads_a_cluster_of_which_a_broker_dies_and_returns(
    cluster: EmbeddedCluster, running_broker: EmbeddedBroker, topic_name: str
) -> None:
    there = Side(running_broker, "", "0.8")
    create_topics(cluster.bootstrap_servers, [NewTopic(topic_name, PARTITIONS)])
    create_topics(running_broker.bootstrap_servers, [NewTopic(topic_name, 1)])
    given = {
        "sources": "main", "whitelist": topic_name, "offset.commit.interval.ms": 50,
        "source.main.bootstrap.servers": cluster.bootstrap_servers, "source.main.group.id": topic_name,
    }  # fmt: skip
    with Mirror(mirror_config(given | there.as_target(), source="test")) as mirror:
        mirror.start()
        acknowledged = write(cluster, topic_name, kill=3)
        until(lambda: acknowledged <= set(there.values(topic_name)))
