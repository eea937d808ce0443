"""The transaction coordinator: stores the decisions of `states` and writes their markers.

Each step is durable before the next: the id's record, then data; a Prepare record, then the markers in all
partitions, then the Complete record. After a crash, prepared transactions are completed and open ones time
out. Left out: coordinator epochs, as a partition of ``__transaction_state`` keeps its owner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from msgspec.structs import replace

from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import TRANSACTIONS_TOPIC
from kafkalog_broker.logs.state_topic import Shard, StateTopic, Stored, read_stored
from kafkalog_broker.scheduler import Sweep
from kafkalog_broker.transactions import states
from kafkalog_broker.transactions.markers import Markers, OrphanedTransactions
from kafkalog_broker.transactions.producer_ids import ProducerIds
from kafkalog_broker.transactions.states import PREPARED, CoordinatorState, Outcome, Refusals, Transaction
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


@dataclass(slots=True, eq=False)
class _Entry:
    """*Thread-safe: ``lock`` guards all.* A transactional id. Its lock comes before those of shards and logs.
    ``gone``: removed from its table. ``ending``: a thread is writing the markers.
    """

    known: Transaction | None = None
    gone: bool = False
    ending: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_Entries = dict[str, _Entry]


@dataclass(eq=False)
class Ending:
    """Call `run`, then answer the request; in another thread if it ``takes_long``."""

    coordinator: TransactionCoordinator
    entry: _Entry
    takes_long: bool
    producer: tuple[int, int] = (-1, -1)
    """Id and epoch for the next transaction; set by `run`."""

    def run(self, done: Callable[[], object] = lambda: None) -> None:
        """Calls ``done`` from any thread, also if a marker can only be written later."""

        def ended() -> None:
            known = self.entry.known
            if known is not None:
                self.producer = (known.producer_id, known.epoch)
            done()

        self.coordinator.go_on(self.entry, ended)


@dataclass(eq=False)
class TransactionCoordinator:
    """*Thread-safe.* Transactional ids, by partition of ``__transaction_state``. A shard's lock guards its
    table of entries, an entry's lock its content: it is held while a decision is made and its record
    appended, and while data is appended to a partition of its transaction, so no data follows the decision.
    Markers are written without it: a Prepare state blocks all other changes.
    """

    logs: LogManager
    clock: Clock
    producer_ids: ProducerIds
    topic: StateTopic[_Entries]
    markers: Markers
    _: KW_ONLY
    max_timeout_ms: int
    expiration_ms: int

    def __post_init__(self) -> None:
        self._others = self.markers.others
        self._unclaimed = OrphanedTransactions(self.logs, self.clock, self.markers, self.max_timeout_ms)
        self._overdue = Sweep("ending an overdue transaction")
        self._idle = Sweep("forgetting an idle transactional id")
        self._loading = True
        """Until transactions of earlier runs are ended; requests are refused, so as not to end new ones."""

    def start(self) -> None:
        """Finds the ids of an earlier run; until `load` has read them, requests fail with error 14."""
        self._unclaimed.note()
        self.look()

    def look(self) -> None:
        """Updates which ids this broker coordinates: drops those that moved away; `load` reads new ones."""
        for shard in self.topic.look():
            with shard.lock:
                entries = tuple(shard.state.values())
            for entry in entries:
                with entry.lock:
                    entry.gone = True
            _log.info("%s: its %d transactional ids are let go of", shard.partition, len(entries))

    @property
    def opened(self) -> bool:
        return bool(self.topic.shards)

    def open(self) -> None:
        with _as_coordinator():
            self.topic.open()

    def partition_of(self, transactional_id: str) -> TopicPartition:
        return self._shard(transactional_id).partition

    def end_own(self) -> None:
        """For a standalone broker that joins a cluster: others may coordinate its ids."""
        for number in self.logs.topics[TRANSACTIONS_TOPIC].partitions:
            keeper = TopicPartition(TRANSACTIONS_TOPIC, number)
            try:
                known = tuple(_decoded(keeper, read_stored(self.logs.log(keeper))))
            except KafkaError as e:
                _log.error("%s cannot be read, its transactions stay open: %s", keeper, e)
                continue
            for each in known:
                self._end_alone(each)

    def _end_alone(self, known: Transaction) -> None:
        commit = known.state is CoordinatorState.PREPARE_COMMIT
        epoch = known.epoch if known.state in PREPARED else known.epoch + 1
        for partition in sorted(known.partitions):
            with suppress(UnknownTopicOrPartition):  # the topic was deleted
                # Offsets are loaded later, and their loader finds this marker.
                self.logs.log(partition).end_transaction(known.producer_id, epoch, commit=commit)

    def load(self) -> None:
        """Reads new partitions, completes prepared transactions; first also aborts those of no id."""
        entries = self._entries(self.topic.load())
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
        # Another coordinator may have the id; `abort_unclaimed` asks them.
        if all(shard.loaded for shard in self.topic.shards):
            by_producer = {each.known.producer_id: each for each in entries if each.known is not None}
            self._unclaimed.abort_left_open(claimed, partial(self._fence, by_producer))
        self._loading = False

    def initialize(
        self, transactional_id: str, timeout_ms: int, producer: tuple[int, int] | None
    ) -> tuple[int, int]:
        """A producer id and epoch that fence earlier producers of the id; ``producer`` is the client's own.
        Raises `ServerError` INVALID_TRANSACTION_TIMEOUT, `NoProducerId`, `ConcurrentTransactions` or
        `ProducerFenced`.
        """
        if not 0 < timeout_ms <= self.max_timeout_ms:
            raise ServerError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms={timeout_ms} is not allowed; it is 1 to {self.max_timeout_ms}"
                " (transaction.max.timeout.ms)",
            )
        with self._entry(transactional_id, create=True) as entry:
            now_ms, new_id = self.clock.time_ms(), self.producer_ids.next
            outcome = states.initialize(entry.known, transactional_id, timeout_ms, producer, now_ms, new_id)
            self._store(entry, outcome)
            known = entry.known
        if outcome.error is not None:
            if outcome.store is not None and self.markers.take_long(outcome.store):
                self.markers.after(0.0, partial(self.go_on, entry))
            else:
                self.go_on(entry)
            raise outcome.error
        if known is None:
            raise RuntimeError(f"{transactional_id!r} was initialized without a record")
        return known.producer_id, known.epoch

    def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """Raises `InvalidProducerIdMapping`, `ProducerFenced`, `ConcurrentTransactions`."""
        with self._entry(transactional_id) as entry:
            outcome = states.add(entry.known, producer_id, epoch, partitions, self.clock.time_ms())
            self._store(entry, outcome)
        if outcome.error is not None:
            raise outcome.error

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, own_epochs: bool = False
    ) -> Ending:
        """Run the `Ending` before answering. With ``own_epochs`` each transaction has its epoch."""
        decide = states.end_with_epoch if own_epochs else states.end
        with self._entry(transactional_id) as entry:
            outcome = decide(entry.known, producer_id, epoch, commit=commit, now_ms=self.clock.time_ms())
            self._store(entry, outcome)
        if outcome.error is not None:
            raise outcome.error
        if outcome.store is None:
            return Ending(self, entry, takes_long=False)
        return Ending(self, entry, takes_long=self.markers.take_long(outcome.store))

    def check(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """For each partition None if the id's open transaction has it, else the reason to refuse data."""
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
        return self._others is not None and self.opened and self._shard(transactional_id).elsewhere

    def to_verify(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """If the id `is_elsewhere`: the ``partitions`` that need `verify` before `writing`."""
        return [] if self._others is None else self._others.verified.unknown(producer_id, epoch, partitions)

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
        """``on_answer`` gets the partitions not to write to, with errors as from `writing`."""

        def on_refusals(refusals: Refusals) -> None:
            on_answer({each: _as_writers(error, abortable) for each, error in refusals.items()})

        if self._others is None:
            raise RuntimeError("there are no other brokers")
        self._others.verify(transactional_id, producer_id, epoch, partitions, on_refusals, adding=adding)

    @contextmanager
    def writing(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
        *,
        abortable: bool = False,
        adding: bool = False,
    ) -> Iterator[None]:
        """Hold this while appending data or offsets to a partition of a transaction; ``adding`` adds it
        first. For an id that `is_elsewhere` call `verify` before. Raises `InvalidTxnState`
        (`TransactionAbortable` if ``abortable``), `InvalidProducerEpoch`, `InvalidProducerIdMapping`, or with
        ``adding`` `ConcurrentTransactions`.
        """
        if self._others is not None and self.is_elsewhere(transactional_id):
            with self._others.verified.writing(partition, producer_id, epoch):
                yield
            return
        with self._entry(transactional_id) as entry:
            try:
                if adding:
                    outcome = states.add(entry.known, producer_id, epoch, [partition], self.clock.time_ms())
                    if outcome.error is not None:
                        raise outcome.error
                    self._store(entry, outcome)
                states.check_writable(entry.known, producer_id, epoch, partition)
            except KafkaError as e:
                raise _as_writers(e, abortable) from None
            yield

    def find(self, transactional_id: str) -> Transaction:
        with self._entry(transactional_id) as entry:
            if entry.known is None:
                raise ServerError(
                    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                    f"transactional id {transactional_id!r} is not known",
                )
            return entry.known

    def all(self) -> list[Transaction]:
        """All ids coordinated here, by name. Raises `KafkaError`: some are not loaded yet, or were lost."""
        self.topic.check_found()
        for shard in self.topic.shards:
            with shard.lock:
                if not shard.elsewhere:
                    shard.check_loaded()
        found = [entry.known for entry in self._entries() if entry.known is not None]
        return sorted(found, key=lambda each: each.transactional_id)

    def end_overdue(self) -> None:
        self._overdue.run(((name, entry) for _, name, entry in self._named()), self._end_overdue)

    def _end_overdue(self, entry: _Entry) -> None:
        try:
            with entry.lock:
                if entry.known is None or entry.gone:
                    return
                outcome = states.overdue(entry.known, self.clock.time_ms())
                self._store(entry, outcome)
                if outcome.store is not None:
                    _log.warning(
                        "transaction of %r aborted: open for more than its %d ms; its producer is fenced",
                        outcome.store.transactional_id, outcome.store.timeout_ms,
                    )  # fmt: skip
        finally:
            self.go_on(entry)

    def abort_unclaimed(self) -> None:
        self._unclaimed.abort_unclaimed(self.all, lambda: self.topic.shards)

    def forget_idle(self) -> None:
        self._idle.run(
            ((name, (shard, name, entry)) for shard, name, entry in self._named()), self._forget_idle
        )

    def _named(self) -> Iterator[tuple[Shard[_Entries], str, _Entry]]:
        for shard in self.topic.shards:
            with shard.lock:
                entries = list(shard.state.items())
            yield from ((shard, name, entry) for name, entry in entries)

    def _forget_idle(self, named: tuple[Shard[_Entries], str, _Entry]) -> None:
        (shard, transactional_id, entry), now_ms = named, self.clock.time_ms()
        with entry.lock:
            if entry.known is not None and states.is_forgotten(entry.known, self.expiration_ms, now_ms):
                self._append(shard, NewRecord(None, encode_key(transactional_id), now_ms))
                entry.gone = True
                with shard.lock:
                    del shard.state[transactional_id]

    def go_on(self, entry: _Entry, done: Callable[[], object] = lambda: None) -> None:
        """Writes the markers and the Complete record of a prepared transaction, unless another thread does;
        then calls ``done``. After a disk error the transaction stays prepared and its markers are written
        again.
        """
        with entry.lock:
            known = entry.known
            begun = known is not None and known.state in PREPARED and not entry.ending
            entry.ending = entry.ending or begun
        if known is None or not begun:
            done()
            return
        try:
            away = self.markers.write(known, self._shard(known.transactional_id).partition)
        except BaseException as e:
            with entry.lock:
                entry.ending = False
            if not isinstance(e, KafkaError):
                raise
            _log.warning("transaction of %r is decided, and waits: %s", known.transactional_id, e)
            done()
            return
        if away:
            self.markers.send(known, away, partial(self._complete, entry, known), done)
        else:
            self._complete(entry, known)
            done()

    def _complete(self, entry: _Entry, known: Transaction) -> None:
        try:
            with entry.lock:
                if entry.gone:  # another broker coordinates the id by now
                    return
                self._store(
                    entry, Outcome(states.completed(known, self.clock.time_ms(), self.producer_ids.next))
                )
                # Else a crash could repeat the markers after data of the next transaction.
                if self.markers.flush:
                    self.markers.force((self._shard(known.transactional_id).partition,))
        except KafkaError as e:
            _log.warning("transaction of %r has ended, and waits: %s", known.transactional_id, e)
        finally:
            with entry.lock:
                entry.ending = False

    def _fence(self, by_producer: Mapping[int, _Entry], producer_id: int, epoch: int) -> None:
        """Restores an epoch that a power cut has taken from the id, found in the log of its data."""
        entry = by_producer.get(producer_id)
        if entry is None:
            return
        with entry.lock:
            if entry.known is not None and entry.known.epoch < epoch:
                self._store(entry, Outcome(replace(entry.known, epoch=epoch)))

    @contextmanager
    def _entry(self, transactional_id: str, *, create: bool = False) -> Iterator[_Entry]:
        """Yields the id's entry with its lock held; an empty one if the id is unknown."""
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
        found: list[_Entry] = []
        for shard in self.topic.shards if shards is None else shards:
            with shard.lock:
                found += shard.state.values()
        return found

    def _shard(self, transactional_id: str) -> Shard[_Entries]:
        with _as_coordinator():
            return self.topic.shard_of(transactional_id)

    def _store(self, entry: _Entry, outcome: Outcome) -> None:
        """Appends the outcome's record. Caller holds the entry's lock."""
        if outcome.store is not None:
            new = outcome.store
            record = NewRecord(encode_value(new), encode_key(new.transactional_id), new.changed_ms)
            self._append(self._shard(new.transactional_id), record)
            entry.known = new

    def _append(self, shard: Shard[_Entries], record: NewRecord) -> None:
        with _as_coordinator(), shard.lock:
            self.topic.append(shard, [record])


@contextmanager
def _as_coordinator() -> Iterator[None]:
    """Turns disk errors into COORDINATOR_NOT_AVAILABLE: clients retry after it, not after a storage error."""
    try:
        yield
    except StorageError as e:
        raise ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e


def _as_writers(error: KafkaError, abortable: bool) -> KafkaError:
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


transaction_topic = partial(StateTopic[_Entries], name=TRANSACTIONS_TOPIC, new=lambda _: {}, build=_build)
"""``__transaction_state``; only a cluster has a ``placement``."""
