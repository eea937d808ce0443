"""Transactions by raw requests: the codes of the coordinator, what readers see, and what a restart leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.producers import DescribeProducersRequest, TopicRequest
from pyspark_kafkalog.protocol.api.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicData,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import IsolationLevel
from tests.support.protocol.raw_client import RawClient, batch, decode, fetch_request, versions
from tests.support.protocol.raw_transactions import RawTransactions, stored_offset
from tests.support.until import until

COMMITTED = int(IsolationLevel.READ_COMMITTED)


def seen(client: RawClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """What a reader of committed data makes of one fetch of everything."""
    data = client.fetch(topic, 0, partition, isolation_level=COMMITTED)
    assert data.error_code == ErrorCode.NONE
    aborted = {each.producer_id: each.first_offset for each in data.aborted_transactions or ()}
    assert not aborted, "for tests with aborted transactions: tests/property/log/test_transactions.py"
    return [record.value for record in decode(data)]


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_each_initialization_fences_the_one_before(client: RawClient, topic: str, version: int) -> None:
    txn = RawTransactions(client, topic)
    assert txn.initialize(version=version) == ErrorCode.NONE
    producer_id, epoch = txn.producer
    assert epoch == 0
    assert txn.initialize(version=version) == ErrorCode.NONE
    assert txn.producer == (producer_id, 1)
    txn.producer = (producer_id, 0)
    assert txn.add(topic, 0) == ErrorCode.PRODUCER_FENCED
    assert txn.add(topic, 0, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert txn.end() == ErrorCode.PRODUCER_FENCED
    assert txn.end(version=1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_is_wrong_with_an_initialization(client: RawClient, topic: str) -> None:
    assert RawTransactions(client, "").initialize() == ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        txn = RawTransactions(client, topic, timeout_ms)
        assert txn.initialize() == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    txn = RawTransactions(client, topic)
    assert txn.initialize((5, -1)) == ErrorCode.INVALID_REQUEST
    assert txn.end() == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_one_unknown_partition_keeps_all_of_them_out(client: RawClient, topic: str) -> None:
    txn = RawTransactions(client, topic)
    txn.initialize()
    with pytest.raises(ValueError, match="too many values"):
        txn.add(topic, 0, 7)
    assert txn.add("no-such-topic", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert txn.send(topic, b"x") == ErrorCode.TRANSACTION_ABORTABLE
    assert txn.end() == ErrorCode.INVALID_TXN_STATE


def test_only_the_partitions_of_the_open_transaction_can_be_written_to(client: RawClient, topic: str) -> None:
    txn = RawTransactions(client, topic).begun(topic, 0)
    assert txn.send(topic, b"x", partition=1, version=10) == ErrorCode.INVALID_TXN_STATE
    assert txn.send(topic, b"x", partition=1, version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert txn.send(topic, b"x") == ErrorCode.NONE
    plain = batch(b"plain", producer_id=txn.producer[0], epoch=txn.producer[1], sequence=1)
    assert client.produce(topic, plain).error_code == ErrorCode.INVALID_TXN_STATE
    assert txn.end() == ErrorCode.NONE
    assert txn.send(topic, b"late", version=10) == ErrorCode.INVALID_TXN_STATE
    assert txn.end() == ErrorCode.NONE
    assert txn.end(commit=False) == ErrorCode.INVALID_TXN_STATE
    assert seen(client, topic) == [b"x"]


@pytest.mark.parametrize("commit", [True, False])
def test_readers_of_committed_data_wait_for_the_end(
    running_broker: EmbeddedBroker, client: RawClient, topic: str, commit: bool
) -> None:
    client.produce(topic, batch(b"before"))
    txn = RawTransactions(client, topic).begun(topic)
    assert txn.send(topic, b"a", b"b") == ErrorCode.NONE
    client.produce(topic, batch(b"after"))
    assert seen(client, topic) == [b"before"]
    ends = [client.offset_at(topic, -1, isolation_level=level).offset for level in (0, COMMITTED)]
    assert ends == [4, 1]
    data = client.fetch(topic, 3, isolation_level=COMMITTED)
    assert (data.error_code, bytes(data.records or b""), data.last_stable_offset) == (ErrorCode.NONE, b"", 1)
    with RawClient(running_broker.port) as waiting:
        # Longer than any test waits: it is woken, or not answered.
        waiting.send(fetch_request({(topic, 0): 1}, isolation_level=COMMITTED, max_wait_ms=600_000))
        client.produce(topic, batch(b"does not wake it"))
        assert txn.end(commit=commit) == ErrorCode.NONE
        found = waiting.receive().responses[0].partitions[0]
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
    assert aborted == ([] if commit else [(txn.producer[0], 1)])
    assert [r.value for r in decode(found)] == [b"a", b"b", b"after", b"does not wake it"]


def test_a_new_producer_aborts_what_the_old_one_left_open(client: RawClient, topic: str) -> None:
    old = RawTransactions(client, topic).begun(topic)
    assert old.send(topic, b"left") == ErrorCode.NONE
    new = RawTransactions(client, topic)
    assert new.initialize() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert new.initialize() == ErrorCode.NONE
    assert new.producer == (old.producer[0], 2)
    assert old.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end() == ErrorCode.PRODUCER_FENCED
    assert client.offset_at(topic, -1, isolation_level=COMMITTED).offset == 2
    assert new.add(topic, 0) == ErrorCode.NONE
    assert new.send(topic, b"new") == ErrorCode.NONE
    assert new.end() == ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_change_with_the_transaction(client: RawClient, topic: str, commit: bool) -> None:
    txn = RawTransactions(client, topic)
    txn.initialize()
    assert txn.commit_offset(topic, topic, 5) == ErrorCode.TRANSACTION_ABORTABLE
    assert txn.commit_offset(topic, topic, 5, version=3) == ErrorCode.INVALID_TXN_STATE
    assert txn.add_offsets(topic) == ErrorCode.NONE
    assert txn.commit_offset(topic, topic, 5) == ErrorCode.NONE
    assert txn.commit_offset("", topic, 5) == ErrorCode.INVALID_GROUP_ID
    assert stored_offset(client, topic, topic) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert stored_offset(client, topic, topic, stable=False) == (ErrorCode.NONE, -1)
    assert txn.end(commit=commit) == ErrorCode.NONE
    assert stored_offset(client, topic, topic) == (ErrorCode.NONE, 5 if commit else -1)


def test_what_is_known_of_transactions_is_shown(client: RawClient, topic: str) -> None:
    txn = RawTransactions(client, topic).begun(topic, 1, 0)
    assert txn.send(topic, b"a", b"b") == ErrorCode.NONE
    (state,) = client.ask(DescribeTransactionsRequest((topic,))).transaction_states
    assert (state.error_code, state.transaction_state) == (ErrorCode.NONE, "Ongoing")
    assert (state.producer_id, state.producer_epoch) == txn.producer
    assert (state.transaction_timeout_ms, state.topics) == (60_000, (TopicData(topic, (0, 1)),))
    (unknown,) = client.ask(DescribeTransactionsRequest(("no-such-id",))).transaction_states
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def listed(*states: str, duration: int = -1) -> tuple[list[str], tuple[str, ...]]:
        request = ListTransactionsRequest(states, (txn.producer[0],), duration)
        answer = client.ask(request)
        return [each.transactional_id for each in answer.transaction_states], answer.unknown_state_filters

    assert listed() == listed("Ongoing", "Empty") == ([topic], ())
    assert listed("Empty", "Odd") == ([], ("Odd",))
    assert listed(duration=100_000) == ([], ())
    (producers,) = client.ask(DescribeProducersRequest((TopicRequest(topic, (0,)),))).topics[0].partitions
    (one,) = producers.active_producers
    assert (one.producer_id, one.producer_epoch) == txn.producer
    assert (one.last_sequence, one.current_txn_start_offset) == (1, 0)
    assert txn.end() == ErrorCode.NONE
    (producers,) = client.ask(DescribeProducersRequest((TopicRequest(topic, (0,)),))).topics[0].partitions
    assert producers.active_producers[0].current_txn_start_offset == -1


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_open_transactions_and_their_ids_survive_the_broker(tmp_path: Path, kill: bool) -> None:
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        txn = RawTransactions(client, "id").begun("t")
        assert txn.add_offsets("g") == ErrorCode.NONE
        assert txn.send("t", b"one") == ErrorCode.NONE
        assert txn.commit_offset("g", "t", 7) == ErrorCode.NONE
        if kill:
            broker.kill()
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        txn.client = client
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        until(lambda: stored_offset(client, "g", "t")[0] != loading)
        assert stored_offset(client, "g", "t") == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert client.offset_at("t", -1, isolation_level=COMMITTED).offset == 0
        codes = until(lambda: [c for c in [txn.send("t", b"two")] if c != ErrorCode.NOT_ENOUGH_REPLICAS])
        assert codes == [ErrorCode.NONE]
        assert txn.end() == ErrorCode.NONE
        assert seen(client, "t") == [b"one", b"two"]
        assert stored_offset(client, "g", "t") == (ErrorCode.NONE, 7)


def _state(client: RawClient, name: str) -> str:
    (found,) = client.ask(DescribeTransactionsRequest((name,))).transaction_states
    return str(found.transaction_state)


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with start_broker(properties, data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        txn = RawTransactions(client, "id", timeout_ms=1).begun("t")
        txn.send("t", b"x")

        until(lambda: _state(client, "id") not in ("Ongoing", "PrepareAbort"))
        assert txn.end() == ErrorCode.PRODUCER_FENCED
        end_offset = client.offset_at("t", -1).offset
        until(lambda: client.offset_at("t", -1, isolation_level=COMMITTED).offset >= end_offset)


def test_in_version_2_partitions_are_added_by_what_is_sent_and_each_transaction_has_its_epoch(
    client: RawClient, topic: str
) -> None:
    txn = RawTransactions(client, topic)
    assert txn.initialize(version=5) == ErrorCode.NONE
    for number in range(3):
        first = txn.producer
        assert txn.send(topic, b"%d" % number, version=12) == ErrorCode.NONE
        assert txn.send(topic, b"%d too" % number, version=12) == ErrorCode.NONE
        assert txn.commit_offset(topic, topic, number, version=5) == ErrorCode.NONE
        assert txn.end(version=5) == ErrorCode.NONE
        assert txn.producer == (first[0], first[1] + 1)
        after, txn.producer = txn.producer, first
        assert txn.send(topic, b"late", version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert txn.end(version=5, commit=False) == ErrorCode.INVALID_TXN_STATE
        assert txn.end(version=5) == ErrorCode.NONE, "the same again"
        assert txn.producer == after
        assert stored_offset(client, topic, topic) == (ErrorCode.NONE, number)
    assert txn.end(version=5, commit=False) == ErrorCode.NONE, "although nothing was sent"
    assert txn.end(version=5) == ErrorCode.INVALID_TXN_STATE
    assert seen(client, topic) == [b"0", b"0 too", b"1", b"1 too", b"2", b"2 too"]
