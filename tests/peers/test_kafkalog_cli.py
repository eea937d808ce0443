"""``kafkalog`` against Apache Kafka: records both ways, and a refusal. Groups: test_consumer.py."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import kafkalog, table
from tests.support.foreign.apache_kafka import ApacheKafka


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


def test_a_group_and_a_topic_that_are_not_there_are_said_not_to_exist(server: str) -> None:
    described = kafkalog("groups", "describe", "nobody", server=server)
    assert described.stderr == f"kafkalog: consumer group 'nobody' does not exist on {server}\n"
    deleted = kafkalog("topics", "delete", "nowhere", "--yes", server=server)
    assert deleted.stderr == "kafkalog: topic nowhere does not exist\n"
    assert (described.returncode, deleted.returncode) == (1, 1)
