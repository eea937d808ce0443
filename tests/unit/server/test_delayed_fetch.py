from __future__ import annotations

import threading

from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.server.delayed_fetch import DelayedFetches, ParkedFetch
from pyspark_kafkalog.types import TopicPartition
from tests.support.manual_clock import ManualClock

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


class Bench:
    """Delayed fetches with a clock of the test's, and a list of who was completed."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = Scheduler(self.clock)
        self.fetches = DelayedFetches(self.timer)
        self.completed: list[str] = []

    def park(
        self,
        name: str,
        *partitions: TopicPartition,
        missing: int = 1,
        wait: float = 1.0,
        committed: bool = False,
    ) -> ParkedFetch:
        fetch = ParkedFetch(partitions, missing, lambda: self.completed.append(name), committed)
        self.fetches.park(fetch, wait)
        return fetch

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.run_due()


def test_an_append_completes_those_who_wait_for_it_and_nobody_else() -> None:
    bench = Bench()
    bench.park("first", A)
    bench.park("both", A, B)
    bench.park("other", B)
    bench.fetches.appended(A, 10)
    assert sorted(bench.completed) == ["both", "first"]
    assert len(bench.fetches) == 1


def test_a_fetch_waits_until_all_its_bytes_have_come() -> None:
    bench = Bench()
    bench.park("big", A, B, missing=100)
    bench.fetches.appended(A, 60)
    assert bench.completed == []
    bench.fetches.appended(B, 40)
    assert bench.completed == ["big"]


def test_a_timeout_completes_once_and_in_time() -> None:
    bench = Bench()
    late = bench.park("late", A, wait=0.5)
    bench.pass_time(0.499)
    assert bench.completed == []
    bench.pass_time(0.001)
    assert bench.completed == ["late"]
    bench.fetches.appended(A, 10)
    bench.fetches.wake(late)
    bench.pass_time(10)
    assert bench.completed == ["late"]
    assert len(bench.fetches) == 0


def test_a_dropped_fetch_is_never_completed() -> None:
    bench = Bench()
    fetch = bench.park("gone", A)
    bench.fetches.drop(fetch)
    bench.fetches.drop(fetch)
    bench.fetches.appended(A, 10)
    bench.pass_time(10)
    assert bench.completed == []
    assert len(bench.fetches) == 0


def test_a_deleted_topic_completes_those_who_wait_for_it() -> None:
    bench = Bench()
    bench.park("a", A)
    bench.park("both", A, B)
    bench.park("b", B)
    bench.fetches.changed("b")
    assert sorted(bench.completed) == ["b", "both"]


def test_a_failing_completion_is_contained(caplog: object) -> None:
    bench = Bench()

    def fail() -> None:
        raise ValueError("no")

    bench.fetches.park(ParkedFetch([A], 1, fail), 1.0)
    bench.park("next", A)
    bench.fetches.appended(A, 1)
    assert bench.completed == ["next"]


def test_closing_completes_all_and_later_ones_at_once() -> None:
    bench = Bench()
    bench.park("before", A)
    bench.fetches.close()
    bench.park("after", A, wait=100)
    assert bench.completed == ["before", "after"]
    assert len(bench.fetches) == 0


def test_every_fetch_is_completed_exactly_once_by_racing_threads() -> None:
    bench = Bench()
    names = [f"f{i}" for i in range(400)]
    start = threading.Barrier(3)

    def append() -> None:
        start.wait()
        for _ in range(2000):
            bench.fetches.appended(A, 1)

    def park() -> None:
        start.wait()
        for name in names:
            bench.park(name, A)

    threads = [
        threading.Thread(target=append),
        threading.Thread(target=append),
        threading.Thread(target=park),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.fetches.appended(A, 1)
    assert sorted(bench.completed) == sorted(names)


def test_readers_of_committed_data_wait_for_the_end_of_the_transaction() -> None:
    bench = Bench()
    bench.park("committed", A, committed=True)
    bench.park("all", A)
    bench.fetches.appended(A, 10, stable=False)
    assert bench.completed == ["all"]
    bench.park("marker too", A, missing=11)
    bench.fetches.transaction_ended(A, 10)
    assert bench.completed == ["all", "committed"]
    bench.park("plain", A, committed=True)
    bench.fetches.appended(A, 10)
    assert sorted(bench.completed) == ["all", "committed", "marker too", "plain"]
