"""Time as a parameter, so that tests of waiting and expiry need not wait."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import Protocol


class Clock(Protocol):
    def time_ms(self) -> int:
        """Milliseconds since the epoch: for timestamps that leave the process."""
        ...

    def time_ns(self) -> int:
        """Nanoseconds since the epoch: saves a call where each record needs the time."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards: for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """*Thread-safe.* The machine's own clocks."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    time_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


SYSTEM_CLOCK: Clock = SystemClock()

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def utc_text(time_ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC: ``2026-11-21T18:00:00.123Z``."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def parse_iso_time(text: str) -> datetime:
    """Parse an ISO 8601 time, UTC unless it has a zone. Raises `ValueError`."""
    # Python 3.10 accepts neither Z nor fractions other than three or six digits.
    spelled = re.sub("[zZ]$", "+00:00", text)
    spelled = re.sub(r"[.,]([0-9]{1,6})[0-9]*", lambda found: f".{found[1]:0<6}", spelled)
    moment = datetime.fromisoformat(spelled)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
