"""Transactions over several brokers: a coordinator has partition owners write its markers, and an owner asks
the coordinator before it appends.

The coordinator repeats a marker until its owner has written it, through the owner's restarts. An owner asks
(AddPartitionsToTxn 4) before the first batch of a transaction, and again after its own restart; the answer
holds until the marker. Source: KIP-98, KIP-890.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kafkalog_broker.cluster.ownership import Ownership
from kafkalog_broker.cluster.peers import Peers
from kafkalog_broker.logs.offset_records import TRANSACTIONS_TOPIC
from kafkalog_broker.logs.state_topic import partition_for
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.transactions.remote_coordinators import Refusals
from kafkalog_broker.transactions.states import PREPARED, STATE_NAMES, CoordinatorState, Transaction
from kafkalog_broker.transactions.txn_verification import TxnVerification
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError, error_for
from pyspark_kafkalog.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.cluster_nodes import NOBODY

_MARKERS_VERSION = 1
_VERIFYING_VERSION = 4
_LISTING_VERSION = 0
_OPEN_STATES = tuple(STATE_NAMES[each] for each in (CoordinatorState.ONGOING, *PREPARED))
_ANSWER_SECONDS = 10.0
"""Less than the 30 s for which producers wait; they retry what is refused with a retriable code."""
_AGAIN_SECONDS = 0.5

_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""INVALID_PRODUCER_EPOCH: a later transaction has already ended there."""

_log = logging.getLogger(__name__)


class _Spread:
    """*Thread-safe: ``_lock`` guards its state.* A decided transaction with markers to write elsewhere."""

    def __init__(
        self,
        known: Transaction,
        partitions: Iterable[TopicPartition],
        written: Callable[[], None],
        delayed: Callable[[], None],
    ) -> None:
        self.known = known
        self.delayed = delayed
        self._written = written
        self._lock = threading.Lock()
        self._left = set(partitions)
        self._waits = False

    def strike(self, done: Iterable[TopicPartition]) -> None:
        with self._lock:
            before = len(self._left)
            self._left.difference_update(done)
            ended = before and not self._left
        if ended:
            self._written()

    def first_delay(self) -> bool:
        with self._lock:
            before, self._waits = self._waits, True
        return not before


