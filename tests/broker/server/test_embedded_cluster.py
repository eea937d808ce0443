"""`start_cluster`: several brokers for tests and notebooks, with clients of other people's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

import kafkalog_broker
from kafkalog_broker.embedded import EmbeddedCluster
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig
from pyspark_kafkalog.protocol.api.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from tests.support.protocol.raw_client import RawClient
from tests.support.protocol.raw_groups import commit, committed
from tests.support.two_brokers import await_all
from tests.support.until import until
from tests.support.zookeeper import PATIENT


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with kafkalog_broker.start_cluster(3, PATIENT) as running:
        await_all(running)
        yield running


def test_groups_are_spread_over_the_brokers_and_keep_their_offsets(cluster: EmbeddedCluster) -> None:
    with ExitStack() as stack:
        clients = {n: stack.enter_context(RawClient(each.port)) for n, each in cluster.brokers.items()}
        clients[1].create_topic("offsets", partitions=1)
        wanted = MetadataRequest(
            topics=(MetadataRequestTopic(name="offsets"),), allow_auto_topic_creation=False
        )
        until(lambda: not any(each.ask(wanted).topics[0].error_code for each in clients.values()))
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=tuple(f"g-{n}" for n in range(20)))

        def owners() -> dict[str, int]:
            """The coordinator of each group, once all brokers say the same."""
            one, *others = (
                {each.key: each.node_id for each in client.ask(request).coordinators}
                for client in clients.values()
            )
            return one if others == [one, one] and -1 not in one.values() else {}

        found = until(owners)
        assert set(found.values()) == {1, 2, 3}
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for group, owner in found.items():
            until(lambda group=group, owner=owner: commit(clients[owner], group, "offsets", 7) != loading)
            codes = {number: commit(client, group, "offsets", 7) for number, client in clients.items()}
            wrong = dict.fromkeys(set(clients) - {owner}, ErrorCode.NOT_COORDINATOR)
            assert codes == {owner: ErrorCode.NONE, **wrong}
    cluster.brokers[2].restart()
    with RawClient(cluster.brokers[2].port) as client:
        group = next(group for group, owner in found.items() if owner == 2)
        assert until(lambda: committed(client, group, "offsets")) == 7


def test_what_only_one_broker_can_have_is_refused_and_nothing_runs() -> None:
    before = {each.pid for each in psutil.Process().children()}
    with pytest.raises(InvalidConfig, match=r"start_cluster: node\.id is each broker's own"):
        kafkalog_broker.start_cluster(**{"node.id": 5})
    with pytest.raises(InvalidConfig, match="at least 1 broker, not 0"):
        kafkalog_broker.start_cluster(0)
    with pytest.raises(InvalidConfig, match=r"no property num\.partition"):
        kafkalog_broker.start_cluster(2, **{"num.partition": 5})
    assert {each.pid for each in psutil.Process().children()} == before
