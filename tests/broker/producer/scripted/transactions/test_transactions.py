"""Transactions against a scripted coordinator: the order of requests and of calls, ends by others."""

from __future__ import annotations

import threading

import pytest

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset
from pyspark_kafkalog.client.transactions import PreparedTransaction, end_transaction
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAborted,
    UnsupportedVersion,
)
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.api.transactions import EndTxnResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.fake_log import FakeLog
from tests.support.client.fake_transactions import FakeTransactions, asked
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_producers import Make

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TRANSACTIONAL = 1 << 4


def test_partitions_are_added_before_their_first_batch_and_once_in_a_transaction(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    for _ in range(2):
        producer.begin_transaction()
        producer.send("t", b"a", partition=0).result(90)
        producer.send("t", b"b", partition=0).result(90)
        producer.send("t", b"c", partition=1)
        producer.commit_transaction()
    once = [
        ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.PRODUCE,
        ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN,
    ]  # fmt: skip
    assert asked(broker) == [ApiKey.INIT_PRODUCER_ID, *once, *once]
    assert coordinator.ids["loads-1"].ends == ["commit", "commit"]
    assert log.values("t", 0) == [b"a", b"b"] * 2
    assert log.partitions["t", 0].epochs == [(4000, 0)] * 4
    for request in broker.received(ApiKey.PRODUCE):
        assert request.transactional_id == "loads-1"
        (data,) = request.topic_data[0].partition_data
        assert data.records[22] & TRANSACTIONAL


def test_a_transaction_without_anything_asks_nobody(broker: ScriptedBroker, make: Make) -> None:
    producer = make()
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    assert producer.prepare_transaction() == PreparedTransaction("loads-1", 4000, 0, True)
    assert asked(broker) == [ApiKey.INIT_PRODUCER_ID]


def test_calls_in_the_wrong_order_are_refused(make: Make, broker: ScriptedBroker) -> None:
    producer = make(init=False)
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        producer.prepare_transaction,
        lambda: producer.send_offsets_to_transaction({T0: 1}, "g"),
        lambda: producer.send("t", b"v"),
    ):
        with pytest.raises(InvalidTxnState, match=r"init_transactions\(\) has not been called"):
            call()
    producer.init_transactions()
    with pytest.raises(InvalidTxnState, match="no transaction has begun"):
        producer.send("t", b"v")
    with pytest.raises(InvalidTxnState, match="no transaction has begun"):
        producer.init_transactions()
    plain = Producer({"bootstrap.servers": broker.address})
    with pytest.raises(InvalidTxnState, match=r"transactional\.id"):
        plain.begin_transaction()
    plain.close()
    with pytest.raises(KafkaError, match="closed"):
        plain.begin_transaction()


def test_offsets_go_to_the_groups_coordinator_with_their_text(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T0: 7, T1: CommittedOffset(9, 3, "batch 4")}, "g")
    producer.send_offsets_to_transaction({T0: 8}, "g")
    producer.send_offsets_to_transaction({}, "nobody")
    with pytest.raises(InvalidRequest, match="below 0"):
        producer.send_offsets_to_transaction({T0: -1}, "g")
    producer.commit_transaction()
    assert coordinator.offsets == {("g", "t", 0): (8, ""), ("g", "t", 1): (9, "batch 4")}
    assert asked(broker).count(ApiKey.ADD_OFFSETS_TO_TXN) == 1
    assert coordinator.ids["loads-1"].ends == ["commit"]


