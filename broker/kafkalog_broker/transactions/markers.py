"""The markers of transactions: at the end of each of its partitions, what was decided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress

from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.offsets.offset_records import OFFSETS_TOPIC
from kafkalog_broker.transactions.remote_coordinators import RemoteCoordinators
from kafkalog_broker.transactions.states import CoordinatorState, Transaction
from pyspark_kafkalog.errors import UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition

_FEW_PARTITIONS = 32
"""To end a transaction in more takes more than some ms: others' requests do not wait for that."""

_PATIENCE_SECONDS = 2.0
"""So long the answer to EndTxn waits for other brokers' markers: the decision stands without them."""

EndOffsets = Callable[[TopicPartition, int, int, bool], int]
"""Partition of the offsets topic, producer id, epoch, whether it is committed: appends the marker there, and
returns its size in bytes.
"""

Ended = Callable[[TopicPartition, int], None]
"""Called with each marker's partition and bytes, so that readers of committed data wake up."""

_log = logging.getLogger(__name__)


class Markers:
    """*Thread-safe: it keeps nothing.* Writes markers into the logs of this broker, and has the others of a
    cluster write theirs.

    With ``flush``, data is on the disk before its marker, and the marker before it counts.
    """

    def __init__(
        self,
        logs: LogManager,
        *,
        flush: bool,
        end_offsets: EndOffsets,
        ended: Ended,
        after: Callable[[float, Callable[[], object]], object],
        others: RemoteCoordinators | None,
    ) -> None:
        self._logs = logs
        self._flush = flush
        self._end_offsets = end_offsets
        self._ended = ended
        self._after = after
        self._others = others

    def take_long(self, known: Transaction) -> bool:
        """Whether those of a transaction take more than some ms."""
        if self._flush or len(known.partitions) > _FEW_PARTITIONS:
            return True
        return self._others is not None and bool(self._others.elsewhere(known.partitions))

    def write(self, known: Transaction, keeper: TopicPartition) -> frozenset[TopicPartition]:
        """Write those of a prepared transaction that belong here, and return its other partitions, which are
        for `send`. ``keeper`` has the record of its id. Raises `KafkaError`: perhaps not all are written.
        """
        away = frozenset() if self._others is None else self._others.elsewhere(known.partitions)
        here = known.partitions - away
        if self._flush:
            self.force((*here, keeper))
        for partition in sorted(here):
            self.append(
                partition, known.producer_id, known.epoch, known.state is CoordinatorState.PREPARE_COMMIT
            )
        if self._flush:  # a Complete record without its markers would be taken for the end
            self.force(here)
        return away

    def send(
        self,
        known: Transaction,
        away: Iterable[TopicPartition],
        written: Callable[[], object],
        done: Callable[[], object],
    ) -> None:
        """Have their owners write the markers of partitions ``away``. When all are ``written`` that is
        called, and then ``done``; that is called earlier where an owner takes its time.
        """
        if self._others is None:
            raise RuntimeError("there are no other brokers")
        waiting = [done]

        def answer() -> None:
            with suppress(IndexError):  # it was given
                waiting.pop()()

        def complete() -> None:
            written()
            answer()

        def ended() -> None:
            if self._flush:  # the disk may take its time
                self._after(0.0, complete)
            else:
                complete()

        self._others.send_markers(known, away, ended, answer)
        if waiting:
            self._after(_PATIENCE_SECONDS, answer)

    def write_here(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        """Append the marker that another coordinator, or an administrator, has decided on.

        Raises:
            InvalidProducerEpoch: the producer has written there with a later epoch.
            UnknownTopicOrPartition: there is no such partition here.
            CoordinatorLoading: of a partition of the offsets topic, which is still being read.
            StorageError: the disk refuses it.
        """
        ending = nullcontext() if self._others is None else self._others.ending(partition, producer_id)
        with ending:
            self._logs.log(partition).check_epoch(producer_id, epoch)
            self._append(partition, producer_id, epoch, commit)
        if self._flush:
            self.force((partition,))

    def append(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        """Append a marker of our own; of a deleted topic there is none. Raises as `write_here`."""
        try:
            self._append(partition, producer_id, epoch, commit)
        except UnknownTopicOrPartition:
            _log.info(
                "%s was deleted: the transaction of producer %d ends without it", partition, producer_id
            )

    def force(self, partitions: Iterable[TopicPartition]) -> None:
        """Put what is in these on the disk."""
        for partition in partitions:
            with suppress(UnknownTopicOrPartition):
                self._logs.log(partition).flush()

    def _append(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        if partition.topic == OFFSETS_TOPIC:
            size = self._end_offsets(partition, producer_id, epoch, commit)
        else:
            size = self._logs.log(partition).end_transaction(producer_id, epoch, commit=commit)
        self._ended(partition, size)
