"""Stop a process as a stalled machine would, from a moment on that the test knows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _state(task: Path) -> str:
    # Behind the name in brackets, which may hold anything: proc(5).
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
