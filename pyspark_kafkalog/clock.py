"""Time as a parameter, so that code which waits or expires can be tested without waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clocks that the rest of the code uses."""

    def time_ms(self) -> int:
        """Milliseconds since the epoch: for timestamps that leave the process."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards: for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        ...


class SystemClock:
    """*Thread-safe.* The machine's own clocks."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


SYSTEM_CLOCK: Clock = SystemClock()
