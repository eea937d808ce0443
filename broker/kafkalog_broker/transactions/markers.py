"""Transaction markers: the control records that commit or abort a transaction in each of its partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kafkalog_broker.log.family import KnownProducer
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC
from kafkalog_broker.transactions.states import LAST_EPOCH, CoordinatorState, Transaction
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import KafkaError, UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:  # only a cluster's broker loads the client
    from kafkalog_broker.transactions.cluster_transactions import ClusterTransactions

_FEW_PARTITIONS = 32
"""More partitions than this take more than some ms to end, so another thread does it."""

_PATIENCE_SECONDS = 2.0
"""Limit for EndTxn to wait for other brokers' markers; the decision stands without them."""

EndOffsets = Callable[[TopicPartition, int, int, bool], int]
"""Appends a marker to a partition of the offsets topic: producer id, epoch, whether it commits; returns its
size in bytes.
"""

Ended = Callable[[TopicPartition, int], None]
"""Called with each marker's partition and size in bytes, to wake up readers of committed data."""

After = Callable[[float, Callable[[], object]], object]
"""Calls a function in a thread of its own, after a number of seconds."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Markers:
    """*Thread-safe: it keeps nothing.* Writes markers here and asks a cluster's ``others`` to write theirs.
    With ``flush``, data is synced to disk before its marker, and the marker before it counts.
    """

    logs: LogManager
    after: After
    _: KW_ONLY
    flush: bool
    end_offsets: EndOffsets
    ended: Ended
    others: ClusterTransactions | None = None

    def take_long(self, known: Transaction) -> bool:
        if self.flush or len(known.partitions) > _FEW_PARTITIONS:
            return True
        return self.others is not None and bool(self.others.elsewhere(known.partitions))

    def write(self, known: Transaction, keeper: TopicPartition) -> frozenset[TopicPartition]:
        """Those of our partitions; returns the others, for `send`. ``keeper`` has the id's record."""
        away = frozenset() if self.others is None else self.others.elsewhere(known.partitions)
        here, commit = known.partitions - away, known.state is CoordinatorState.PREPARE_COMMIT
        if self.flush:
            self.force((*here, keeper))
        for partition in sorted(here):
            self.append(partition, known.producer_id, known.epoch, commit)
        if self.flush:  # after a crash, a Complete record without markers would look like the end
            self.force(here)
        return away

    def send(
        self,
        known: Transaction,
        away: Iterable[TopicPartition],
        written: Callable[[], object],
        done: Callable[[], object],
    ) -> None:
        """Calls ``written`` when all are written, and ``done`` then, or earlier if a broker is slow."""
        if self.others is None:
            raise RuntimeError("there are no other brokers")
        waiting = [done]

        def answer() -> None:
            with suppress(IndexError):  # already called
                waiting.pop()()

        def complete() -> None:
            written()
            answer()

        def ended() -> None:
            if self.flush:  # syncing may be slow
                self.after(0.0, complete)
            else:
                complete()

        self.others.send_markers(known, away, self.write_here, ended, answer)
        if waiting:
            self.after(_PATIENCE_SECONDS, answer)

    def write_here(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        """Appends a marker decided elsewhere. Raises `InvalidProducerEpoch` (the producer has a later epoch
        here), `UnknownTopicOrPartition`, `CoordinatorLoading` (a partition of the offsets topic) or
        `StorageError`.
        """
        others = self.others
        with nullcontext() if others is None else others.verified.ending(partition, producer_id):
            self.logs.log(partition).check_epoch(producer_id, epoch)
            self._append(partition, producer_id, epoch, commit)
        if self.flush:
            self.force((partition,))

    def append(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        """Appends a marker decided here; skips deleted topics. Raises as `write_here`."""
        try:
            self._append(partition, producer_id, epoch, commit)
        except UnknownTopicOrPartition:
            _log.info(
                "%s was deleted: the transaction of producer %d ends without it", partition, producer_id
            )

    def force(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            with suppress(UnknownTopicOrPartition):
                self.logs.log(partition).flush()

    def _append(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        if partition.topic == OFFSETS_TOPIC:
            size = self.end_offsets(partition, producer_id, epoch, commit)
        else:
            size = self.logs.log(partition).end_transaction(producer_id, epoch, commit=commit)
        self.ended(partition, size)


_Open = tuple[TopicPartition, KnownProducer]


@dataclass(eq=False)
class OrphanedTransactions:
    """*Thread-safe: only `note`, at the start, changes anything.* Aborts open transactions that belong to no
    transactional id: no client can end them any more, and readers of committed data would wait forever.
    """

    logs: LogManager
    clock: Clock
    markers: Markers
    max_timeout_ms: int
    _left_open: tuple[_Open, ...] = field(default=(), init=False)

    def note(self) -> None:
        """Notes the transactions left open by earlier runs; call before any client connects."""
        self._left_open = tuple(self.logs.open_transactions())

    def abort_left_open(
        self, claimed: Container[tuple[TopicPartition, int]], fence: Callable[[int, int], None]
    ) -> None:
        """Except ``claimed`` (partition, producer id). ``fence`` bumps the epoch of its id, if any."""
        for partition, producer in self._left_open:
            if (partition, producer.producer_id) in claimed:
                continue
            _log_abort(partition, producer.producer_id)
            epoch = _fence_of(producer.epoch)
            try:
                fence(producer.producer_id, epoch)
                self.markers.append(partition, producer.producer_id, epoch, False)
            except KafkaError as e:
                _log.warning("%s: it stays open until the next start: %s", partition, e)

    def abort_unclaimed(
        self, ours: Callable[[], Iterable[Transaction]], partitions: Callable[[], object]
    ) -> None:
        """In a cluster: aborts transactions open here for twice the longest timeout that no coordinator has,
        as after a power cut. ``ours`` returns this broker's own transactions, or raises `KafkaError`;
        ``partitions`` returns a new object once another broker coordinates some of them.
        """
        others, limit_ms = self.markers.others, self.clock.time_ms() - 2 * self.max_timeout_ms
        hanging = [each for each in self.logs.open_transactions() if each[1].last_timestamp_ms < limit_ms]
        if others is None or not hanging:
            return
        before = partitions()

        def on_answer(claimed: frozenset[int] | None) -> None:
            if claimed is not None and partitions() is before:
                self.markers.after(0.0, partial(self._abort_all_but, claimed, hanging, ours))

        others.holders({producer.producer_id for _, producer in hanging}, on_answer)

    def _abort_all_but(
        self, claimed: frozenset[int], hanging: Iterable[_Open], ours: Callable[[], Iterable[Transaction]]
    ) -> None:
        try:
            claimed |= {each.producer_id for each in ours() if each.partitions}
            still_open = set(self.logs.open_transactions())
            for partition, producer in hanging:
                if producer.producer_id not in claimed and (partition, producer) in still_open:
                    _log_abort(partition, producer.producer_id)
                    epoch = _fence_of(producer.epoch)
                    self.markers.write_here(partition, producer.producer_id, epoch, False)
        except KafkaError as e:
            _log.warning("transactions that no id claims are looked for again: %s", e)


def _log_abort(partition: TopicPartition, producer_id: int) -> None:
    _log.warning(
        "%s: a transaction of producer %d is open, and no transactional id has it: aborted",
        partition, producer_id,
    )  # fmt: skip


def _fence_of(epoch: int) -> int:
    """An epoch above the producer's, so that its next batches are not taken for ones the log already has."""
    return min(epoch + 1, LAST_EPOCH + 1)
