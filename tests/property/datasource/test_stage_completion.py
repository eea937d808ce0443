"""Whatever the order of tasks, runs and repetitions: who commits has read everything in one action."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.errors import LostRace
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan, PlannedPartition
from pyspark_kafkalog.ledger.receipts import Tally
from tests.support.ledger.memory_store import MemoryStore

RUNS = ("one", "two", "three")
OPTIONS = parse_batch_options(
    {
        "kafka.bootstrap.servers": "127.0.0.1:9",
        "subscribe": "t",
        "loadName": "load",
        "offsetsPath": "/nowhere",
        "commitOffsets": "stage",
    }
)


def pending(ledger: Ledger, tasks: int) -> Plan:
    whole = PlannedPartition(
        topic="t", partition=0, topic_id="", leader=0, address="h:1", leader_epoch=0,
        start=0, end=tasks, earliest=0, latest=tasks, reason="first load",
        ranges=tuple((n, n + 1) for n in range(tasks)),
    )  # fmt: skip
    plan = Plan(1, 0, "2026-11-21T18:00:00.000Z", "cluster", "read_uncommitted", (whole,))
    return ledger.write_plan(plan)


@given(st.data(), st.integers(1, 4))
def test_the_first_run_that_has_read_all_commits_and_the_others_are_reported(
    data: st.DataObject, tasks: int
) -> None:
    ledger = Ledger(MemoryStore(), "load")
    plan = pending(ledger, tasks)
    assert OPTIONS.load is not None
    reader = LoadReader(OPTIONS, ("value",), OPTIONS.load)
    reader._ledger = ledger
    ends = data.draw(st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, tasks - 1)), max_size=20))
    read: dict[str, set[int]] = {run: set() for run in RUNS}
    winner = None
    for run, index in ends:
        planned = plan.ranges[index]
        ledger.leave_receipt(Tally().receipt(plan, planned, attempt=0, host="h", duration_ms=1), index)
        task = LoadInputPartition("t", 0, planned.start, planned.end, 0, 1, plan.sha256, index, run)
        read[run].add(index)
        complete = len(read[run]) == tasks
        if winner not in (None, run) and complete:
            with pytest.raises(LostRace):
                reader._commit_if_last(task, plan)
            continue
        reader._commit_if_last(task, plan)
        winner = winner or (run if complete else None)
        head = ledger.head()
        assert (None if head is None else head.run) == winner
    assert ledger.plan(1) == replace(plan)
