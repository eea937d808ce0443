"""Admin calls of our client against our broker."""

from __future__ import annotations

import pytest

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
    InvalidPartitions,
    InvalidTopic,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api.topics import CreatableTopicResult, CreateTopicsResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_broker import ScriptedBroker


def test_a_topic_is_made_as_asked_for(cluster: Cluster, topic_name: str) -> None:
    create_topics(cluster, [NewTopic(topic_name, 3, configs={"retention.ms": "1234"})])
    found = cluster.metadata([topic_name]).topics[topic_name]
    assert list(found.partitions) == [0, 1, 2]
    entries = describe_configs(cluster, topic=topic_name)
    assert entries["retention.ms"].value == "1234"
    assert not entries["retention.ms"].is_default
    assert entries["segment.bytes"].is_default


def test_topics_that_can_be_made_are_made_beside_those_that_cannot(cluster: Cluster, topic_name: str) -> None:
    with pytest.raises(InvalidTopic) as raised:
        create_topics(cluster, [NewTopic("a/b", 1), NewTopic(topic_name, 1), NewTopic("c/d", 1)])
    assert "a/b" in str(raised.value)
    assert "c/d" in str(raised.value)
    assert cluster.metadata([topic_name]).topics[topic_name].error == ErrorCode.NONE


def test_more_copies_than_brokers_are_refused_in_the_brokers_words(cluster: Cluster, topic_name: str) -> None:
    said = f"^INVALID_REPLICATION_FACTOR: topic {topic_name}: replication factor 2; with 1 broker it can be 1"
    with pytest.raises(ServerError, match=said):
        create_topics(cluster, [NewTopic(topic_name, 1, replication_factor=2)])
    create_topics(cluster, [NewTopic(topic_name, 1, replication_factor=1)])


@pytest.mark.parametrize(("newest", "sent"), [(3, [1, 2]), (5, [-1, 2])])
def test_brokers_that_have_no_default_are_asked_for_one_copy(newest: int, sent: list[int]) -> None:
    with ScriptedBroker(versions={ApiKey.CREATE_TOPICS: (0, newest)}) as broker:
        broker.default(
            ApiKey.CREATE_TOPICS,
            lambda request: CreateTopicsResponse(
                topics=tuple(CreatableTopicResult(name=topic.name) for topic in request.topics)
            ),
        )
        create_topics(broker.address, [NewTopic("a", 4), NewTopic("b", 4, 2)])
        (request,) = broker.received(ApiKey.CREATE_TOPICS)
        assert [(t.num_partitions, t.replication_factor) for t in request.topics] == [(4, n) for n in sent]
        if newest == 3:
            with pytest.raises(UnsupportedVersion, match=r"before Kafka 2\.4 .* number of partitions"):
                create_topics(broker.address, [NewTopic("c", replication_factor=1)])


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
    with pytest.raises(UnknownTopicOrPartition, match=f"^topic {topic_name} does not exist$"):
        delete_topics(cluster, [topic_name])
