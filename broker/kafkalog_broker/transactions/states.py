"""State machine of transactional ids. Pure: the time and new producer ids are parameters.

Each function takes the id's last record, None if unknown, and returns an `Outcome`: the record to store
before the answer, and the error to answer. A Prepare record is the decision; the markers and `completed`
always follow it. Source: Kafka 3.9 ``TransactionCoordinator``, ``TransactionMetadata`` (KIP-98, 360, 588),
with ``transaction.version`` below 2, except `end_with_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

import msgspec
from msgspec.structs import replace

from pyspark_kafkalog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
)
from pyspark_kafkalog.types import TopicPartition

LAST_EPOCH = 32766
"""After this epoch a producer gets a new id; one epoch is kept to fence it with."""

NO_EPOCH = -1


class CoordinatorState(IntEnum):
    """State of a transactional id; the numbers are those in its records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


PREPARED: Mapping[CoordinatorState, CoordinatorState] = {
    CoordinatorState.PREPARE_COMMIT: CoordinatorState.COMPLETE_COMMIT,
    CoordinatorState.PREPARE_ABORT: CoordinatorState.COMPLETE_ABORT,
}
"""Prepare states, in which markers are to be written, and the states after them."""

STATE_NAMES: Mapping[CoordinatorState, str] = {
    state: state.name.title().replace("_", "") for state in CoordinatorState
}
"""As shown by Kafka's tools."""


class Transaction(msgspec.Struct, frozen=True):
    """A transactional id: its producer and the state of its last transaction. Times are in ms since the
    epoch; ``started_ms`` is -1 before the first. The last two fields are not stored; they let a producer
    repeat its initialization with the same result.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: CoordinatorState
    changed_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    last_epoch: int = NO_EPOCH
    last_producer_id: int = -1


class Outcome(msgspec.Struct, frozen=True):
    """``store``: the record to append before answering; ``error``: the error to answer, if any."""

    store: Transaction | None = None
    error: KafkaError | None = None


Refusals = Mapping[TopicPartition, KafkaError]
"""The partitions that must not be written to, and why."""

_SAME = Outcome()

_PREPARE, _BUSY, _DONE, _WRONG = "prepare", "busy", "done", "wrong"

ENDING: Mapping[CoordinatorState, tuple[str, str]] = {
    CoordinatorState.EMPTY: (_WRONG, _WRONG),
    CoordinatorState.ONGOING: (_PREPARE, _PREPARE),
    CoordinatorState.PREPARE_COMMIT: (_WRONG, _BUSY),
    CoordinatorState.PREPARE_ABORT: (_BUSY, _WRONG),
    CoordinatorState.COMPLETE_COMMIT: (_WRONG, _DONE),
    CoordinatorState.COMPLETE_ABORT: (_DONE, _WRONG),
}
"""What EndTxn does in each state, to abort and to commit."""


def initialize(
    known: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    producer: tuple[int, int] | None,
    now_ms: int,
    new_id: Callable[[], int],
) -> Outcome:
    """InitProducerId; ``producer`` is the client's own. Aborts an open transaction: the client asks again."""
    if known is None:
        return Outcome(_fresh(transactional_id, timeout_ms, now_ms, new_id()))
    if known.state in PREPARED:
        return Outcome(error=_concurrent(known))
    if producer is not None and not _is_its(known, *producer):
        return Outcome(error=_fenced(known, producer[1]))
    if known.state is CoordinatorState.ONGOING:
        return Outcome(_aborting(known, now_ms), _concurrent(known))
    emptied = replace(
        known, state=CoordinatorState.EMPTY, partitions=frozenset(), timeout_ms=timeout_ms, changed_ms=now_ms,
        started_ms=-1,
    )  # fmt: skip
    if producer is not None and producer[1] != known.epoch:
        if producer[1] != known.last_epoch:
            return Outcome(error=_fenced(known, producer[1]))
        return Outcome(emptied)
    last_epoch = NO_EPOCH if producer is None else known.epoch
    if known.epoch >= LAST_EPOCH:
        fresh = _fresh(transactional_id, timeout_ms, now_ms, new_id())
        return Outcome(replace(fresh, last_epoch=last_epoch, last_producer_id=known.producer_id))
    return Outcome(replace(emptied, epoch=known.epoch + 1, last_epoch=last_epoch))


def check_producer(known: Transaction | None, producer_id: int, epoch: int) -> Transaction:
    """Raises `InvalidProducerIdMapping` (unknown id, or another producer's) or `ProducerFenced` (epoch)."""
    if known is None or known.producer_id != producer_id:
        has = "is not known" if known is None else f"has producer {known.producer_id}"
        raise InvalidProducerIdMapping(f"the transactional id {has}; the request has producer {producer_id}")
    if known.epoch != epoch:
        raise _fenced(known, epoch)
    return known


def add(
    known: Transaction | None, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], now_ms: int
) -> Outcome:
    """AddPartitionsToTxn and AddOffsetsToTxn; the first partitions begin a transaction."""
    try:
        known = check_producer(known, producer_id, epoch)
    except KafkaError as e:
        return Outcome(error=e)
    if known.state in PREPARED:
        return Outcome(error=_concurrent(known))
    if known.state is CoordinatorState.ONGOING:
        together = known.partitions.union(partitions)
        if together == known.partitions:
            return _SAME
        return Outcome(replace(known, partitions=together, changed_ms=now_ms))
    first = frozenset(partitions)
    begun = replace(known, state=CoordinatorState.ONGOING, partitions=first, changed_ms=now_ms)
    return Outcome(replace(begun, started_ms=now_ms))


