"""Transactions over the brokers of a cluster by raw requests: one coordinator, partitions of all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from pyspark_kafkalog.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from pyspark_kafkalog.types import IsolationLevel
from tests.support.protocol.raw_client import RawClient, decode
from tests.support.protocol.raw_transactions import RawTransactions, stored_offset
from tests.support.stopping import stop_process
from tests.support.two_brokers import await_all
from tests.support.until import until
from tests.support.zookeeper import PATIENT, expire_broker

COMMITTED = int(IsolationLevel.READ_COMMITTED)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with start_cluster(3, PATIENT) as running:
        await_all(running)
        yield running


class Clients:
    """*Not thread-safe.* A connection to each broker, and who has what."""

    def __init__(self, cluster: EmbeddedCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self.at = {n: stack.enter_context(RawClient(each.port)) for n, each in cluster.brokers.items()}

    def reconnect(self, number: int) -> RawClient:
        self.at[number] = self._stack.enter_context(RawClient(self.cluster.brokers[number].port))
        return self.at[number]

    def owners(self, topic: str) -> dict[int, int]:
        """The broker of each partition, once every broker says the same."""
        wanted = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)

        def told() -> dict[int, int] | None:
            answers = [client.ask(wanted).topics[0] for client in self.at.values()]
            found = [{each.partition_index: each.leader_id for each in a.partitions} for a in answers]
            alike = all(each == found[0] and -1 not in each.values() for each in found)
            return found[0] if found[0] and alike else None

        return until(told)

    def coordinator(self, key: str, kind: int = 1) -> int:
        """The broker that coordinates a transactional id (1) or a group (0)."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))

        def told() -> int | None:
            answers = {client.ask(request).coordinators[0].node_id for client in self.at.values()}
            return answers.pop() if len(answers) == 1 and -1 not in answers else None

        return until(told)

    def transaction(self, name: str, *, away_from: int | None = None) -> RawTransactions:
        """One with an id of this name that another broker than ``away_from`` coordinates, and is ready to."""
        names = (f"{name}-{n}" for n in range(100))
        found = next(each for each in names if self.coordinator(each) != away_from)
        txn = RawTransactions(self.at[self.coordinator(found)], found)
        # It may still open the id's partition when all brokers name it: a client asks again.
        until(lambda: txn.end() == ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return txn

    def through(self, txn: RawTransactions, number: int) -> RawTransactions:
        """The same producer at a connection to another broker."""
        other = RawTransactions(self.at[number], txn.transactional_id)
        other.producer, other.sequences = txn.producer, txn.sequences
        return other


@pytest.fixture
def clients(cluster: EmbeddedCluster) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(cluster, stack)


@pytest.fixture
def topic(clients: Clients, topic_name: str) -> str:
    clients.at[1].create_topic(topic_name, partitions=3)
    assert set(clients.owners(topic_name).values()) == {1, 2, 3}
    return topic_name


def seen(clients: Clients, topic: str) -> dict[int, list[bytes | None]]:
    """What readers of committed data are given of each partition, aborted records left out."""
    found = {}
    for partition, owner in clients.owners(topic).items():
        data = clients.at[owner].fetch(topic, 0, partition, isolation_level=COMMITTED)
        assert data.error_code == ErrorCode.NONE
        aborted = {each.producer_id for each in data.aborted_transactions or ()}
        found[partition] = [] if aborted else [record.value for record in decode(data)]
    return found


def test_an_owner_takes_only_what_the_coordinator_says_is_in_the_transaction(
    clients: Clients, topic: str
) -> None:
    owners = clients.owners(topic)
    txn = clients.transaction(topic, away_from=owners[0]).begun(topic, 1)
    at_owner = clients.through(txn, owners[0])
    assert at_owner.send(topic, b"x", version=10) == ErrorCode.INVALID_TXN_STATE
    assert at_owner.send(topic, b"x", version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert txn.add(topic, 0) == ErrorCode.NONE
    assert at_owner.send(topic, b"x") == ErrorCode.NONE
    assert txn.end() == ErrorCode.NONE
    assert at_owner.send(topic, b"late", version=10) == ErrorCode.INVALID_TXN_STATE
    stranger = clients.through(txn, owners[0])
    stranger.producer = (txn.producer[0] + 1, 0)
    assert stranger.send(topic, b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    old, _ = clients.through(txn, owners[0]), txn.begun(topic, 0)
    assert old.send(topic, b"x") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert seen(clients, topic)[0] == [b"x"]
    assert txn.end() == ErrorCode.NONE


def test_newer_transactions_take_their_partitions_by_writing_to_them(clients: Clients, topic: str) -> None:
    owners = clients.owners(topic)
    txn = clients.transaction(topic, away_from=owners[0])
    assert txn.initialize() == ErrorCode.NONE
    for value in (b"1", b"2", b"3"):
        at_owner = clients.through(txn, owners[0])
        assert at_owner.send(topic, value, version=12) == ErrorCode.NONE
        assert txn.end(version=5) == ErrorCode.NONE
    assert txn.producer[1] == 3, "each has an epoch of its own"
    assert seen(clients, topic)[0] == [b"1", b"2", b"3"]
    assert clients.through(txn, owners[0]).send(topic, b"late", version=11) == ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_group_at_another_broker_change_with_the_transaction(
    clients: Clients, topic: str, commit: bool
) -> None:
    keeper = clients.coordinator(topic, 0)
    txn = clients.transaction(topic, away_from=keeper)
    assert txn.initialize() == ErrorCode.NONE
    at_keeper = clients.through(txn, keeper)
    assert at_keeper.commit_offset(topic, topic, 5) == ErrorCode.TRANSACTION_ABORTABLE
    assert txn.add_offsets(topic) == ErrorCode.NONE
    assert at_keeper.commit_offset(topic, topic, 5) == ErrorCode.NONE
    assert stored_offset(clients.at[keeper], topic, topic) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert txn.end(commit=commit) == ErrorCode.NONE
    assert stored_offset(clients.at[keeper], topic, topic) == (ErrorCode.NONE, 5 if commit else -1)
    assert at_keeper.commit_offset(topic, topic, 6) == ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_dead_owner_gets_its_markers_when_it_returns(clients: Clients, topic: str) -> None:
    owners = clients.owners(topic)
    txn = clients.transaction(topic, away_from=owners[0]).begun(topic, 0, 1, 2)
    for partition, owner in owners.items():
        assert clients.through(txn, owner).send(topic, b"a", partition=partition) == ErrorCode.NONE
    clients.cluster.brokers[owners[0]].kill()
    assert txn.end() == ErrorCode.NONE, "it is decided, whoever is away"
    assert txn.add(topic, 1) == ErrorCode.CONCURRENT_TRANSACTIONS
    expire_broker(clients.cluster.zookeeper_connect, owners[0])
    clients.cluster.brokers[owners[0]].restart()
    clients.reconnect(owners[0])
    until(lambda: txn.add(topic, 1) == ErrorCode.NONE)
    until(lambda: seen(clients, topic) == {0: [b"a"], 1: [b"a"], 2: [b"a"]})
    assert txn.end() == ErrorCode.NONE


def test_an_owner_that_was_stopped_gets_each_marker_once(clients: Clients, topic: str) -> None:
    owners = clients.owners(topic)
    txn = clients.transaction(topic, away_from=owners[0]).begun(topic, 0)
    assert clients.through(txn, owners[0]).send(topic, b"a") == ErrorCode.NONE
    pid = clients.cluster.brokers[owners[0]].pid
    stop_process(pid)
    try:
        assert txn.end() == ErrorCode.NONE
        assert txn.add(topic, 0) == ErrorCode.CONCURRENT_TRANSACTIONS
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: txn.add(topic, 0) == ErrorCode.NONE)
    assert clients.through(txn, owners[0]).send(topic, b"b") == ErrorCode.NONE
    assert txn.end() == ErrorCode.NONE
    assert seen(clients, topic)[0] == [b"a", b"b"]
    data = clients.at[owners[0]].fetch(topic, 0)
    assert data.high_watermark == 4, "two records, two markers"


def test_a_marker_of_an_older_epoch_ends_nothing(clients: Clients, topic: str) -> None:
    owners = clients.owners(topic)
    txn = clients.transaction(topic, away_from=owners[0]).begun(topic, 0)
    txn.begun(topic, 0)
    owner = clients.at[owners[0]]
    assert clients.through(txn, owners[0]).send(topic, b"a") == ErrorCode.NONE

    def mark(epoch: int, name: str) -> ErrorCode:
        topics = (WritableTxnMarkerTopic(name, (0,)),)
        request = WriteTxnMarkersRequest((WritableTxnMarker(txn.producer[0], epoch, False, topics),))
        return ErrorCode(owner.ask(request).markers[0].topics[0].partitions[0].error_code)

    assert mark(txn.producer[1] - 1, topic) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(txn.producer[1], "no-such-topic") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert seen(clients, topic)[0] == []
    assert txn.end() == ErrorCode.NONE
    assert seen(clients, topic)[0] == [b"a"]
