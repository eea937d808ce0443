"""Which files of an output `gc` may remove: wrong answers lose rows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import DamagedRecord
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.dead_letters import path_of
from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files
from pyspark_kafkalog.loads.output_files import claim_path
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.loads.written_tables import load, write

NOW_MS = 9_000_000


def unlisted(ledger: Ledger, table: Path, before_ms: int = NOW_MS) -> list[str]:
    return [str(f) for one in removable_files(ledger, before_ms) for f in one.unlisted]


def test_only_what_no_commit_names_goes(ledger: Ledger, table: Path) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "day=1/a.parquet")
    load(ledger, table, "load=00000002/kl_run=won", "a.parquet", "b.parquet")
    ledger.rewind(1, "run")
    kept = [
        "load=00000002/kl_run=won/_SUCCESS",
        "load=00000001/kl_run=won/day=1/.a.parquet.crc",
        "_kafkalog.json",
        "mine/a",
    ]
    lost = [
        "kl_compact=00000003/kl_run=died/a.parquet",
        "load=00000001/kl_run=won/day=1/late.parquet", "load=00000002/a.parquet",
        "load=00000002/kl_run=lost/_SUCCESS", "load=00000002/kl_run=lost/_temporary/0/a.parquet",
        "load=00000002/kl_run=lost/a.parquet", "load=00000002/kl_run=won/_temporary/0/b.parquet",
        "load=00000003/kl_run=superseded/a.parquet",
    ]  # fmt: skip
    pending = [
        "load=00000004/kl_run=now/a.parquet",
        "load=00000005/a.parquet",
        "kl_compact=00000004/kl_run=now/a",
    ]
    write(table, *kept[:2], *kept[3:], *lost, *pending)
    write(table, "load=00000002/kl_run=lost/young.parquet", at_ms=NOW_MS)

    assert unlisted(ledger, table) == lost
    (found,) = removable_files(ledger, NOW_MS)
    assert (found.bytes, found.young_count) == (sum((table / name).stat().st_size for name in lost), 1)
    remove_files(ledger, found, NOW_MS)
    left = sorted(str(file.relative_to(table)) for file in table.rglob("*") if file.is_file())
    assert left == sorted([
        *kept, *pending, "load=00000001/kl_run=won/day=1/a.parquet",
        "load=00000002/kl_run=lost/young.parquet", "load=00000002/kl_run=won/a.parquet",
        "load=00000002/kl_run=won/b.parquet",
    ])  # fmt: skip
    assert not (table / "load=00000003").exists()
    assert verify_outputs(ledger.history()) == []


def test_empty_directories_of_runs_that_no_commit_names_go(ledger: Ledger, table: Path) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "day=1/a.parquet")
    ledger.rewind(0, "run")
    kept = ["load=00000001/kl_run=won/empty", "load=00000001/kl_run=young", "load=00000003/kl_run=now"]
    gone = ["load=00000001/kl_run=lost/_temporary/0", "load=00000002/kl_run=lost"]
    for name in (*kept, *gone):
        (table / name).mkdir(parents=True)
    for directory in table.rglob("*"):
        if "young" not in directory.name:
            os.utime(directory, (1, 1))
    (found,) = removable_files(ledger, NOW_MS)
    assert (found.unlisted, found.directories) == ((), ("load=00000001/kl_run=lost", "load=00000002"))
    remove_files(ledger, found, NOW_MS)
    assert not (table / "load=00000002").exists()
    assert [name for name in kept if not (table / name).is_dir()] == []
    assert verify_outputs(ledger.history()) == []


def test_a_ledger_that_is_not_the_owner_removes_nothing(ledger: Ledger, table: Path, tmp_path: Path) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    write(table, "load=00000001/kl_run=lost/a.parquet")
    shutil.copytree(tmp_path / "offsets", tmp_path / "copied")
    (found,) = removable_files(Ledger.at(tmp_path / "copied", "flights"), NOW_MS)
    assert (found.unlisted, "is a copy of it" in found.refused) == ((), True)
    (table / "_kafkalog.json").unlink()
    (found,) = removable_files(ledger, NOW_MS)
    assert (found.unlisted, found.refused) == ((), "it has no _kafkalog.json")


def test_dead_letters_stay_however_their_ledger_is_spelled_or_moved(ledger: Ledger, tmp_path: Path) -> None:
    dead = Path(path_of(ledger))
    load(ledger, dead, "load=00000001/kl_run=won", "a.parquet")
    write(dead, "load=00000001/kl_run=lost/a.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "offsets")
    for offsets in (tmp_path / "offsets", tmp_path / "link", f"{tmp_path}/offsets/../link"):
        (found,) = removable_files(Ledger.at(offsets, "flights"), NOW_MS)
        assert (found.unlisted, found.refused) == (("load=00000001/kl_run=lost/a.parquet",), "")
    (tmp_path / "link").unlink()
    (tmp_path / "offsets").rename(tmp_path / "moved")
    moved = Ledger.at(tmp_path / "moved", "flights")
    (found,) = removable_files(moved, NOW_MS)
    remove_files(moved, found, NOW_MS)
    left = [file.relative_to(tmp_path) for file in tmp_path.rglob("*.parquet")]
    assert left == [Path("moved/flights/dead/load=00000001/kl_run=won/a.parquet")]


def test_a_table_whose_claim_names_another_place_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    load(ledger, tmp_path / "table", "load=00000001/kl_run=won", "a.parquet")
    (tmp_path / "table").rename(tmp_path / "moved")
    (tmp_path / "table").mkdir()
    claim_path(tmp_path / "other", ledger)
    shutil.copy(tmp_path / "other" / "_kafkalog.json", tmp_path / "table" / "_kafkalog.json")
    write(tmp_path / "table", "load=00000001/kl_run=lost/a.parquet")
    (found,) = removable_files(ledger, NOW_MS)
    told = f"its _kafkalog.json names {tmp_path}/other, and the commits {tmp_path}/table"
    assert (found.unlisted, found.refused) == ((), told)


def test_nothing_is_removed_while_a_commit_cannot_be_read(ledger: Ledger, table: Path) -> None:
    load(ledger, table, "load=00000001/kl_run=won", "a.parquet")
    load(ledger, table, "load=00000002/kl_run=won", "a.parquet")
    (Path(ledger.location) / "commits" / "00000001.json").unlink()
    with pytest.raises(DamagedRecord, match=r"commits/00000001\.json is missing"):
        removable_files(ledger, NOW_MS)
