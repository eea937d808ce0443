"""Two drivers, one name: each load is committed by one of them, and what they wrote is there once.

On a volume whose locks do not reach other hosts the records alone decide.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.embedded import start_broker
from tests.support.loads.armed_faults import Fault
from tests.support.loads.growing_topic import GrowingTopic, growing
from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.spark_driver import SparkDriver
from tests.support.loads.spark_drivers import Drivers
from tests.support.until import until


def both_load(
    topic: GrowingTopic, slow: tuple[SparkDriver, dict[str, Any]], quick: tuple[SparkDriver, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answers of a driver whose task waits while another one is told to load, and of that one."""
    before = sum(topic.acknowledged)
    until(lambda: sum(topic.acknowledged) > before)  # there is something to load
    driver, order = slow
    fault = Fault("row", "wait")
    driver.faults.arm(fault)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(driver.ask, order)
        try:
            until(lambda: driver.faults.hits(fault) or loading.done())
            of_quick = quick[0].ask(quick[1])
        finally:
            driver.faults.disarm()
        return loading.result(), of_quick


@pytest.mark.long("Spark drivers that are killed")
@pytest.mark.parametrize("lockless", [False, True], ids=["locks", "no locks"])
def test_two_drivers_never_commit_the_same_load(local: Drivers, lockless: bool, tmp_path: Path) -> None:
    rng = random.Random("two drivers")
    with start_broker() as broker, growing(broker.bootstrap_servers, "raced", 2, rng) as topic:
        race = LoadRound("two drivers", local, broker, topic, tmp_path / "race")
        one, other = (
            (driver, race.order() | {"lockless": lockless, "host": f"loader-{number}"})
            for number, driver in enumerate(local.all())
        )
        for number, (slow, quick) in enumerate([(one, other), (other, one)], 1):
            answers = both_load(topic, slow, quick)
            race.note(f"load {number}, by the slow one and by the quick one: {answers}")
            refused, committed = answers if lockless else reversed(answers)
            assert refused.get("error") == ("LostRace" if lockless else "LoadBusy"), answers
            assert (committed["ok"], committed["number"]) == (True, number), answers
            assert [c.number for c in race.ledger.history()] == list(range(1, number + 1))
        assert race.ledger.verify() == []
        race.finish()
