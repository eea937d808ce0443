"""Threads that take turns as a test says, so that a race is the same each time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

Gate = Callable[[], None]
"""Called by a job where another may go first."""


def take_turns(jobs: Sequence[Callable[[Gate], None]], schedule: Sequence[int]) -> None:
    """Run jobs, one at a time from one call of its gate to the next.

    Each number of ``schedule`` says which of those still running goes on; after the last one, the first does.
    A job handles its own exceptions.
    """
    arrived: queue.Queue[tuple[int, bool]] = queue.Queue()
    may_go = [threading.Semaphore(0) for _ in jobs]

    def run(index: int) -> None:
        def gate() -> None:
            arrived.put((index, True))
            may_go[index].acquire()

        try:
            gate()
            jobs[index](gate)
        finally:
            arrived.put((index, False))

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    running = sorted(arrived.get(timeout=60)[0] for _ in jobs)
    turns = iter(schedule)
    while running:
        index = running[next(turns, 0) % len(running)]
        may_go[index].release()
        _, goes_on = arrived.get(timeout=60)
        if not goes_on:
            running.remove(index)
    for thread in threads:
        thread.join()
