"""What a compaction puts together, what is then in effect, and what `gc` may remove of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import LoadError, LostRace
from pyspark_kafkalog.ledger.archive import live_outputs
from pyspark_kafkalog.ledger.commit import Commit, LoadOutput, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Position
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads import output_files, verification
from pyspark_kafkalog.loads.compaction import small_outputs
from pyspark_kafkalog.loads.manifest import FILES, write_manifests
from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files
from tests.support.ledger.memory_store import WatchedStore
from tests.support.ledger.plans import P0, P1, begun, facts
from tests.support.loads.written_tables import load, write


@pytest.fixture
def ledger(ledger: Ledger, table: Path) -> Ledger:
    """Loads 1 to 4; load 2 was rewound by commit 3."""
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet", "b.parquet")
    load(ledger, table, "load=00000002/kl_run=won", "a.parquet")
    ledger.rewind(1, "run")
    load(ledger, table, "load=00000004/kl_run=won", "a.parquet")
    return ledger


def compacted(ledger: Ledger, table: Path, *replaced: tuple[int, int]) -> Commit:
    """As `compact`, without Spark."""
    head = ledger.head()
    assert head is not None
    inside = output_files.compaction_directory(head.number + 1, "run")
    write(table, f"{inside}/all.parquet", rows=range(6))
    written = output_files.written_files(table, inside)
    return ledger.compact(head, [LoadOutput(written.path, inside, written.files, replaces=replaced)], "run")


def names(ledger: Ledger, table: Path, until: int | None = None) -> list[str]:
    files = output_files.files_in_effect(ledger, table, until=until)
    return [re.sub(r"=0+|/kl_run=\w+", "=", file) for file in files]


def test_files_that_were_replaced_are_not_in_effect_until_a_rewind_brings_them_back(
    ledger: Ledger, table: Path
) -> None:
    before = names(ledger, table)
    assert before == ["load=1=/a.parquet", "load=1=/b.parquet", "load=4=/a.parquet"]
    write_manifests(ledger, ledger.head())
    commit = compacted(ledger, table, (1, 2), (4, 5))
    assert (commit.number, commit.mode, commit.records, commit.is_load) == (5, "compact", 0, False)
    write_manifests(ledger, commit)
    load(ledger, table, "load=00000006/kl_run=won", "a.parquet")
    write_manifests(ledger, ledger.head())
    after = ["kl_compact=5=/all.parquet", "load=6=/a.parquet"]
    assert names(ledger, table) == after
    assert len((table / FILES).read_text().splitlines()) == 2
    (table / "load=00000001/kl_run=won/a.parquet").unlink()
    assert ledger.verify() == verification.verify_outputs(ledger.lineage()) == []
    assert names(ledger, table, until=4) == before
    ledger.rewind(4, "run")
    assert names(ledger, table) == before
    write_manifests(ledger, ledger.head())
    assert len((table / FILES).read_text().splitlines()) == 3


def test_a_later_compaction_replaces_an_earlier_one_too(ledger: Ledger, table: Path) -> None:
    compacted(ledger, table, (1, 2), (4, 5))
    load(ledger, table, "load=00000006/kl_run=won", "a.parquet")
    compacted(ledger, table, (5, 7))
    assert names(ledger, table) == ["kl_compact=7=/all.parquet"]


def test_gc_removes_replaced_files_once_they_are_old_and_then_no_rewind_leads_to_them(
    ledger: Ledger, table: Path
) -> None:
    compacted(ledger, table, (1, 2), (4, 5))
    write(table, "load=00000001/kl_run=won/_SUCCESS", "load=00000001/kl_run=won/.a.parquet.crc")
    now = SYSTEM_CLOCK.time_ms()
    (found,) = removable_files(ledger, now - 60_000)
    assert (found.unlisted, found.replaced) == ((), ())
    (found,) = removable_files(ledger, now + 60_000)
    assert list(found.replaced) == [
        "load=00000001/kl_run=won/a.parquet", "load=00000001/kl_run=won/b.parquet",
        "load=00000004/kl_run=won/a.parquet",
    ]  # fmt: skip
    remove_files(ledger, found, now)
    assert sorted(path.name for path in table.iterdir()) == [
        "_kafkalog.json", "kl_compact=00000005", "load=00000002"
    ]  # fmt: skip
    (found,) = removable_files(ledger, now + 60_000)
    assert (found.unlisted, found.replaced, found.compactions) == ((), (), ())
    assert verification.verify_outputs(ledger.lineage()) == []

    said = "commit 5 compacted the files of load 1, and `kafkalog gc` removed them"
    with pytest.raises(LoadError, match=said):
        ledger.rewind(4, "run")
    with pytest.raises(LoadError, match=said):
        names(ledger, table, until=1)
    assert [commit.mode for commit in ledger.history()] == ["dir", "dir", "rewind", "dir", "compact"]
    load(ledger, table, "load=00000006/kl_run=won", "a.parquet")
    ledger.rewind(5, "run")
    assert names(ledger, table) == ["kl_compact=5=/all.parquet"]
    ledger.rewind(0, "run")
    assert ledger.verify() == []


def test_what_a_compaction_replaced_stays_if_that_was_rewound(ledger: Ledger, table: Path) -> None:
    compacted(ledger, table, (1, 2), (4, 5))
    ledger.rewind(4, "run")
    (found,) = removable_files(ledger, SYSTEM_CLOCK.time_ms() + 60_000)
    assert (found.unlisted, found.replaced) == ((), ())


def test_gc_removes_nothing_if_a_rewind_came_after_it_looked(ledger: Ledger, table: Path) -> None:
    compacted(ledger, table, (1, 2), (4, 5))
    now = SYSTEM_CLOCK.time_ms()
    (found,) = removable_files(ledger, now + 60_000)
    ledger.rewind(4, "of another driver, which did not meet the lock")
    with pytest.raises(
        LostRace, match=r"another driver committed .* nothing was removed there; run gc again"
    ):
        remove_files(ledger, found, now)
    assert verification.verify_outputs(ledger.lineage()) == []


def test_a_rewind_is_taken_back_if_gc_removed_files_meanwhile(ledger: Ledger, table: Path) -> None:
    compaction = compacted(ledger, table, (1, 2), (4, 5))
    now = SYSTEM_CLOCK.time_ms()
    (found,) = removable_files(ledger, now + 60_000)

    def gc_comes_first(operation: str, name: str) -> None:
        if (operation, name) == ("create", "flights/commits/00000006.json"):
            remove_files(ledger, found, now)

    store = WatchedStore(open_store(Path(ledger.location).parent), before=gc_comes_first)
    with pytest.raises(LoadError, match="commit 5 compacted the files of load 1, and `kafkalog gc` removed"):
        Ledger(store, "flights").rewind(4, "run")
    assert [(c.number, c.mode, c.parent) for c in ledger.history()[5:]] == [
        (6, "rewind", 4),
        (7, "rewind", 5),
    ]
    assert ledger.lineage()[-1].positions == compaction.positions
    assert names(ledger, table) == ["kl_compact=5=/all.parquet"]
    assert verification.verify_outputs(ledger.lineage()) == []
    assert ledger.verify() == []


def test_a_pending_plan_is_not_superseded(ledger: Ledger, table: Path) -> None:
    begun(ledger, {P0: facts(0, 100), P1: facts(0, 4)})
    with pytest.raises(LoadError, match=r"load 5 of .* is pending: load first, then compact"):
        compacted(ledger, table, (1, 2))


def test_of_a_load_and_a_compaction_with_one_number_one_counts(ledger: Ledger, table: Path) -> None:
    head = ledger.head()
    load(ledger, table, "load=00000005/kl_run=won", "a.parquet")
    assert head is not None
    (ledger_plan := Path(ledger.location, "plans", "00000005.json")).rename(ledger_plan.with_suffix(".aside"))
    with pytest.raises(LostRace):
        ledger.compact(head, [], "run")


def live(*outputs: tuple[int, list[tuple[str, int]]]) -> list[tuple[Commit, LoadOutput]]:
    return [
        (
            Commit(number, number - 1, None, "", "dir", "run", tuple[Position](), 0, 0),
            LoadOutput("/t", f"load={number}", tuple(OutputFile(name, size, 1) for name, size in files)),
        )
        for number, files in outputs
    ]


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [
        ([(1, [("a", 10)]), (2, [("a", 10)])], [1, 2]),
        ([(1, [("a", 10)])], []),
        ([(1, [("a", 10), ("b", 10)])], [1]),
        ([(1, [("a", 90)]), (2, [("a", 60)]), (3, [("a", 10)])], []),
        ([(1, [("a", 49)]), (2, [("a", 49)]), (3, [("a", 49)]), (4, [])], [1, 2, 3]),
        # Other days: nothing to put together.
        ([(1, [("d=1/a", 10)]), (2, [("d=2/a", 10)])], []),
        ([(1, [("d=1/a", 10), ("d=2/a", 10)]), (2, [("d=3/a", 10)]), (3, [("d=3/a", 10)])], [2, 3]),
    ],
)  # fmt: skip
def test_only_what_makes_fewer_files_is_put_together(
    outputs: list[tuple[int, list[tuple[str, int]]]], chosen: list[int]
) -> None:
    assert [commit.number for commit, _ in small_outputs(live(*outputs), 100)] == chosen


def test_compacting_one_table_leaves_the_other_alone(ledger: Ledger, table: Path) -> None:
    head = ledger.head()
    assert head is not None
    other = LoadOutput("/other", "kl_compact=00000005/kl_run=r", (), replaces=((1, 5),))
    ledger.compact(head, [other], "run")
    assert [out.path for _, out in live_outputs(ledger.lineage())] == [str(table), str(table), "/other"]
