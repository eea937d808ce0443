"""How much of what is there a batch of a stream takes: the arithmetic of Spark's Kafka connector. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.types import TopicPartition


def share_limit(
    limit: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where a batch of about ``limit`` offsets ends, each partition having its share by what waits in it.

    Shares are rounded down, but never to nothing: a small partition is not starved, and so a batch may
    have a few offsets more. A partition that ends before it starts keeps its end: that is told elsewhere.
    ``starts`` has every partition of ``ends``.
    """
    sizes = {p: end - starts[p] for p, end in ends.items() if end > starts[p]}
    total = float(sum(sizes.values()))
    found = dict(ends)
    for partition, size in sizes.items():
        # In floating point, as there, so that both connectors cut at the same offsets.
        share = limit * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        found[partition] = min(ends[partition], starts[partition] + min(whole, LONG_MAX))
    return found


def waiting_count(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Offsets that are there and not read. ``starts`` has every partition of ``ends``."""
    return sum(max(0, end - starts[p]) for p, end in ends.items())


@dataclass(frozen=True, slots=True)
class Limits:
    """How many offsets a batch should have; None: no matter."""

    least: int | None
    most: int | None


NO_LIMITS = Limits(None, None)


class Trigger:
    """*Not thread-safe.* Whether a batch begins now or waits until there is enough to read.

    The first one begins in any case, and one is never put off for longer than ``max_delay_ms``.
    """

    def __init__(self, max_delay_ms: int, clock: Clock) -> None:
        self._max_delay_seconds = max_delay_ms / 1000
        self._clock = clock
        self._fired: float | None = None

    def fires(
        self, least: int | None, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether there are ``least`` offsets to read, or the delay is over; as `waiting_count`."""
        if least is None:
            return True
        now = self._clock.monotonic()
        waited = self._fired is None or now - self._fired >= self._max_delay_seconds
        if waited or waiting_count(starts, ends) >= least:
            self._fired = now
            return True
        return False
