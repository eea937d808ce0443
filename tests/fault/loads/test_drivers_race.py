"""Two drivers, one name: each load is committed by one of them, and what they wrote is there once.

On a volume whose locks do not reach other hosts the records alone decide.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from broker.embedded import start_broker
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.spark_driver import SparkDriver
from tests.support.loads.spark_drivers import Drivers

LOADS = 2
ATTEMPTS_MAX = 300
PAUSE_SECONDS = 0.5
"""Whoever was refused leaves the processors to the load that is on its way."""


def load_until_others_were_refused(
    driver: SparkDriver, order: dict[str, Any], answers: list[dict[str, Any]]
) -> None:
    """One racer; ``answers`` is both racers'."""
    for _ in range(ATTEMPTS_MAX):
        answers.append(driver.ask(order))
        if not answers[-1]["ok"]:
            time.sleep(PAUSE_SECONDS)
        refused = not all(answer["ok"] for answer in answers)
        if len(committed(answers)) >= (LOADS if refused else 3 * LOADS):
            return


def committed(answers: list[dict[str, Any]]) -> list[int]:
    """The numbers of the loads that somebody was told are his."""
    return [a["number"] for a in answers if a["ok"] and not a["empty"]]


@pytest.mark.parametrize("lockless", [False, True], ids=["locks", "no locks"])
def test_two_drivers_never_commit_the_same_load(local: Drivers, lockless: bool, tmp_path: Path) -> None:
    rng = random.Random("two drivers")
    answers: list[dict[str, Any]] = []
    with start_broker() as broker, growing(broker.bootstrap_servers, "raced", 2, rng) as topic:
        race = LoadRound("two drivers", local, broker, topic, tmp_path / "race")
        racers = local.all()
        orders = [race.order() | {"lockless": lockless, "host": f"loader-{i}"} for i, _ in enumerate(racers)]
        with ThreadPoolExecutor() as pool:
            list(pool.map(load_until_others_were_refused, racers, orders, repeat(answers)))
        refused = {answer["error"] for answer in answers if not answer["ok"]}
        assert sorted(committed(answers)) == [c.number for c in race.ledger.history()]
        race.note(f"{len(answers)} attempts, committed {committed(answers)}, refused with {refused}")
        assert race.ledger.verify() == []
        assert refused == ({"LostRace"} if lockless else {"LoadBusy"})
        race.finish()
