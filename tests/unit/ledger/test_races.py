"""Two drivers of one load, and one that dies, at every operation of the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from pyspark_kafkalog.errors import LostRace
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.store import Store
from tests.support.ledger.memory_store import Crash, MemoryStore, WatchedStore, counting, crashing
from tests.support.ledger.plans import P0, P1, facts, plan_of, read_all
from tests.support.ledger.turns import Gate, take_turns

KNOWN = {P0: facts(0, 2), P1: facts(0, 1)}

WHOLE_LOAD = 40
"""More operations than a load of these has."""


@cache
def empty_ledger() -> dict[str, bytes]:
    """The files of a ledger without loads; its store is proved once for all tests."""
    store = MemoryStore()
    Ledger(store, "flights").identify("", {})
    return store.records


def begun_ledger() -> MemoryStore:
    store = MemoryStore()
    store.records.update(empty_ledger())
    return store


def load(store: Store, run: str) -> Commit | None:
    """What a driver does: replay what is pending, else plan; None where another one was first."""
    ledger = Ledger(store, "flights")
    try:
        plan = ledger.pending()
        if plan is None:
            plan = plan_of(KNOWN, ledger.head(), created=run)
            if not plan.ranges:
                return None
            plan = ledger.write_plan(plan)
        read_all(ledger, plan)
        return ledger.commit(plan, mode="job", run=run)
    except LostRace:
        return None


@pytest.mark.long("thousands of ledger operations")
@pytest.mark.parametrize("first", range(0, WHOLE_LOAD, 2))
def test_two_drivers_that_meet_anywhere_commit_once(first: int) -> None:
    for second in range(WHOLE_LOAD):
        store = begun_ledger()
        told: list[Commit] = []

        def driver(run: str, store: Store = store, told: list[Commit] = told) -> Callable[[Gate], None]:
            def job(gate: Gate) -> None:
                commit = load(WatchedStore(store, before=lambda *_: gate()), run)
                told.extend([commit] if commit else [])

            return job

        take_turns([driver("a"), driver("b")], [0] * (first + 1) + [1] * (second + 1))
        ledger = Ledger(store, "flights")
        assert told == ledger.history()
        assert len(told) == 1
        assert ledger.verify() == []


@pytest.mark.parametrize("after", [False, True])
def test_wherever_a_driver_dies_the_next_one_ends_its_load_with_the_same_ranges(after: bool) -> None:
    whole, counts = counting(begun_ledger())
    load(whole, "a")
    steps = counts.total()
    assert 20 < steps < WHOLE_LOAD
    for at in range(steps):
        store = begun_ledger()
        with pytest.raises(Crash):
            load(crashing(store, at, after=after), "a")
        begun = store.read("flights/plans/00000001.json")
        load(store, "b")
        ledger = Ledger(store, "flights")
        assert begun in (None, store.read("flights/plans/00000001.json"))
        assert [commit.positions for commit in ledger.history()] == [tuple(ledger.plan(1).positions.values())]
        assert ledger.pending() is None
        assert ledger.verify() == []
