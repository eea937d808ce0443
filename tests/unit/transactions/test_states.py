"""The table of transactional ids, each cell against what Apache Kafka 3.9 answers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kafkalog_broker.transactions import states
from kafkalog_broker.transactions.states import LAST_EPOCH, PREPARED, CoordinatorState, Outcome, Transaction
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_000_000
E = ErrorCode


def known(state: CoordinatorState, epoch: int = 3, **changes: object) -> Transaction:
    partitions = frozenset({A}) if state is CoordinatorState.ONGOING or state in PREPARED else frozenset()
    made = Transaction("id", 7, epoch, 60_000, state, NOW - 10, partitions, NOW - 20)
    return replace(made, **changes)  # type: ignore[arg-type]


def told(outcome: Outcome) -> tuple[ErrorCode, CoordinatorState | None, int | None]:
    """The code, and of the record its state and epoch."""
    error = E.NONE if outcome.error is None else outcome.error.code
    store = outcome.store
    return error, None if store is None else store.state, None if store is None else store.epoch


def initialize(at: Transaction | None, producer: tuple[int, int] | None) -> Outcome:
    return states.initialize(at, "id", 5_000, producer, NOW, lambda: 99)


NOTHING = (None, None)
IDLE = (CoordinatorState.EMPTY, CoordinatorState.COMPLETE_COMMIT, CoordinatorState.COMPLETE_ABORT)
PREPARING = tuple(PREPARED)

INITIALIZE = [
    (None, None, (E.NONE, CoordinatorState.EMPTY, 0)),
    (None, (5, 1), (E.NONE, CoordinatorState.EMPTY, 0)),
    *((state, None, (E.NONE, CoordinatorState.EMPTY, 4)) for state in IDLE),
    *((state, (7, 3), (E.NONE, CoordinatorState.EMPTY, 4)) for state in IDLE),
    *((state, (7, 2), (E.PRODUCER_FENCED, *NOTHING)) for state in IDLE),
    *((state, (8, 3), (E.PRODUCER_FENCED, *NOTHING)) for state in (*IDLE, CoordinatorState.ONGOING)),
    *(
        (CoordinatorState.ONGOING, had, (E.CONCURRENT_TRANSACTIONS, CoordinatorState.PREPARE_ABORT, 4))
        for had in (None, (7, 3))
    ),
    (CoordinatorState.ONGOING, (7, 2), (E.CONCURRENT_TRANSACTIONS, CoordinatorState.PREPARE_ABORT, 4)),
    *((state, had, (E.CONCURRENT_TRANSACTIONS, *NOTHING)) for state in PREPARING for had in (None, (8, 8))),
]


@pytest.mark.parametrize(("state", "producer", "expected"), INITIALIZE)
def test_initialize(
    state: CoordinatorState | None, producer: tuple[int, int] | None, expected: tuple[object, ...]
) -> None:
    at = None if state is None else known(state)
    outcome = initialize(at, producer)
    assert told(outcome) == expected
    if outcome.error is None and outcome.store is not None:
        assert outcome.store.timeout_ms == 5_000
        assert outcome.store.producer_id == (99 if at is None else 7)


@pytest.mark.parametrize("state", IDLE)
def test_a_producer_that_repeats_its_initialization_gets_the_same_answer(state: CoordinatorState) -> None:
    first = initialize(known(state), (7, 3)).store
    assert first is not None
    again = initialize(first, (7, 3)).store
    assert again is not None
    assert (first.epoch, again.epoch, again.producer_id) == (4, 4, 7)
    assert told(initialize(again, (7, 3))) == (E.NONE, CoordinatorState.EMPTY, 4)
    assert told(initialize(again, (7, 2))) == (E.PRODUCER_FENCED, *NOTHING)


def test_when_its_epochs_are_used_up_a_producer_gets_a_new_id() -> None:
    fresh = initialize(known(CoordinatorState.EMPTY, LAST_EPOCH), (7, LAST_EPOCH)).store
    assert fresh is not None
    assert (fresh.producer_id, fresh.epoch) == (99, 0)
    again = initialize(fresh, (7, LAST_EPOCH)).store
    assert again is not None
    assert (again.producer_id, again.epoch) == (99, 0)
    fenced = initialize(known(CoordinatorState.ONGOING, LAST_EPOCH), None).store
    assert fenced is not None
    assert fenced.epoch == LAST_EPOCH + 1
    after = initialize(states.completed(fenced, NOW, lambda: 99), None).store
    assert after is not None
    assert (after.producer_id, after.epoch) == (99, 1)


def test_a_timeout_at_the_last_epoch_gives_the_producer_a_new_id() -> None:
    aborting = states.overdue(known(CoordinatorState.ONGOING, LAST_EPOCH), NOW + 60_001).store
    assert aborting is not None
    assert (aborting.producer_id, aborting.epoch) == (7, LAST_EPOCH + 1)
    done = states.completed(aborting, NOW, lambda: 99)
    assert (done.producer_id, done.epoch, done.state) == (99, 0, CoordinatorState.COMPLETE_ABORT)
    assert states.end_with_epoch(done, 7, LAST_EPOCH, commit=False, now_ms=NOW) == Outcome()
    late_commit = states.end_with_epoch(done, 7, LAST_EPOCH, commit=True, now_ms=NOW)
    assert told(late_commit) == (E.PRODUCER_FENCED, *NOTHING)
    assert told(initialize(done, (7, LAST_EPOCH))) == (E.PRODUCER_FENCED, *NOTHING)
    assert told(states.add(done, 99, 0, [A], NOW)) == (E.NONE, CoordinatorState.ONGOING, 0)


def test_an_open_transaction_with_the_largest_epoch_can_be_aborted() -> None:
    aborting = states.overdue(known(CoordinatorState.ONGOING, LAST_EPOCH + 1), NOW + 60_001).store
    assert aborting is not None
    assert aborting.epoch == LAST_EPOCH + 1
    assert states.completed(aborting, NOW, lambda: 99).producer_id == 99


WRONG_PRODUCER = [
    (None, 7, 3, E.INVALID_PRODUCER_ID_MAPPING),
    *((state, 8, 3, E.INVALID_PRODUCER_ID_MAPPING) for state in CoordinatorState),
    *((state, 7, epoch, E.PRODUCER_FENCED) for state in CoordinatorState for epoch in (2, 4)),
]


@pytest.mark.parametrize(("state", "producer_id", "epoch", "code"), WRONG_PRODUCER)
def test_a_wrong_producer_changes_nothing(
    state: CoordinatorState | None, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    at = None if state is None else known(state)
    assert told(states.add(at, producer_id, epoch, [B], NOW)) == (code, *NOTHING)
    for commit in (True, False):
        assert told(states.end(at, producer_id, epoch, commit=commit, now_ms=NOW)) == (code, *NOTHING)


@pytest.mark.parametrize("state", CoordinatorState)
def test_add(state: CoordinatorState) -> None:
    outcome = states.add(known(state), 7, 3, [B], NOW)
    if state in PREPARING:
        assert told(outcome) == (E.CONCURRENT_TRANSACTIONS, *NOTHING)
        return
    began = state is not CoordinatorState.ONGOING
    assert told(outcome) == (E.NONE, CoordinatorState.ONGOING, 3)
    assert outcome.store is not None
    assert outcome.store.partitions == ({B} if began else {A, B})
    assert outcome.store.started_ms == (NOW if began else NOW - 20)
    assert states.add(outcome.store, 7, 3, [B], NOW) == Outcome()


END = {
    CoordinatorState.EMPTY: (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
    CoordinatorState.ONGOING: (CoordinatorState.PREPARE_COMMIT, CoordinatorState.PREPARE_ABORT),
    CoordinatorState.PREPARE_COMMIT: (E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE),
    CoordinatorState.PREPARE_ABORT: (E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS),
    CoordinatorState.COMPLETE_COMMIT: (E.NONE, E.INVALID_TXN_STATE),
    CoordinatorState.COMPLETE_ABORT: (E.INVALID_TXN_STATE, E.NONE),
}


@pytest.mark.parametrize("state", CoordinatorState)
@pytest.mark.parametrize("commit", [True, False])
def test_end(state: CoordinatorState, commit: bool) -> None:
    expected = END[state][0 if commit else 1]
    found = told(states.end(known(state), 7, 3, commit=commit, now_ms=NOW))
    if isinstance(expected, CoordinatorState):
        assert found == (E.NONE, expected, 3)
    else:
        assert found == (expected, *NOTHING)


END_WITH_EPOCH = [
    # state, epoch that is asked with (the present one is 3), to commit, expected
    *(
        (CoordinatorState.ONGOING, 3, commit, (E.NONE, ENDING, 4))
        for commit, ENDING in (
            (True, CoordinatorState.PREPARE_COMMIT),
            (False, CoordinatorState.PREPARE_ABORT),
        )
    ),
    *((CoordinatorState.ONGOING, epoch, True, (E.PRODUCER_FENCED, *NOTHING)) for epoch in (1, 2, 4)),
    *((state, 3, True, (E.INVALID_TXN_STATE, *NOTHING)) for state in IDLE),
    *((state, 3, False, (E.NONE, CoordinatorState.PREPARE_ABORT, 4)) for state in IDLE),
    (CoordinatorState.EMPTY, 2, True, (E.PRODUCER_FENCED, *NOTHING)),
    (CoordinatorState.EMPTY, 2, False, (E.PRODUCER_FENCED, *NOTHING)),
    (CoordinatorState.PREPARE_COMMIT, 2, True, (E.CONCURRENT_TRANSACTIONS, *NOTHING)),
    (CoordinatorState.PREPARE_COMMIT, 2, False, (E.INVALID_TXN_STATE, *NOTHING)),
    (CoordinatorState.PREPARE_ABORT, 2, True, (E.INVALID_TXN_STATE, *NOTHING)),
    (CoordinatorState.PREPARE_ABORT, 2, False, (E.CONCURRENT_TRANSACTIONS, *NOTHING)),
    (CoordinatorState.COMPLETE_COMMIT, 2, True, (E.NONE, *NOTHING)),
    (CoordinatorState.COMPLETE_COMMIT, 2, False, (E.INVALID_TXN_STATE, *NOTHING)),
    (CoordinatorState.COMPLETE_ABORT, 2, True, (E.PRODUCER_FENCED, *NOTHING)),
    (CoordinatorState.COMPLETE_ABORT, 2, False, (E.NONE, *NOTHING)),
]


@pytest.mark.parametrize(("state", "epoch", "commit", "expected"), END_WITH_EPOCH)
def test_end_with_an_epoch_for_each_transaction(
    state: CoordinatorState, epoch: int, commit: bool, expected: tuple[object, ...]
) -> None:
    found = states.end_with_epoch(known(state), 7, epoch, commit=commit, now_ms=NOW)
    assert told(found) == expected
    assert told(states.end_with_epoch(known(state), 8, 3, commit=commit, now_ms=NOW))[0] == (
        E.INVALID_PRODUCER_ID_MAPPING
    )


def test_after_its_last_epoch_a_producer_continues_with_a_new_id() -> None:
    decided = states.end_with_epoch(
        known(CoordinatorState.ONGOING, LAST_EPOCH), 7, LAST_EPOCH, commit=True, now_ms=NOW
    )
    assert decided.store is not None
    assert (decided.store.producer_id, decided.store.epoch) == (7, LAST_EPOCH + 1)
    done = states.completed(decided.store, NOW, lambda: 99)
    assert (done.producer_id, done.epoch, done.state) == (99, 0, CoordinatorState.COMPLETE_COMMIT)
    assert states.end_with_epoch(done, 7, LAST_EPOCH, commit=True, now_ms=NOW) == Outcome()


def test_time_aborts_what_is_open_and_forgets_what_is_idle() -> None:
    at = known(CoordinatorState.ONGOING, started_ms=NOW - 60_000)
    assert states.overdue(at, NOW) == Outcome()
    assert told(states.overdue(at, NOW + 1)) == (E.NONE, CoordinatorState.PREPARE_ABORT, 4)
    for state in CoordinatorState:
        if state is not CoordinatorState.ONGOING:
            assert states.overdue(known(state, started_ms=0), NOW) == Outcome()
        assert states.is_forgotten(known(state), 10, NOW) == (state in IDLE)
        assert not states.is_forgotten(known(state), 11, NOW)
