"""Starts in files: the newest alone is left, and a second driver is never shown one that is spent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_kafkalog.datasource.stream.stream_offsets import FileStarts, StartSuperseded, StreamOffset
from pyspark_kafkalog.ledger.stores.store import Store
from pyspark_kafkalog.types import TopicPartition
from tests.support.ledger.memory_store import Crash, MemoryStore, WatchedStore, crashing

TP = TopicPartition("t", 0)


LAST_OF_KEPT = 3
"""The operation in which `kept` reads a start that it has seen is not spent."""


def start_at(offset: int) -> StreamOffset:
    return StreamOffset({TP: offset}, {"t": "id"})


def run(store: Store, start: int, *, spends: bool = True, begun: list[int] | None = None) -> int:
    """Where a run of the query begins that finds the topic at ``start``; its first batch is done."""
    keeper = FileStarts(store)
    found = keeper.kept([TP])
    if found is None:
        found = keeper.keep(start_at(start))
    if begun is not None:
        begun.append(found.offsets[TP])
    if spends:
        keeper.spend()
    return found.offsets[TP]


def test_only_the_newest_start_is_left_however_many_queries_there_were() -> None:
    store = MemoryStore()
    for number in range(1, 6):
        assert run(store, number * 10) == number * 10
        assert sorted(store.records) == [f"start-{number:08}.done", f"start-{number:08}.json"]


def test_starts_of_killed_drivers_are_removed_and_other_files_stay() -> None:
    store = MemoryStore()
    for number in range(1, 4):
        store.records |= {f"start-{number:08}.json": b"{}", f"start-{number:08}.done": b""}
    store.records["notes.txt"] = b"mine"
    assert run(store, 7, spends=False) == 7
    assert sorted(store.records) == ["notes.txt", "start-00000004.json"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(16))
def test_a_driver_that_dies_at_any_step_leaves_the_spent_start_or_its_own(at: int, after: bool) -> None:
    store = MemoryStore()
    run(store, 10)
    store.records["start-00000000.done"] = b""
    try:
        run(crashing(store, at, after=after), 20)
        died = False
    except Crash:
        died = True
    kept = FileStarts(store).kept([TP])
    assert kept in (None, start_at(20))
    assert died or kept is None
    assert run(store, 30) == (30 if kept is None else 20)
    run(store, 40)
    assert len(store.records) == 2


def at_step(store: MemoryStore, step: int, do: Callable[[], object]) -> WatchedStore:
    """The store, in whose ``step``-th operation another driver has done something meanwhile."""
    left = [step]

    def count(operation: str, name: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            do()

    return WatchedStore(store, before=count)


@pytest.mark.parametrize("more", [1, 2, 3])
@pytest.mark.parametrize(
    ("spent", "step"), [*((False, n) for n in range(5)), *((True, n) for n in range(11))]
)
def test_a_driver_that_others_overtake_is_given_no_spent_start(spent: bool, step: int, more: int) -> None:
    """Others begin and end ``more`` queries between any two steps of a run."""
    store = MemoryStore()
    run(store, 10, spends=spent)

    told: list[int] = []

    def overtake() -> None:
        told.extend(begun)
        FileStarts(store).spend()
        for number in range(more):
            run(store, 100 + number)

    begun: list[int] = []
    try:
        run(at_step(store, step, overtake), 20, begun=begun)
    except StartSuperseded:
        assert not begun
    # 10 was spent by the others: who begins there was told so before, or asked whether it is spent.
    assert begun in ([], [20]) or begun == told or (not spent and step == LAST_OF_KEPT and begun == [10])
    run(store, 30)
    assert run(store, 40) == 40
    assert sorted(name[14:] for name in store.records) == [".done", ".json"]


def test_two_drivers_starting_together_use_the_first_ones_start() -> None:
    store = MemoryStore()
    first, second = FileStarts(store), FileStarts(store)
    assert first.kept([TP]) is second.kept([TP]) is None
    assert first.keep(start_at(1)) == second.keep(start_at(2)) == start_at(1)
    second.spend()
    assert first.kept([TP]) is None


def test_a_driver_that_was_given_up_does_not_spend_the_start_of_its_successor() -> None:
    store = MemoryStore()
    zombie = FileStarts(store)
    zombie.kept([TP])
    zombie.keep(start_at(1))
    FileStarts(store).spend()
    assert run(store, 2, spends=False) == 2
    zombie.spend()
    assert FileStarts(store).kept([TP]) == start_at(2)
