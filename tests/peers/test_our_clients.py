"""Our producer, reader and admin calls against a real Apache Kafka."""

from __future__ import annotations

import pytest

from pyspark_kafkalog import NewTopic, Producer, create_partitions, create_topics, delete_topics
from pyspark_kafkalog.client.admin import describe_configs
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import InvalidConfig, TopicAlreadyExists, UnknownTopicOrPartition
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, messages
from tests.support.foreign.old_clients import OurCommandLine
from tests.support.until import until


@pytest.mark.parametrize("codec", CODECS)
def test_what_our_producer_sends_our_reader_and_a_foreign_one_get(
    servers: str, topic: str, codec: str
) -> None:
    sent = messages()
    config = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 5, "batch.size": 4000}
    with Producer(config) as out:
        for m in sent:
            out.send(topic, m.value, m.key, partition=1, headers=m.headers, timestamp_ms=m.timestamp)
    assert OurCommandLine().consume(servers, topic, 1, 0, len(sent)) == sent
    assert CLIENTS[0].consume(servers, topic, 1, 0, len(sent)) == sent


def test_topics_are_made_widened_described_and_deleted(
    servers: str, cluster: Cluster, topic_name: str
) -> None:
    create_topics(servers, [NewTopic(topic_name, 3, configs={"retention.ms": "3600000"})])
    assert len(cluster.metadata().topics[topic_name].partitions) == 3
    with pytest.raises(TopicAlreadyExists, match=topic_name):
        create_topics(servers, [NewTopic(topic_name, 1)])
    with pytest.raises(InvalidConfig):
        create_topics(servers, [NewTopic(f"{topic_name}-x", 1, configs={"no.such.property": "1"})])
    assert describe_configs(cluster, topic=topic_name)["retention.ms"].value == "3600000"
    create_partitions(servers, {topic_name: 5})
    until(lambda: len(CLIENTS[0].topics(servers)) and widened(servers, topic_name) == 5)
    delete_topics(servers, [topic_name])
    until(lambda: topic_name not in CLIENTS[0].topics(servers))
    with pytest.raises(UnknownTopicOrPartition):
        delete_topics(servers, [topic_name])


def widened(servers: str, topic: str) -> int:
    cluster = Cluster(ConsumerConfig(bootstrap_servers=servers))
    try:
        return len(cluster.metadata().topics[topic].partitions)
    finally:
        cluster.close()