class ClusterTransactions:
    """*Thread-safe: its state is in `TxnVerification`.* Callbacks run in peers' threads."""

    def __init__(
        self,
        peers: Peers,
        ownership: Ownership,
        scheduler: Scheduler,
        mark_here: Callable[[TopicPartition, int, int, bool], object],
    ) -> None:
        """``mark_here`` appends a marker to a partition of ours: producer id, epoch, whether to commit."""
        self._peers = peers
        self._ownership = ownership
        self._scheduler = scheduler
        self._mark_here = mark_here
        self._verified = TxnVerification()

    # For transactions of this coordinator.

    def elsewhere(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """The subset of ``partitions`` that other brokers own, or that are ours but offline."""
        here, offline = (self._ownership.node_id, None), self._ownership.offline
        return frozenset(each for each in partitions if self._owner(each) not in here or each in offline)

    def send_markers(
        self,
        known: Transaction,
        partitions: Iterable[TopicPartition],
        written: Callable[[], None],
        delayed: Callable[[], None],
    ) -> None:
        """Have the owners of ``partitions`` write the markers of a transaction in a Prepare state.
        ``written`` is called, from any thread, when all have; if that has to wait, for example for a dead
        broker, ``delayed`` is called first.
        """
        spread = _Spread(known, partitions, written, delayed)
        self._send(spread, partitions)

    def _owner(self, partition: TopicPartition) -> int | None:
        """`NOBODY` if unknown for now, None if the partition was deleted."""
        view = self._ownership.view
        if view is None:
            return NOBODY
        topic = view.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.owners):
            return NOBODY if view.awaited else None
        return topic.owners[partition.partition]

    def _send(self, spread: _Spread, partitions: Iterable[TopicPartition]) -> None:
        by_owner: dict[int | None, list[TopicPartition]] = defaultdict(list)
        for each in sorted(partitions):
            by_owner[self._owner(each)].append(each)
        known = spread.known
        commit = known.state is CoordinatorState.PREPARE_COMMIT
        for owner, theirs in by_owner.items():
            if owner is None:
                _log.info("%s: deleted; the transaction of %r ends without", theirs, known.transactional_id)
                spread.strike(theirs)
            elif owner == self._ownership.node_id:
                self._mark_ours(spread, theirs, commit)
            elif owner == NOBODY:
                self._later(spread, theirs, "their owners are not known")
            else:
                marker = WritableTxnMarker(
                    known.producer_id, known.epoch, commit, _by_topic(WritableTxnMarkerTopic, theirs)
                )
                request = WriteTxnMarkersRequest((marker,))
                answered = partial(self._marked, spread, theirs)
                self._peers.ask(owner, request, _MARKERS_VERSION, answered)

    def _mark_ours(self, spread: _Spread, ours: list[TopicPartition], commit: bool) -> None:
        try:
            for each in ours:
                self._mark_here(each, spread.known.producer_id, spread.known.epoch, commit)
        except KafkaError as e:
            self._later(spread, ours, str(e))
        else:
            spread.strike(ours)

    def _marked(
        self, spread: _Spread, asked: list[TopicPartition], answer: Any, error: KafkaError | None
    ) -> None:
        if error is not None:
            self._later(spread, asked, str(error))
            return
        codes = {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for marker in answer.markers
            for topic in marker.topics
            for each in topic.partitions
        }
        left = [each for each in asked if codes.get(each) not in _WRITTEN]
        if left:
            self._later(spread, left, ", ".join(sorted({str(codes.get(each)) for each in left})))
        spread.strike(set(asked).difference(left))

    def _later(self, spread: _Spread, partitions: list[TopicPartition], why: str) -> None:
        if spread.first_delay():
            _log.warning(
                "the transaction of %r is decided, and waits for %s: %s",
                spread.known.transactional_id, ", ".join(map(str, partitions[:20])), why,
            )  # fmt: skip
            spread.delayed()
        self._scheduler.after(_AGAIN_SECONDS, partial(self._send, spread, partitions))

    # For transactions of other coordinators.

    def holders(
        self, producer_ids: Iterable[int], on_answer: Callable[[frozenset[int] | None], None]
    ) -> None:
        """Ask all other coordinators which of these producers have an open transaction. ``on_answer`` gets
        them, from any thread, or None if a coordinator did not answer.
        """
        ownership = self._ownership
        topic, view = ownership.topic(TRANSACTIONS_TOPIC), ownership.view
        others = set() if topic is None else {*topic.owners} - {ownership.node_id}
        offline = any(each.topic == TRANSACTIONS_TOPIC for each in ownership.offline)
        if view is None or view.awaited or not ownership.known or offline:
            on_answer(None)
            return
        if not others:
            on_answer(frozenset())
            return
        request = ListTransactionsRequest(_OPEN_STATES, tuple(producer_ids))
        lock, answers = threading.Lock(), list[frozenset[int] | None]()

        def answered(answer: Any, error: KafkaError | None) -> None:
            found = None
            if error is None and not answer.error_code:
                found = frozenset(each.producer_id for each in answer.transaction_states)
            with lock:
                answers.append(found)
                if len(answers) < len(others):
                    return
            known = [each for each in answers if each is not None]
            on_answer(frozenset().union(*known) if len(known) == len(answers) else None)

        for broker in others:
            self._peers.ask(broker, request, _LISTING_VERSION, answered, _ANSWER_SECONDS)

    def unknown(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """The subset of ``partitions`` that need `verify` before `writing`."""
        return self._verified.unknown(producer_id, epoch, partitions)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        on_answer: Callable[[Refusals], None],
        *,
        adding: bool,
    ) -> None:
        """Ask the id's coordinator whether its transaction has the partitions, or, if ``adding``, to add
        them. ``on_answer`` gets the refused ones, from any thread.
        """
        asked = self._verified.asking(producer_id, epoch, partitions)

        def answered(answer: Any, error: KafkaError | None) -> None:
            if error is None and answer.error_code:
                error = error_for(answer.error_code, f"broker {coordinator}: it asks no such questions of us")
            if error is not None:
                _log.warning("transaction of %r: broker %d: %s", transactional_id, coordinator, error)
                refused = ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
                on_answer(dict.fromkeys(asked, refused))
                return
            codes = {
                TopicPartition(topic.name, each.partition_index): each.partition_error_code
                for result in answer.results_by_transaction
                for topic in result.topic_results
                for each in topic.results_by_partition
            }
            refusals = {}
            for each, question in asked.items():
                code = codes.get(each, ErrorCode.UNKNOWN_SERVER_ERROR)
                if code is ErrorCode.NONE:
                    self._verified.answered(question)
                else:
                    why = f"{each}: the coordinator of {transactional_id!r} says {code.name}"
                    refusals[each] = error_for(code, why)
            on_answer(refusals)

        coordinator = self._coordinator_of(transactional_id)
        if coordinator < 0:
            answered(None, ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody has its partition yet"))
            return
        wanted = AddPartitionsToTxnTransaction(
            transactional_id, producer_id, epoch, not adding, _by_topic(AddPartitionsToTxnTopic, asked)
        )
        request = AddPartitionsToTxnRequest(transactions=(wanted,))
        self._peers.ask(coordinator, request, _VERIFYING_VERSION, answered, _ANSWER_SECONDS)

    def writing(
        self, partition: TopicPartition, producer_id: int, epoch: int
    ) -> AbstractContextManager[None]:
        return self._verified.writing(partition, producer_id, epoch)

    def ending(self, partition: TopicPartition, producer_id: int) -> AbstractContextManager[None]:
        return self._verified.ending(partition, producer_id)

    def _coordinator_of(self, transactional_id: str) -> int:
        topic = self._ownership.topic(TRANSACTIONS_TOPIC)
        if topic is None:
            return NOBODY
        number = partition_for(transactional_id, len(topic.owners))
        return self._ownership.owner_of(TopicPartition(TRANSACTIONS_TOPIC, number))


def _by_topic(kind: Callable[[str, tuple[int, ...]], Any], partitions: Iterable[TopicPartition]) -> Any:
    topics: dict[str, list[int]] = defaultdict(list)
    for each in partitions:
        topics[each.topic].append(each.partition)
    return tuple(kind(name, tuple(numbers)) for name, numbers in topics.items())
