"""What a producer knows of brokers and partitions on today's wire: by ZooKeeper, and by asking a broker."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.classic.producer.router import BrokerPartition, ClusterDirectory, ZooKeeperDirectory
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.zookeeper.paths import BrokerNode, JsonLayout
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.zookeeper import patient_session

LAYOUT = JsonLayout("/kafka")


@pytest.mark.long("brokers that die and return")
def test_partitions_are_ordered_by_number_whichever_broker_leads_them(zookeeper_connect: str) -> None:
    with patient_session(zookeeper_connect) as session:
        for broker in (1, 2):
            node = BrokerNode(broker, "h", 9, 1)
            session.create(LAYOUT.broker(broker), LAYOUT.write_broker(node), ephemeral=True)
        for broker in (1, 2):
            rows = list(LAYOUT.topic_nodes("t", broker, 12).items())
            for number, (path, data) in enumerate(rows):
                if number % 2 == broker - 1:
                    session.create(path, data, ephemeral=True)
        directory = ZooKeeperDirectory(patient_session(zookeeper_connect), LAYOUT, ANY_PARTITION)
        told: list[list[int]] = []
        directory.start(lambda live: told.append(sorted(live)))
        try:
            assert directory.partitions("t") == [BrokerPartition(n % 2 + 1, n) for n in range(12)]
            assert directory.partitions("new") == [BrokerPartition(1, -1), BrokerPartition(2, -1)]
            assert told[0] == [1, 2]
        finally:
            directory.close()


def test_a_topic_without_all_its_leaders_is_asked_for_again() -> None:
    layout = Layout(leaders={"t": {0: 0, 1: 0}})
    with ScriptedBroker(layout) as broker:
        incomplete = Layout(brokers=layout.brokers, leaders={"t": {0: 0, 1: -1}})
        broker.script(ApiKey.METADATA, incomplete.metadata, incomplete.metadata)
        directory = ClusterDirectory(ClientConfig(bootstrap_servers=broker.address, retry_backoff_ms=10))
        try:
            assert directory.partitions("t") == [BrokerPartition(0, 0), BrokerPartition(0, 1)]
            assert len(broker.received(ApiKey.METADATA)) == 3
            directory.partitions("t")
            assert len(broker.received(ApiKey.METADATA)) == 3
            directory.refresh("t")
            directory.partitions("t")
            assert len(broker.received(ApiKey.METADATA)) == 4
        finally:
            directory.close()
