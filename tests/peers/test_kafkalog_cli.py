"""``kafkalog`` against Apache Kafka: records both ways, and a group that has a member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.embedded import start_broker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.protocol.api.describe_groups import DescribeGroupsRequest
from pyspark_kafkalog.protocol.api.list_groups import ListGroupsRequest
from pyspark_kafkalog.types import TopicPartition
from tests.support.command_line import kafkalog, table
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.protocol.raw_client import RawClient

WAIT_SECONDS = 30.0


@pytest.fixture
def server(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap_servers


@pytest.fixture
def topic(server: str, topic_name: str) -> str:
    """A topic with two partitions and ten records in the first."""
    assert kafkalog("topics", "create", topic_name, "--partitions", "2", server=server).returncode == 0
    said = "".join(f"{i}\n" for i in range(10))
    ran = kafkalog("produce", topic_name, "-p", "0", "-z", "lz4", server=server, said=said)
    assert ran.returncode == 0, ran.stderr
    return topic_name


def test_more_copies_than_there_are_brokers_are_refused_in_kafkas_words(server: str, topic_name: str) -> None:
    ran = kafkalog("topics", "create", topic_name, "--replication-factor", "3", server=server)
    assert ran.returncode == 1
    assert f"topic {topic_name}: Unable to replicate the partition 3 time(s)" in " ".join(ran.stderr.split())


@pytest.fixture
def member(server: str, topic: str) -> Iterator[Any]:
    """A consumer of librdkafka in a group of the topic's name, which has committed offset 4."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Theirs

    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": topic,
            "client.id": "someone",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    assert consumer.consume(1, WAIT_SECONDS)
    consumer.commit(offsets=[Theirs(topic, 0, 4)], asynchronous=False)
    yield consumer
    consumer.close()


def test_records_and_times_come_back(server: str, topic: str) -> None:
    read = kafkalog("consume", topic, "--format", "json", "--from", "-3", server=server)
    assert [json.loads(line)["value"] for line in read.stdout.splitlines()] == ["7", "8", "9"]
    assert table(kafkalog("offsets", topic, server=server).stdout) == [
        ["0", "0", "10", "10"],
        ["1", "0", "0", "0"],
        ["total", "10"],
    ]
    newest = kafkalog("offsets", topic, "--time", "newest", "--json", server=server)
    assert json.loads(newest.stdout.splitlines()[1])["offset"] is None
    assert json.loads(newest.stdout.splitlines()[0])["timestamp"] > 1_700_000_000_000


def test_a_group_with_a_member_is_shown_and_cannot_be_moved(server: str, topic: str, member: Any) -> None:
    listed = [
        json.loads(line)
        for line in kafkalog("groups", "list", "--json", server=server).stdout.split("\n")
        if line
    ]
    assert {"group": topic, "state": "Stable", "protocol": "consumer", "kind": "classic"} in listed
    described = kafkalog("groups", "describe", topic, server=server).stdout
    assert described.startswith(f"{topic}: Stable, 1 member, assigned by range")
    first, second, total = table(described)
    assert first[:6] == [topic, "0", "4", "10", "6", "someone"]
    assert second[:6] == [topic, "1", "-", "0", "0", "someone"]
    assert total == ["total", "6"]
    moved = kafkalog("groups", "reset", topic, topic, "--to", "earliest", server=server)
    assert moved.returncode == 1
    assert "the group has members, and only they may commit for it" in moved.stderr


def test_a_group_without_members_is_committed_for(server: str, topic: str) -> None:
    cluster = Cluster(ClientConfig(bootstrap_servers=server))
    first, group = TopicPartition(topic, 0), f"ours-{topic}"
    try:
        assert committed_offsets(cluster, group) == {}
        commit_offsets(cluster, group, {first: 7}, metadata="note")
        assert [(o.offset, o.metadata) for o in committed_offsets(cluster, group, [first]).values()] == [
            (7, "note")
        ]
    finally:
        cluster.close()
    shown = kafkalog("lag", "--group", group, server=server).stdout
    assert table(shown) == [[topic, "0", "10", "7", "3"], [topic, "1", "0", "-", "0"], ["total", "3"]]
    missing = kafkalog("groups", "describe", f"not-{topic}", server=server)
    assert (missing.returncode, missing.stdout) == (1, "")


@pytest.mark.parametrize("version", range(6))
def test_our_broker_describes_groups_as_kafka_does(
    apache_kafka: ApacheKafka, topic: str, version: int
) -> None:
    answers = []
    with start_broker() as ours:
        ours_made = kafkalog("topics", "create", topic, server=ours.bootstrap_servers)
        assert ours_made.returncode == 0
        for server in (apache_kafka.bootstrap_servers, ours.bootstrap_servers):
            cluster = Cluster(ClientConfig(bootstrap_servers=server))
            commit_offsets(cluster, f"known-{topic}", {TopicPartition(topic, 0): 0})
            cluster.close()
            with RawClient(int(server.rpartition(":")[2])) as client:
                operations = version >= 3
                request = DescribeGroupsRequest((f"known-{topic}", "never-seen", ""), operations)
                described = client.ask(request, version).groups
                listed = client.ask(ListGroupsRequest(), min(version, 4)).groups
                answers.append((described, [g for g in listed if g.group_id == f"known-{topic}"]))
    theirs, our = answers
    assert our == theirs
