"""Admin calls of our client against our broker."""

from __future__ import annotations

import pytest

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import (
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
)
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.types import TopicPartition


def test_a_topic_is_made_as_asked_for(cluster: Cluster, topic_name: str) -> None:
    create_topics(cluster, [NewTopic(topic_name, 3, configs={"retention.ms": "1234"})])
    found = cluster.metadata([topic_name]).topics[topic_name]
    assert list(found.partitions) == [0, 1, 2]
    entries = describe_configs(cluster, topic=topic_name)
    assert entries["retention.ms"].value == "1234"
    assert not entries["retention.ms"].is_default
    assert entries["segment.bytes"].is_default


def test_the_text_of_bootstrap_servers_is_enough_for_one_call(
    running_broker: EmbeddedBroker, cluster: Cluster, topic_name: str
) -> None:
    create_topics(running_broker.bootstrap_servers, [NewTopic(topic_name, 1)])
    assert list(cluster.metadata([topic_name]).topics[topic_name].partitions) == [0]


def test_a_topic_that_exists_is_not_made_again(cluster: Cluster, topic_name: str) -> None:
    create_topics(cluster, [NewTopic(topic_name, 1)])
    with pytest.raises(TopicAlreadyExists, match=topic_name):
        create_topics(cluster, [NewTopic(topic_name, 1)])


def test_topics_that_can_be_made_are_made_beside_those_that_cannot(cluster: Cluster, topic_name: str) -> None:
    with pytest.raises(InvalidTopic) as raised:
        create_topics(cluster, [NewTopic("a/b", 1), NewTopic(topic_name, 1), NewTopic("c/d", 1)])
    assert "a/b" in str(raised.value)
    assert "c/d" in str(raised.value)
    assert cluster.metadata([topic_name]).topics[topic_name].error == ErrorCode.NONE


def test_a_wrong_property_is_refused(cluster: Cluster, topic_name: str) -> None:
    with pytest.raises(InvalidConfig, match=topic_name):
        create_topics(cluster, [NewTopic(topic_name, 1, configs={"retention.ms": "soon"})])


def test_nothing_is_made_when_only_checked(cluster: Cluster, topic_name: str) -> None:
    create_topics(cluster, [NewTopic(topic_name, 1)], validate_only=True)
    assert cluster.metadata([topic_name]).topics[topic_name].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_can_be_widened_but_not_narrowed(cluster: Cluster, topic_name: str) -> None:
    create_topics(cluster, [NewTopic(topic_name, 1)])
    assert list(cluster.metadata([topic_name]).topics[topic_name].partitions) == [0]
    create_partitions(cluster, {topic_name: 3})
    assert list(cluster.metadata([topic_name]).topics[topic_name].partitions) == [0, 1, 2]
    assert cluster.leader(TopicPartition(topic_name, 2)).node_id == 0
    with pytest.raises(InvalidPartitions, match=topic_name):
        create_partitions(cluster, {topic_name: 2})


def test_a_deleted_topic_is_gone(cluster: Cluster, topic_name: str) -> None:
    create_topics(cluster, [NewTopic(topic_name, 1)])
    cluster.metadata([topic_name])
    delete_topics(cluster, [topic_name])
    assert cluster.metadata([topic_name]).topics[topic_name].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(UnknownTopicOrPartition, match=topic_name):
        delete_topics(cluster, [topic_name])


def test_a_broker_describes_itself(cluster: Cluster) -> None:
    assert describe_configs(cluster, broker=0)["offset.metadata.max.bytes"].value == "20"


def test_either_a_topic_or_a_broker_is_described(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="either a topic or a broker"):
        describe_configs(cluster)
