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
    State,
    Step,
    TransactionState,
    consequence,
)
from pyspark_kafkalog.types import TopicPartition

TP = TopicPartition("t", 0)
AGAIN, ABORT, CLOSE = Consequence.AGAIN, Consequence.ABORT, Consequence.CLOSE

CALLS = {
    State.INITIALIZING: "init_transactions()",
    State.OPEN: "begin_transaction()",
    State.PREPARING: "prepare_transaction()",
    State.COMMITTING: "commit_transaction()",
    State.ABORTING: "abort_transaction()",
}
ALLOWED = {
    State.UNINITIALIZED: {State.INITIALIZING},
    State.INITIALIZING: set(),
    State.READY: {State.OPEN},
    State.OPEN: {State.PREPARING, State.COMMITTING, State.ABORTING},
    State.PREPARING: {State.PREPARING, State.ABORTING},
    State.PREPARED: {State.COMMITTING, State.ABORTING},
    State.COMMITTING: {State.COMMITTING},
    State.ABORTING: {State.ABORTING},
    State.FAILED: {State.ABORTING},
    State.FATAL: set(),
}


def failure(code: ErrorCode) -> KafkaError:
    return error_for(code, code.name)


def machine(state: State) -> TransactionState:
    """One in this state, with a partition in its transaction."""
    made = TransactionState()
    made.state, made.partitions = state, frozenset({TP})
    if state in (State.FAILED, State.FATAL):
        made.cause = failure(ErrorCode.PRODUCER_FENCED)
    return made


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", State)
def test_a_call_is_possible_where_kafkas_producer_allows_it(state: State, call: State) -> None:
    it = machine(state)
    if call in ALLOWED[state]:
        it.call(CALLS[call], call)
        assert it.state is call
        return
    expected = {State.FAILED: TransactionAbortable, State.FATAL: ProducerFenced}.get(state, InvalidTxnState)
    with pytest.raises(expected, match=CALLS[call].replace("(", r"\(").replace(")", r"\)")):
        it.call(CALLS[call], call)
    assert it.state is state


@pytest.mark.parametrize("state", State)
def test_records_are_taken_while_a_transaction_is_open_alone(state: State) -> None:
    refusal = machine(state).refusal("send()")
    assert (refusal is None) is (state is State.OPEN)
    assert refusal is None or str(refusal).startswith("send()")


@pytest.mark.parametrize(
    ("step", "code", "expected"),
    [
        (Step.INIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, AGAIN),
        (Step.INIT, ErrorCode.INVALID_TRANSACTION_TIMEOUT, CLOSE),
        (Step.INIT, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLOSE),
        (Step.ADD_PARTITIONS, ErrorCode.NOT_COORDINATOR, AGAIN),
        (Step.ADD_PARTITIONS, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ABORT),
        (Step.ADD_PARTITIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ABORT),
        (Step.ADD_PARTITIONS, ErrorCode.TRANSACTION_ABORTABLE, ABORT),
        (Step.ADD_PARTITIONS, ErrorCode.INVALID_TXN_STATE, CLOSE),
        (Step.ADD_PARTITIONS, ErrorCode.PRODUCER_FENCED, CLOSE),
        (Step.ADD_OFFSETS, ErrorCode.GROUP_AUTHORIZATION_FAILED, ABORT),
        (Step.ADD_OFFSETS, ErrorCode.NETWORK_EXCEPTION, ABORT),
        (Step.ADD_OFFSETS, ErrorCode.INVALID_TXN_STATE, CLOSE),
        (Step.COMMIT_OFFSETS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ABORT),
        (Step.COMMIT_OFFSETS, ErrorCode.ILLEGAL_GENERATION, ABORT),
        (Step.COMMIT_OFFSETS, ErrorCode.INVALID_GROUP_ID, CLOSE),
        (Step.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, ABORT),
        (Step.PRODUCE, ErrorCode.REQUEST_TIMED_OUT, ABORT),
        (Step.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH, ABORT),
        (Step.PRODUCE, ErrorCode.PRODUCER_FENCED, CLOSE),
        (Step.PRODUCE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, CLOSE),
        (Step.END, ErrorCode.CONCURRENT_TRANSACTIONS, AGAIN),
        (Step.END, ErrorCode.NETWORK_EXCEPTION, AGAIN),
        (Step.END, ErrorCode.INVALID_TXN_STATE, CLOSE),
        (Step.END, ErrorCode.UNKNOWN_PRODUCER_ID, ABORT),
        (Step.END, ErrorCode.TRANSACTION_ABORTABLE, ABORT),
    ],
)
def test_a_failure_has_the_consequence_that_kafka_gives_it(
    step: Step, code: ErrorCode, expected: Consequence
) -> None:
    assert consequence(step, failure(code)) is expected


