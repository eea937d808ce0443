"""Decides, for all clients, whether a failed request is retried and how long to wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import msgspec

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import BrokersUnreachable, ErrorCode, KafkaError, error_for

T = TypeVar("T")

_SETTLES_SOON = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.CORRUPT_MESSAGE}
)
_SOON_RETRIES = 5  # by then all brokers know a created topic, and bytes damaged in transit have arrived whole
_PASSES_AT_ONCE = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
_AT_ONCE_MS = 20  # as Kafka's producer: markers of the last transaction are written within milliseconds
_JITTER = 0.2


class Deadline:
    """*Thread-safe: immutable.* A point in time by which something must be done."""

    __slots__ = ("_at", "_clock")

    def __init__(self, at: float, clock: Clock) -> None:
        self._at, self._clock = at, clock

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        return cls(clock.monotonic() + seconds, clock)

    @property
    def left(self) -> float:
        return max(0.0, self._at - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        return self._clock.monotonic() >= self._at

    @classmethod
    def limited(cls, deadline: Deadline | None, seconds: float, clock: Clock) -> Deadline:
        return deadline.within(seconds) if deadline else cls.after(seconds, clock)

    def within(self, seconds: float) -> Deadline:
        """This deadline, or ``seconds`` from now if that is sooner."""
        return Deadline(min(self._at, self._clock.monotonic() + seconds), self._clock)


class RetryPolicy(msgspec.Struct, frozen=True):
    """Waits double and vary by a fifth, so that clients do not return to a restarted broker all at once."""

    backoff_ms: int = 100
    backoff_max_ms: int = 1000
    max_retries: int = 2**31 - 1
    patient: bool = False  # keep retrying errors that usually pass, such as an unknown topic that has existed

    @classmethod
    def of(cls, config: ClientConfig, *, patient: bool = False) -> RetryPolicy:
        return cls(config.retry_backoff_ms, config.retry_backoff_max_ms, config.retries, patient)

    def backoff(self, failures: int, first_ms: int | None = None) -> float:
        """Seconds to wait after the ``failures``-th failure in a row, counted from 1."""
        doubled = (self.backoff_ms if first_ms is None else first_ms) * 2 ** min(failures - 1, 20)
        wait: float = min(max(self.backoff_max_ms, self.backoff_ms), doubled) / 1000
        return wait * random.uniform(1 - _JITTER, 1 + _JITTER)

    def again(self, error: KafkaError, failures: int) -> float | None:
        """Seconds until the next attempt, or None if there must be none."""
        allowed = self.max_retries
        if error.code in _SETTLES_SOON and not self.patient:
            allowed = min(allowed, _SOON_RETRIES)
        if not error.retriable or failures > allowed:
            return None
        if error.code in _PASSES_AT_ONCE:
            return self.backoff(failures, min(self.backoff_ms, _AT_ONCE_MS))
        return self.backoff(failures)


class Attempts:
    """*Not thread-safe: one per operation.* Waits between the attempts of an operation, or ends it."""

    def __init__(
        self, policy: RetryPolicy, deadline: Deadline, *, doing: str, clock: Clock = SYSTEM_CLOCK,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """``wanted``: return False to make the next failure final."""
        self._policy, self._clock, self._doing, self._wanted = policy, clock, doing, wanted
        self.deadline = deadline
        self.failures = 0
        self._last: KafkaError | None = None
        self._before: KafkaError | None = None

    def run(self, ask: Callable[[Deadline], T]) -> T:
        while True:
            try:
                return ask(self.deadline)
            except KafkaError as e:
                self.failed(e)

    def failed(self, error: KafkaError) -> None:
        self.failures += 1
        if self._last is not None and self._last.code != error.code:
            self._before = self._last
        self._last = error
        wait = self._policy.again(error, self.failures)
        if wait is None or not self._wanted():
            raise error
        if wait >= self.deadline.left:
            if isinstance(error, BrokersUnreachable) and self._before is None:
                raise error  # its message has the time already
            before = "" if self._before is None else f"; before that: {self._before}"
            raise error_for(
                error.code,
                f"{self._doing}: timed out after {self.failures} attempt(s); last error: {error}{before}",
            ) from error
        self._clock.sleep(wait)

    def succeeded(self) -> None:
        """The operation made progress: the next failure counts as the first."""
        self.failures = 0
        self._last = self._before = None
