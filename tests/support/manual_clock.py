"""A clock that moves only when a test says so."""

from __future__ import annotations

import threading


class ManualClock:
    """*Thread-safe.* Both clocks of `pyspark_kafkalog.clock.Clock`, advanced by hand and by `sleep`."""

    def __init__(self, time_ms: int = 1_700_000_000_000, monotonic: float = 1_000.0) -> None:
        self._lock = threading.Lock()
        self._time_ms = time_ms
        self._started = monotonic
        self._passed_ms = 0.0

    def time_ms(self) -> int:
        with self._lock:
            return self._time_ms + int(self._passed_ms)

    def time_ns(self) -> int:
        return self.time_ms() * 1_000_000

    def monotonic(self) -> float:
        with self._lock:
            return self._started + self._passed_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass on both clocks."""
        with self._lock:
            self._passed_ms += seconds * 1000

    def set_time_ms(self, time_ms: int) -> None:
        """Step the wall clock, as an administrator would; the monotonic clock goes on as before."""
        with self._lock:
            self._time_ms = time_ms - int(self._passed_ms)
