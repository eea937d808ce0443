"""Foreign clients at a cluster of ours: any broker will do, for anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
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
