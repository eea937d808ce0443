"""Transactions over several brokers: a coordinator has partition owners write its markers, and repeats it
until they have; an owner asks the coordinator (AddPartitionsToTxn 4) before the first batch of a transaction,
and again after its own restart. Source: KIP-98, KIP-890.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from typing import Any

from kafkalog_broker.cluster.ownership import Ownership
from kafkalog_broker.cluster.peers import Peers, by_topic
from kafkalog_broker.logs.offset_records import TRANSACTIONS_TOPIC
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.transactions.states import (
    PREPARED,
    STATE_NAMES,
    CoordinatorState,
    Refusals,
    Transaction,
)
from pyspark_kafkalog.errors import ErrorCode, InvalidTxnState, KafkaError, ServerError, error_for
from pyspark_kafkalog.protocol.api import transactions as api
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

_LOCKS = 64
_REMEMBERED = 50_000
"""Forgotten answers are requested again."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Question:
    """*Guarded by the lock of its key.* Created before asking; the marker drops it, so late answers are
    ignored.
    """

    epoch: int
    is_in: bool = False


_Key = tuple[TopicPartition, int]


class TxnVerification:
    """*Thread-safe.* Which of our partitions other coordinators say are in open transactions, by partition
    and producer id. A key's lock, one of ``_locks``, is held while data or the marker of its transaction is
    appended, so no data follows the marker. It comes before the log's lock. ``_table`` guards the dictionary.
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))
        self._table = threading.Lock()
        self._questions: OrderedDict[_Key, Question] = OrderedDict()

    def unknown(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        with self._table:
            found = [(each, self._questions.get((each, producer_id))) for each in partitions]
        return [each for each, known in found if known is None or known.epoch != epoch or not known.is_in]

    def asking(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Question]:
        """Call before asking the coordinator; then set ``is_in`` for those in the transaction."""
        asked = {}
        with self._table:
            for each in partitions:
                key = each, producer_id
                known = self._questions.get(key)
                if known is None or known.epoch != epoch:
                    known = self._questions[key] = Question(epoch)
                self._questions.move_to_end(key)
                asked[each] = known
            while len(self._questions) > self._remembered:
                self._questions.popitem(last=False)
        return asked

    @contextmanager
    def writing(self, partition: TopicPartition, producer_id: int, epoch: int) -> Iterator[None]:
        """Hold this while appending a batch. Raises `InvalidTxnState`: not in an open transaction."""
        key = partition, producer_id
        with self._lock(key):
            known = self._questions.get(key)
            if known is None or known.epoch != epoch or not known.is_in:
                raise InvalidTxnState(
                    f"{partition} is not part of an open transaction of producer {producer_id}"
                )
            yield

    @contextmanager
    def ending(self, partition: TopicPartition, producer_id: int) -> Iterator[None]:
        """Hold this while appending the marker; the partition then leaves the transaction."""
        key = partition, producer_id
        with self._lock(key):
            with self._table:
                self._questions.pop(key, None)
            yield

    def _lock(self, key: _Key) -> threading.Lock:
        return self._locks[hash(key) % _LOCKS]


Mark = Callable[[TopicPartition, int, int, bool], object]
"""Appends a marker to a partition: producer id, epoch, whether to commit."""


@dataclass(eq=False)
class Spread:
    """*Thread-safe: ``_lock`` guards its state.* A decided transaction; the owners of the partitions ``left``
    write its markers; some may be ours by then (``mark_here``). ``written`` is called, from any thread, when
    all have; if that has to wait, ``delayed`` is called first.
    """

    known: Transaction
    left: set[TopicPartition]
    mark_here: Mark
    written: Callable[[], None]
    delayed: Callable[[], None]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _waits: bool = field(default=False, init=False)

    def strike(self, done: Iterable[TopicPartition]) -> None:
        with self._lock:
            before = len(self.left)
            self.left.difference_update(done)
            ended = before and not self.left
        if ended:
            self.written()

    def first_delay(self) -> bool:
        with self._lock:
            before, self._waits = self._waits, True
        return not before


class ClusterTransactions:
    """*Thread-safe: its state is in ``verified``.* Callbacks run in peers' threads."""

    def __init__(self, peers: Peers, ownership: Ownership, scheduler: Scheduler) -> None:
        self.verified = TxnVerification()
        self._peers = peers
        self._ownership = ownership
        self._scheduler = scheduler

    # For transactions of this coordinator.

    def elsewhere(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """The subset of ``partitions`` that other brokers own, or that are ours but offline."""
        here, offline = (self._ownership.node_id, None), self._ownership.offline
        return frozenset(each for each in partitions if self._owner(each) not in here or each in offline)

    def _owner(self, partition: TopicPartition) -> int | None:
        """`NOBODY` if unknown for now, None if the partition was deleted."""
        view = self._ownership.view
        if view is None:
            return NOBODY
        topic = view.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.owners):
            return NOBODY if view.awaited else None
        return topic.owners[partition.partition]

    def send_markers(
        self,
        known: Transaction,
        partitions: Iterable[TopicPartition],
        mark_here: Mark,
        written: Callable[[], None],
        delayed: Callable[[], None],
    ) -> None:
        """Has the owners of the ``partitions`` write the markers; what is called when: see `Spread`."""
        self._send(Spread(known, set(partitions), mark_here, written, delayed), partitions)

    def _send(self, spread: Spread, partitions: Iterable[TopicPartition]) -> None:
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
                topics = tuple(starmap(api.WritableTxnMarkerTopic, by_topic(theirs)))
                marker = api.WritableTxnMarker(known.producer_id, known.epoch, commit, topics)
                request = api.WriteTxnMarkersRequest((marker,))
                answered = partial(self._marked, spread, theirs)
                self._peers.ask(owner, request, _MARKERS_VERSION, answered)

    def _mark_ours(self, spread: Spread, ours: list[TopicPartition], commit: bool) -> None:
        try:
            for each in ours:
                spread.mark_here(each, spread.known.producer_id, spread.known.epoch, commit)
        except KafkaError as e:
            self._later(spread, ours, str(e))
        else:
            spread.strike(ours)

    def _marked(
        self, spread: Spread, asked: list[TopicPartition], answer: Any, error: KafkaError | None
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

    def _later(self, spread: Spread, partitions: list[TopicPartition], why: str) -> None:
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
        """``on_answer`` gets those producers with an open transaction elsewhere; None if not all answer."""
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
        request = api.ListTransactionsRequest(_OPEN_STATES, tuple(producer_ids))
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
        """``on_answer`` gets the partitions that are not in it, or cannot be added, from any thread."""
        asked = self.verified.asking(producer_id, epoch, partitions)

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
                    question.is_in = True
                else:
                    why = f"{each}: the coordinator of {transactional_id!r} says {code.name}"
                    refusals[each] = error_for(code, why)
            on_answer(refusals)

        coordinator = self._ownership.coordinator_of(TRANSACTIONS_TOPIC, transactional_id)
        if coordinator < 0:
            answered(None, ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody has its partition yet"))
            return
        topics = tuple(starmap(api.AddPartitionsToTxnTopic, by_topic(asked)))
        wanted = api.AddPartitionsToTxnTransaction(transactional_id, producer_id, epoch, not adding, topics)
        request = api.AddPartitionsToTxnRequest(transactions=(wanted,))
        self._peers.ask(coordinator, request, _VERIFYING_VERSION, answered, _ANSWER_SECONDS)
