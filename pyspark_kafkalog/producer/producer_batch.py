"""Batches of the producer, the results that callers get, and the callback thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import KafkaError, RecordsRefused
from pyspark_kafkalog.formats.base import Buffer
from pyspark_kafkalog.formats.record import read_fields
from pyspark_kafkalog.producer.columns import ArrowRows, Columns
from pyspark_kafkalog.producer.encoder import (
    BATCH_HEADER_BYTES,
    Encoding,
    HeaderLists,
    RecordBatches,
    Times,
    Values,
)
from pyspark_kafkalog.types import Header, TopicPartition

Callbacks = list[tuple[int, Callable[..., object]]]  # record index and callback
Watcher = Callable[[], object]

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch:
    """*Guarded by its accumulator's lock* until taken, then owned by the sender's thread; the result is
    written once, under the lock. ``order`` sorts a partition's batches. ``size`` is a bound, uncompressed.
    """

    tp: TopicPartition
    order: tuple[int, int]
    changed: threading.Condition
    created: float
    due: float
    deadline: float
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    times: list[int] = field(default_factory=list)
    headers: list[Sequence[Header]] | None = None
    only_values: bool = True  # whether no record has a key or headers, and all are in the lists
    callbacks: Callbacks = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)
    size: int = BATCH_HEADER_BYTES
    count: int = 0
    attempts: int = 0
    sent: bool = False
    producer_id: int = -1
    epoch: int = -1
    base_sequence: int = -1
    encoded: bytes | None = None
    settled: bool = False
    base_offset: int = -1
    append_time: int = -1
    error: KafkaError | None = None
    last_failure: KafkaError | None = None
    parts: list[ProducerBatch] | None = None

    def add(
        self, value: bytes | None, key: bytes | None, time: int, headers: Sequence[Header], size: int
    ) -> int:
        index = self.count
        self.values.append(value)
        self.times.append(time)
        if key is not None and self.keys is None:
            self.keys = [None] * index
            self.only_values = False
        if self.keys is not None:
            self.keys.append(key)
        if headers and self.headers is None:
            self.headers = [()] * index
            self.only_values = False
        if self.headers is not None:
            self.headers.append(headers)
        self.size += size
        self.count = index + 1
        return index

    def extend(
        self, values: Values, keys: Values | None, times: Times, headers: HeaderLists | None, size: int
    ) -> int:
        self._as_lists()
        index = self.count
        self.values += values
        self.times += times
        if keys is not None and self.keys is None:
            self.keys = [None] * index
            self.only_values = False
        if self.keys is not None:
            self.keys += keys if keys is not None else [None] * len(values)
        if headers is not None and self.headers is None:
            self.headers = [()] * index
            self.only_values = False
        if self.headers is not None:
            self.headers += headers if headers is not None else [()] * len(values)
        self.size += size
        self.count = index + len(values)
        return index

    def extend_rows(self, rows: ArrowRows, size: int) -> int:
        values, keys = rows.lists()
        return self.extend(values, keys, rows.times(), None, size)

    def number(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        self.producer_id, self.epoch, self.base_sequence = producer_id, epoch, base_sequence
        self.encoded = None

    def encode(self, encoding: Encoding) -> bytes:
        """The batch's bytes; a retry sends the same. Drops timestamps that the format lacks."""
        if self.encoded is None:
            self.times = encoding.kept_times(self.times)
            identity = (self.producer_id, self.epoch, self.base_sequence)
            self.encoded = encoding.encode(self.values, self.keys, self.times, self.headers, identity)
        return self.encoded

    def split(self) -> list[ProducerBatch]:
        """Split into halves with this batch's records and callbacks; records keep their sequence numbers."""
        self._as_lists()
        half = self.count // 2
        parts = [self._slice(0, half), self._slice(half, self.count)]
        self.parts = parts
        self._release()
        return parts

    def part_with(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that has record ``index`` after splits, and its index there."""
        batch = self
        while batch.parts is not None:
            first, second = batch.parts
            batch, index = (first, index) if index < first.count else (second, index - first.count)
        return batch, index

    @property
    def all_settled(self) -> bool:
        if self.parts is not None:
            return all(part.all_settled for part in self.parts)
        return self.settled

    def wait(self, timeout: float | None) -> None:
        if self.all_settled:
            return
        with self.changed:
            if not self.changed.wait_for(lambda: self.all_settled, timeout):
                raise TimeoutError(f"{self.tp}: not delivered after {timeout} s")

    def settle(self, base_offset: int, append_time: int, error: KafkaError | None) -> None:
        """Set the result, once. Caller holds the lock and calls the callbacks."""
        self.base_offset, self.append_time, self.error = base_offset, append_time, error
        self._release()
        self.settled = True

    def error_of(self, index: int) -> KafkaError | None:
        """The error of one record. As in Kafka's client, the broker's reason is only for those it names."""
        error = self.error
        if not isinstance(error, RecordsRefused) or not error.records:
            return error
        if index in error.records:
            return type(error)(error.records[index])
        return KafkaError(f"{self.tp}: not written, because other records of its batch were refused: {error}")

    def _as_lists(self) -> None:
        """Convert the records to lists; they already are."""

    def _slice(self, start: int, stop: int) -> ProducerBatch:
        order = self.order[0], self.order[1] + start
        part = ProducerBatch(self.tp, order, self.changed, self.created, self.due, self.deadline)
        share = (self.size - BATCH_HEADER_BYTES) * (stop - start) // self.count
        part.extend(*lists_of(self, start, stop), share)
        part.callbacks = [(index - start, call) for index, call in self.callbacks if start <= index < stop]
        part.watchers = list(self.watchers)
        part.sent = self.sent
        if self.base_sequence >= 0:
            part.number(self.producer_id, self.epoch, self.base_sequence + start & 0x7FFFFFFF)
        return part

    def _release(self) -> None:
        # Times are kept for the metadata.
        self.values, self.keys, self.headers, self.encoded = [], None, None, None


def lists_of(
    rows: ProducerBatch | Columns, start: int, stop: int
) -> tuple[Values, Values | None, Times, HeaderLists | None]:
    keys = rows.keys[start:stop] if rows.keys is not None else None
    headers = rows.headers[start:stop] if rows.headers is not None else None
    return rows.values[start:stop], keys, rows.times[start:stop], headers


class BlockBatch(ProducerBatch):
    """A `ProducerBatch` whose records compiled code encodes when added; makes lists only if needed."""

    __slots__ = ("_blocks",)

    def extend_rows(self, rows: ArrowRows, size: int) -> int:
        index = self.count
        if self.values:
            return super().extend_rows(rows, size)
        if not index:
            self._blocks: list[Buffer] = []
            self.only_values = False
        self.times += rows.times()
        # Encoded at once: keeping the rows would keep their whole Arrow batch alive.
        self._blocks.append(rows.encoded(self.times[0], index))
        self.size += size
        self.count = index + len(rows)
        return index

    def add(
        self, value: bytes | None, key: bytes | None, time: int, headers: Sequence[Header], size: int
    ) -> int:
        self._as_lists()
        return super().add(value, key, time, headers, size)

    def encode(self, encoding: Encoding) -> bytes:
        if self.values or not isinstance(encoding, RecordBatches):
            self._as_lists()
            return super().encode(encoding)
        if self.encoded is None:
            identity = (self.producer_id, self.epoch, self.base_sequence)
            self.encoded = encoding.sealed(self._blocks, self.times, identity)
        return self.encoded

    def _as_lists(self) -> None:
        if self.values or not self.count:
            return
        fields = read_fields(b"".join(self._blocks), self.count)
        self._blocks = []
        self.values = [value for _, _, _, value, _ in fields]
        keys = [key for _, _, key, _, _ in fields]
        self.keys = keys if any(key is not None for key in keys) else None

    def _release(self) -> None:
        super()._release()
        self._blocks = []


class RecordMetadata(NamedTuple):
    """A record's partition, offset and timestamp.

    ``offset`` is -1 if the broker does not report it (acks=0, or a retried batch that it no longer
    remembers). ``timestamp`` is in milliseconds; the broker's if it sets the time.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class DeliveredRange(NamedTuple):
    """Consecutive records of a partition; offsets are -1 if unknown."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int


OnDelivery = Callable[["RecordMetadata | None", "KafkaError | None"], object]
"""Called once per record on the callback thread, with its metadata or its error."""


OnBulkDelivery = Callable[["BulkDelivery"], object]
"""Called once on the callback thread, when every record is settled."""


class Delivery(tuple[ProducerBatch, int]):
    """*Thread-safe.* The future result of one record. A tuple, because attributes take half as long again."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        batch, index = self
        return batch.part_with(index)[0].settled

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's metadata; waits up to ``timeout`` seconds, or until ``delivery.timeout.ms`` if None.

        Raises the `KafkaError` that prevented the delivery, or `TimeoutError`.
        """
        whole, place = self
        whole.wait(timeout)
        batch, index = whole.part_with(place)
        if (error := batch.error_of(index)) is not None:
            raise error
        return metadata_of(batch, index)


class BulkDelivery:
    """*Thread-safe.* The result of one `Producer.send_arrow`."""

    __slots__ = ("_complete", "_lock", "_on_delivery", "_parts", "watcher")

    def __init__(self, on_delivery: OnBulkDelivery | None) -> None:
        self._parts: list[tuple[ProducerBatch, int, int]] = []
        self._on_delivery = on_delivery
        self._complete = False
        self._lock = threading.Lock()
        self.watcher = self._settled if on_delivery is not None else None

    @property
    def done(self) -> bool:
        return self._complete and all(batch.all_settled for batch, _, _ in self._parts)

    def add(self, batch: ProducerBatch, first: int, count: int) -> None:
        self._parts.append((batch, first, count))

    def complete(self) -> None:
        self._complete = True
        self._settled()

    def _settled(self) -> None:
        if self._on_delivery is None or not self.done:
            return
        with self._lock:
            call, self._on_delivery = self._on_delivery, None
        if call is not None:
            call(self)

    def result(self, timeout: float | None = None) -> list[DeliveredRange]:
        """The records' offsets in the order of sending; waits up to ``timeout`` seconds.

        Raises the `KafkaError` of the first failed record (others may be delivered), or `TimeoutError`.
        """
        ranges: list[DeliveredRange] = []
        for batch, first, count in self._parts:
            batch.wait(timeout)
            ranges += _ranges(batch, first, count)
        return ranges


def metadata_of(batch: ProducerBatch, index: int) -> RecordMetadata:
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


class CallbackRunner:
    """*Thread-safe.* Runs callbacks in the order in which batches were settled, on its own thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[ProducerBatch | None] = SimpleQueue()
        self._idle = threading.Condition(threading.Lock())
        self._left = 0
        self._thread: threading.Thread | None = None

    def submit(self, batch: ProducerBatch) -> None:
        with self._idle:
            self._left += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kafkalog-producer-callbacks", daemon=True
                )
                self._thread.start()
        self._queue.put(batch)

    def wait(self, deadline: Deadline | None) -> bool:
        if threading.current_thread() is self._thread:
            return True
        with self._idle:
            return self._idle.wait_for(lambda: self._left == 0, deadline.left if deadline else None)

    def stop(self, deadline: Deadline | None) -> None:
        """Run the submitted callbacks and end the thread; wait for it until ``deadline``."""
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
                    _call(call, None, batch.error_of(index))
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
        # Also SystemExit, which would end this thread and lose the remaining callbacks.
        logger.exception("a delivery callback failed")
