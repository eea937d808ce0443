"""When the interpreter of a broker looks for garbage: not among what stays, or clients wait for it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock

_ALL_THROUGH_SECONDS = 3600.0
_OLDEST = 2
"""The generation of objects with which the interpreter looks all of them through."""


@contextmanager
def starting(clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Held while a broker is made and started: what that makes stays. With 10,000 partitions looking it
    through costs a sixth of the start, and later pauses of 0.1 s for all clients. What comes after it is
    looked through once (`look_through_once`).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        look_through_once(clock)
        gc.enable()


def look_through_once(clock: Clock) -> Callable[[str, dict[str, int]], None]:
    """Have the interpreter look for garbage among what has stayed once, and again an hour later.

    With 10,000 partitions, or as many offsets of groups, to look everything through takes 0.1 to 0.4 s, in
    which no client is served, and as often as clients' requests fill the memory. What is found to stay is
    left out of the next times: garbage in cycles that has been longer in use waits for its hour.
    Returns what was added to ``gc.callbacks``.
    """
    due = clock.monotonic() + _ALL_THROUGH_SECONDS

    def looks(phase: str, info: dict[str, int]) -> None:
        nonlocal due
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif clock.monotonic() >= due:
            gc.unfreeze()
            due = clock.monotonic() + _ALL_THROUGH_SECONDS

    gc.callbacks.append(looks)
    return looks
