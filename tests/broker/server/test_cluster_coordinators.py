"""Who coordinates groups and transactions in a cluster whose brokers stop, are given up, come with other data
or lose their ids; by raw requests.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, EmbeddedCluster, start_broker, start_cluster
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchRequest
from pyspark_kafkalog.protocol.api.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.protocol.raw_groups import commit
from tests.support.protocol.raw_transactions import RawTransactions, stored_offset
from tests.support.stopping import stop_process
from tests.support.two_brokers import await_all
from tests.support.until import until
from tests.support.zookeeper import PATIENT, expire_broker

pytestmark = pytest.mark.long("several brokers and their ZooKeeper")

GROUP, TRANSACTION = 0, 1


@pytest.fixture
def two() -> Iterator[EmbeddedCluster]:
    with start_cluster(2, PATIENT) as running:
        await_all(running)
        yield running


def client_of(broker: EmbeddedBroker, stack: ExitStack) -> RawClient:
    return stack.enter_context(RawClient(broker.port))


def coordinator(client: RawClient, key: str, kind: int = GROUP) -> tuple[ErrorCode, int]:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
    (found,) = client.ask(request).coordinators
    return found.error_code, found.node_id


def key_of(client: RawClient, broker: int, kind: int) -> str:
    """A group, or a transactional id, that this broker coordinates."""
    until(lambda: coordinator(client, "g0", kind)[0] == ErrorCode.NONE)
    return next(key for key in (f"g{n}" for n in range(99)) if coordinator(client, key, kind)[1] == broker)


def leaders(client: RawClient, topic: str) -> list[int]:
    request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
    (found,) = client.ask(request).topics
    return [each.leader_id for each in sorted(found.partitions, key=lambda p: p.partition_index)]


def stored_code(client: RawClient, group: str) -> ErrorCode:
    """The code with which the group's offsets are refused, or answered."""
    code: ErrorCode = client.ask(OffsetFetchRequest(group_id=group, topics=()), 5).error_code
    return code


def test_a_broker_whose_id_was_taken_sends_its_groups_away_and_an_empty_one_of_its_id_has_them_wait(
    two: EmbeddedCluster, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        one, old = (client_of(two.brokers[n], stack) for n in (1, 2))
        assert one.create_topic("t", partitions=2).error_code == ErrorCode.NONE
        until(lambda: sorted(leaders(old, "t")) == [1, 2])
        group, name = key_of(one, 2, GROUP), key_of(one, 2, TRANSACTION)
        until(lambda: commit(old, group, "t", 5) == ErrorCode.NONE)
        txn = RawTransactions(old, name)
        until(lambda: txn.initialize() == ErrorCode.NONE)
        stop_process(two.brokers[2].pid)
        expire_broker(two.zookeeper_connect, 2)
        until(lambda: -1 in leaders(one, "t"))
        own = {"node.id": 2, "zookeeper.connect": two.zookeeper_connect, **PATIENT}
        with start_broker(own, data_dir=tmp_path / "rival") as rival, RawClient(rival.port) as empty:
            os.kill(two.brokers[2].pid, signal.SIGCONT)
            until(lambda: commit(old, group, "t", 6) == ErrorCode.NOT_COORDINATOR)
            assert txn.initialize() == ErrorCode.NOT_COORDINATOR
            away = ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert coordinator(old, group)[0] == coordinator(old, name, TRANSACTION)[0] == away
            # The other one is who the cluster means, but has nothing of what it made.
            until(lambda: coordinator(one, group) == (ErrorCode.NONE, 2))
            assert coordinator(empty, group)[0] == coordinator(empty, name, TRANSACTION)[0] == away
            assert commit(empty, group, "t", 6) == stored_code(empty, group) == away
            assert RawTransactions(empty, name).initialize() == away
        until(lambda: commit(old, group, "t", 8) == ErrorCode.NONE)
        until(lambda: coordinator(old, group) == (ErrorCode.NONE, 2))
        assert stored_offset(old, group, "t") == (ErrorCode.NONE, 8)
        known = txn.producer
        until(lambda: txn.initialize() == ErrorCode.NONE)
        assert txn.producer == (known[0], known[1] + 1)


def alone(directory: Path, number: int, group: str) -> None:
    """A broker without a cluster, with a topic and an offset of the group; then it is of cluster "both"."""
    with start_broker(data_dir=directory, **{"node.id": number}) as broker, RawClient(broker.port) as client:
        client.create_topic(f"of-{number}")
        client.produce(f"of-{number}", batch(b"x"))
        assert commit(client, group, f"of-{number}", 10 + number) == ErrorCode.NONE
    meta = directory / "meta.properties"
    meta.write_text(re.sub("cluster.id=.*", "cluster.id=both", meta.read_text()))


def test_offsets_that_a_broker_brings_to_a_cluster_are_with_the_groups_coordinator(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        alone(tmp_path / str(number), number, "g")
    own = {"zookeeper.connect": zookeeper_connect, **PATIENT}
    with ExitStack() as stack:
        one = stack.enter_context(start_broker(own | {"node.id": 1}, data_dir=tmp_path / "1"))
        first = client_of(one, stack)
        until(lambda: coordinator(first, "g") == (ErrorCode.NONE, 1))
        one.kill()  # its id stays until its session ends, so that it is the coordinator, but does not answer
        two = stack.enter_context(start_broker(own | {"node.id": 2}, data_dir=tmp_path / "2"))
        second = client_of(two, stack)
        assert stored_code(second, "g") == ErrorCode.NOT_COORDINATOR
        assert commit(second, "g", "of-2", 99) == ErrorCode.NOT_COORDINATOR
        (aside,) = (tmp_path / "2" / ".aside").iterdir()
        assert "__consumer_offsets.topic" in {path.name for path in aside.iterdir()}
        two.restart()
        second = client_of(two, stack)
        assert (tmp_path / "2" / "brought.offsets").exists()
        expire_broker(zookeeper_connect, 1)
        one.start()
        first = client_of(one, stack)
        until(lambda: coordinator(second, "g") == (ErrorCode.NONE, 1))
        until(lambda: stored_offset(first, "g", "of-2") == (ErrorCode.NONE, 12))
        until(lambda: not (tmp_path / "2" / "brought.offsets").exists())
        assert stored_offset(first, "g", "of-1") == (ErrorCode.NONE, 11)


def test_the_first_broker_of_a_cluster_makes_room_for_those_to_come(zookeeper_connect: str) -> None:
    own = {"zookeeper.connect": zookeeper_connect, **PATIENT, "transaction.state.log.num.partitions": 3}
    with start_broker(own) as broker, RawClient(broker.port) as client:
        key_of(client, 0, GROUP)
        key_of(client, 0, TRANSACTION)
        assert leaders(client, "__consumer_offsets") == [0] * 50
        assert leaders(client, "__transaction_state") == [0] * 3
