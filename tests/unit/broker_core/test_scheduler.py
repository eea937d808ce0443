from __future__ import annotations

import threading

import pytest

from kafkalog_broker.scheduler import Scheduler, Sweep
from pyspark_kafkalog.errors import StorageError
from tests.support.manual_clock import ManualClock
from tests.support.until import until


def test_tasks_run_at_their_time_and_in_order() -> None:
    clock, ran = ManualClock(), []
    scheduler = Scheduler(clock)
    scheduler.after(2, lambda: ran.append("second"))
    scheduler.after(1, lambda: ran.append("first"))
    scheduler.after(2, lambda: ran.append("third"))
    assert scheduler.run_due() == 1.0
    clock.advance(1)
    assert scheduler.run_due() == 1.0
    assert ran == ["first"]
    clock.advance(1)
    assert scheduler.run_due() is None
    assert ran == ["first", "second", "third"]


def test_a_periodic_task_comes_again_a_period_after_it_ended() -> None:
    clock, ran = ManualClock(), []
    scheduler = Scheduler(clock)

    def slow() -> None:
        ran.append(clock.monotonic())
        clock.advance(5)

    scheduler.every("slow", 10, slow)
    clock.advance(10)
    assert scheduler.run_due() == 10.0
    clock.advance(10)
    scheduler.run_due()
    assert ran == [1010.0, 1025.0]


def test_a_cancelled_task_does_not_run() -> None:
    clock, ran = ManualClock(), []
    scheduler = Scheduler(clock)
    once = scheduler.after(1, lambda: ran.append("once"))
    again = scheduler.every("again", 1, lambda: ran.append("again"))
    once.cancel()
    clock.advance(1)
    scheduler.run_due()
    again.cancel()
    again.cancel()
    clock.advance(10)
    assert scheduler.run_due() is None
    assert ran == ["again"]


def test_a_periodic_task_may_cancel_itself() -> None:
    clock, ran = ManualClock(), []
    scheduler = Scheduler(clock)

    def last() -> None:
        ran.append(1)
        handle.cancel()

    handle = scheduler.every("last", 1, last)
    clock.advance(1)
    assert scheduler.run_due() is None
    assert ran == [1]


def test_a_failing_task_is_logged_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    clock, ran = ManualClock(), []
    scheduler = Scheduler(clock)

    def failing() -> None:
        ran.append(1)
        raise ValueError("no such thing")

    scheduler.every("retention", 1, failing)
    for _ in range(2):
        clock.advance(1)
        scheduler.run_due()
    assert ran == [1, 1]
    assert caplog.messages == ["scheduled task retention failed"] * 2
    assert "no such thing" in caplog.text


def test_the_thread_runs_what_is_scheduled_before_and_after_its_start() -> None:
    scheduler = Scheduler()
    before, after, sooner = threading.Event(), threading.Event(), threading.Event()
    scheduler.after(0, before.set)
    scheduler.start()
    try:
        assert before.wait(60)
        # The thread now waits for the task in an hour; one that is due earlier must wake it.
        scheduler.after(3600, after.set)
        scheduler.after(0.01, sooner.set)
        assert sooner.wait(60)
        assert not after.is_set()
    finally:
        scheduler.stop()


def test_a_period_longer_than_a_condition_can_wait_does_no_harm() -> None:
    scheduler, ran = Scheduler(), threading.Event()
    scheduler.every("never", float(2**63), ran.set)
    scheduler.start()
    scheduler.after(0, ran.set)
    assert ran.wait(60)
    scheduler.stop()


def test_stop_waits_for_the_task_that_runs_and_drops_the_rest() -> None:
    scheduler = Scheduler()
    running, ran = threading.Event(), []

    def task() -> None:
        running.set()
        until(lambda: scheduler._stopped)
        ran.append("running")

    scheduler.start()
    scheduler.after(0, task)
    assert running.wait(60)
    scheduler.after(0, lambda: ran.append("waiting"))
    scheduler.stop()
    assert ran == ["running"]
    scheduler.after(0, lambda: ran.append("late"))
    scheduler.stop()
    assert ran == ["running"]


def test_stop_from_a_task_does_not_wait_for_itself() -> None:
    scheduler, stopped = Scheduler(), threading.Event()

    def stop() -> None:
        scheduler.stop()
        stopped.set()

    scheduler.start()
    scheduler.after(0, stop)
    assert stopped.wait(60)


def test_a_scheduler_starts_once() -> None:
    scheduler = Scheduler()
    scheduler.start()
    with pytest.raises(RuntimeError, match="starts once"):
        scheduler.start()
    scheduler.stop()
    with pytest.raises(RuntimeError, match="starts once"):
        scheduler.start()


def test_a_sweep_passes_over_what_fails_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    sweep, done = Sweep("counting"), list[int]()
    failures = {2: ValueError("odd"), 3: StorageError("full")}

    def count(number: int) -> None:
        if number in failures:
            raise failures[number]
        done.append(number)

    for _ in range(3):
        sweep.run(((f"n{number}", number) for number in range(5)), count)
    assert done == [0, 1, 4] * 3
    assert [(r.getMessage(), r.exc_info is not None) for r in caplog.records] == [
        ("counting of n2 failed, trying again: odd", True),
        ("counting of n3 failed, trying again: full", False),
    ]
    failures[3] = StorageError("gone")
    sweep.run([("n3", 3)], count)
    assert caplog.records[-1].getMessage() == "counting of n3 failed, trying again: gone"
    sweep.run([("n2", 0)], count)
    sweep.run([("n2", 2)], count)
    assert caplog.records[-1].getMessage() == "counting of n2 failed, trying again: odd", "it began anew"
