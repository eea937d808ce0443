"""One batch from its first record to its delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.record import read_fields
from pyspark_kafkalog.producer.columns import ArrowRows
from pyspark_kafkalog.producer.encoder import BATCH_HEADER_BYTES, Encoding, RecordBatches
from pyspark_kafkalog.types import Header, TopicPartition

Callbacks = list[tuple[int, Callable[..., object]]]
"""Index of a record, and what is to be told of it."""

Watcher = Callable[[], object]


class ProducerBatch:
    """*Guarded by its accumulator's lock* until closed, then owned by the sender's thread.

    What `Delivery` reads (`settled`, `parts` and the outcome) is written once, under the lock.
    ``order`` sorts a partition's batches as their records were sent. ``size`` bounds the bytes of the
    batch before compression and is what it takes of the buffer.
    """

    __slots__ = (
        "append_time",
        "attempts",
        "base_offset",
        "base_sequence",
        "callbacks",
        "changed",
        "count",
        "created",
        "deadline",
        "due",
        "encoded",
        "epoch",
        "error",
        "headers",
        "keys",
        "last_failure",
        "order",
        "parts",
        "producer_id",
        "sent",
        "settled",
        "size",
        "times",
        "tp",
        "values",
        "watchers",
    )

    def __init__(
        self,
        tp: TopicPartition,
        order: tuple[int, int],
        changed: threading.Condition,
        *,
        created: float,
        due: float,
        deadline: float,
    ) -> None:
        self.tp, self.order, self.changed = tp, order, changed
        self.created, self.due, self.deadline = created, due, deadline
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.times: list[int] = []
        self.headers: list[Sequence[Header]] | None = None
        self.callbacks: Callbacks = []
        self.watchers: list[Watcher] = []
        self.size = BATCH_HEADER_BYTES
        self.count = 0
        self.attempts = 0
        self.sent = False
        self.producer_id = self.epoch = self.base_sequence = -1
        self.encoded: bytes | None = None
        self.settled = False
        self.base_offset = self.append_time = -1
        self.error: KafkaError | None = None
        self.last_failure: KafkaError | None = None
        self.parts: list[ProducerBatch] | None = None

    def add(
        self, value: bytes | None, key: bytes | None, time: int, headers: Sequence[Header], size: int
    ) -> int:
        """Take one record of at most ``size`` bytes; its index."""
        index = self.count
        self.values.append(value)
        self.times.append(time)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if self.keys is not None:
            self.keys.append(key)
        if headers and self.headers is None:
            self.headers = [()] * index
        if self.headers is not None:
            self.headers.append(headers)
        self.size += size
        self.count = index + 1
        return index

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        times: Sequence[int],
        headers: Sequence[Sequence[Header]] | None,
        size: int,
    ) -> int:
        """Take many records of at most ``size`` bytes together; the index of the first."""
        self._as_lists()
        index = self.count
        self.values += values
        self.times += times
        if keys is not None and self.keys is None:
            self.keys = [None] * index
        if self.keys is not None:
            self.keys += keys if keys is not None else [None] * len(values)
        if headers is not None and self.headers is None:
            self.headers = [()] * index
        if self.headers is not None:
            self.headers += headers if headers is not None else [()] * len(values)
        self.size += size
        self.count = index + len(values)
        return index

    def extend_rows(self, rows: ArrowRows, size: int) -> int:
        """As `extend`, for rows that are in an Arrow batch."""
        values, keys = rows.lists()
        return self.extend(values, keys, rows.times(), None, size)

    def number(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Give the batch the identity that it keeps over all its repetitions."""
        self.producer_id, self.epoch, self.base_sequence = producer_id, epoch, base_sequence
        self.encoded = None

    def encode(self, encoding: Encoding) -> bytes:
        """The batch's bytes, made once: a repetition sends the same. Times that they lack are forgotten.

        Raises:
            InvalidRecord: a length or time does not fit its field.
            UnsupportedCompression: the codec's library is not installed.
        """
        if self.encoded is None:
            self.times = encoding.kept_times(self.times)
            identity = (self.producer_id, self.epoch, self.base_sequence)
            self.encoded = encoding.encode(self.values, self.keys, self.times, self.headers, identity)
        return self.encoded

    def split(self) -> list[ProducerBatch]:
        """Two halves that hold this batch's records and callbacks; with sequences where it had them.

        Every record keeps its sequence number, so those after the batch stay right.
        """
        self._as_lists()
        half = self.count // 2
        parts = [self._slice(0, half), self._slice(half, self.count)]
        self.parts = parts
        self._release()
        return parts

    def part_with(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that really carries record ``index``, after splits, and its index there."""
        batch = self
        while batch.parts is not None:
            first, second = batch.parts
            batch, index = (first, index) if index < first.count else (second, index - first.count)
        return batch, index

    @property
    def all_settled(self) -> bool:
        """Whether it is known what became of every record."""
        if self.parts is not None:
            return all(part.all_settled for part in self.parts)
        return self.settled

    def wait(self, timeout: float | None) -> None:
        """Return once it is known what became of every record.

        Raises:
            TimeoutError: that is not so after ``timeout`` seconds.
        """
        if self.all_settled:
            return
        with self.changed:
            if not self.changed.wait_for(lambda: self.all_settled, timeout):
                raise TimeoutError(f"{self.tp}: nothing is known of the delivery after {timeout} s")

    def settle(self, base_offset: int, append_time: int, error: KafkaError | None) -> None:
        """Note what became of the batch, once. Caller holds the lock and sees to the callbacks."""
        self.base_offset, self.append_time, self.error = base_offset, append_time, error
        self._release()
        self.settled = True

    def _as_lists(self) -> None:
        """Have the records as lists, which these are."""

    def _slice(self, start: int, stop: int) -> ProducerBatch:
        part = ProducerBatch(
            self.tp,
            (self.order[0], self.order[1] + start),
            self.changed,
            created=self.created,
            due=self.due,
            deadline=self.deadline,
        )
        share = (self.size - BATCH_HEADER_BYTES) * (stop - start) // self.count
        part.extend(
            self.values[start:stop],
            self.keys[start:stop] if self.keys is not None else None,
            self.times[start:stop],
            self.headers[start:stop] if self.headers is not None else None,
            share,
        )
        part.callbacks = [(index - start, call) for index, call in self.callbacks if start <= index < stop]
        part.watchers = list(self.watchers)
        part.sent = self.sent
        if self.base_sequence >= 0:
            part.number(self.producer_id, self.epoch, self.base_sequence + start & 0x7FFFFFFF)
        return part

    def _release(self) -> None:
        """Drop the records; times stay for the metadata."""
        empty: list[Any] = []
        self.values, self.keys, self.headers, self.encoded = empty, None, None, None


class BlockBatch(ProducerBatch):
    """*As `ProducerBatch`.* Becomes one of lists as soon as anything else is added, or it is split."""

    __slots__ = ("_blocks",)

    def extend_rows(self, rows: ArrowRows, size: int) -> int:
        index = self.count
        if self.values:
            return super().extend_rows(rows, size)
        if not index:
            self._blocks: list[bytes] = []
        self.times += rows.times()
        # The rows' Arrow batch may hold many more rows: it is not kept for these.
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
            self.encoded = encoding.sealed(b"".join(self._blocks), self.times, identity)
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
