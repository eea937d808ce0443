"""The coordinator of transactions: what `states` decides, made durable and true in the logs.

Steps, each durable before the next: the record of the id, then data; a record in a Prepare state, then the
markers in all partitions, then the Complete record. After a crash whatever is prepared goes on, and what is
open runs into its time-out. Where brokers are a cluster, each coordinates the ids of its partitions of
``__transaction_state``; their transactions have partitions of every broker (`RemoteCoordinators`). Left out:
coordinator epochs, as a partition of that topic keeps its owner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial

from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.state_topic import Appended, Placement, Shard, StateTopic, Stored, read_stored
from kafkalog_broker.offsets.offset_records import TRANSACTIONS_TOPIC
from kafkalog_broker.transactions import states
from kafkalog_broker.transactions.markers import Ended, EndOffsets, Markers
from kafkalog_broker.transactions.orphaned_transactions import OrphanedTransactions
from kafkalog_broker.transactions.producer_ids import ProducerIds
from kafkalog_broker.transactions.remote_coordinators import Refusals, RemoteCoordinators
from kafkalog_broker.transactions.states import PREPARED, CoordinatorState, Outcome, Transaction
from kafkalog_broker.transactions.transaction_records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import (
    CoordinatorLoading,
    CorruptMessage,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    ServerError,
    StorageError,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.types import NewRecord, TopicPartition

_log = logging.getLogger(__name__)


class _Entry:
    """*Thread-safe: ``lock`` guards all.* A transactional id. Its lock comes before those of shards and logs.

    ``gone``: it was forgotten, and another entry has its place. ``ending``: a thread writes its markers.
    """

    __slots__ = ("ending", "gone", "known", "lock")

    def __init__(self, known: Transaction | None = None) -> None:
        self.lock = threading.Lock()
        self.known = known
        self.gone = False
        self.ending = False


_Entries = dict[str, _Entry]


class Ending:
    """What is left to do for a request once its decision is stored; then it is answered.

    Where it ``takes_long`` it is for another thread, and may be done only after `run` has returned.
    """

    def __init__(self, coordinator: TransactionCoordinator, entry: _Entry, takes_long: bool) -> None:
        self._coordinator = coordinator
        self._entry = entry
        self.takes_long = takes_long
        self.producer = (-1, -1)
        """Id and epoch of the next transaction, once it has run."""

    def run(self, done: Callable[[], object] = lambda: None) -> None:
        """Write the markers; then ``done`` is called, from any thread. It is called, too, where a disk
        refuses one or an owner is away: they are written later.
        """

        def ended() -> None:
            known = self._entry.known
            if known is not None:
                self.producer = (known.producer_id, known.epoch)
            done()

        self._coordinator.go_on(self._entry, ended)


class TransactionCoordinator:
    """*Thread-safe.* Transactional ids, by partition of ``__transaction_state``.

    A shard's lock guards its table of entries, an entry's own lock all that is in it: it is held over the
    decision and the append of its record, and over the append of data to a partition of its transaction. So
    no data comes after the decision. The markers are written without it: a Prepare state keeps all others
    from changing anything. ``markers`` also writes those that others have decided on.
    """

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        producer_ids: ProducerIds,
        *,
        max_timeout_ms: int,
        expiration_ms: int,
        flush_before_markers: bool,
        create: Callable[[], object],
        appended: Appended,
        end_offsets: EndOffsets,
        ended: Ended,
        after: Callable[[float, Callable[[], object]], object],
        placement: Placement | None = None,
        others: RemoteCoordinators | None = None,
    ) -> None:
        """``create`` makes the topic; it is called on first need. ``after`` has a thread of its own call what
        it is given, in so many seconds. In a cluster there are ``others``, and a ``placement``: as
        `StateTopic` has it.
        """
        self._logs = logs
        self._clock = clock
        self._producer_ids = producer_ids
        self._max_timeout_ms = max_timeout_ms
        self._expiration_ms = expiration_ms
        self._flush = flush_before_markers
        self.markers = Markers(
            logs,
            flush=flush_before_markers,
            end_offsets=end_offsets,
            ended=ended,
            after=after,
            others=others,
        )
        self._after = after
        self._others = others
        self._topic: StateTopic[_Entries] = StateTopic(
            logs,
            TRANSACTIONS_TOPIC,
            new=lambda _: {},
            build=_build,
            create=create,
            appended=appended,
            placement=placement,
        )
        self._unclaimed = OrphanedTransactions(
            logs, clock, self.markers, max_timeout_ms=max_timeout_ms, after=after, others=others
        )
        self._loading = True
        """Until what earlier runs have left is ended: a client's new transaction is none of that."""

    def start(self) -> None:
        """Find what an earlier run has left. `load` then reads it; until then error 14."""
        self._unclaimed.note()
        self.look()

    def look(self) -> None:
        """See which ids are coordinated here by now; those that are not any more are let go of. `load` then
        reads those that are new here.
        """
        for shard in self._topic.look():
            with shard.lock:
                entries = tuple(shard.state.values())
            for entry in entries:
                with entry.lock:
                    entry.gone = True
            _log.info("%s: its %d transactional ids are let go of", shard.partition, len(entries))

    @property
    def opened(self) -> bool:
        """Whether the topic is known: without it a request may have to wait until `open` has made it."""
        return bool(self._topic.shards)

    def open(self) -> None:
        """Make the topic if there is none yet. Raises `KafkaError`: it cannot be made now."""
        with _as_coordinator():
            self._topic.open()

    def partition_of(self, transactional_id: str) -> TopicPartition:
        """The partition that keeps the id, made if need be. Raises `KafkaError`."""
        return self._shard(transactional_id).partition

    def end_own(self) -> None:
        """Before the first `look`: end what this broker has coordinated by itself, in its own partitions.
        What was decided is done, what was open is aborted; then other brokers coordinate these ids.
        """
        for number in self._logs.topics()[TRANSACTIONS_TOPIC].partitions:
            keeper = TopicPartition(TRANSACTIONS_TOPIC, number)
            try:
                known = tuple(_decoded(keeper, read_stored(self._logs.log(keeper))))
            except KafkaError as e:
                _log.error("%s cannot be read, its transactions stay open: %s", keeper, e)
                continue
            for each in known:
                self._end_alone(each)

    def _end_alone(self, known: Transaction) -> None:
        commit = known.state is CoordinatorState.PREPARE_COMMIT
        epoch = known.epoch if known.state in PREPARED else known.epoch + 1
        for partition in sorted(known.partitions):
            with suppress(UnknownTopicOrPartition):  # it was deleted
                # Offsets are read later: their reader finds the marker with them.
                self._logs.log(partition).end_transaction(known.producer_id, epoch, commit=commit)

    def load(self) -> None:
        """Read the ids of those partitions that are ours by now and were not; end what was prepared and, the
        first time, abort what no id has open.
        """
        entries = self._entries(self._topic.load())
        claimed = {
            (partition, entry.known.producer_id)
            for entry in entries
            if entry.known is not None
            for partition in entry.known.partitions
        }
        for entry in entries:
            self.go_on(entry)
        if not self._loading:
            return
        # Where others coordinate as well, one of them may have it: `abort_unclaimed` asks them.
        if all(shard.loaded for shard in self._topic.shards):
            by_producer = {each.known.producer_id: each for each in entries if each.known is not None}
            self._unclaimed.abort_left_open(claimed, partial(self._fence, by_producer))
        self._loading = False

    def initialize(
        self, transactional_id: str, timeout_ms: int, producer: tuple[int, int] | None
    ) -> tuple[int, int]:
        """A producer id and epoch, which fence who had the transactional id before. ``producer``: what the
        client has.

        Raises:
            ServerError: INVALID_TRANSACTION_TIMEOUT; COORDINATOR_NOT_AVAILABLE: the disk refused.
            NoProducerId: it needs a new one, and none is at hand.
            ConcurrentTransactions: the last transaction was aborted just now, or is being ended.
            ProducerFenced: the client's id or epoch is not the present one.
            CoordinatorLoading: what is known of the id has not been read yet.
        """
        if not 0 < timeout_ms <= self._max_timeout_ms:
            raise ServerError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms={timeout_ms} is not allowed; it is 1 to {self._max_timeout_ms}"
                " (transaction.max.timeout.ms)",
            )
        with self._entry(transactional_id, create=True) as entry:
            outcome = states.initialize(
                entry.known,
                transactional_id,
                timeout_ms,
                producer,
                self._clock.time_ms(),
                self._producer_ids.next,
            )
            self._store(entry, outcome)
            known = entry.known
        if outcome.error is not None:
            if outcome.store is not None and self.markers.take_long(outcome.store):
                self._after(0.0, partial(self.go_on, entry))
            else:
                self.go_on(entry)
            raise outcome.error
        if known is None:
            raise RuntimeError(f"{transactional_id!r} was initialized without a record")
        return known.producer_id, known.epoch

    def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """Let the transaction of the id write to ``partitions``; the first ones begin it. Raises as `check`,
        and `ConcurrentTransactions`: the one before is being ended.
        """
        with self._entry(transactional_id) as entry:
            outcome = states.add(entry.known, producer_id, epoch, partitions, self._clock.time_ms())
            self._store(entry, outcome)
        if outcome.error is not None:
            raise outcome.error

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, own_epochs: bool = False
    ) -> Ending:
        """Decide the transaction; what is returned is to be run before the answer. With ``own_epochs`` the
        next one has another epoch. Raises as `add`, and `InvalidTxnState`: there is none, or it was ended the
        other way.
        """
        decide = states.end_with_epoch if own_epochs else states.end
        with self._entry(transactional_id) as entry:
            outcome = decide(entry.known, producer_id, epoch, commit=commit, now_ms=self._clock.time_ms())
            self._store(entry, outcome)
        if outcome.error is not None:
            raise outcome.error
        if outcome.store is None:
            return Ending(self, entry, takes_long=False)
        return Ending(self, entry, takes_long=self.markers.take_long(outcome.store))

    def check(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Whether the open transaction of the id has these: None, or why it must not be appended to.
        Raises `CoordinatorLoading`, or `ServerError` NOT_COORDINATOR.
        """
        found: dict[TopicPartition, KafkaError | None] = {}
        with self._entry(transactional_id) as entry:
            for each in partitions:
                try:
                    states.check_writable(entry.known, producer_id, epoch, each)
                    found[each] = None
                except KafkaError as e:
                    found[each] = e
        return found

    def is_elsewhere(self, transactional_id: str) -> bool:
        """Whether another broker coordinates the id."""
        return self._others is not None and self.opened and self._shard(transactional_id).elsewhere

    def to_verify(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Of an id that `is_elsewhere`, those of ``partitions`` that need `verify` before `writing`."""
        return [] if self._others is None else self._others.unknown(producer_id, epoch, partitions)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        on_answer: Callable[[Refusals], None],
        *,
        abortable: bool = False,
        adding: bool = False,
    ) -> None:
        """Ask the id's coordinator about partitions of ours; ``on_answer`` is called from any thread, with
        those that must not be appended to, and with errors as `writing` has them.
        """

        def on_refusals(refusals: Refusals) -> None:
            on_answer({each: _as_writers(error, abortable) for each, error in refusals.items()})

        if self._others is None:
            raise RuntimeError("there are no other brokers")
        self._others.verify(transactional_id, producer_id, epoch, partitions, on_refusals, adding=adding)

    def writing(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
        *,
        abortable: bool = False,
        adding: bool = False,
    ) -> AbstractContextManager[None]:
        """Held while a producer's data, or its offsets, are appended to a partition of its transaction, which
        it is made to be if ``adding``. Of another coordinator's id it is known what that answered `verify`.

        Raises:
            ConcurrentTransactions: ``adding``, and the transaction before is being ended.
            InvalidTxnState: the partition is not in an open transaction of the id; to clients that know it,
                ``abortable``, `TransactionAbortable`.
            InvalidProducerEpoch: another producer has fenced this one.
            InvalidProducerIdMapping: the id is not known, or has another producer.
            CoordinatorLoading: what is known of the id has not been read yet.
        """
        if self._others is not None and self.is_elsewhere(transactional_id):
            return self._others.writing(partition, producer_id, epoch)
        return self._writing_here(transactional_id, producer_id, epoch, partition, abortable, adding)

    @contextmanager
    def _writing_here(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
        abortable: bool,
        adding: bool,
    ) -> Iterator[None]:
        with self._entry(transactional_id) as entry:
            try:
                if adding:
                    outcome = states.add(entry.known, producer_id, epoch, [partition], self._clock.time_ms())
                    if outcome.error is not None:
                        raise outcome.error
                    self._store(entry, outcome)
                states.check_writable(entry.known, producer_id, epoch, partition)
            except KafkaError as e:
                raise _as_writers(e, abortable) from None
            yield

    def find(self, transactional_id: str) -> Transaction:
        """What is known of an id.
        Raises `ServerError`, TRANSACTIONAL_ID_NOT_FOUND, and `CoordinatorLoading`.
        """
        with self._entry(transactional_id) as entry:
            if entry.known is None:
                raise ServerError(
                    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                    f"transactional id {transactional_id!r} is not known",
                )
            return entry.known

    def all(self) -> list[Transaction]:
        """All ids that are coordinated here, by name.
        Raises `KafkaError`: some have not been read yet, or were lost.
        """
        self._topic.check_found()
        for shard in self._topic.shards:
            with shard.lock:
                if not shard.elsewhere:
                    shard.check_loaded()
        found = [entry.known for entry in self._entries() if entry.known is not None]
        return sorted(found, key=lambda each: each.transactional_id)

    def end_overdue(self) -> None:
        """Abort what has been open for longer than its time-out, and end what was prepared and is not."""
        now_ms = self._clock.time_ms()
        for entry in self._entries():
            with entry.lock:
                if entry.known is None or entry.gone:
                    continue
                outcome = states.overdue(entry.known, now_ms)
                if outcome.store is not None:
                    _log.warning(
                        "transaction of %r aborted: open for more than its %d ms; its producer is fenced",
                        entry.known.transactional_id, entry.known.timeout_ms,
                    )  # fmt: skip
                try:
                    self._store(entry, outcome)
                except KafkaError as e:
                    _log.warning("transaction of %r stays open: %s", entry.known.transactional_id, e)
            self.go_on(entry)

    def abort_unclaimed(self) -> None:
        """As `OrphanedTransactions.abort_unclaimed`."""
        self._unclaimed.abort_unclaimed(self.all, lambda: self._topic.shards)

    def forget_idle(self) -> None:
        """Delete the ids with which nothing has happened for ``transactional.id.expiration.ms``."""
        now_ms = self._clock.time_ms()
        for shard in self._topic.shards:
            with shard.lock:
                entries = list(shard.state.items())
            for transactional_id, entry in entries:
                with entry.lock:
                    known = entry.known
                    if known is None or not states.is_forgotten(known, self._expiration_ms, now_ms):
                        continue
                    try:
                        self._append(shard, NewRecord(None, encode_key(transactional_id), now_ms))
                    except KafkaError as e:
                        _log.warning("transactional id %r could not be forgotten: %s", transactional_id, e)
                        continue
                    entry.gone = True
                    with shard.lock:
                        del shard.state[transactional_id]

    def go_on(self, entry: _Entry, done: Callable[[], object] = lambda: None) -> None:
        """Write the markers and then the Complete record of what is prepared, if nobody does already; then
        ``done`` is called, or as soon as it is clear that it cannot be done now.

        Where a disk refuses it stays prepared, which is logged: the markers are written again.
        """
        with entry.lock:
            known = entry.known
            begun = known is not None and known.state in PREPARED and not entry.ending
            entry.ending = entry.ending or begun
        if known is None or not begun:
            done()
            return
        away: frozenset[TopicPartition] = frozenset()
        written = False
        try:
            away = self.markers.write(known, self._shard(known.transactional_id).partition)
            written = True
        except KafkaError as e:
            _log.warning("transaction of %r is decided, and waits: %s", known.transactional_id, e)
        finally:
            if not written:
                with entry.lock:
                    entry.ending = False
        if not written:
            done()
        elif away:
            self.markers.send(known, away, partial(self._complete, entry, known), done)
        else:
            self._complete(entry, known)
            done()

    def _complete(self, entry: _Entry, known: Transaction) -> None:
        """All markers are written."""
        try:
            with entry.lock:
                if entry.gone:  # another broker coordinates the id by now
                    return
                self._store(
                    entry, Outcome(states.completed(known, self._clock.time_ms(), self._producer_ids.next))
                )
                if self._flush:  # else the markers would come again, after data of the next transaction
                    self.markers.force((self._shard(known.transactional_id).partition,))
        except KafkaError as e:
            _log.warning("transaction of %r has ended, and waits: %s", known.transactional_id, e)
        finally:
            with entry.lock:
                entry.ending = False

    def _fence(self, by_producer: Mapping[int, _Entry], producer_id: int, epoch: int) -> None:
        """Give the id an epoch that a power cut has taken from it, as the log of its data shows."""
        entry = by_producer.get(producer_id)
        if entry is None:
            return
        with entry.lock:
            if entry.known is not None and entry.known.epoch < epoch:
                self._store(entry, Outcome(replace(entry.known, epoch=epoch)))

    @contextmanager
    def _entry(self, transactional_id: str, *, create: bool = False) -> Iterator[_Entry]:
        """The entry of an id, its lock held; one without anything in it where there is none."""
        if self._loading:
            raise CoordinatorLoading("what earlier runs have left of transactions is still being read")
        shard = self._shard(transactional_id)
        while True:
            with shard.lock:
                shard.check_loaded()
                entry = shard.state.get(transactional_id)
                if entry is None:
                    entry = _Entry()
                    if create:
                        shard.state[transactional_id] = entry
            with entry.lock:
                if not entry.gone:
                    yield entry
                    return

    def _entries(self, shards: Iterable[Shard[_Entries]] | None = None) -> list[_Entry]:
        """Of these shards, or of all."""
        found: list[_Entry] = []
        for shard in self._topic.shards if shards is None else shards:
            with shard.lock:
                found += shard.state.values()
        return found

    def _shard(self, transactional_id: str) -> Shard[_Entries]:
        with _as_coordinator():
            return self._topic.shard_of(transactional_id)

    def _store(self, entry: _Entry, outcome: Outcome) -> None:
        """Put the record in the log. Caller holds the entry's lock."""
        if outcome.store is not None:
            new = outcome.store
            record = NewRecord(encode_value(new), encode_key(new.transactional_id), new.changed_ms)
            self._append(self._shard(new.transactional_id), record)
            entry.known = new

    def _append(self, shard: Shard[_Entries], record: NewRecord) -> None:
        with _as_coordinator(), shard.lock:
            self._topic.append(shard, [record])


@contextmanager
def _as_coordinator() -> Iterator[None]:
    """A disk's refusal with a coordinator's code: clients ask again after it, a storage error is final."""
    try:
        yield
    except StorageError as e:
        raise ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e


def _as_writers(error: KafkaError, abortable: bool) -> KafkaError:
    """A coordinator's refusal, as producers and committers of offsets expect it."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, InvalidTxnState) and abortable:
        return TransactionAbortable(str(error))
    return error


def _build(shard: Shard[_Entries], stored: Stored) -> None:
    for known in _decoded(shard.partition, stored):
        shard.state[known.transactional_id] = _Entry(known)


def _decoded(keeper: TopicPartition, stored: Stored) -> Iterator[Transaction]:
    for offset, key, value in stored.values():
        try:
            transactional_id = decode_key(key)
            if transactional_id is not None:
                yield decode_value(transactional_id, value)
        except CorruptMessage as e:
            _log.error("%s: offset %d is skipped: %s", keeper, offset, e)
