"""Long rounds of the loads' fault driver, of whatever output: what is done in each load is drawn at random.

``KAFKALOG_SOAK_SEEDS=7,8 make soak`` runs other ones, ``KAFKALOG_SOAK_LOADS=30`` shorter ones.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.spark_drivers import LOCAL, LOCAL_CLUSTER, Drivers

SEEDS = os.environ.get("KAFKALOG_SOAK_SEEDS", "100").split(",")
LOADS = int(os.environ.get("KAFKALOG_SOAK_LOADS", "100"))
FEWER_LOADS = min(LOADS, 10)
"""Where not the ledger is tried, but one more form of output."""

WEIGHTS = {
    "plain": 8,
    "worker killed": 10,
    "worker killed at its receipt": 16,
    "task fails for good": 8,
    "executor killed": 12,
    "broker killed": 10,
    "broker away": 4,
    "driver killed": 8,
    "driver killed in its tasks": 4,
    "raised": 4,
    "discarded": 4,
    "rewound": 4,
    "second attempt": 8,
    "rival": 2,
    "partition added": 2,
}
KILLS = (
    *("worker killed", "task fails for good", "executor killed", "broker killed", "driver killed"),
    "driver killed in its tasks",
)
"""What a round of few loads must have in any case."""

_LOOKS = 0.1
"""Share of the steps after which the output is looked at."""


@contextmanager
def soaked_drivers(directory: Path, **installation: Any) -> Iterator[Drivers]:
    """A driver of each kind, running; one that dies is replaced at once. More is told to `Drivers`."""
    drivers = Drivers(directory, [LOCAL, LOCAL_CLUSTER], replace_at_once=True, **installation)
    try:
        drivers.all()
        yield drivers
    finally:
        drivers.stop()


def soak(round: LoadRound, rng: random.Random, loads: int = LOADS, first: Sequence[str] = ()) -> None:
    """At least so many loads, the steps in ``first`` before all others; at the end it says what was done."""
    steps, left = Counter[str](), rng.sample(first, len(first))
    round.plain()
    while left or round.load_count < loads:
        step = left.pop() if left else rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        round.run([step])
        steps[step] += 1
        if rng.random() < _LOOKS:
            round.look()
    round.finish()
    round.note(f"{round.load_count} loads, {len(round.ledger.history())} commits; {dict(steps)}")
    round.note(f"{sum(round.topic.acknowledged)} records in {len(round.topic.sent)} partitions")
    round.note(f"struck: {dict(round.struck)}")
