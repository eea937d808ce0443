"""Ledgers of release 1 are read as they were, and their records are encoded to the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pyspark_kafkalog.ledger.archive import Archive, FileRemoval, LoadRecord, write_hints
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.receipts import Receipt, Summary
from pyspark_kafkalog.ledger.records import LedgerRecord, decode, encode, seal, unseal
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.output_files import Claim, read_claim
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.command_line import kafkalog
from tests.support.manual_clock import ManualClock
from tests.support.release_1 import LEDGERS, RELEASE_1, WRITTEN_AT, copied, lines

ROOT = RELEASE_1 / "ledgers"
CLASSES: dict[str, type[LedgerRecord]] = {
    "plan": Plan, "commit": Commit, "receipt": Receipt, "summary": Summary, "load": LoadRecord,
    "output": Claim, "removal": FileRemoval,
}  # fmt: skip
RECORDS = sorted(
    path
    for path in RELEASE_1.rglob("*.json")
    if path.relative_to(RELEASE_1).parts[0] in ("ledgers", "lake")
    and path.name not in ("HEAD.json", "_commit.json")
)


def name_of(path: Path) -> str:
    return str(path.relative_to(RELEASE_1))


@pytest.mark.parametrize("path", RECORDS, ids=name_of)
def test_a_record_is_encoded_to_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    assert encode(decode(CLASSES[json.loads(data)["record"]], data, name_of(path))) == data


@pytest.mark.parametrize("path", RECORDS, ids=name_of)
def test_a_seal_is_made_of_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    fields = unseal(json.loads(data)["record"], data, name_of(path))
    kind, version = fields.pop("record"), fields.pop("version")
    del fields["sha256"]
    assert seal(str(kind), fields, version=int(str(version))) == data


def test_there_are_records_of_every_kind_and_form() -> None:
    """Else the tests above would say less than they seem to."""
    records = [json.loads(path.read_bytes()) for path in RECORDS]
    assert {r["record"] for r in records} == set(CLASSES)
    assert {(r["record"], r["version"]) for r in records if r["version"] > 1} == {
        ("plan", 2), ("commit", 2), ("receipt", 2), ("summary", 2), ("load", 2), ("commit", 3),
    }  # fmt: skip
    commits = [r for r in records if r["record"] == "commit"]
    assert {c["mode"] for c in commits} == {
        "dir", "job", "stage", "sql", "rewind", "discard", "compact",
    }  # fmt: skip
    assert {o.get("format", "parquet") for c in commits for o in c["outputs"]} == {"parquet", "orc", "sql"}
    assert {c["records"] for c in commits} >= {-1, 0}
    assert any(c.get("skipped") and c.get("missing") for c in commits)
    receipts = [r for r in records if r["record"] == "receipt"]
    for field in ("lost", "skipped", "missing", "gaps"):
        assert any(r.get(field) for r in receipts), field
    assert any(p["reason"] for r in records if r["record"] == "plan" for p in r["partitions"])


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_is_begun_with_the_same_record(name: str, tmp_path: Path) -> None:
    old = ROOT / name / "load.json"
    record = json.loads(old.read_bytes())
    created = datetime.fromisoformat(record["created"].replace("Z", "+00:00"))
    clock = ManualClock(round(created.astimezone(timezone.utc).timestamp() * 1000))
    ledger = Ledger(open_store(tmp_path), name, clock)
    ledger.identify(record["cluster_id"], record["options"], protocol=record.get("protocol", "0.8"))
    assert (tmp_path / name / "load.json").read_bytes() == old.read_bytes()


@pytest.mark.parametrize("name", LEDGERS)
def test_the_hints_after_a_commit_are_the_same(name: str, tmp_path: Path) -> None:
    copied("ledgers", tmp_path)
    old, new = ROOT / name, tmp_path / "ledgers" / name
    hints = [path.relative_to(old) for path in (old / "HEAD.json", *old.glob("offsets/part-*"))]
    assert len(hints) >= 2
    for hint in hints:
        (new / hint).unlink()
    archive = Archive(open_store(new))
    newest = archive.head()
    assert newest is not None
    write_hints(archive, newest)
    assert [(new / hint).read_bytes() for hint in hints] == [(old / hint).read_bytes() for hint in hints]
    assert len(list(new.glob("offsets/*"))) == len(hints) - 1


@pytest.mark.parametrize("kind", ["commits", "partitions"])
@pytest.mark.parametrize("name", LEDGERS)
def test_history_prints_the_same(name: str, kind: str) -> None:
    more = ("--partitions",) if kind == "partitions" else ()
    ran = kafkalog("history", name, "--offsets", str(ROOT), "--json", *more)
    assert ran.returncode == 0
    assert ran.stdout == (RELEASE_1 / "histories" / f"{name}.{kind}.jsonl").read_text()


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_and_its_files_are_sound(name: str, tmp_path: Path) -> None:
    copied("ledgers", tmp_path)
    ledger = Ledger.at(tmp_path / "ledgers", name)
    assert ledger.verify() == []
    here = [
        replace(c, outputs=tuple(replace(o, path=moved(o.path)) for o in c.outputs)) for c in ledger.lineage()
    ]
    assert verify_outputs(here) == []


def moved(path: str) -> str:
    return path.replace(str(WRITTEN_AT), str(RELEASE_1))


def test_commits_say_what_was_done() -> None:
    assert {
        name: [(c.number, c.parent, c.mode, c.records) for c in Ledger.at(ROOT, name).history()]
        for name in LEDGERS
    } == {
        "flights": [
            (1, 0, "dir", 30), (2, 1, "dir", 11), (3, 2, "discard", 0), (4, 3, "job", -1), (5, 4, "job", 4),
            (6, 4, "rewind", 0), (7, 6, "stage", 4), (8, 7, "dir", 2),
        ],
        "losses": [(1, 0, "dir", 24), (2, 1, "dir", 24)],
        "small": [
            (1, 0, "dir", 10), (2, 1, "dir", 5), (3, 2, "dir", 5), (4, 3, "compact", 0), (5, 4, "dir", 5),
        ],
        "old": [(1, 0, "dir", 66), (2, 1, "stage", 3), (3, 2, "dir", 1)],
        "warehouse": [(1, 0, "sql", 15), (2, 1, "sql", 10), (3, 1, "rewind", 0), (4, 3, "sql", 5)],
    }  # fmt: skip
    assert [c.number for c in Ledger.at(ROOT, "flights").lineage()] == [1, 2, 3, 4, 6, 7, 8]
    assert (lines("histories/losses.partitions.jsonl")[1]["lost"]) == 8


def test_a_plan_without_commit_is_still_pending() -> None:
    ledger = Ledger.at(ROOT, "flights")
    plan = ledger.pending()
    assert plan is not None
    assert (plan.number, {p.partition: (p.start, p.end) for p in plan.partitions}) == (
        9, {0: (36, 40), 1: (13, 16)}
    )  # fmt: skip
    unread = [r for r in plan.ranges if ledger.receipt(plan, r) is None]
    assert [(r.partition, r.start, r.end) for r in unread] == [(1, 13, 16)]


@pytest.mark.parametrize("name", ["flights", "by-hour", "losses", "old", "small"])
def test_a_table_knows_its_load(name: str) -> None:
    found = read_claim(RELEASE_1 / "lake" / name)
    assert found is not None
    load = "flights" if name == "by-hour" else name
    assert (found.load, found.offsets, found.path, found.format) == (
        load, str(WRITTEN_AT / "ledgers"), str(WRITTEN_AT / "lake" / name),
        "orc" if name == "by-hour" else "parquet",
    )  # fmt: skip
    assert found.ledger == Ledger.at(ROOT, load).identity()