def end(known: Transaction | None, producer_id: int, epoch: int, *, commit: bool, now_ms: int) -> Outcome:
    """EndTxn up to version 4."""
    try:
        known = check_producer(known, producer_id, epoch)
    except KafkaError as e:
        return Outcome(error=e)
    action = ENDING[known.state][commit]
    if action == _DONE:
        return _SAME
    if action == _BUSY:
        return Outcome(error=_concurrent(known))
    if action == _WRONG:
        what = "committed" if commit else "aborted"
        where = STATE_NAMES[known.state]
        return Outcome(error=InvalidTxnState(f"a transaction cannot be {what} in state {where}"))
    state = CoordinatorState.PREPARE_COMMIT if commit else CoordinatorState.PREPARE_ABORT
    return Outcome(replace(known, state=state, changed_ms=now_ms))


def end_with_epoch(
    known: Transaction | None, producer_id: int, epoch: int, *, commit: bool, now_ms: int
) -> Outcome:
    """EndTxn from version 5: each transaction has its own epoch, and the record has the next one's. A
    repeated request, with the previous epoch, changes nothing. An abort is allowed even if nothing was sent.
    Source: Kafka 4.0 ``TransactionCoordinator.endTransaction`` (KIP-890).
    """
    repeated = known is not None and (
        (producer_id == known.producer_id and epoch + 1 == known.epoch)
        or (producer_id == known.last_producer_id and epoch == LAST_EPOCH and known.epoch == 0)
    )
    if known is None or not repeated:
        try:
            known = check_producer(known, producer_id, epoch)
        except KafkaError as e:
            return Outcome(error=e)
    ending = CoordinatorState.PREPARE_COMMIT if commit else CoordinatorState.PREPARE_ABORT
    if known.state is ending or (known.state in PREPARED and not repeated):
        return Outcome(error=_concurrent(known))
    if repeated and known.state is PREPARED[ending]:
        return _SAME
    retried_after_abort = repeated and commit and known.state is CoordinatorState.COMPLETE_ABORT
    if retried_after_abort or (
        repeated and known.state in (CoordinatorState.EMPTY, CoordinatorState.ONGOING)
    ):
        return Outcome(error=_fenced(known, epoch))  # KAFKA-20785: Kafka Streams survives this error only
    if repeated or (commit and known.state is not CoordinatorState.ONGOING):
        what, where = "committed" if commit else "aborted", STATE_NAMES[known.state]
        return Outcome(error=InvalidTxnState(f"a transaction cannot be {what} in state {where}"))
    if known.epoch > LAST_EPOCH:
        return Outcome(error=_fenced(known, epoch))
    return Outcome(replace(known, state=ending, epoch=known.epoch + 1, changed_ms=now_ms, last_epoch=epoch))


def check_writable(
    known: Transaction | None, producer_id: int, epoch: int, partition: TopicPartition
) -> None:
    known = check_producer(known, producer_id, epoch)
    if known.state is not CoordinatorState.ONGOING or partition not in known.partitions:
        raise InvalidTxnState(f"{partition} is not part of an open transaction of producer {producer_id}")


def overdue(known: Transaction, now_ms: int) -> Outcome:
    if known.state is CoordinatorState.ONGOING and known.started_ms + known.timeout_ms < now_ms:
        return Outcome(_aborting(known, now_ms))
    return _SAME


def is_forgotten(known: Transaction, expiration_ms: int, now_ms: int) -> bool:
    idle = known.state is not CoordinatorState.ONGOING and known.state not in PREPARED
    return idle and known.changed_ms + expiration_ms <= now_ms


def completed(known: Transaction, now_ms: int, new_id: Callable[[], int]) -> Transaction:
    """The Complete record, once all markers are written; a new producer id if the epochs are used up."""
    done = replace(known, state=PREPARED[known.state], partitions=frozenset(), changed_ms=now_ms)
    if known.epoch > LAST_EPOCH:
        return replace(done, producer_id=new_id(), epoch=0, last_producer_id=known.producer_id)
    return done


def _fresh(transactional_id: str, timeout_ms: int, now_ms: int, producer_id: int) -> Transaction:
    return Transaction(transactional_id, producer_id, 0, timeout_ms, CoordinatorState.EMPTY, now_ms)


def _is_its(known: Transaction, producer_id: int, epoch: int) -> bool:
    return producer_id == known.producer_id or (producer_id == known.last_producer_id and epoch >= LAST_EPOCH)


def _aborting(known: Transaction, now_ms: int) -> Transaction:
    """State and fencing epoch, at most the largest, in one record: a crash keeps both or neither."""
    epoch, state = min(known.epoch, LAST_EPOCH) + 1, CoordinatorState.PREPARE_ABORT
    return replace(known, state=state, epoch=epoch, changed_ms=now_ms, last_epoch=NO_EPOCH)


def _concurrent(known: Transaction) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"the last transaction of {known.transactional_id!r} is being ended; ask again"
    )


def _fenced(known: Transaction, epoch: int) -> ProducerFenced:
    return ProducerFenced(
        f"producer {known.producer_id} of {known.transactional_id!r} has epoch {known.epoch}; the request has"
        f" {epoch}"
    )
