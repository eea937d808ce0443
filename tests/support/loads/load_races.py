"""Two drivers with one load: they meet because one of them waits, and not because they are quick."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.loads.armed_faults import Fault
from tests.support.loads.growing_topic import GrowingTopic
from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.spark_driver import SparkDriver
from tests.support.until import until


def race_twice(race: LoadRound, drivers: list[SparkDriver], *, lockless: bool) -> None:
    """Each of two drivers is once the slow one; one commits each load, and the other one is refused."""
    one, other = (
        (driver, race.order() | {"lockless": lockless, "host": f"loader-{number}"})
        for number, driver in enumerate(drivers)
    )
    for number, (slow, quick) in enumerate([(one, other), (other, one)], 1):
        answers = _both_load(race.topic, slow, quick)
        race.note(f"load {number}, by the slow one and by the quick one: {answers}")
        refused, committed = answers if lockless else reversed(answers)
        assert refused.get("error") == ("LostRace" if lockless else "LoadBusy"), answers
        assert (committed["ok"], committed["number"]) == (True, number), answers
        assert [c.number for c in race.ledger.history()] == list(range(1, number + 1))


def _both_load(
    topic: GrowingTopic, slow: tuple[SparkDriver, dict[str, Any]], quick: tuple[SparkDriver, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answers of a driver whose task waits while another one is told to load, and of that one."""
    topic.let_grow()  # there is something to load
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
