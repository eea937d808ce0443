"""Java's clients and Kafka's tools at three brokers of ours that are one cluster: any broker will do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import LATEST_TIMESTAMP, IsolationLevel, TopicPartition
from tests.peers.test_transactions import READ_UNCOMMITTED, ours
from tests.support.foreign.apache_kafka import fetch, run_tool
from tests.support.until import until

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(3, {"auto.create.topics.enable": False}) as running:
        yield running


def at(cluster: EmbeddedCluster, number: int) -> str:
    """The address of one broker, counted from 0 round and round."""
    addresses = [each.bootstrap_servers for each in cluster.brokers.values()]
    return addresses[number % len(addresses)]


def test_records_with_keys_through_one_broker_are_read_through_another(
    cluster: EmbeddedCluster, kafka_jars: Path, topic_name: str
) -> None:
    partitions = 12

    def topics(number: int, *arguments: str) -> str:
        return run_tool(kafka_jars, TOPICS, "--bootstrap-server", at(cluster, number), *arguments)

    def leaders() -> list[str]:
        told = topics(1, "--describe", "--topic", topic_name)
        found = [line.partition("Leader: ")[2].split()[0] for line in told.splitlines() if "Leader: " in line]
        return [] if "none" in found else found

    topics(0, "--create", "--topic", topic_name, "--partitions", str(partitions))
    found = until(leaders)
    assert (len(found), len(set(found))) == (partitions, 3)
    told = run_tool(
        kafka_jars, PRODUCER, "--bootstrap-server", at(cluster, 1), "--topic", topic_name,
        "--max-messages", "300", "--repeating-keys", "50", "--acks", "-1",
    )  # fmt: skip
    (summary,) = (json.loads(line) for line in told.splitlines() if "tool_data" in line)
    assert summary["acked"] == 300
    read = run_tool(
        kafka_jars, CONSUMER, "--bootstrap-server", at(cluster, 2), "--topic", topic_name,
        "--group", topic_name, "--from-beginning", "--max-messages", "300", "--timeout-ms", "20000",
    )  # fmt: skip
    assert sorted(int(line) for line in read.splitlines() if line.isdigit()) == list(range(300))
    for number in range(3):
        told = run_tool(
            kafka_jars, GROUPS, "--bootstrap-server", at(cluster, number), "--describe", "--group", topic_name
        )
        lags = [line.split() for line in told.splitlines() if line.startswith(topic_name)]
        assert [words[5] for words in lags] == ["0"] * partitions
        assert sum(int(words[3]) for words in lags) == 300
    topics(2, "--alter", "--topic", topic_name, "--partitions", str(partitions + 1))
    until(lambda: len(leaders()) == partitions + 1)
    topics(1, "--delete", "--topic", topic_name)
    until(lambda: topic_name not in topics(2, "--list"))


@pytest.mark.parametrize("version", ["4.1.1", None], ids=["4.1", "3.9"])
def test_transactions_over_all_brokers(
    cluster: EmbeddedCluster, topic_name: str, version: str | None
) -> None:
    jars, servers = fetch(version), cluster.bootstrap_servers
    create_topics(servers, [NewTopic(topic_name, 6)])
    for number in range(3):  # ids that different brokers coordinate
        run_tool(
            jars, PERFORMANCE, "--topic", topic_name, "--num-records", "5000", "--record-size", "100",
            "--throughput", "10000", "--transactional-id", f"{topic_name}-{number}",
            "--transaction-duration-ms", "50", "--producer-props", f"bootstrap.servers={at(cluster, number)}",
            "batch.size=1000",
        )  # fmt: skip
    committed = [len(ours(servers, topic_name, number)) for number in range(6)]
    assert sum(committed) == 15_000
    assert min(committed) > 0
    assert committed == [len(ours(servers, topic_name, n, READ_UNCOMMITTED)) for n in range(6)]
    told = run_tool(jars, TRANSACTIONS, "--bootstrap-server", at(cluster, 0), "list")
    states = {line.split()[0]: line.split()[3] for line in told.splitlines() if line.startswith(topic_name)}
    assert states == {f"{topic_name}-{number}": "CompleteCommit" for number in range(3)}


def test_an_administrator_ends_a_transaction_in_one_partition(
    cluster: EmbeddedCluster, kafka_jars: Path, topic_name: str
) -> None:
    servers = cluster.bootstrap_servers
    create_topics(servers, [NewTopic(topic_name, 3)])
    with Producer({"bootstrap.servers": servers, "transactional.id": topic_name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(3):
            assert producer.send(topic_name, b"open", partition=partition).result(20).offset == 0
        run_tool(
            kafka_jars, TRANSACTIONS, "--bootstrap-server", at(cluster, 1), "abort", "--topic", topic_name,
            "--partition", "0", "--start-offset", "0",
        )  # fmt: skip
        ends = [list_end(servers, topic_name, partition) for partition in range(3)]
        assert ends == [2, 0, 0], "a record and its abort; the others wait for their producer"
        producer.abort_transaction()
    assert [ours(servers, topic_name, partition) for partition in range(3)] == [[], [], []]


def list_end(servers: str, topic: str, partition: int) -> int:
    """Where a reader of committed records stops."""
    where = TopicPartition(topic, partition)
    with closing(Cluster(ClientConfig(bootstrap_servers=servers))) as client:
        found = list_offsets(client, {where: LATEST_TIMESTAMP}, isolation=IsolationLevel.READ_COMMITTED)
        return found[where].offset
