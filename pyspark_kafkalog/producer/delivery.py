"""What became of a record: the answer that `Producer.send` promises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.producer.batch import ProducerBatch


class RecordMetadata(NamedTuple):
    """Where a record is. ``offset`` is -1 where the broker tells none (acks=0, or a repeated batch that it
    no longer remembers); ``timestamp`` is in milliseconds: the broker's, where it sets the time.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class DeliveredRange(NamedTuple):
    """Consecutive records of one partition, with their first and last offset; -1 where there is none."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int


OnDelivery = Callable[["RecordMetadata | None", "KafkaError | None"], object]
"""Called once per record on the producer's callback thread: with where it is, or with why it is not."""


OnBulkDelivery = Callable[["BulkDelivery"], object]
"""Called once on the producer's callback thread, when it is known what became of every record."""


class Delivery:
    """*Thread-safe.* One record on its way."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch, self._index = batch, index

    @property
    def done(self) -> bool:
        """Whether it is known what became of the record."""
        return self._batch.part_with(self._index)[0].settled

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is; waits up to ``timeout`` seconds, for ever if None.

        The producer itself settles every record by ``delivery.timeout.ms``.

        Raises:
            KafkaError: why the record could not be delivered.
            TimeoutError: nothing is known yet.
        """
        self._batch.wait(timeout)
        batch, index = self._batch.part_with(self._index)
        if batch.error is not None:
            raise batch.error
        return metadata_of(batch, index)


class BulkDelivery:
    """*Thread-safe.* Many records on their way: those of one `Producer.send_arrow`."""

    __slots__ = ("_complete", "_lock", "_on_delivery", "_parts", "watcher")

    def __init__(self, on_delivery: OnBulkDelivery | None) -> None:
        self._parts: list[tuple[ProducerBatch, int, int]] = []
        self._on_delivery = on_delivery
        self._complete = False
        self._lock = threading.Lock()
        self.watcher = self._settled if on_delivery is not None else None

    @property
    def done(self) -> bool:
        """Whether it is known what became of every record."""
        return self._complete and all(batch.all_settled for batch, _, _ in self._parts)

    def add(self, batch: ProducerBatch, first: int, count: int) -> None:
        """``count`` more records are in ``batch``, from index ``first`` on. The producer calls it."""
        self._parts.append((batch, first, count))

    def complete(self) -> None:
        """No more records will come. The producer calls it."""
        self._complete = True
        self._settled()

    def _settled(self) -> None:
        """Some batch was settled: if it was the last, tell so, once."""
        if self._on_delivery is None or not self.done:
            return
        with self._lock:
            call, self._on_delivery = self._on_delivery, None
        if call is not None:
            call(self)

    def result(self, timeout: float | None = None) -> list[DeliveredRange]:
        """Where the records are, in the order in which they were sent; waits up to ``timeout`` seconds.

        Raises:
            KafkaError: why the first of those that failed could not be delivered; others may have been.
            TimeoutError: nothing is known yet of some.
        """
        ranges: list[DeliveredRange] = []
        for batch, first, count in self._parts:
            batch.wait(timeout)
            ranges += _ranges(batch, first, count)
        return ranges


def metadata_of(batch: ProducerBatch, index: int) -> RecordMetadata:
    """Where record ``index`` of a delivered batch is."""
    time = batch.append_time if batch.append_time >= 0 else batch.times[index]
    offset = batch.base_offset + index if batch.base_offset >= 0 else -1
    return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, time)


def _ranges(batch: ProducerBatch, first: int, count: int) -> list[DeliveredRange]:
    found = []
    while count:
        part, index = batch.part_with(first)
        if part.error is not None:
            raise part.error
        taken = min(count, part.count - index)
        start, end = metadata_of(part, index).offset, metadata_of(part, index + taken - 1).offset
        found.append(DeliveredRange(part.tp.topic, part.tp.partition, start, end, taken))
        first, count = first + taken, count - taken
    return found
