"""What the commits of a table mean for the plan that is to be written into it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.loads.writers import lake_table
from pyspark_kafkalog.loads.writers.lake_table import TableCommit
from tests.support.ledger.memory_store import MemoryStore
from tests.support.ledger.plans import MORE, begun, loaded


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(MemoryStore(), "flights")
    made.identify("cluster-a", {"subscribe": "clicks"})
    return made


def noted(ledger: Ledger, plan: Plan, version: int) -> TableCommit:
    found = lake_table.decode_table_commit(
        version, lake_table.encode_table_commit(ledger, plan, f"run-{version}"), 14
    )
    assert found is not None
    return found


def test_a_record_tells_whose_load_it_is_and_the_next_offsets(ledger: Ledger) -> None:
    plan = begun(ledger)
    text = lake_table.encode_table_commit(ledger, plan, "a-run")
    assert lake_table.decode_table_commit(7, text, 14) == TableCommit(
        7, "flights", ledger.identity(), 1, plan.sha256, "a-run", 14
    )
    positions = json.loads(text)["kafkalog"]["positions"]
    assert [(p["topic"], p["partition"], p["next"]) for p in positions] == [
        ("clicks", 0, 10),
        ("clicks", 1, 4),
    ]
    assert "\n" not in text


@pytest.mark.parametrize(
    "text", [None, "", "by hand", "[]", '{"kafkalog": 1}', '{"kafkalog": {"load": "x"}}']
)
def test_what_others_wrote_is_not_a_record(text: str | None) -> None:
    assert lake_table.decode_table_commit(1, text, None) is None


def test_a_plan_that_is_in_the_table_is_found_and_one_that_is_not_is_to_be_written(ledger: Ledger) -> None:
    plan = begun(ledger)
    assert lake_table.commit_of_plan("t", [], ledger, plan) is None
    mine = noted(ledger, plan, 3)
    foreign = [replace(mine, load="other"), replace(mine, ledger="another")]
    assert lake_table.commit_of_plan("t", foreign, ledger, plan) is None
    assert lake_table.commit_of_plan("t", [*foreign, mine], ledger, plan) == mine


def test_the_load_before_is_in_table_and_ledger(ledger: Ledger) -> None:
    first = loaded(ledger)
    before = noted(ledger, ledger.plan(first.number), 1)
    assert lake_table.commit_of_plan("t", [before], ledger, begun(ledger, MORE)) is None


def test_a_load_that_was_discarded_and_is_in_the_table_would_come_twice(ledger: Ledger) -> None:
    plan = begun(ledger)
    written = noted(ledger, plan, 1)
    ledger.discard(plan, "run")
    with pytest.raises(LoadError, match="load 1 of 'flights', in its version 1, and the ledger discarded it"):
        lake_table.commit_of_plan("t", [written], ledger, begun(ledger))


def test_a_load_that_was_rewound_over_and_is_in_the_table_would_come_twice(ledger: Ledger) -> None:
    first = noted(ledger, ledger.plan(loaded(ledger).number), 1)
    plan = begun(ledger, MORE)
    ledger.commit(plan, mode="sink", run="run", receipts=False)
    second = noted(ledger, plan, 2)
    ledger.rewind(1, "back")
    again = begun(ledger, MORE)
    with pytest.raises(LoadError, match="load 2 of 'flights', in its version 2, and the ledger was rewound"):
        lake_table.commit_of_plan("t", [second, first], ledger, again)
    assert lake_table.commit_of_plan("t", [first], ledger, again) is None


def test_a_plan_that_was_written_and_rewound_over_before_its_commit_would_come_twice(ledger: Ledger) -> None:
    first = noted(ledger, ledger.plan(loaded(ledger).number), 1)
    pending = noted(ledger, begun(ledger, MORE), 2)
    ledger.rewind(1, "set it aside")
    again = begun(ledger, MORE)
    with pytest.raises(LoadError, match=r"holds load 2 .* rewound before it was committed: its rows would"):
        lake_table.commit_of_plan("t", [pending, first], ledger, again)


@pytest.mark.parametrize(
    ("history", "counts"),
    [
        ([], []),
        ([(3, None), (2, None), (0, None)], [3, 2, 0]),
        ([(6, None), (5, 2), (4, None), (3, None), (2, None), (1, None)], [6, 5, 2, 1]),
        ([(7, 4), (6, None), (5, 1), (4, None), (3, 1), (2, None), (1, None)], [7, 4, 3, 1]),
    ],
)
def test_what_lies_between_a_version_and_the_one_that_it_restored_does_not_count(
    history: list[tuple[int, int | None]], counts: list[int]
) -> None:
    assert list(lake_table.versions_in_effect(history)) == counts


def test_a_ledger_that_lags_behind_its_table_is_an_old_copy(ledger: Ledger) -> None:
    plan = begun(ledger)
    for commit in (
        replace(noted(ledger, plan, 5), number=2),
        replace(noted(ledger, plan, 5), plan_sha256="x"),
    ):
        with pytest.raises(LoadError, match="it is an old copy"):
            lake_table.commit_of_plan("t", [commit], ledger, plan)


def test_a_plan_that_is_there_twice_is_reported(ledger: Ledger) -> None:
    plan = begun(ledger)
    with pytest.raises(LoadError, match="more than once, in versions 9, 8"):
        lake_table.commit_of_plan("t", [noted(ledger, plan, 9), noted(ledger, plan, 8)], ledger, plan)


def test_a_load_rewritten_by_a_dead_driver_after_its_commit_is_reported(
    ledger: Ledger,
) -> None:
    first = ledger.plan(loaded(ledger).number)
    twice = [noted(ledger, first, 9), noted(ledger, first, 8)]
    with pytest.raises(LoadError, match="holds load 1 of 'flights' more than once, in versions 9, 8"):
        lake_table.commit_of_plan("t", twice, ledger, begun(ledger, MORE))
