"""Aborts open transactions that belong to no transactional id: no client can end them any more, and readers
of committed data would wait forever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from functools import partial

from kafkalog_broker.log.family import KnownProducer
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.transactions import states
from kafkalog_broker.transactions.markers import Markers
from kafkalog_broker.transactions.states import Transaction
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import TopicPartition

_log = logging.getLogger(__name__)

_Open = tuple[TopicPartition, KnownProducer]


class OrphanedTransactions:
    """*Thread-safe: only `note`, at the start, changes anything.* Finds and aborts orphaned transactions."""

    def __init__(self, logs: LogManager, clock: Clock, markers: Markers, max_timeout_ms: int) -> None:
        self._logs = logs
        self._clock = clock
        self._markers = markers
        self._max_timeout_ms = max_timeout_ms
        self._left_open: tuple[_Open, ...] = ()

    def note(self) -> None:
        """Notes the transactions left open by earlier runs; call before any client connects."""
        self._left_open = tuple(self._logs.open_transactions())

    def abort_left_open(
        self, claimed: Container[tuple[TopicPartition, int]], fence: Callable[[int, int], None]
    ) -> None:
        """Aborts transactions of earlier runs, except ``claimed`` (partition, producer id). ``fence`` bumps
        the epoch of the producer's transactional id, if it has one.
        """
        for partition, producer in self._left_open:
            if (partition, producer.producer_id) in claimed:
                continue
            _log_abort(partition, producer.producer_id)
            epoch = _fence_of(producer.epoch)
            try:
                fence(producer.producer_id, epoch)
                self._markers.append(partition, producer.producer_id, epoch, False)
            except KafkaError as e:
                _log.warning("%s: it stays open until the next start: %s", partition, e)

    def abort_unclaimed(
        self, ours: Callable[[], Iterable[Transaction]], partitions: Callable[[], object]
    ) -> None:
        """In a cluster: aborts transactions open here for twice the longest timeout that no coordinator has,
        as after a power cut. ``ours`` returns this broker's own transactions, or raises `KafkaError`;
        ``partitions`` returns a new object once another broker coordinates some of them.
        """
        others, limit_ms = self._markers.others, self._clock.time_ms() - 2 * self._max_timeout_ms
        hanging = [each for each in self._logs.open_transactions() if each[1].last_timestamp_ms < limit_ms]
        if others is None or not hanging:
            return
        before = partitions()

        def on_answer(claimed: frozenset[int] | None) -> None:
            if claimed is not None and partitions() is before:
                self._markers.after(0.0, partial(self._abort_all_but, claimed, hanging, ours))

        others.holders({producer.producer_id for _, producer in hanging}, on_answer)

    def _abort_all_but(
        self, claimed: frozenset[int], hanging: Iterable[_Open], ours: Callable[[], Iterable[Transaction]]
    ) -> None:
        """``claimed`` are the producers with a transaction at another coordinator."""
        try:
            claimed |= {each.producer_id for each in ours() if each.partitions}
            still_open = set(self._logs.open_transactions())
            for partition, producer in hanging:
                if producer.producer_id not in claimed and (partition, producer) in still_open:
                    _log_abort(partition, producer.producer_id)
                    epoch = _fence_of(producer.epoch)
                    self._markers.write_here(partition, producer.producer_id, epoch, False)
        except KafkaError as e:
            _log.warning("transactions that no id claims are looked for again: %s", e)


def _log_abort(partition: TopicPartition, producer_id: int) -> None:
    _log.warning(
        "%s: a transaction of producer %d is open, and no transactional id has it: aborted",
        partition, producer_id,
    )  # fmt: skip


def _fence_of(epoch: int) -> int:
    """An epoch above the producer's, so that its next batches are not taken for ones the log already has."""
    return min(epoch + 1, states.LAST_EPOCH + 1)
