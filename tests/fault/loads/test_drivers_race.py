"""Two drivers, one name: each load is committed by one of them, and what they wrote is there once.

On a volume whose locks do not reach other hosts the records alone decide.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_races import race_twice
from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.spark_drivers import Drivers


@pytest.mark.long("Spark drivers that are killed")
@pytest.mark.parametrize("lockless", [False, True], ids=["locks", "no locks"])
def test_two_drivers_never_commit_the_same_load(local: Drivers, lockless: bool, tmp_path: Path) -> None:
    rng = random.Random("two drivers")
    with start_broker() as broker, growing(broker.bootstrap_servers, "raced", 2, rng) as topic:
        race = LoadRound("two drivers", local, broker, topic, tmp_path / "race")
        race_twice(race, local.all(), lockless=lockless)
        assert race.ledger.verify() == []
        race.finish()
