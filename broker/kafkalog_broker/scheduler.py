"""One thread for timed tasks: flush, retention, expiry, the end of a delayed fetch."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import KafkaError

logger = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 3600.0
"""Condition waits fail above some 290 years; waking once an hour costs nothing."""
_STOP_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class Handle:
    """*Thread-safe: ``task`` is assigned at once.* It is None when cancelled, or started if it runs once."""

    name: str
    task: Callable[[], object] | None
    period: float | None

    def cancel(self) -> None:
        """Do not run it again; a running task finishes. May be repeated."""
        self.task = None


class Scheduler:
    """*Thread-safe: ``_changed`` guards the queue.* Runs tasks on its own thread, one at a time, so a slow
    one delays the rest. Failed tasks are logged, and repeated if periodic. Tasks wait for `start`; after
    `stop` none run.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._changed:
            if self._thread is not None or self._stopped:
                raise RuntimeError("a scheduler starts once")
            self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
            self._thread.start()

    def after(self, seconds: float, task: Callable[[], object]) -> Handle:
        """Run ``task`` once, no earlier than ``seconds`` from now."""
        return self._add(seconds, Handle(getattr(task, "__qualname__", "task"), task, None))

    def every(self, name: str, seconds: float, task: Callable[[], object]) -> Handle:
        """Run ``task`` periodically, ``seconds`` after its last run ended; first in ``seconds``."""
        return self._add(seconds, Handle(name, task, seconds))

    def stop(self) -> None:
        """Drop waiting tasks and wait for the running one. May be repeated."""
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)
            if thread.is_alive():
                logger.warning("a scheduled task still runs %d s after the stop", _STOP_SECONDS)

    def run_due(self) -> float | None:
        """Run what is due; returns seconds until the next task, or None. Also called by tests."""
        while True:
            with self._changed:
                if not self._queue:
                    return None
                due, _, handle = self._queue[0]
                wait = due - self._clock.monotonic()
                if wait > 0:
                    return wait
                heapq.heappop(self._queue)
            self._run_task(handle)

    def _add(self, seconds: float, handle: Handle) -> Handle:
        entry = (self._clock.monotonic() + max(0.0, seconds), next(self._order), handle)
        with self._changed:
            if not self._stopped:
                heapq.heappush(self._queue, entry)
                if self._queue[0] is entry:
                    self._changed.notify()
        return handle

    def _run_task(self, handle: Handle) -> None:
        task, period = handle.task, handle.period
        if task is None:
            return
        if period is None:
            handle.cancel()
        try:
            task()
        except Exception:
            logger.exception("scheduled task %s failed", handle.name)
        if period is not None and handle.task is not None:
            self._add(period, handle)

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._stopped:
                    return
                # Checked again under the lock: a task may have been added since.
                wait = self._queue[0][0] - self._clock.monotonic() if self._queue else _LONGEST_WAIT_SECONDS
                if wait > 0:
                    self._changed.wait(min(wait, _LONGEST_WAIT_SECONDS))


T = TypeVar("T")


class Sweep:
    """*Not thread-safe: for one scheduler's thread.* A periodic task over many entries. One that fails does
    not stop the others; its failure is logged when it begins and when it changes.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failing: dict[object, str] = {}

    def run(self, entries: Iterable[tuple[object, T]], task: Callable[[T], object]) -> None:
        """Call ``task`` with each entry; the first of each pair is its name in the log."""
        failing: dict[object, str] = {}
        for name, entry in entries:
            try:
                task(entry)
            except Exception as e:
                failing[name] = f"{type(e).__name__}: {e}"
                if self._failing.get(name) != failing[name]:
                    trace = None if isinstance(e, KafkaError) else e
                    logger.warning("%s of %s failed, trying again: %s", self._what, name, e, exc_info=trace)
        self._failing = failing


_LOOK_SECONDS = 0.2


def next_of(reasons: queue.SimpleQueue[T]) -> T:
    """The next item of ``reasons``, even if put by a signal handler of this thread. A signal just before
    ``get`` blocks does not interrupt it, so wait in short steps. Only a ``SimpleQueue`` allows ``put`` to
    interrupt its own ``get``.
    """
    while True:
        try:
            return reasons.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
