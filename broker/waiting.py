"""The main thread's wait for the end: told by a signal handler or by another thread."""

from __future__ import annotations

import queue
from typing import TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.2


def next_of(reasons: queue.SimpleQueue[T]) -> T:
    """The next thing put into ``reasons``, also by a signal handler of this thread.

    A signal that arrives in the last moment before ``get`` blocks does not interrupt it, and its handler
    then runs only when ``get`` is over: so each wait is a short one. The queue must be a ``SimpleQueue``,
    whose ``put`` may interrupt its own ``get``.
    """
    while True:
        try:
            return reasons.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
