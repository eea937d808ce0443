"""Transactions against a scripted coordinator: the order of requests, and every failure it may answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset
from pyspark_kafkalog.client.transactions import PreparedTransaction, end_transaction
from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    ServerError,
    TransactionAbortable,
    TransactionAborted,
    UnsupportedVersion,
)
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.api.add_offsets_to_txn import AddOffsetsToTxnResponse
from pyspark_kafkalog.protocol.api.end_txn import EndTxnResponse
from pyspark_kafkalog.protocol.api.find_coordinator import Coordinator, FindCoordinatorResponse
from pyspark_kafkalog.protocol.api.init_producer_id import InitProducerIdResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.fake_log import FakeLog, refusal
from tests.support.fake_transactions import FakeTransactions, refused_offsets, refused_partitions
from tests.support.scripted_broker import Layout, ScriptedBroker
from tests.support.scripted_server import Close, Silence

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TRANSACTIONAL = 1 << 4

Make = Callable[..., Producer]


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def broker(log: FakeLog) -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": dict.fromkeys(range(8), 0)})) as scripted:
        scripted.default(ApiKey.PRODUCE, log.produce)
        yield scripted


@pytest.fixture
def coordinator(broker: ScriptedBroker) -> FakeTransactions:
    return FakeTransactions(broker)


@pytest.fixture
def make(broker: ScriptedBroker, coordinator: FakeTransactions) -> Iterator[Make]:
    made: list[Producer] = []

    def producer(init: bool = True, **changes: Any) -> Producer:
        properties: dict[str, object] = {
            "bootstrap.servers": broker.address,
            "transactional.id": "loads-1",
            "linger.ms": 0,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 20,
            "request.timeout.ms": 2000,
            "delivery.timeout.ms": 10_000,
            "max.block.ms": 5000,
        }
        properties.update({name.replace("_", "."): value for name, value in changes.items()})
        made.append(Producer(properties))
        if init:
            made[-1].init_transactions()
        return made[-1]

    yield producer
    for each in made:
        each.close(1)


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[Cluster]:
    made = Cluster(ConsumerConfig(bootstrap_servers=broker.address, request_timeout_ms=2000))
    yield made
    made.close()


def keys(broker: ScriptedBroker) -> list[ApiKey]:
    """What was asked, without what every client asks."""
    plain = {ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR}
    return [ApiKey(h.api_key) for h, _ in broker.requests if h.api_key not in plain]


def test_partitions_are_added_before_their_first_batch_and_once_in_a_transaction(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    for _ in range(2):
        producer.begin_transaction()
        producer.send("t", b"a", partition=0).result(5)
        producer.send("t", b"b", partition=0).result(5)
        producer.send("t", b"c", partition=1)
        producer.commit_transaction()
    once = [
        ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.PRODUCE,
        ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN,
    ]  # fmt: skip
    assert keys(broker) == [ApiKey.INIT_PRODUCER_ID, *once, *once]
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
    assert keys(broker) == [ApiKey.INIT_PRODUCER_ID]


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
    assert keys(broker).count(ApiKey.ADD_OFFSETS_TO_TXN) == 1
    assert coordinator.ids["loads-1"].ends == ["commit"]


def test_an_abort_drops_what_was_not_sent(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make(linger_ms=5000)
    producer.begin_transaction()
    dropped = producer.send("t", b"never", partition=0)
    producer.abort_transaction()
    with pytest.raises(TransactionAborted):
        dropped.result(0)
    assert keys(broker) == [ApiKey.INIT_PRODUCER_ID], "nothing was begun"
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


PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


@pytest.mark.parametrize("code", PASSING)
def test_what_passes_is_asked_again(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make, code: ErrorCode
) -> None:
    broker.script(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(error_code=code), Close())
    broker.script(ApiKey.ADD_PARTITIONS_TO_TXN, lambda r: refused_partitions(r, code), Close())
    broker.script(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnResponse(error_code=code), Close())
    broker.script(ApiKey.TXN_OFFSET_COMMIT, lambda r: refused_offsets(r, code), Close())
    broker.script(ApiKey.END_TXN, EndTxnResponse(error_code=code), Close())
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    producer.send_offsets_to_transaction({T0: 1}, "g")
    producer.commit_transaction()
    assert coordinator.ids["loads-1"].ends == ["commit"]
    assert len(broker.received(ApiKey.END_TXN)) == 3


def test_a_coordinator_that_moves_is_followed(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    producer = make()
    with ScriptedBroker(broker.layout, node_id=1) as other:
        moved = FakeTransactions(other, node_id=1)
        moved.ids = coordinator.ids
        found = Coordinator(key="loads-1", node_id=1, host="127.0.0.1", port=other.port)
        broker.script(ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(coordinators=(found,)))
        broker.default(ApiKey.END_TXN, EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR))
        producer.begin_transaction()
        producer.send("t", b"v", partition=0)
        producer.commit_transaction()
        assert len(other.received(ApiKey.END_TXN)) == 1
    assert coordinator.ids["loads-1"].ends == ["commit"]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_can_only_be_closed(broker: ScriptedBroker, make: Make, code: ErrorCode) -> None:
    producer = make()
    broker.default(ApiKey.ADD_PARTITIONS_TO_TXN, lambda r: refused_partitions(r, code))
    producer.begin_transaction()
    lost = producer.send("t", b"v", partition=0)
    with pytest.raises(ProducerFenced, match="newer producer"):
        lost.result(5)
    for call in (
        producer.commit_transaction,
        producer.abort_transaction,
        producer.begin_transaction,
        lambda: producer.send_offsets_to_transaction({T0: 1}, "g"),
        lambda: producer.send("t", b"v"),
    ):
        with pytest.raises(ProducerFenced, match="is to be closed"):
            call()
    began = time.monotonic()
    producer.close()
    assert time.monotonic() - began < 1
    assert ApiKey.END_TXN not in keys(broker)
    assert ApiKey.PRODUCE not in keys(broker)


def test_a_batch_that_fails_fails_the_transaction_and_the_next_has_another_epoch(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"first", partition=0).result(5)
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(MessageTooLarge):
        producer.send("t", b"large", partition=0).result(5)
    with pytest.raises(TransactionAbortable, match=r"send\(\) is not possible.*max\.message\.bytes"):
        producer.send("t", b"more", partition=0)
    with pytest.raises(TransactionAbortable, match="can only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert coordinator.ids["loads-1"].ends == ["abort"]
    producer.begin_transaction()
    producer.send("t", b"after", partition=0)
    producer.commit_transaction()
    assert log.partitions["t", 0].epochs == [(4000, 0), (4000, 1)]
    assert broker.received(ApiKey.INIT_PRODUCER_ID)[1].producer_id == 4000
    assert log.refused == []


def test_topics_that_may_not_be_written_fail_the_transaction_alone(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.script(ApiKey.ADD_PARTITIONS_TO_TXN, lambda r: refused_partitions(r, code))
    producer.begin_transaction()
    with pytest.raises(ServerError, match="TOPIC_AUTHORIZATION_FAILED"):
        producer.send("t", b"v", partition=0).result(5)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"w", partition=0)
    producer.commit_transaction()
    assert coordinator.ids["loads-1"].ends == ["commit"]
    assert log.partitions["t", 0].epochs == [(4000, 0)], "no number was used, so no other epoch"


def test_offsets_that_cannot_be_stored_fail_the_transaction(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    producer = make()
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.script(ApiKey.TXN_OFFSET_COMMIT, lambda r: refused_offsets(r, code))
    producer.begin_transaction()
    with pytest.raises(TransactionAbortable, match="GROUP_AUTHORIZATION_FAILED"):
        producer.send_offsets_to_transaction({T0: 1}, "g")
    producer.abort_transaction()
    assert coordinator.ids["loads-1"].ends == ["abort"]


def test_numbers_that_are_refused_are_never_replaced_within_a_transaction(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"first", partition=0).result(5)
    log.forget_producers()
    with pytest.raises(KafkaError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        producer.send("t", b"second", partition=0).result(5)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"third", partition=0)
    producer.commit_transaction()
    assert log.values("t", 0) == [b"first", b"third"]
    assert coordinator.ids["loads-1"].ends == ["abort", "commit"]


def test_a_commit_without_an_answer_is_repeated_by_whoever_asked(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    producer = make(request_timeout_ms=200, max_block_ms=400)
    producer.begin_transaction()
    producer.send("t", b"v", partition=0).result(5)
    for _ in range(2):
        broker.script(ApiKey.END_TXN, lambda r: coordinator.end(r) and Silence())
    began = time.monotonic()
    with pytest.raises(RequestTimedOut, match="it can be called again"):
        producer.commit_transaction()
    assert time.monotonic() - began < 3
    with pytest.raises(InvalidTxnState, match="can be called again"):
        producer.abort_transaction()
    producer.commit_transaction(timeout=5)
    assert coordinator.ids["loads-1"].ends == ["commit"]
    producer.begin_transaction()


def test_a_failed_producer_id_goes_on_under_another_epoch(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    broker.script(
        ApiKey.ADD_PARTITIONS_TO_TXN, lambda r: refused_partitions(r, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    )
    producer.begin_transaction()
    with pytest.raises(KafkaError):
        producer.send("t", b"v", partition=0).result(5)
    producer.abort_transaction()
    assert ApiKey.END_TXN not in keys(broker), "the coordinator knows of none that it could end"
    producer.begin_transaction()
    producer.send("t", b"w", partition=0)
    producer.commit_transaction()
    assert log.partitions["t", 0].epochs == [(4000, 1)]
    assert coordinator.ids["loads-1"].ends == ["commit"]


def test_closing_aborts_an_open_transaction(coordinator: FakeTransactions, make: Make, log: FakeLog) -> None:
    producer = make(linger_ms=5000)
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
    producer = make(linger_ms=5000)
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
    with pytest.raises(InvalidTxnState, match="the other way round"):
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


def test_a_failure_is_told_by_prepare(broker: ScriptedBroker, make: Make) -> None:
    producer = make(linger_ms=5000)
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.MESSAGE_TOO_LARGE))
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    with pytest.raises(TransactionAbortable):
        producer.prepare_transaction()
    producer.abort_transaction()


def test_an_end_is_asked_for_until_the_coordinator_is_ready(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make, cluster: Cluster
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v", partition=0)
    prepared = producer.prepare_transaction()
    for code in PASSING:
        broker.script(ApiKey.END_TXN, EndTxnResponse(error_code=code))
    end_transaction(cluster, prepared, commit=True)
    assert coordinator.ids["loads-1"].ends == ["commit"]
    forgotten = prepared._replace(transactional_id="nobody")
    with pytest.raises(KafkaError, match="not any more"):
        end_transaction(cluster, forgotten, commit=True)
    asked = len(broker.received(ApiKey.END_TXN))
    end_transaction(cluster, prepared._replace(empty=True), commit=True)
    assert len(broker.received(ApiKey.END_TXN)) == asked


@pytest.fixture
def of_0_11(broker: ScriptedBroker) -> None:
    """The broker speaks what Kafka 0.11 did of transactions."""
    broker.versions |= dict.fromkeys(
        (
            ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN,
        ),
        (0, 0),
    )  # fmt: skip
    broker.versions |= {ApiKey.FIND_COORDINATOR: (0, 1), ApiKey.PRODUCE: (0, 3)}


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


@pytest.mark.usefixtures("of_0_11")
def test_before_kafka_2_5_a_failure_that_used_up_numbers_ends_the_producer(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(MessageTooLarge):
        producer.send("t", b"large", partition=0).result(5)
    with pytest.raises(UnsupportedVersion, match=r"from Kafka 2\.5 on"):
        producer.abort_transaction()
    assert coordinator.ids["loads-1"].ends == ["abort"]
    with pytest.raises(UnsupportedVersion, match="is to be closed"):
        producer.begin_transaction()


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


def test_a_broker_without_transactions_is_told_of_at_once(make: Make, broker: ScriptedBroker) -> None:
    for key in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN):
        del broker.versions[key]
    producer = make(init=False)
    began = time.monotonic()
    with pytest.raises(UnsupportedVersion, match=r"no transactions, which transactional\.id asks for"):
        producer.init_transactions()
    assert time.monotonic() - began < 1
    with pytest.raises(UnsupportedVersion, match="is to be closed"):
        producer.begin_transaction()


def test_the_timeout_that_a_broker_does_not_allow_is_named(make: Make, broker: ScriptedBroker) -> None:
    refused = InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    broker.script(ApiKey.INIT_PRODUCER_ID, refused)
    producer = make(init=False, transaction_timeout_ms=3_600_000)
    with pytest.raises(ServerError, match=r"transaction\.timeout\.ms .*transaction\.max\.timeout\.ms"):
        producer.init_transactions()
    assert broker.received(ApiKey.INIT_PRODUCER_ID)[0].transaction_timeout_ms == 3_600_000


def test_init_that_finds_no_coordinator_in_time_can_be_repeated(
    make: Make, broker: ScriptedBroker, coordinator: FakeTransactions
) -> None:
    away = InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    broker.default(ApiKey.INIT_PRODUCER_ID, away)
    producer = make(init=False)
    with pytest.raises(RequestTimedOut, match="it can be called again"):
        producer.init_transactions(timeout=0.2)
    broker.default(ApiKey.INIT_PRODUCER_ID, coordinator.init)
    producer.init_transactions()
    producer.begin_transaction()


def test_our_own_broker_says_that_it_has_no_transactions(running_broker: EmbeddedBroker) -> None:
    config = {"bootstrap.servers": running_broker.bootstrap_servers, "transactional.id": "loads-1"}
    began = time.monotonic()
    with (
        Producer(config) as producer,
        pytest.raises(UnsupportedVersion, match="the broker of this package not yet"),
    ):
        producer.init_transactions()
    assert time.monotonic() - began < 2
