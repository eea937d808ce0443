"""The state machine of transactions alone: what may follow what, and what a failure leads to."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    error_for,
)
from pyspark_kafkalog.producer.transaction_manager import (
    Consequence,
    FailedCall,
    ProducerPhase,
    TransactionState,
    consequence,
)
from pyspark_kafkalog.types import TopicPartition

TP = TopicPartition("t", 0)
AGAIN, ABORT, CLOSE = Consequence.AGAIN, Consequence.ABORT, Consequence.CLOSE

CALLS = {
    ProducerPhase.INITIALIZING: "init_transactions()",
    ProducerPhase.OPEN: "begin_transaction()",
    ProducerPhase.PREPARING: "prepare_transaction()",
    ProducerPhase.COMMITTING: "commit_transaction()",
    ProducerPhase.ABORTING: "abort_transaction()",
}
ALLOWED = {
    ProducerPhase.UNINITIALIZED: {ProducerPhase.INITIALIZING},
    ProducerPhase.INITIALIZING: set(),
    ProducerPhase.READY: {ProducerPhase.OPEN},
    ProducerPhase.OPEN: {
        ProducerPhase.PREPARING,
        ProducerPhase.COMMITTING,
        ProducerPhase.ABORTING,
    },
    ProducerPhase.PREPARING: {
        ProducerPhase.PREPARING,
        ProducerPhase.ABORTING,
    },
    ProducerPhase.PREPARED: {
        ProducerPhase.COMMITTING,
        ProducerPhase.ABORTING,
    },
    ProducerPhase.COMMITTING: {ProducerPhase.COMMITTING},
    ProducerPhase.ABORTING: {ProducerPhase.ABORTING},
    ProducerPhase.FAILED: {ProducerPhase.ABORTING},
    ProducerPhase.FATAL: set(),
}


def failure(code: ErrorCode) -> KafkaError:
    return error_for(code, code.name)


def machine(state: ProducerPhase) -> TransactionState:
    """One in this state, with a partition in its transaction."""
    made = TransactionState()
    made.state, made.partitions = state, frozenset({TP})
    if state in (ProducerPhase.FAILED, ProducerPhase.FATAL):
        made.cause = failure(ErrorCode.PRODUCER_FENCED)
    return made


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", ProducerPhase)
def test_a_call_is_possible_where_kafkas_producer_allows_it(
    state: ProducerPhase, call: ProducerPhase
) -> None:
    it = machine(state)
    if call in ALLOWED[state]:
        it.call(CALLS[call], call)
        assert it.state is call
        return
    expected = {
        ProducerPhase.FAILED: TransactionAbortable,
        ProducerPhase.FATAL: ProducerFenced,
    }.get(state, InvalidTxnState)
    with pytest.raises(expected, match=CALLS[call].replace("(", r"\(").replace(")", r"\)")):
        it.call(CALLS[call], call)
    assert it.state is state


@pytest.mark.parametrize("state", ProducerPhase)
def test_records_are_taken_while_a_transaction_is_open_alone(state: ProducerPhase) -> None:
    refusal = machine(state).refusal("send()")
    assert (refusal is None) is (state is ProducerPhase.OPEN)
    assert refusal is None or str(refusal).startswith("send()")


@pytest.mark.parametrize(
    ("step", "code", "expected"),
    [
        (FailedCall.INIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, AGAIN),
        (FailedCall.INIT, ErrorCode.INVALID_TRANSACTION_TIMEOUT, CLOSE),
        (FailedCall.INIT, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLOSE),
        (FailedCall.ADD_PARTITIONS, ErrorCode.NOT_COORDINATOR, AGAIN),
        (FailedCall.ADD_PARTITIONS, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ABORT),
        (FailedCall.ADD_PARTITIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ABORT),
        (FailedCall.ADD_PARTITIONS, ErrorCode.TRANSACTION_ABORTABLE, ABORT),
        (FailedCall.ADD_PARTITIONS, ErrorCode.INVALID_TXN_STATE, CLOSE),
        (FailedCall.ADD_PARTITIONS, ErrorCode.PRODUCER_FENCED, CLOSE),
        (FailedCall.ADD_OFFSETS, ErrorCode.GROUP_AUTHORIZATION_FAILED, ABORT),
        (FailedCall.ADD_OFFSETS, ErrorCode.NETWORK_EXCEPTION, ABORT),
        (FailedCall.ADD_OFFSETS, ErrorCode.INVALID_TXN_STATE, CLOSE),
        (FailedCall.COMMIT_OFFSETS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ABORT),
        (FailedCall.COMMIT_OFFSETS, ErrorCode.ILLEGAL_GENERATION, ABORT),
        (FailedCall.COMMIT_OFFSETS, ErrorCode.INVALID_GROUP_ID, CLOSE),
        (FailedCall.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, ABORT),
        (FailedCall.PRODUCE, ErrorCode.REQUEST_TIMED_OUT, ABORT),
        (FailedCall.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH, ABORT),
        (FailedCall.PRODUCE, ErrorCode.PRODUCER_FENCED, CLOSE),
        (FailedCall.PRODUCE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, CLOSE),
        (FailedCall.END, ErrorCode.CONCURRENT_TRANSACTIONS, AGAIN),
        (FailedCall.END, ErrorCode.NETWORK_EXCEPTION, AGAIN),
        (FailedCall.END, ErrorCode.INVALID_TXN_STATE, CLOSE),
        (FailedCall.END, ErrorCode.UNKNOWN_PRODUCER_ID, ABORT),
        (FailedCall.END, ErrorCode.TRANSACTION_ABORTABLE, ABORT),
    ],
)
def test_a_failure_has_the_consequence_that_kafka_gives_it(
    step: FailedCall, code: ErrorCode, expected: Consequence
) -> None:
    assert consequence(step, failure(code)) is expected


def test_after_a_failure_the_transaction_is_aborted_and_the_next_one_begins() -> None:
    it = machine(ProducerPhase.OPEN)
    assert it.failed(FailedCall.PRODUCE, failure(ErrorCode.MESSAGE_TOO_LARGE), numbered=False) is ABORT
    with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE") as caught:
        it.call("commit_transaction()", ProducerPhase.COMMITTING)
    assert caught.value.__cause__ is it.cause
    it.call("abort_transaction()", ProducerPhase.ABORTING)
    it.ended()
    assert it.empty
    it.done()
    assert (it.state, it.cause, it.renewing) == (ProducerPhase.READY, None, False)


def test_a_batch_that_used_up_numbers_takes_another_epoch() -> None:
    it = machine(ProducerPhase.OPEN)
    it.failed(FailedCall.PRODUCE, failure(ErrorCode.REQUEST_TIMED_OUT), numbered=True)
    assert it.renewing
    it.call("abort_transaction()", ProducerPhase.ABORTING)
    it.failed(FailedCall.PRODUCE, failure(ErrorCode.OPERATION_NOT_ATTEMPTED), numbered=False)
    assert it.state is ProducerPhase.ABORTING
    assert it.renewing, "until the abort is done"
    it.done()
    assert not it.renewing


def test_the_first_failure_is_the_one_that_is_reported() -> None:
    it = machine(ProducerPhase.OPEN)
    first = failure(ErrorCode.MESSAGE_TOO_LARGE)
    it.failed(FailedCall.PRODUCE, first)
    it.failed(FailedCall.PRODUCE, failure(ErrorCode.REQUEST_TIMED_OUT))
    assert it.cause is first
    fatal = failure(ErrorCode.PRODUCER_FENCED)
    it.failed(FailedCall.PRODUCE, fatal)
    assert (it.state, it.cause) == (ProducerPhase.FATAL, fatal)
    assert it.failed(FailedCall.PRODUCE, first) is CLOSE


def test_a_forgotten_producer_id_leaves_nothing_to_end() -> None:
    it = machine(ProducerPhase.OPEN)
    it.failed(FailedCall.ADD_PARTITIONS, failure(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert it.empty
    assert it.renewing
    assert it.state is ProducerPhase.FAILED


def test_init_that_ran_out_of_time_can_be_called_again() -> None:
    it = machine(ProducerPhase.UNINITIALIZED)
    it.call("init_transactions()", ProducerPhase.INITIALIZING)
    assert it.failed(FailedCall.INIT, failure(ErrorCode.NETWORK_EXCEPTION)) is AGAIN
    it.call("init_transactions()", ProducerPhase.INITIALIZING)
    it.initialized()
    assert it.state is ProducerPhase.READY


def test_a_commit_that_ran_out_of_time_stays_a_commit() -> None:
    it = machine(ProducerPhase.COMMITTING)
    assert it.failed(FailedCall.END, failure(ErrorCode.NETWORK_EXCEPTION)) is AGAIN
    assert it.state is ProducerPhase.COMMITTING
    with pytest.raises(InvalidTxnState, match="can be called again"):
        it.call("abort_transaction()", ProducerPhase.ABORTING)


def test_what_fails_while_a_transaction_is_prepared_is_reported() -> None:
    it = machine(ProducerPhase.PREPARING)
    it.failed(FailedCall.PRODUCE, failure(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(TransactionAbortable):
        it.prepared()
