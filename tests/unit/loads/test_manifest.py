"""The list of a table's files, for readers that know no commits."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.manifest import FILES, listed_files, write_manifests
from pyspark_kafkalog.loads.output_files import files_in_effect
from tests.support.ledger.plans import P0, P1, begun, facts, loaded
from tests.support.loads.written_tables import load


def update(ledger: Ledger) -> None:
    write_manifests(ledger, ledger.head())


def listed(table: Path) -> list[str]:
    return (table / FILES).read_text().splitlines()


def urls(ledger: Ledger, table: Path) -> list[str]:
    return [f"file://{table}/{file}" for file in files_in_effect(ledger, table)]


def test_it_lists_what_is_in_effect_after_each_commit_and_rewind(ledger: Ledger, table: Path) -> None:
    update(ledger)  # nothing is committed
    load(ledger, table, "load=00000001/kl_run=won", "a%3Ab=1/a.parquet", "a%3Ab=2/b.parquet")
    update(ledger)
    directory = f"file://{table}/load=00000001/kl_run=won"
    assert listed(table) == [f"{directory}/a%3Ab=1/a.parquet", f"{directory}/a%3Ab=2/b.parquet"]
    load(ledger, table, "load=00000002/kl_run=won", "a%3Ab=1/a.parquet", rows=(5,))
    load(ledger, table, "load=00000003/kl_run=won", "a%3Ab=1/a.parquet", rows=(6,))
    update(ledger)
    assert listed(table) == urls(ledger, table)
    rows = duckdb.read_parquet(listed(table)).project("n").order("n").fetchall()
    assert [n for (n,) in rows] == [1, 1, 2, 2, 5, 6]
    ledger.rewind(1, "run")
    update(ledger)
    assert len(listed(table)) == 2
    load(ledger, table, "load=00000005/kl_run=won", "a%3Ab=1/a.parquet")
    update(ledger)
    assert listed(table) == urls(ledger, table)
    ledger.rewind(0, "run")
    update(ledger)
    assert listed(table) == []


def test_a_commit_reads_the_earlier_ones_only_if_the_manifest_is_not_of_its_parent(
    ledger: Ledger, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        load(ledger, table, f"load={number:08d}/kl_run=won", "a.parquet")
    update(ledger)
    load(ledger, table, "load=00000006/kl_run=won", "a.parquet")
    head, read = ledger.head(), []
    commit_at = Ledger.commit_at
    monkeypatch.setattr(Ledger, "commit_at", lambda self, n: read.append(n) or commit_at(self, n))
    write_manifests(ledger, head)
    assert read == [5]
    assert listed(table) == urls(ledger, table)


@pytest.mark.parametrize("file", ["files.txt", "_commit.json"])
@pytest.mark.parametrize("damage", [None, b"", b"nonsense\n"])
def test_whatever_happened_to_it_the_next_load_writes_it(
    ledger: Ledger, table: Path, file: str, damage: bytes | None
) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    update(ledger)
    load(ledger, table, "load=00000002/kl_run=won", "a.parquet")
    if damage is None:
        (table / "_manifest" / file).unlink()
    else:
        (table / "_manifest" / file).write_bytes(damage)
    update(ledger)
    assert listed(table) == urls(ledger, table)
    state = json.loads((table / "_manifest" / "_commit.json").read_text())
    assert state["commit"] == 2


@pytest.mark.parametrize("damage", [None, b"", b"nonsense\n"])
def test_a_damaged_list_is_written_although_nothing_was_committed_since(
    ledger: Ledger, table: Path, damage: bytes | None
) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    loaded(ledger, {P0: facts(0, 25), P1: facts(0, 4)})
    update(ledger)
    if damage is None:
        (table / FILES).unlink()
    else:
        (table / FILES).write_bytes(damage)
    update(ledger)
    assert listed(table) == urls(ledger, table)


def test_the_next_load_repairs_all_tables_whatever_it_writes_itself(
    ledger: Ledger, table: Path, tmp_path: Path
) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    update(ledger)
    load(ledger, table, "load=00000002/kl_run=won", "a.parquet")  # and its driver died
    other = tmp_path / "other"
    load(ledger, other, "load=00000003/kl_run=won", "b.parquet")
    update(ledger)
    assert (listed(table), listed(other)) == (urls(ledger, table), urls(ledger, other))
    ledger.rewind(1, "run")  # and its driver died
    ledger.discard(begun(ledger, {P0: facts(0, 25), P1: facts(0, 4)}), "run")
    update(ledger)
    assert (len(listed(table)), listed(other)) == (1, [])


def test_a_table_that_another_load_has_taken_over_is_left_to_it(ledger: Ledger, table: Path) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    shutil.rmtree(table)
    other = Ledger.at(ledger.offsets_path, "trains")
    other.identify("cluster-a", {"subscribe": "clicks"})
    load(other, table, "load=00000001/kl_run=won", "b.parquet")
    update(other)
    load(ledger, table.parent / "elsewhere", "load=00000002/kl_run=won", "a.parquet")
    update(ledger)
    assert listed(table) == [f"file://{table}/load=00000001/kl_run=won/b.parquet"]


def test_readers_trust_a_list_of_the_newest_commit_at_this_place_only(ledger: Ledger, table: Path) -> None:
    def known() -> list[str] | None:
        head = ledger.head()
        assert head is not None
        return listed_files(open_store(table), head)

    load(ledger, table, "load=00000001/kl_run=won", "k=a\u2028b/a.parquet")
    assert known() is None
    update(ledger)
    assert known() == files_in_effect(ledger, table) == ["load=00000001/kl_run=won/k=a\u2028b/a.parquet"]
    load(ledger, table, "load=00000002/kl_run=won", "a.parquet")
    assert known() is None
    update(ledger)
    whole = (table / FILES).read_bytes()
    (table / FILES).write_bytes(whole[:-10])
    assert known() is None
    (table / FILES).write_bytes(whole)
    assert known() == files_in_effect(ledger, table)
    head = ledger.head()
    assert head is not None
    assert listed_files(open_store(table), replace(head, sha256="of another ledger")) is None
    table.rename(table.parent / "moved")
    assert listed_files(open_store(table.parent / "moved"), head) is None
    assert (
        listed_files(open_store(table.parent / "moved"), replace(head, sha256="of an older ledger")) is None
    )


def test_a_manifest_that_cannot_be_written_does_not_undo_a_commit(
    ledger: Ledger, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    (table / "_manifest").write_text("a file in its way")
    with caplog.at_level(logging.WARNING):
        update(ledger)
    assert "commit 1 was made, but a manifest could not be written" in caplog.text
