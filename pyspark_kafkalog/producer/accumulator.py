"""A bounded buffer of records, collected into batches per partition."""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import ProducerEpoch
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import KafkaError, MessageTooLarge, RequestTimedOut, error_for
from pyspark_kafkalog.producer.columns import ArrowRows, Rows
from pyspark_kafkalog.producer.encoder import BATCH_HEADER_BYTES
from pyspark_kafkalog.producer.producer_batch import BlockBatch, Delivery, OnDelivery, ProducerBatch, lists_of
from pyspark_kafkalog.types import Header, TopicPartition

SEQUENCE_MASK = 0x7FFFFFFF  # sequence numbers go from 0 to 2^31-1 and wrap to 0
_order = attrgetter("order")


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """*Guarded by its accumulator's lock.* Keeps a partition's records in order: a failed batch is retried
    alone, before later ones. Until the broker has stored a batch of an identity, only one is in flight: it
    accepts any first number from an unknown producer.
    """

    tp: TopicPartition
    open: ProducerBatch | None = None
    waiting: deque[ProducerBatch] = field(default_factory=deque)
    retrying: list[ProducerBatch] = field(default_factory=list)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    not_before: float = 0.0
    identity: ProducerEpoch | None = None
    next_sequence: int = 0
    known: bool = False  # whether the broker has stored a batch of ``identity``
    restarting: bool = False

    @property
    def empty(self) -> bool:
        return not (self.open or self.waiting or self.retrying or self.in_flight)

    def ready_at(self, now: float, max_in_flight: int, hurry: bool) -> float | None:
        """When a batch can be taken, at or after ``now``; None if a response must come first."""
        if self.retrying or self.restarting:
            if self.in_flight or not self._next():
                return None
            return max(now, self.not_before)
        alone = self.identity is not None and not self.known
        if len(self.in_flight) >= (1 if alone else max_in_flight):
            return None
        if self.waiting or (self.open and hurry):
            return now
        return max(now, self.open.due) if self.open else None

    def take(self, identity: ProducerEpoch | None) -> ProducerBatch | None:
        """Move the next batch in flight; with sequence numbers if there is an identity."""
        if self.restarting and identity is not None:
            self._restart(identity)
        if self.retrying:
            batch = self.retrying.pop(0)
        elif self.waiting:
            batch = self.waiting.popleft()
        elif self.open is not None:
            batch, self.open = self.open, None
        else:
            return None
        if identity is not None and batch.base_sequence < 0:
            self._number(batch, identity)
        insort(self.in_flight, batch, key=_order)
        return batch

    def next_size(self) -> int:
        batch = self._next()
        return batch.size if batch is not None else 0

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def repeat(self, batch: ProducerBatch, not_before: float) -> None:
        """Retry a failed batch in its original place, from ``not_before`` on."""
        self.remove_in_flight(batch)
        insort(self.retrying, batch, key=_order)
        self.not_before = not_before

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a settled batch from any state. Its sequence numbers stay used."""
        self.remove_in_flight(batch)
        if batch in self.retrying:
            self.retrying.remove(batch)
        elif batch in self.waiting:
            self.waiting.remove(batch)
        elif batch is self.open:
            self.open = None

    def taken(self, batch: ProducerBatch) -> None:
        if self.identity == (batch.producer_id, batch.epoch):
            self.known = True

    def is_first(self, batch: ProducerBatch) -> bool:
        return not any(other.order < batch.order for other in (*self.in_flight, *self.retrying))

    def oldest(self) -> list[ProducerBatch]:
        """The first batch in each state: if none of them has expired, no batch has."""
        heads = [group[0] for group in (self.in_flight, self.retrying, self.waiting) if group]
        return heads + ([self.open] if self.open is not None else [])

    def every(self) -> list[ProducerBatch]:
        growing = [self.open] if self.open is not None else []
        return sorted((*self.in_flight, *self.retrying, *self.waiting, *growing), key=_order)

    def _next(self) -> ProducerBatch | None:
        if self.retrying:
            return self.retrying[0]
        return self.waiting[0] if self.waiting else self.open

    def _number(self, batch: ProducerBatch, identity: ProducerEpoch) -> None:
        if self.identity is None or (self.identity != identity and not self.in_flight and not self.retrying):
            self.identity, self.next_sequence, self.known = identity, 0, False
        batch.number(*self.identity, self.next_sequence)
        self.next_sequence = self.next_sequence + batch.count & SEQUENCE_MASK

    def _restart(self, identity: ProducerEpoch) -> None:
        """Start at sequence 0 under a new identity: the broker cannot continue the old one."""
        self.restarting = False
        self.identity, self.next_sequence, self.known = identity, 0, False
        for batch in self.retrying:
            self._number(batch, identity)


Settled = Callable[[ProducerBatch], None]

Failed = Callable[[ProducerBatch, KafkaError], "KafkaError | None"]
"""Called with a batch that was not delivered; returns why no more records are accepted, or None."""


class Accumulator:
    """*Thread-safe.* Its lock guards every queue, and every batch until it is taken. Application threads
    append; the sender takes, retries and settles. ``wake`` (look earlier than planned) and ``on_settled``
    (before waiting threads wake) run under the lock and must return at once.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        wake: Callable[[], None],
        on_settled: Settled,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.identity: ProducerEpoch | None = None
        """Identity for new batches; set by the sender, or by the transaction manager while there are none."""
        self.trouble: KafkaError | None = None  # the last failure since a delivery; set by the sender
        self._batch_size = max(config.batch_size, 1)
        self._limit = config.buffer_memory
        self._linger = config.linger_ms / 1000
        self._delivery_seconds = config.delivery_timeout_ms / 1000
        self._max_in_flight = config.max_in_flight
        self._max_block_ms = config.max_block_ms
        self._wake, self._on_settled, self._clock = wake, on_settled, clock
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[PartitionQueue, None] = {}
        self._used = 0
        self._waiters = 0
        self._batches = 0
        self._sender_wakes_at = inf
        self._closed = False
        self._refusal: KafkaError | None = None
        self._refuses = False  # whether closed or refusing: one check per record
        self._on_failed: Failed | None = None

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        with self._lock:
            return self._queues.setdefault(tp, PartitionQueue(tp))

    def for_transactions(self, on_failed: Failed) -> None:
        """Call ``on_failed`` for each batch that was not delivered, under the lock, before waiters wake."""
        self._on_failed = on_failed

    def refuse(self, why: KafkaError | None) -> None:
        """Refuse new records with this error, until None is passed; buffered records stay."""
        with self._lock:
            self._set_refusal(why)
            self.changed.notify_all()
            self._wake_sender(0.0)

    def append(
        self,
        queue: PartitionQueue,
        value: bytes | None,
        key: bytes | None,
        time: int,
        headers: Sequence[Header],
        size: int,
        on_delivery: OnDelivery | None,
        deadline: Deadline | None = None,
    ) -> Delivery:
        """Add a record of at most ``size`` bytes; waits for room until ``deadline``, or `max.block.ms`."""
        with self._lock:
            batch = queue.open
            if (
                batch is None
                or batch.size + size > self._batch_size
                or self._used + size > self._limit
                or self._refuses
            ):
                batch = self._batch_with_room(queue, size, deadline)
            self._used += size
            if key is None and not headers and batch.only_values:
                # Inlined `ProducerBatch.add`: a call per record would cost a tenth of `send`.
                batch.size += size
                index = batch.count
                batch.count = index + 1
                batch.values.append(value)
                batch.times.append(time)
            else:
                index = batch.add(value, key, time, headers, size)
            if on_delivery is not None:
                batch.callbacks.append((index, on_delivery))
            return Delivery((batch, index))

    def append_rows(
        self,
        queue: PartitionQueue,
        rows: Rows,
        start: int,
        stop: int,
        watcher: Callable[[], object] | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[ProducerBatch, int, int]:
        """Add as many rows as fit the open batch, at least one; returns batch, first index and number."""
        with self._lock:
            first = rows.size(start, start + 1)
            kind = BlockBatch if isinstance(rows, ArrowRows) else ProducerBatch
            batch = self._batch_with_room(queue, first, deadline, kind)
            room = min(self._batch_size - batch.size, self._limit - self._used)
            end = max(start + 1, rows.most_within(start, stop, room))
            size = rows.size(start, end)
            if isinstance(rows, ArrowRows):
                index = batch.extend_rows(rows.part(start, end), size)
            else:
                index = batch.extend(*lists_of(rows, start, end), size)
            self._used += size
            if watcher is not None and watcher not in batch.watchers:
                batch.watchers.append(watcher)
            return batch, index, end - start

    def ready(self, now: float) -> tuple[list[PartitionQueue], float]:
        """Queues with a batch to take now, and when to look again if nothing happens."""
        with self._lock:
            hurry = self._closed or self._waiters > 0
            found, soonest = [], inf
            for queue in self._active:
                soonest = min([soonest, *(head.deadline for head in queue.oldest())])
                at = queue.ready_at(now, self._max_in_flight, hurry)
                if at is None:
                    continue
                if at <= now:
                    found.append(queue)
                else:
                    soonest = min(soonest, at)
            self._sender_wakes_at = soonest
            return found, soonest

    def take(self, queue: PartitionQueue, now: float) -> ProducerBatch | None:
        """Move the next batch of a queue in flight; None if none can be sent now."""
        with self._lock:
            at = queue.ready_at(now, self._max_in_flight, self._closed or self._waiters > 0)
            if at is None or at > now:
                return None
            return queue.take(self.identity)

    def repeat(self, batch: ProducerBatch, not_before: float) -> None:
        with self._lock:
            self._queues[batch.tp].repeat(batch, not_before)

    def is_first(self, batch: ProducerBatch) -> bool:
        with self._lock:
            return self._queues[batch.tp].is_first(batch)

    def repeat_refused(self, batch: ProducerBatch, not_before: float, *, new_id: bool) -> bool:
        """Retry a batch whose sequence numbers the broker refused. True if it gets new ones.

        If no earlier batch that will be retried explains the refusal, the broker misses a batch that failed
        for good, or has forgotten the producer. New numbers are safe then, as it has stored neither this
        batch nor a later one. ``new_id`` requests another producer id instead of the next epoch.
        """
        with self._lock:
            queue = self._queues[batch.tp]
            first = queue.is_first(batch)
            queue.repeat(batch, not_before)
            if first:
                queue.restarting = True
                if self.identity is not None and queue.identity == self.identity:
                    # None makes the sender request another producer id.
                    self.identity = None if new_id else self.identity.next_epoch()
            return first

    def split(self, batch: ProducerBatch, not_before: float) -> None:
        """Retry ``batch`` (two or more records) as two batches."""
        with self._lock:
            queue = self._queues[batch.tp]
            queue.remove_in_flight(batch)
            self._used -= batch.size
            for part in batch.split():
                self._used += part.size
                queue.repeat(part, not_before)

    def settle(
        self,
        batch: ProducerBatch,
        base_offset: int = -1,
        append_time: int = -1,
        error: KafkaError | None = None,
    ) -> None:
        with self._lock:
            self._settle(batch, base_offset, append_time, error)

    def discard(self, error: KafkaError, *, numbered: bool) -> None:
        """Fail what was never sent; with ``numbered`` also batches that may have been stored."""
        with self._lock:
            for batch in [batch for queue in self._active for batch in queue.every()]:
                if numbered or batch.base_sequence < 0:
                    self._settle(batch, -1, -1, error)

    def expired(self, now: float) -> list[ProducerBatch]:
        with self._lock:
            return [
                batch
                for queue in self._active
                if any(head.deadline <= now for head in queue.oldest())
                for batch in queue.every()
                if batch.deadline <= now
            ]

    def unsettled(self) -> list[ProducerBatch]:
        with self._lock:
            return [batch for queue in self._active for batch in queue.every()]

    def flush(self, deadline: Deadline | None) -> None:
        """Send everything without lingering and wait. Raises `TimeoutError` at ``deadline``."""
        with self._lock:
            left = [batch for queue in self._active for batch in queue.every()]
            for batch in left:
                batch.due = 0.0
            self._wake_sender(0.0)
            while left := [batch for batch in left if not batch.all_settled]:
                if not self.changed.wait(deadline.left if deadline else None):
                    records = sum(batch.count for batch in left)
                    raise TimeoutError(f"flush: {records} records are not delivered yet")

    def close(self) -> None:
        """Refuse new records; send buffered ones without lingering."""
        with self._lock:
            self._closed = self._refuses = True
            self.changed.notify_all()
            self._wake_sender(0.0)

    def abandon(self) -> None:
        """`close` without the lock, for a finalizer: this thread may hold it already."""
        self._closed = self._refuses = True
        self._wake()

    @property
    def drained(self) -> bool:
        with self._lock:
            return self._closed and not self._active

    def _batch_with_room(
        self,
        queue: PartitionQueue,
        size: int,
        deadline: Deadline | None,
        kind: type[ProducerBatch] = ProducerBatch,
    ) -> ProducerBatch:
        """The queue's open batch, with room for a record. Caller holds the lock."""
        needed = size + BATCH_HEADER_BYTES
        self._check_taking("the producer is closed")
        if needed > self._limit:
            raise MessageTooLarge(
                f"{queue.tp}: a record of about {size} bytes can never fit; buffer.memory is {self._limit}"
            )
        if self._used + needed > self._limit:
            self._await_room(queue, needed, deadline)
        batch = queue.open
        if batch is not None and batch.size + size > self._batch_size:
            queue.waiting.append(batch)
            queue.open = batch = None
            self._wake_sender(0.0)
        return batch if batch is not None else self._open_batch(queue, kind)

    def _open_batch(self, queue: PartitionQueue, kind: type[ProducerBatch]) -> ProducerBatch:
        now = self._clock.monotonic()
        self._batches += 1
        due, deadline = now + self._linger, now + self._delivery_seconds
        batch = queue.open = kind(queue.tp, (self._batches, 0), self.changed, now, due, deadline)
        self._used += batch.size
        self._active[queue] = None
        self._wake_sender(batch.due)
        return batch

    def _await_room(self, queue: PartitionQueue, needed: int, deadline: Deadline | None) -> None:
        limit = deadline or Deadline.after(self._max_block_ms / 1000, self._clock)
        self._waiters += 1
        self._wake_sender(0.0)
        try:
            while self._used + needed > self._limit:
                if not self.changed.wait(limit.left) and limit.passed:
                    why = self.trouble or "records are sent faster than they are delivered"
                    raise RequestTimedOut(
                        f"{queue.tp}: no room for a record of {needed} bytes: {self._used} of the "
                        f"{self._limit} bytes of buffer.memory were taken for max.block.ms="
                        f"{self._max_block_ms}; {why}"
                    )
                self._check_taking("the producer was closed while a record waited for room")
        finally:
            self._waiters -= 1

    def _check_taking(self, closed: str) -> None:
        if self._closed:
            raise KafkaError(closed)
        if self._refusal is not None:
            why = self._refusal
            raise error_for(why.code, str(why)) from why

    def _set_refusal(self, why: KafkaError | None) -> None:
        self._refusal = why
        self._refuses = self._closed or why is not None

    def _settle(
        self, batch: ProducerBatch, base_offset: int, append_time: int, error: KafkaError | None
    ) -> None:
        if batch.settled:
            return
        queue = self._queues[batch.tp]
        queue.remove(batch)
        if error is None:
            queue.taken(batch)
        elif self._on_failed is not None:
            self._set_refusal(self._on_failed(batch, error))
        if queue.empty:
            self._active.pop(queue, None)
        self._used -= batch.size
        batch.settle(base_offset, append_time, error)
        if batch.callbacks or batch.watchers:
            self._on_settled(batch)
        self.changed.notify_all()

    def _wake_sender(self, at: float) -> None:
        """Wake the sender if it sleeps beyond ``at``. Caller holds the lock."""
        if at < self._sender_wakes_at:
            self._sender_wakes_at = at
            self._wake()
