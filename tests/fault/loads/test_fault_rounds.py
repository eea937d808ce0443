"""The loads' fault driver: whatever is killed, what is read through the commits is there once, and whole.

A round is made from its seed; it prints what it does, so that one that fails can be run again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_rounds import BY_HOUR, ORC_FILES, LoadRound
from tests.support.loads.spark_drivers import LOCAL_CLUSTER, Drivers

pytestmark = pytest.mark.long("Spark drivers that are killed")

ROUNDS = {
    1: [
        *("worker killed at its receipt", "task fails for good", "broker away", "rival", "discarded"),
        "driver killed in its tasks",
    ],
    2: [
        *("worker killed", "second attempt", "broker killed", "rewound", "partition added", "driver killed"),
        *("compacted", "compacted"),
    ],
}
"""Each kind of fault once; `test_soak` repeats and mixes them."""

HOW = {2: ORC_FILES | BY_HOUR}
"""What is written where it is not plain Parquet."""


def run_round(seed: int, steps: list[str], drivers: Drivers, directory: Path) -> LoadRound:
    rng = random.Random(f"round {seed}")
    with (
        start_broker() as broker,
        growing(broker.bootstrap_servers, f"growing-{seed}", rng.randint(2, 4), rng) as topic,
    ):
        done = LoadRound(seed, drivers, broker, topic, directory, how=HOW.get(seed, {}))
        done.run(["plain", *rng.sample(steps, len(steps))])
        done.finish()
        return done


@pytest.mark.parametrize("seed", ROUNDS)
def test_every_offset_is_loaded_once_whatever_is_killed(seed: int, local: Drivers, tmp_path: Path) -> None:
    run_round(seed, ROUNDS[seed], local, tmp_path / "round")


def test_every_offset_is_loaded_once_when_executors_are_killed(tmp_path: Path) -> None:
    drivers = Drivers(tmp_path / "cluster", [LOCAL_CLUSTER])
    try:
        done = run_round(5, ["executor killed", "worker killed"], drivers, tmp_path / "round")
    finally:
        drivers.stop()
    assert done.struck["kill executor"] == 1
