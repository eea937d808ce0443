"""Loads into a database: whatever is killed, every offset is in the table once, and whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.foreign.postgresql import running_postgresql
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_soaks import SEEDS, soak, soaked_drivers
from tests.support.loads.spark_drivers import Drivers
from tests.support.loads.sql_rounds import SqlRound, sqlite_in

ROUNDS = {
    "sqlite 1": ["worker killed at its receipt", "second attempt", "driver killed", "rewound"],
    "postgresql 2": ["worker killed at its receipt", "second attempt"],
}


@pytest.mark.long("Spark drivers that are killed")
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
    with soaked_drivers(tmp_path / "drivers") as drivers:
        if database.startswith("postgresql"):
            with running_postgresql() as url:
                soak_of(f"{database} {seed}", drivers, tmp_path, url.replace("postgresql", database, 1))
        else:
            soak_of(f"{database} {seed}", drivers, tmp_path, sqlite_in(tmp_path, database))


def soak_of(seed: str, drivers: Drivers, directory: Path, url: str) -> None:
    rng = random.Random(f"sql soak {seed}")
    name = "soak-" + "".join(letter for letter in seed if letter.isalnum())
    with start_broker() as broker, growing(broker.bootstrap_servers, name, 3, rng) as topic:
        soak(SqlRound(seed, drivers, broker, topic, directory / "round", url=url), rng)
