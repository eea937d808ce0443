"""The batches of one partition in their order: growing, waiting, in flight, to be repeated."""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from pyspark_kafkalog.producer.batch import ProducerBatch
from pyspark_kafkalog.types import TopicPartition

SEQUENCE_MASK = 0x7FFFFFFF
"""Sequence numbers go from 0 to 2^31-1 and begin again at 0."""

_MAX_EPOCH = 2**15 - 1

_order = attrgetter("order")


class ProducerIdentity(NamedTuple):
    """What a broker knows an idempotent producer by."""

    producer_id: int
    epoch: int

    def next_epoch(self) -> ProducerIdentity | None:
        """The same producer, begun anew; None after the last epoch. Only its owner may go on by itself."""
        return ProducerIdentity(self.producer_id, self.epoch + 1) if self.epoch < _MAX_EPOCH else None


class PartitionQueue:
    """*Guarded by its accumulator's lock.* Keeps the order of a partition's records, whatever fails.

    A batch that failed is repeated before any later one is sent, and alone: while something is to be repeated
    nothing else of the partition is in flight. Sequence numbers are given when a batch is first taken
    and stay with it; only `restart` gives new ones.

    Until the broker has taken a batch of an identity, one batch is in flight at a time: from a producer that
    it does not know a broker takes any number for the first, and a later batch would pass one that failed.
    """

    __slots__ = (
        "identity",
        "in_flight",
        "known",
        "next_sequence",
        "not_before",
        "open",
        "restarting",
        "retrying",
        "tp",
        "waiting",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.retrying: list[ProducerBatch] = []
        self.in_flight: list[ProducerBatch] = []
        self.not_before = 0.0
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0
        self.known = False
        """Whether the broker has taken a batch of ``identity``."""
        self.restarting = False

    @property
    def empty(self) -> bool:
        """Whether nothing is left to be sent or answered."""
        return not (self.open or self.waiting or self.retrying or self.in_flight)

    def ready_at(self, now: float, max_in_flight: int, hurry: bool) -> float | None:
        """When a batch can be taken, ``now`` or later; None if only an answer can change anything."""
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

    def take(self, identity: ProducerIdentity | None) -> ProducerBatch | None:
        """The next batch to be sent, from now on in flight; with sequence numbers if there is an identity."""
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
        """What the next batch takes at most, in bytes; 0 if there is none."""
        batch = self._next()
        return batch.size if batch is not None else 0

    def landed(self, batch: ProducerBatch) -> None:
        """``batch`` is not in flight any more; nothing happens if it was not."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def repeat(self, batch: ProducerBatch, not_before: float) -> None:
        """``batch`` failed and is to be sent again, in its place, from ``not_before`` on."""
        self.landed(batch)
        insort(self.retrying, batch, key=_order)
        self.not_before = not_before

    def remove(self, batch: ProducerBatch) -> None:
        """``batch`` is settled, wherever it stands. Its sequence numbers, if it had any, stay used."""
        self.landed(batch)
        if batch in self.retrying:
            self.retrying.remove(batch)
        elif batch in self.waiting:
            self.waiting.remove(batch)
        elif batch is self.open:
            self.open = None

    def taken(self, batch: ProducerBatch) -> None:
        """The broker has stored ``batch``."""
        if self.identity == (batch.producer_id, batch.epoch):
            self.known = True

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether every earlier batch that was sent is settled."""
        return not any(other.order < batch.order for other in (*self.in_flight, *self.retrying))

    def oldest(self) -> list[ProducerBatch]:
        """The first batch of each state: if none of them is too old, no batch is."""
        heads = [group[0] for group in (self.in_flight, self.retrying, self.waiting) if group]
        return heads + ([self.open] if self.open is not None else [])

    def every(self) -> list[ProducerBatch]:
        """All batches that are not settled, in their order."""
        growing = [self.open] if self.open is not None else []
        return sorted((*self.in_flight, *self.retrying, *self.waiting, *growing), key=_order)

    def _next(self) -> ProducerBatch | None:
        if self.retrying:
            return self.retrying[0]
        return self.waiting[0] if self.waiting else self.open

    def _number(self, batch: ProducerBatch, identity: ProducerIdentity) -> None:
        if self.identity is None or (self.identity != identity and not self.in_flight and not self.retrying):
            self.identity, self.next_sequence, self.known = identity, 0, False
        batch.number(*self.identity, self.next_sequence)
        self.next_sequence = self.next_sequence + batch.count & SEQUENCE_MASK

    def _restart(self, identity: ProducerIdentity) -> None:
        """Begin at sequence 0 under a new identity; the broker no longer goes on from the old one."""
        self.restarting = False
        self.identity, self.next_sequence, self.known = identity, 0, False
        for batch in self.retrying:
            self._number(batch, identity)
