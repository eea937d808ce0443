"""Where a rewind to offsets leads, and what it must not lose or repeat."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import LoadError, LostRace
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.rewind import rewinding
from tests.support.ledger.memory_store import MemoryStore
from tests.support.ledger.plans import P0, P1, begun, facts, loaded, position, read_all


@pytest.fixture
def ledger(three_loads: Ledger) -> Ledger:
    return three_loads


def loaded_into_files(ledger: Ledger, end: int) -> None:
    plan = begun(ledger, {P0: facts(0, end), P1: facts(3, 8)})
    read_all(ledger, plan)
    number = plan.number
    ledger.commit(plan, mode="dir", run="run", outputs=[LoadOutput("/table", f"load={number:08d}")])


def test_where_nothing_was_published_the_next_load_begins_exactly_at_the_offsets(ledger: Ledger) -> None:
    found = rewinding(ledger, {P0: 11})
    assert (found.parent, found.undone, found.is_exact) == (1, (2, 3), True)
    commit = ledger.rewind_to(found, "rewind", "to 11")
    assert commit.positions == (position(P0, 11), position(P1, 8))
    assert (commit.number, commit.parent, ledger.verify()) == (4, 1, [])
    assert begun(ledger, {P0: facts(0, 15), P1: facts(3, 8)}).starts == {
        P0: position(P0, 11),
        P1: position(P1, 8),
    }
    assert [c.number for c in ledger.lineage()] == [1, 4]


def test_offsets_inside_a_load_that_wrote_files_lead_to_where_it_began(ledger: Ledger) -> None:
    loaded_into_files(ledger, 20)
    loaded_into_files(ledger, 30)
    found = rewinding(ledger, {P0: 17})
    assert (found.parent, found.undone, found.is_exact) == (3, (4, 5), False)
    assert found.positions == (position(P0, 15), position(P1, 8))
    between = rewinding(ledger, {P0: 20})
    assert (between.parent, between.undone, between.is_exact) == (4, (5,), True)
    ledger.rewind_to(found, "rewind", "to 17")
    assert ledger.verify() == []
    # What was rewound is not gone over a second time.
    assert rewinding(ledger, {P0: 12, P1: 6}).parent == 2


def test_before_the_first_load_even_older_offsets_may_be_read() -> None:
    ledger = Ledger(MemoryStore(), "flights")
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    plan = begun(ledger, {P0: facts(5, 10), P1: facts(3, 8)})
    read_all(ledger, plan)
    ledger.commit(plan, mode="dir", run="run", outputs=[LoadOutput("/table", "load=00000001")])
    found = rewinding(ledger, {P0: 2, P1: 7})
    assert (found.parent, found.positions) == (0, (position(P0, 2), position(P1, 3)))
    ledger.rewind_to(found, "rewind", "to 2")
    assert ledger.verify() == []


def test_a_rewind_that_would_skip_records_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LoadError, match=r"would skip records here: clicks-0: 16 is after 15"):
        rewinding(ledger, {P0: 16, P1: 3})
    with pytest.raises(LoadError, match=r"^clicks-7: never loaded"):
        rewinding(ledger, {P0._replace(partition=7): 0})


def test_offsets_of_a_topic_that_was_recreated_say_nothing_about_older_loads(ledger: Ledger) -> None:
    new = {P0: facts(0, 30, topic_id="another-id"), P1: facts(3, 8)}
    loaded(ledger, new, on_topic_recreated="earliest")
    assert rewinding(ledger, {P0: 30}).parent == 4
    with pytest.raises(LoadError, match=r"clicks-0 was deleted and created again after commit 3"):
        rewinding(ledger, {P0: 11})


def test_a_rewind_that_was_overtaken_is_not_made(ledger: Ledger) -> None:
    found = rewinding(ledger, {P0: 11})
    loaded(ledger, {P0: facts(0, 16), P1: facts(3, 8)})
    with pytest.raises(LostRace):
        ledger.rewind_to(found, "rewind", "to 11")


def test_verify_finds_a_rewind_that_went_forward(ledger: Ledger) -> None:
    found = rewinding(ledger, {P0: 11})
    forward = tuple(position(p.key, p.next + 10) for p in found.positions)
    object.__setattr__(found, "positions", forward)
    ledger.rewind_to(found, "rewind", "forward")
    assert [finding[:8] for finding in ledger.verify()] == ["commit 4", "commit 4"]
