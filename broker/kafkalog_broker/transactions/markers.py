"""Transaction markers: the control records that commit or abort a transaction in each of its partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC
from kafkalog_broker.transactions.remote_coordinators import RemoteCoordinators
from kafkalog_broker.offsets.offset_records import OFFSETS_TOPIC
from kafkalog_broker.transactions.states import CoordinatorState, Transaction
from pyspark_kafkalog.errors import UnknownTopicOrPartition
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
        """Writes this broker's markers of a prepared transaction; returns the other partitions, for `send`.
        ``keeper`` has the id's record. Raises `KafkaError`: some markers may be missing.
        """
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
        """Has other brokers write the markers of partitions ``away``; calls ``written`` when all are, and
        ``done`` then, or earlier if a broker is slow.
        """
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
