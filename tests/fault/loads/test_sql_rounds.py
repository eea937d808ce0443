"""Loads into a database: whatever is killed, every offset is in the table once, and whole.

``KAFKALOG_SOAK_SEEDS=7,8 make soak`` runs other long rounds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from broker.embedded import start_broker
from tests.support.growing_topic import growing
from tests.support.postgresql import running_postgresql
from tests.support.spark_drivers import LOCAL, LOCAL_CLUSTER, Drivers
from tests.support.sql_rounds import SqlRound, sqlite_in

ROUNDS = {
    "sqlite 1": ["worker killed at its receipt", "second attempt", "driver killed", "rewound"],
    "postgresql 2": ["worker killed at its receipt", "second attempt"],
}
LOADS = int(os.environ.get("KAFKALOG_SOAK_LOADS", "100"))
SEEDS = os.environ.get("KAFKALOG_SOAK_SEEDS", "100").split(",")
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


@pytest.mark.parametrize("seed", ROUNDS)
def test_every_offset_is_in_the_table_once_whatever_is_killed(
    seed: str, local: Drivers, tmp_path: Path
) -> None:
    if seed.startswith("postgresql"):
        with running_postgresql() as url:
            run_round(seed, ROUNDS[seed], local, tmp_path, url)
    else:
        run_round(seed, ROUNDS[seed], local, tmp_path, sqlite_in(tmp_path))


def run_round(seed: str, steps: list[str], drivers: Drivers, directory: Path, url: str) -> None:
    rng = random.Random(f"sql round {seed}")
    name = f"sql-{seed.replace(' ', '-')}"
    with start_broker() as broker, growing(broker.bootstrap_servers, name, 2, rng) as topic:
        done = SqlRound(seed, drivers, broker, topic, directory / "round", url=url)
        done.run(["plain", *rng.sample(steps, len(steps))])
        done.finish()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("database", ["sqlite", "sqlite+adbc", "postgresql", "postgresql+adbc"])
def test_every_offset_is_in_the_table_once_after_a_hundred_loads(
    database: str, seed: str, tmp_path: Path
) -> None:
    drivers = Drivers(tmp_path / "drivers", [LOCAL, LOCAL_CLUSTER], replace_at_once=True)
    try:
        drivers.all()
        if database.startswith("postgresql"):
            with running_postgresql() as url:
                soak(f"{database} {seed}", drivers, tmp_path, url.replace("postgresql", database, 1))
        else:
            soak(f"{database} {seed}", drivers, tmp_path, sqlite_in(tmp_path, database))
    finally:
        drivers.stop()


def soak(seed: str, drivers: Drivers, directory: Path, url: str) -> None:
    rng, steps = random.Random(f"sql soak {seed}"), Counter[str]()
    name = "soak-" + "".join(letter for letter in seed if letter.isalnum())
    with start_broker() as broker, growing(broker.bootstrap_servers, name, 3, rng) as topic:
        round = SqlRound(seed, drivers, broker, topic, directory / "round", url=url)
        round.plain()
        while round.load_count < LOADS:
            (step,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            round.run([step])
            steps[step] += 1
            if rng.random() < 0.1:
                round.look()
        round.finish()
        round.note(f"{round.load_count} loads, {len(round.ledger.history())} commits; {dict(steps)}")
        round.note(f"{sum(topic.acknowledged)} records in {len(topic.sent)} partitions")
        round.note(f"struck: {dict(round.struck)}")
