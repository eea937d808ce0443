"""Reads from the replica in the client's rack, at two brokers of Apache Kafka (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pyspark_kafkalog import NewTopic, Producer, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import PartitionFetcher
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.until import until

RACKS = {1: "a", 2: "b"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
COUNT = 200


class Racks(NamedTuple):
    brokers: dict[int, ApacheKafka]
    servers: str
    partitions: dict[int, TopicPartition]
    """By the id of their leader, each with a replica at both brokers, and `COUNT` records of 1 kB."""


@pytest.fixture
def racks(
    kafka_jars: Path, zookeeper: ZooKeeperServer, zookeeper_connect: str, tmp_path: Path
) -> Iterator[Racks]:
    brokers = {
        node: ApacheKafka(
            kafka_jars, tmp_path / rack, zookeeper=zookeeper_connect, broker_id=str(node), broker_rack=rack,
            replica_selector_class=SELECTOR,
        )
        for node, rack in RACKS.items()
    }  # fmt: skip
    try:
        for broker in brokers.values():
            broker.start()
        servers = ",".join(broker.bootstrap_servers for broker in brokers.values())
        cluster = Cluster(ConsumerConfig(bootstrap_servers=servers))
        until(lambda: len(cluster.metadata().brokers) == len(brokers))
        create_topics(servers, [NewTopic("t", 2, 2)])
        with Producer({"bootstrap.servers": servers, "acks": "all", "batch.size": 4000}) as out:
            for partition in (0, 1):
                for number in range(COUNT):
                    out.send("t", b"%d" % number * 300, partition=partition)
        partitions = (TopicPartition("t", number) for number in (0, 1))
        yield Racks(brokers, servers, {cluster.leader(tp).node_id: tp for tp in partitions})
        cluster.close()
    finally:
        for broker in brokers.values():
            broker.stop()


def test_a_client_reads_in_its_rack_and_from_the_leader_when_that_replica_dies(racks: Racks) -> None:
    for rack, here in (("a", 1), ("b", 2), ("", None)):
        for leader, tp in racks.partitions.items():
            assert read(racks, tp, rack) == {leader if here is None else here}
    assert read(racks, racks.partitions[1], "b", kill=2) == {1, 2}


def read(racks: Racks, tp: TopicPartition, rack: str, kill: int | None = None) -> set[int]:
    """The brokers that the records came from, each once; ``kill`` dies after the first answer."""
    config = ConsumerConfig(bootstrap_servers=racks.servers, client_rack=rack, max_partition_fetch_bytes=8000)
    cluster = Cluster(config)
    found, brokers = [], set()
    for fetched in PartitionFetcher(cluster, tp, 0, COUNT, config=config):
        found += [r.offset for r in records(fetched.data, start_offset=fetched.offset, max_bytes=1 << 20)]
        brokers.add(fetched.broker_id)
        if kill is not None:
            racks.brokers[kill].kill()
            kill = None
    cluster.close()
    assert found == list(range(COUNT))
    return brokers
