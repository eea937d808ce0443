"""The queue between those who send and the thread that sends on: bounded, and emptied in time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION


class QueueFull(KafkaError):
    """The queue had no room in time; the event was not taken."""


class QueueClosed(KafkaError):
    """The producer is closed; the event was not taken."""


@dataclass(frozen=True, slots=True)
class QueueItem:
    """An event on its way. ``key`` is the one that chose the partition; today's wire carries it."""

    data: Any
    topic: str
    partition: int = ANY_PARTITION
    key: Any = None


class EventQueue:
    """*Thread-safe.* Its condition guards all of it; many put, one thread takes."""

    def __init__(self, limit: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._limit, self._clock = limit, clock
        self._changed = threading.Condition()
        self._items: deque[QueueItem] = deque()
        self._put = self._taken = self._settled = 0
        self._wanted = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: QueueItem, timeout_ms: int) -> bool:
        """Add ``item``; False where there is no room in time: 0 is at once, below 0 waits for ever.

        Raises:
            QueueClosed: the queue is closed, perhaps while this waited.
        """
        deadline = Deadline.after(timeout_ms / 1000, self._clock)
        with self._changed:
            while len(self._items) >= self._limit and not self._closed:
                if timeout_ms >= 0 and deadline.passed:
                    return False
                self._changed.wait(deadline.left if timeout_ms >= 0 else None)
            if self._closed:
                raise QueueClosed(f"{item.topic}: the producer is closed; the event was not taken")
            self._items.append(item)
            self._put += 1
            self._changed.notify_all()
            return True

    def take(self, due: Deadline) -> QueueItem | None:
        """The next event; None at ``due``, and earlier when somebody waits in `flush` and none is left.

        Raises:
            QueueClosed: it is closed, and every event was taken.
        """
        with self._changed:
            while not self._items:
                if self._closed:
                    raise QueueClosed("the queue is closed")
                if due.passed or self._wanted > self._settled:
                    return None
                self._changed.wait(due.left)
            self._taken += 1
            self._changed.notify_all()
            return self._items.popleft()

    def batches(
        self, seconds: float, add: Callable[[list[QueueItem], QueueItem], bool]
    ) -> Iterator[tuple[list[QueueItem], bool]]:
        """Every event, in batches, until the queue is closed and empty; and whether it is the last batch.

        ``add`` puts an event into a batch and says whether that is full. A batch also ends ``seconds`` after
        the one before and when somebody waits in `flush`; it may then be empty, and so may the last.
        """
        batch: list[QueueItem] = []
        due = Deadline.after(seconds, self._clock)
        while True:
            try:
                item = self.take(due)
            except QueueClosed:
                break
            if item is None or add(batch, item):
                yield batch, False
                batch, due = [], Deadline.after(seconds, self._clock)
        yield batch, True

    def settle(self) -> None:
        """What has become of every event taken so far is known: sent, handed on or lost."""
        with self._changed:
            self._settled = self._taken
            self._changed.notify_all()

    def flush(self, deadline: Deadline | None) -> bool:
        """Wait until every event put so far is settled, full batch or not; False at ``deadline``."""
        with self._changed:
            target = self._put
            self._wanted = max(self._wanted, target)
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: self._settled >= target, deadline.left if deadline is not None else None
            )

    def close(self) -> None:
        """Take no more; what is here can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def withdraw(self) -> list[QueueItem]:
        """Close it and give back what was not taken."""
        with self._changed:
            self._closed = True
            items = list(self._items)
            self._items.clear()
            self._taken += len(items)
            self._changed.notify_all()
            return items
