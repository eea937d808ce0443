"""One task of a write: it hands rows to a producer and knows in the end where they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog.client.transactions import PreparedTransaction
from pyspark_kafkalog.datasource.sink_marks import Unit
from pyspark_kafkalog.producer.delivery import BulkDelivery, DeliveredRange
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.producer.producer import Producer

Rows: TypeAlias = "Iterator[tuple[str, pa.RecordBatch]]"
"""Batches of rows, each with the topic that it goes to."""


class Written(NamedTuple):
    """What was written to one partition. Offsets of others may lie between; -1 where none is told."""

    first_offset: int
    last_offset: int
    record_count: int

    def with_more(self, more: Written) -> Written:
        """Both together."""
        known = [n for n in (*self[:2], *more[:2]) if n >= 0]
        return Written(min(known, default=-1), max(known, default=-1), self.record_count + more.record_count)


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver: how many records it wrote to each partition, and where they are."""

    partitions: Mapping[TopicPartition, Written] = field(default_factory=dict)
    transaction: PreparedTransaction | None = None
    """What the driver is to commit; None for a write without transactions."""
    rows_there: int = 0
    """Rows that were not written, as an earlier run of this batch has committed them."""
    unit: Unit | None = None
    """What is written once and known again; None for a write that is written anew each time."""

    @property
    def record_count(self) -> int:
        """How many records were written."""
        return sum(written.record_count for written in self.partitions.values())


class Deliveries:
    """*Not thread-safe.* What is on its way, and what has arrived: memory for the first only."""

    def __init__(self) -> None:
        self._open: deque[BulkDelivery] = deque()
        self.written: dict[TopicPartition, Written] = {}

    def add(self, delivery: BulkDelivery) -> None:
        """One more is on its way; those that have arrived are counted.

        Raises:
            KafkaError: why the first that failed could not be delivered.
        """
        self._open.append(delivery)
        while self._open and self._open[0].done:
            self._count(self._open.popleft().result())

    def wait(self) -> None:
        """Return when all have arrived. The producer settles each by ``delivery.timeout.ms``.

        Raises:
            KafkaError: as in `add`.
        """
        while self._open:
            self._count(self._open.popleft().result())

    def _count(self, ranges: Iterable[DeliveredRange]) -> None:
        for one in ranges:
            where = TopicPartition(one.topic, one.partition)
            more = Written(one.first_offset, one.last_offset, one.record_count)
            before = self.written.get(where)
            self.written[where] = before.with_more(more) if before is not None else more


def write_rows(producer: Producer, rows: Rows) -> dict[TopicPartition, Written]:
    """Send batches of rows to their topics; what was written, once all of it is.

    Waits while the producer's buffer is full, so memory is bounded by ``buffer.memory`` and a batch of rows.

    Raises:
        KafkaError: the first failure; what was sent before it, and some of what came after, may be stored.
    """
    deliveries = Deliveries()
    for topic, batch in rows:
        deliveries.add(producer.send_arrow(topic, batch))
    producer.flush()
    deliveries.wait()
    return deliveries.written


def unless_empty(rows: Rows) -> Rows | None:
    """``rows``, if there is any: who has none need not ask a broker."""
    for first in rows:
        if first[1].num_rows:
            return chain([first], rows)
    return None
