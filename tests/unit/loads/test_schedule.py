"""When a repeated load runs, what it survives, and how a signal ends it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pyspark_kafkalog.errors import DamagedRecord, InvalidConfig, LoadBusy, LoadError, RequestTimedOut
from pyspark_kafkalog.loads.schedule import ended_by_signal, repeat


class Machine:
    """A clock and an event in one: waiting moves the time; the end is set after so many waits."""

    def __init__(self, waits: int) -> None:
        self.now = 100.0
        self.waited: list[float] = []
        self._left = waits

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self._left == 0

    def wait(self, seconds: float) -> None:
        self._left -= 1
        self.waited.append(seconds)
        self.now += seconds


def test_loads_begin_at_equal_distances_or_at_once_after_a_long_one() -> None:
    machine, began = Machine(4), []

    def run() -> None:
        began.append(machine.now)
        machine.now += {1: 10, 2: 130}.get(len(began), 0)

    repeat(run, 60, machine, print, machine)  # type: ignore[arg-type]
    assert began == [100, 160, 290, 350]
    assert machine.waited == [50, 0, 60, 60]


@pytest.mark.parametrize("error", [LoadBusy("held"), RequestTimedOut("late"), LoadError("503")])
def test_what_may_pass_is_told_and_tried_again(error: Exception) -> None:
    machine, told = Machine(2), list[str]()

    def run() -> None:
        if not machine.waited:
            raise error

    repeat(run, 60, machine, told.append, machine)  # type: ignore[arg-type]
    assert told == [f"{type(error).__name__}: {error}; trying again in 60 s"]
    assert len(machine.waited) == 2


@pytest.mark.parametrize("error", [InvalidConfig("no"), DamagedRecord("torn"), ZeroDivisionError("theirs")])
def test_what_lasts_ends_it(error: Exception) -> None:
    machine = Machine(2)

    def run() -> None:
        raise error

    with pytest.raises(type(error)):
        repeat(run, 60, machine, print, machine)  # type: ignore[arg-type]


def test_a_load_that_ends_in_time_is_the_last_one() -> None:
    runs = []

    def run() -> None:
        runs.append(True)
        os.kill(os.getpid(), signal.SIGTERM)

    with ended_by_signal(600) as ended:
        repeat(run, 0.001, ended, print)
    assert runs == [True]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize(("grace_s", "signals"), [(0, 1), (600, 2)])
def test_a_load_that_does_not_end_is_interrupted(grace_s: float, signals: int) -> None:
    unwound = []

    def run() -> None:
        try:
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()
        finally:
            unwound.append(True)

    with ended_by_signal(grace_s) as ended:
        repeat(run, 0.001, ended, print)
    assert unwound == [True]
    assert ended.is_set()
