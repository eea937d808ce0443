"""The long round: a hundred loads of a topic that grows meanwhile, with every kind of fault.

``KAFKALOG_SOAK_SEEDS=7,8 make soak`` runs other ones.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from broker.embedded import start_broker
from tests.support.growing_topic import growing
from tests.support.load_rounds import LoadRound
from tests.support.spark_drivers import LOCAL, LOCAL_CLUSTER, Drivers

LOADS = 100
SEEDS = os.environ.get("KAFKALOG_SOAK_SEEDS", "100").split(",")
WEIGHTS = {
    "plain": 8,
    "worker killed": 12,
    "worker killed at its receipt": 10,
    "task fails for good": 8,
    "executor killed": 12,
    "broker killed": 12,
    "broker away": 6,
    "driver killed": 8,
    "driver killed in its tasks": 3,
    "raised": 4,
    "discarded": 2,
    "rewound": 2,
    "second attempt": 8,
    "rival": 3,
    "partition added": 2,
}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_offset_is_loaded_once_in_a_hundred_loads(seed: str, tmp_path: Path) -> None:
    rng, steps = random.Random(f"soak {seed}"), Counter[str]()
    drivers = Drivers(tmp_path / "drivers", [LOCAL, LOCAL_CLUSTER], replace_at_once=True)
    try:
        drivers.all()
        with start_broker() as broker, growing(broker.bootstrap_servers, f"soak-{seed}", 3, rng) as topic:
            soak = LoadRound(seed, drivers, broker, topic, tmp_path / "round")
            soak.plain()
            while soak.load_count < LOADS:
                (step,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
                soak.run([step])
                steps[step] += 1
                if rng.random() < 0.1:
                    soak.look()
            soak.finish()
            soak.note(f"{soak.load_count} loads, {len(soak.ledger.history())} commits; {dict(steps)}")
            soak.note(f"{sum(topic.acknowledged)} records in {len(topic.sent)} partitions")
            soak.note(f"struck: {dict(soak.struck)}")
    finally:
        drivers.stop()