def test_an_abort_drops_what_was_not_sent(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make(linger_ms=600_000)
    producer.begin_transaction()
    dropped = producer.send("t", b"never", partition=0)
    producer.abort_transaction()
    with pytest.raises(TransactionAborted):
        dropped.result(0)
    assert asked(broker) == [ApiKey.INIT_PRODUCER_ID], "nothing was begun"
    producer.begin_transaction()
    producer.send("t", b"kept", partition=0)
    producer.flush()
    dropped = producer.send("t", b"never", partition=0)
    producer.abort_transaction()
    assert coordinator.ids["loads-1"].ends == ["abort"]
    producer.begin_transaction()
    producer.send("t", b"last", partition=0)
    producer.commit_transaction()
    assert log.values("t", 0) == [b"kept", b"last"]
    assert log.partitions["t", 0].epochs == [(4000, 0)] * 2, "no number was lost"


def test_closing_aborts_an_open_transaction(coordinator: FakeTransactions, make: Make, log: FakeLog) -> None:
    producer = make(linger_ms=600_000)
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    producer.flush()
    producer.send("t", b"never", partition=0)
    producer.close()
    assert coordinator.ids["loads-1"].ends == ["abort"]
    assert log.values("t", 0) == [b"v"]


def test_a_prepared_transaction_is_left_open_and_ended_by_another(
    coordinator: FakeTransactions, make: Make, log: FakeLog, cluster: Cluster
) -> None:
    producer = make(linger_ms=600_000)
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    prepared = producer.prepare_transaction()
    assert log.values("t", 0) == [b"v"]
    with pytest.raises(InvalidTxnState, match="prepared"):
        producer.send("t", b"w")
    producer.close()
    assert coordinator.ids["loads-1"].state == "Ongoing"
    assert prepared == PreparedTransaction("loads-1", 4000, 0, False)
    end_transaction(cluster, prepared, commit=True)
    end_transaction(cluster, prepared, commit=True)
    with pytest.raises(InvalidTxnState, match="the other way"):
        end_transaction(cluster, prepared, commit=False)
    make()
    with pytest.raises(ProducerFenced, match="newer producer"):
        end_transaction(cluster, prepared, commit=True)
    assert coordinator.ids["loads-1"].ends == ["commit"]


@pytest.mark.parametrize("commit", [True, False])
def test_its_own_producer_can_end_what_is_prepared(
    coordinator: FakeTransactions, make: Make, commit: bool
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    producer.prepare_transaction()
    (producer.commit_transaction if commit else producer.abort_transaction)()
    assert coordinator.ids["loads-1"].ends == ["commit" if commit else "abort"]
    producer.begin_transaction()


@pytest.mark.usefixtures("of_0_11")
def test_a_coordinator_of_kafka_0_11_will_do(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make, cluster: Cluster
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    producer.send_offsets_to_transaction({T0: CommittedOffset(1, -1, "x")}, "g")
    prepared = producer.prepare_transaction()
    end_transaction(cluster, prepared, commit=True)
    assert (coordinator.ids["loads-1"].ends, log.values("t", 0)) == (["commit"], [b"v"])
    broker.script(ApiKey.END_TXN, EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH))
    with pytest.raises(ProducerFenced):
        end_transaction(cluster, prepared, commit=True)


def test_many_threads_send_in_one_transaction(
    coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make(linger_ms=1, batch_size=200)
    for number in range(3):
        producer.begin_transaction()

        def send(partition: int, number: int = number) -> None:
            for i in range(50):
                producer.send("t", b"%d of %d" % (i, number), partition=partition)

        threads = [threading.Thread(target=send, args=(p,)) for p in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.commit_transaction()
    for partition in range(8):
        assert log.values("t", partition) == [b"%d of %d" % (i, n) for n in range(3) for i in range(50)]
    assert coordinator.ids["loads-1"].ends == ["commit"] * 3


def test_a_broker_without_transactions_is_reported_at_once(make: Make, broker: ScriptedBroker) -> None:
    for key in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN):
        del broker.versions[key]
    producer = make(init=False)
    with pytest.raises(UnsupportedVersion, match=r"no transactions, which transactional\.id needs"):
        producer.init_transactions()
    with pytest.raises(UnsupportedVersion, match="must be closed"):
        producer.begin_transaction()
