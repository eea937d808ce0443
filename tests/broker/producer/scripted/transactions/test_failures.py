"""Transactions against a scripted coordinator: every failure it may answer."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.transactions import end_transaction
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    ServerError,
    TransactionAbortable,
    UnsupportedVersion,
)
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.api.metadata import Coordinator, FindCoordinatorResponse
from pyspark_kafkalog.protocol.api.producers import InitProducerIdResponse
from pyspark_kafkalog.protocol.api.transactions import AddOffsetsToTxnResponse, EndTxnResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.fake_log import FakeLog, refusal
from tests.support.client.fake_transactions import (
    FakeTransactions,
    asked,
    refused_offsets,
    refused_partitions,
)
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_producers import Make
from tests.support.client.scripted_server import Close, late
from tests.support.manual_clock import ManualClock

T0 = TopicPartition("t", 0)


PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


def fail_and_go_on(producer: Producer, error: type[KafkaError], said: str) -> None:
    """The open transaction's next record fails with this, hence the commit too; the one after it is good."""
    with pytest.raises(error, match=said):
        producer.send("t", b"failed", partition=0).result(90)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"next", partition=0)
    producer.commit_transaction()


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
        lost.result(90)
    for call in (
        producer.commit_transaction,
        producer.abort_transaction,
        producer.begin_transaction,
        lambda: producer.send_offsets_to_transaction({T0: 1}, "g"),
        lambda: producer.send("t", b"v"),
    ):
        with pytest.raises(ProducerFenced, match="must be closed"):
            call()
    producer.close()
    assert ApiKey.END_TXN not in asked(broker)
    assert ApiKey.PRODUCE not in asked(broker)


def test_a_batch_that_fails_fails_the_transaction_and_the_next_has_another_epoch(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"first", partition=0).result(90)
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(MessageTooLarge):
        producer.send("t", b"large", partition=0).result(90)
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
    fail_and_go_on(producer, ServerError, "TOPIC_AUTHORIZATION_FAILED")
    assert coordinator.ids["loads-1"].ends == ["commit"]
    assert log.partitions["t", 0].epochs == [(4000, 0)], "no number was used, so no other epoch"


def test_numbers_that_are_refused_are_never_replaced_within_a_transaction(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"first", partition=0).result(90)
    log.forget_producers()
    fail_and_go_on(producer, KafkaError, "OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert log.values("t", 0) == [b"first", b"next"]
    assert coordinator.ids["loads-1"].ends == ["abort", "commit"]


def test_a_commit_without_an_answer_is_repeated_by_its_caller(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    clock = ManualClock()
    producer = make(clock, request_timeout_ms=60_000, max_block_ms=100_000)
    producer.begin_transaction()
    producer.send("t", b"v", partition=0).result(90)
    for _ in range(2):
        broker.script(ApiKey.END_TXN, lambda r: coordinator.end(r) and late(clock, 61)(r))
    with pytest.raises(RequestTimedOut, match="it can be called again"):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="can be called again"):
        producer.abort_transaction()
    producer.commit_transaction(timeout=90)
    assert coordinator.ids["loads-1"].ends == ["commit"]
    producer.begin_transaction()


def test_a_failed_producer_id_continues_under_another_epoch(
    broker: ScriptedBroker, coordinator: FakeTransactions, log: FakeLog, make: Make
) -> None:
    producer = make()
    broker.script(
        ApiKey.ADD_PARTITIONS_TO_TXN, lambda r: refused_partitions(r, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    )
    producer.begin_transaction()
    with pytest.raises(KafkaError):
        producer.send("t", b"v", partition=0).result(90)
    producer.abort_transaction()
    assert ApiKey.END_TXN not in asked(broker), "the coordinator knows of none that it could end"
    producer.begin_transaction()
    producer.send("t", b"w", partition=0)
    producer.commit_transaction()
    assert log.partitions["t", 0].epochs == [(4000, 1)]
    assert coordinator.ids["loads-1"].ends == ["commit"]


def test_a_failure_is_reported_by_prepare(broker: ScriptedBroker, make: Make) -> None:
    producer = make(linger_ms=600_000)
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
    with pytest.raises(KafkaError, match="no longer knows"):
        end_transaction(cluster, forgotten, commit=True)
    asked = len(broker.received(ApiKey.END_TXN))
    end_transaction(cluster, prepared._replace(empty=True), commit=True)
    assert len(broker.received(ApiKey.END_TXN)) == asked


@pytest.mark.usefixtures("of_0_11")
def test_before_kafka_2_5_a_failure_that_used_up_numbers_ends_the_producer(
    broker: ScriptedBroker, coordinator: FakeTransactions, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(MessageTooLarge):
        producer.send("t", b"large", partition=0).result(90)
    with pytest.raises(UnsupportedVersion, match=r"from Kafka 2\.5 on"):
        producer.abort_transaction()
    assert coordinator.ids["loads-1"].ends == ["abort"]
    with pytest.raises(UnsupportedVersion, match="must be closed"):
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
    producer = make(ManualClock(), init=False, retry_backoff_ms=20_000)
    with pytest.raises(RequestTimedOut, match="it can be called again"):
        producer.init_transactions(timeout=200)
    broker.default(ApiKey.INIT_PRODUCER_ID, coordinator.init)
    producer.init_transactions()
    producer.begin_transaction()
