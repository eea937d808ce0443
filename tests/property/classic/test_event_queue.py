"""The queue against a list, one thread: what is put comes out once, in order, or is given back."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyspark_kafkalog.classic.producer.async_producer import EventQueue, QueueClosed, QueueItem
from pyspark_kafkalog.client.retry import Deadline
from tests.support.manual_clock import ManualClock

LIMIT = 3


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.queue = EventQueue(LIMIT, clock=self.clock)
        self.expected: list[int] = []
        self.put_count = self.unsettled = 0
        self.closed = False

    @precondition(lambda self: not self.closed)
    @rule()
    def put(self) -> None:
        added = self.queue.put(QueueItem(self.put_count, "t"), 0)
        assert added == (len(self.expected) < LIMIT)
        if added:
            self.expected.append(self.put_count)
            self.put_count += 1

    @precondition(lambda self: self.closed)
    @rule(timeout_ms=st.sampled_from([0, 5, -1]))
    def put_when_closed(self, timeout_ms: int) -> None:
        try:
            self.queue.put(QueueItem(-1, "t"), timeout_ms)
        except QueueClosed:
            return
        raise AssertionError("taken after it was closed")

    @rule()
    def take(self) -> None:
        try:
            item = self.queue.take(Deadline.after(0, self.clock))
        except QueueClosed:
            assert self.closed
            assert self.expected == []
            return
        if item is None:
            assert self.expected == []
            assert not self.closed
        else:
            assert item.data == self.expected.pop(0)
            self.unsettled += 1

    @rule()
    def settle(self) -> None:
        self.queue.settle()
        self.unsettled = 0

    @rule()
    def flush_at_once(self) -> None:
        done = self.queue.flush(Deadline.after(0, self.clock))
        assert done == (not self.expected and not self.unsettled)

    @rule()
    def close(self) -> None:
        self.queue.close()
        self.closed = True

    @rule()
    def withdraw(self) -> None:
        assert [item.data for item in self.queue.withdraw()] == self.expected
        self.queue.settle()
        self.expected, self.closed, self.unsettled = [], True, 0

    @invariant()
    def its_length_is_what_is_left(self) -> None:
        assert len(self.queue) == len(self.expected)


TestQueue = Queue.TestCase
