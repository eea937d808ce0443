"""What became of a record: the answer that `Producer.send` promises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from pyspark_kafkalog.client.retry import Deadline
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


logger = logging.getLogger(__name__)


class CallbackRunner:
    """*Thread-safe.* Runs callbacks one after the other, in the order in which batches were settled.

    Owns its thread, which starts with the first callback. An exception in a callback is logged and the next
    one is called.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[ProducerBatch | None] = SimpleQueue()
        self._idle = threading.Condition(threading.Lock())
        self._left = 0
        self._thread: threading.Thread | None = None

    def submit(self, batch: ProducerBatch) -> None:
        """Have the callbacks of a settled batch called. Returns at once."""
        with self._idle:
            self._left += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kafkalog-producer-callbacks", daemon=True
                )
                self._thread.start()
        self._queue.put(batch)

    def wait(self, deadline: Deadline | None) -> bool:
        """Return when every callback submitted was called, or at ``deadline``; True in the first case.

        A callback that waits for its own end would wait for ever: on the callbacks' own thread it
        returns at once.
        """
        if threading.current_thread() is self._thread:
            return True
        with self._idle:
            return self._idle.wait_for(lambda: self._left == 0, deadline.left if deadline else None)

    def stop(self, deadline: Deadline | None) -> None:
        """Call what was submitted, then end the thread; wait for that until ``deadline``."""
        with self._idle:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        if thread is not threading.current_thread():
            thread.join(deadline.left if deadline else None)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            for index, call in batch.callbacks:
                if batch.error is None:
                    _call(call, metadata_of(batch, index), None)
                else:
                    _call(call, None, batch.error)
            for watcher in batch.watchers:
                _call(watcher)
            batch.callbacks, batch.watchers = [], []
            with self._idle:
                self._left -= 1
                self._idle.notify_all()


def _call(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except BaseException:
        # Even SystemExit: it would end this thread and lose the callbacks that follow.
        logger.exception("a delivery callback failed")
