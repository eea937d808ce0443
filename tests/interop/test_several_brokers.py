"""Foreign clients at a cluster of ours: any broker will do, for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from broker.embedded import EmbeddedCluster, start_cluster
from tests.interop.test_transactions import ALL, KEPT, by_aiokafka, by_kafka_python, by_librdkafka
from tests.peers.test_transactions import READ_UNCOMMITTED, theirs
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import ForeignClient, messages

by_name = pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.soak), 3])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with start_cluster(request.param, {"auto.create.topics.enable": False}) as running:
        yield running


def at(cluster: EmbeddedCluster, number: int) -> str:
    """The address of one broker, counted from 0 round and round."""
    addresses = [each.bootstrap_servers for each in cluster.brokers.values()]
    return addresses[number % len(addresses)]


@pytest.mark.long("several brokers and their ZooKeeper")
@by_name
@pytest.mark.parametrize("count", [pytest.param(12, marks=pytest.mark.soak), 5])
def test_what_is_written_through_one_broker_is_read_through_any(
    cluster: EmbeddedCluster, topic_name: str, writer: ForeignClient, count: int
) -> None:
    writer.create_topic(at(cluster, 0), topic_name, count)
    written = messages()
    for partition in range(count):
        writer.produce(at(cluster, 1), topic_name, partition, written, "none", idempotent=True)
    for number, reader in enumerate(CLIENTS):
        for partition in range(count):
            found = reader.consume(at(cluster, number), topic_name, partition, 0, len(written))
            assert found == written, (reader.name, partition)


@by_name
@pytest.mark.long("several brokers and their ZooKeeper")
def test_offsets_are_the_same_at_every_broker(
    cluster: EmbeddedCluster, topic_name: str, writer: ForeignClient
) -> None:
    writer.create_topic(at(cluster, 1), topic_name, 3)
    for n in range(4):
        group = f"{topic_name}-{n}"
        writer.commit(at(cluster, n), group, topic_name, n % 3, 7 + n)
        for number, reader in enumerate(CLIENTS):
            assert reader.committed(at(cluster, number), group, topic_name, n % 3) == 7 + n, reader.name


@pytest.mark.long("several brokers and their ZooKeeper")
@pytest.mark.parametrize("produce", [by_librdkafka, by_kafka_python, by_aiokafka])
def test_a_transaction_has_partitions_and_offsets_at_every_broker(
    cluster: EmbeddedCluster, topic_name: str, produce: Callable[[str, str, int], None]
) -> None:
    CLIENTS[0].create_topic(at(cluster, 0), topic_name, 5)
    produce(at(cluster, 1), topic_name, 5)
    for partition in range(5):
        assert theirs(at(cluster, partition), topic_name, partition) == KEPT
    assert theirs(at(cluster, 0), topic_name, 0, READ_UNCOMMITTED) == ALL
    for number, reader in enumerate(CLIENTS):
        assert reader.committed(at(cluster, number), topic_name, topic_name, 0) == 2, reader.name
