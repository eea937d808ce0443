"""Stop a process as a stalled machine would, from a moment on that the test knows; wait for others to end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.until import until


def stop_process(pid: int) -> None:
    """SIGSTOP, and wait: until the last of its threads has stopped, it may still answer."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: {_state(task) for task in Path(f"/proc/{pid}/task").iterdir()} == {"T"})


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does not run within the block."""
    stop_process(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def still_there(processes: Iterable[psutil.Process], *, seconds: float = 60) -> list[psutil.Process]:
    """Which of them have not ended after so long; their parent need not have asked for their exit codes.

    psutil waits for processes too, but raises FileNotFoundError where one ends as it begins to.
    """
    deadline = time.monotonic() + seconds
    while (left := [each for each in processes if _runs(each)]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _state(task: Path) -> str:
    # Behind the name in brackets, which may hold anything: proc(5).
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
