"""``commitOffsets=stage``: tasks die, failed writes are run again, each offset arrives once.

That holds for a sink that takes back what a failed job wrote, while the job does not fail after the commit.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.loads.armed_faults import Fault
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_rounds import MAX_ATTEMPTS
from tests.support.loads.loaded_table import check_positions, check_table
from tests.support.loads.spark_drivers import Drivers

KILLED_ONCE = ("row", "before receipt", "after receipt", "before mark", "before commit", "after commit")
KILLED_FOR_GOOD = ("before commit", "row", "after receipt")
"""One after the other: all receipts are there already when the second kill comes."""


@pytest.mark.long("Spark drivers that are killed")
def test_a_map_only_write_arrives_once_in_mode_stage(local: Drivers, tmp_path: Path) -> None:
    rng = random.Random("stage")
    ledger, table, seen = Ledger.at(tmp_path / "offsets", "staged"), tmp_path / "table", tmp_path / "seen"
    faults = [(point, 1) for point in rng.sample(KILLED_ONCE, len(KILLED_ONCE))]
    faults[3:3] = [(point, MAX_ATTEMPTS) for point in KILLED_FOR_GOOD]
    driver = local.pick(rng)

    def number() -> int:
        head = ledger.head()
        return head.number if head else 0

    with start_broker() as broker, growing(broker.bootstrap_servers, "staged", 3, rng) as topic:
        order: dict[str, Any] = {
            "do": "stage",
            "name": "staged",
            "offsets": str(tmp_path / "offsets"),
            "path": str(table),
            "options": {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic.name},
        }
        for point, times in faults:
            fault = Fault(point, "kill", times)
            before = number()
            driver.faults.arm(fault)
            answer = driver.ask(order)
            driver.faults.disarm()
            topic.let_grow()
            assert len(driver.faults.hits(fault)) == times, (fault, answer)
            assert answer["ok"] == (times == 1), (fault, answer)
            assert number() == before + answer["ok"]
            assert (ledger.pending() is None) == answer["ok"]
            if answer["ok"]:  # a task that was tried again left one receipt, as if it had not been
                plan = ledger.plan(number())
                assert [(r.start, r.records) for r in ledger.receipts(plan)] == [
                    (planned.start, planned.end - planned.start) for planned in plan.ranges
                ]
        topic.finish()
        while [p.next for p in ledger.commit_at(number()).positions] != topic.acknowledged:
            assert driver.ask(order)["ok"]
        assert driver.ask({"do": "read", "plain": True, "path": str(table), "to": str(seen)})["ok"]
        assert check_table(seen, ledger, with_load=False) == sum(topic.acknowledged)
        check_positions(ledger)
        assert ledger.verify() == []