def test_after_a_failure_the_transaction_is_aborted_and_the_next_one_begins() -> None:
    it = machine(State.OPEN)
    assert it.failed(Step.PRODUCE, failure(ErrorCode.MESSAGE_TOO_LARGE), numbered=False) is ABORT
    with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE") as caught:
        it.call("commit_transaction()", State.COMMITTING)
    assert caught.value.__cause__ is it.cause
    it.call("abort_transaction()", State.ABORTING)
    it.ended()
    assert it.empty
    it.done()
    assert (it.state, it.cause, it.renewing) == (State.READY, None, False)


def test_a_batch_that_used_up_numbers_takes_another_epoch() -> None:
    it = machine(State.OPEN)
    it.failed(Step.PRODUCE, failure(ErrorCode.REQUEST_TIMED_OUT), numbered=True)
    assert it.renewing
    it.call("abort_transaction()", State.ABORTING)
    it.failed(Step.PRODUCE, failure(ErrorCode.OPERATION_NOT_ATTEMPTED), numbered=False)
    assert it.state is State.ABORTING
    assert it.renewing, "until the abort is done"
    it.done()
    assert not it.renewing


def test_the_first_failure_is_the_one_that_is_reported() -> None:
    it = machine(State.OPEN)
    first = failure(ErrorCode.MESSAGE_TOO_LARGE)
    it.failed(Step.PRODUCE, first)
    it.failed(Step.PRODUCE, failure(ErrorCode.REQUEST_TIMED_OUT))
    assert it.cause is first
    fatal = failure(ErrorCode.PRODUCER_FENCED)
    it.failed(Step.PRODUCE, fatal)
    assert (it.state, it.cause) == (State.FATAL, fatal)
    assert it.failed(Step.PRODUCE, first) is CLOSE


def test_a_forgotten_producer_id_leaves_nothing_to_end() -> None:
    it = machine(State.OPEN)
    it.failed(Step.ADD_PARTITIONS, failure(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert it.empty
    assert it.renewing
    assert it.state is State.FAILED


def test_init_that_ran_out_of_time_can_be_called_again() -> None:
    it = machine(State.UNINITIALIZED)
    it.call("init_transactions()", State.INITIALIZING)
    assert it.failed(Step.INIT, failure(ErrorCode.NETWORK_EXCEPTION)) is AGAIN
    it.call("init_transactions()", State.INITIALIZING)
    it.initialized()
    assert it.state is State.READY


def test_a_commit_that_ran_out_of_time_stays_a_commit() -> None:
    it = machine(State.COMMITTING)
    assert it.failed(Step.END, failure(ErrorCode.NETWORK_EXCEPTION)) is AGAIN
    assert it.state is State.COMMITTING
    with pytest.raises(InvalidTxnState, match="can be called again"):
        it.call("abort_transaction()", State.ABORTING)


def test_what_fails_while_a_transaction_is_prepared_is_reported() -> None:
    it = machine(State.PREPARING)
    it.failed(Step.PRODUCE, failure(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(TransactionAbortable):
        it.prepared()
