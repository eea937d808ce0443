"""What ``kafkalog history --partitions`` and ``gc`` print and do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.cli.load import name_interpreter
from pyspark_kafkalog.errors import LoadBusy
from pyspark_kafkalog.ledger.commit import LoadOutput, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.output_files import claim_path, written_files
from tests.support.ledger.plans import P0, P1, begun, facts, loaded, read_all


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.at(tmp_path, "flights")
    made.identify("cluster-a", {"subscribe": "clicks"})
    for end in (10, 12):
        loaded(made, {P0: facts(0, end), P1: facts(0, 4)})
    return made


def run(ledger: Ledger, command: str, *arguments: str) -> str:
    offsets = str(Path(ledger.location).parent)
    ran = CliRunner().invoke(app, [command, "flights", "--offsets", offsets, *arguments])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize(
    ("master", "given", "found"),
    [
        ("local[*]", None, sys.executable),
        ("local[2]", "/theirs", "/theirs"),
        ("spark://far:7077", None, None),
    ],
)
def test_spark_on_this_machine_uses_our_interpreter_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, found: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {} if given is None else {"PYSPARK_PYTHON": given})
    name_interpreter(master)
    assert os.environ.get("PYSPARK_PYTHON") == found


def test_a_rewind_commits_once_however_often_it_is_repeated(ledger: Ledger) -> None:
    """A rewind forward, and one that undoes a compaction, change which files are in effect."""
    small = LoadOutput("/table", "kl_compact=00000003", replaces=((1, 3),))
    ledger.compact(ledger.commit_at(2), [small], "run")
    unchanged = "positions unchanged: nothing was committed"
    steps = {"commit:2": 2, "commit:1": 1, "commit:3": 3, "start": 0}
    for to in steps:
        last = [run(ledger, "rewind", "--yes", "--to", to).splitlines()[-1] for _ in range(3)]
        assert last == [f"rewound: commit {ledger.head_number()}", unchanged, unchanged], to
    plan = begun(ledger, {P0: facts(0, 20), P1: facts(0, 4)})
    last = [run(ledger, "rewind", "--yes", "--to", "start").splitlines()[-1] for _ in range(2)]
    assert last == [f"rewound: commit {plan.number}", unchanged]
    assert [c.parent for c in ledger.history() if c.mode == "rewind"] == [*steps.values(), 0]
    assert ledger.verify() == []


def test_history_shows_a_row_for_each_partition_of_each_load(ledger: Ledger) -> None:
    ledger.rewind(1, "run")
    shown = run(ledger, "history", "--partitions")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert rows == [
        ["1", "clicks", "0", "0", "10", "10", "10", "80", "1970-01-01T00:00:00.000Z",
         "1970-01-01T00:00:00.009Z", "0", "yes"],
        ["1", "clicks", "1", "0", "4", "4", "4", "32", "1970-01-01T00:00:00.000Z",
         "1970-01-01T00:00:00.003Z", "0", "yes"],
        ["2", "clicks", "0", "10", "12", "2", "2", "18", "1970-01-01T00:00:00.010Z",
         "1970-01-01T00:00:00.011Z", "0", "rewound"],
    ]  # fmt: skip
    newest = [
        json.loads(line)
        for line in run(ledger, "history", "--partitions", "--json", "--limit", "1").splitlines()
    ]
    assert [(row["load"], row["start"], row["end"], row["in_effect"]) for row in newest] == [
        (2, 10, 12, False)
    ]


def test_history_shows_files_below_the_current_directory_by_their_path_from_there(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = begun(ledger, {P0: facts(0, 13), P1: facts(0, 4)})
    read_all(ledger, plan)
    written = [LoadOutput(f"{root}/table", "load=00000003") for root in (tmp_path, "/elsewhere")]
    ledger.commit(plan, mode="dir", run="run", outputs=written)
    monkeypatch.chdir(tmp_path)
    (row,) = [line for line in run(ledger, "history", "--limit", "1").splitlines() if "dir" in line]
    assert row.split("│")[-2].strip() == "table/load=00000003, /elsewhere/table/load=00000003"
    commit = json.loads(run(ledger, "history", "--limit", "1", "--json"))
    assert commit["outputs"][0]["path"] == f"{tmp_path}/table"


def test_gc_says_what_it_removes_and_with_dry_run_removes_nothing(ledger: Ledger) -> None:
    assert run(ledger, "gc", "--dry-run") == "would remove 4 receipts and 0 marks of 1 load\n"
    assert ledger.store.names("receipts") == ["00000001", "00000002"]
    assert run(ledger, "gc") == "removed 4 receipts and 0 marks of 1 load\n"
    assert ledger.store.names("receipts") == ["00000002"]
    assert run(ledger, "gc") == "removed 0 receipts and 0 marks of 0 loads\n"


def test_gc_removes_old_files_of_runs_that_lost_and_says_which_are_too_young(
    ledger: Ledger, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    published, lost = (
        table / "load=00000003/kl_run=won/a.parquet",
        table / "load=00000003/kl_run=lost/a.parquet",
    )
    claim_path(table, ledger)
    for file in (published, lost):
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), file)
    plan = begun(ledger, {P0: facts(0, 13), P1: facts(0, 4)})
    read_all(ledger, plan)
    ledger.commit(plan, mode="dir", run="won", outputs=[written_files(table, "load=00000003/kl_run=won")])
    assert "from" not in run(ledger, "gc")
    assert lost.exists()
    with ledger.hold("a running load"):
        ran = CliRunner().invoke(app, ["gc", "flights", "--offsets", str(tmp_path), "--older-than", "0s"])
        assert isinstance(ran.exception, LoadBusy)
    said = f"1 file with {lost.stat().st_size} bytes from {table}\n"
    assert run(ledger, "gc", "--older-than", "0s", "--dry-run").endswith(f"\nwould remove {said}")
    assert run(ledger, "gc", "--older-than", "0s").endswith(f"\nremoved {said}")
    assert (published.exists(), lost.parent.exists()) == (True, False)
    ran = CliRunner().invoke(app, ["gc", "flights", "--offsets", str(tmp_path), "--older-than", "1w"])
    assert (ran.exit_code, "7d, 12h" in ran.output) == (2, True)


def test_compact_says_what_it_would_put_together_without_spark(ledger: Ledger, tmp_path: Path) -> None:
    assert run(ledger, "compact") == "nothing to compact\n"
    plan = begun(ledger, {P0: facts(0, 13), P1: facts(0, 4)})
    read_all(ledger, plan)
    files = tuple(OutputFile(f"{n}.parquet", 1500, 3) for n in range(2))
    ledger.commit(plan, mode="dir", run="run", outputs=[LoadOutput("/table", "load=00000003", files)])
    assert run(ledger, "compact", "--dry-run") == "/table: 2 small files with 3.0 kB\n"
    assert run(ledger, "compact", "--dry-run", "--target-size", "2kb") == "nothing to compact\n"
    table = tmp_path / "table"
    claim_path(table, ledger)
    assert run(ledger, "compact", "--dry-run", "--to", f"{table}/") == "nothing to compact\n"
    offsets = str(Path(ledger.location).parent)
    wrong = CliRunner().invoke(app, ["compact", "flights", "--offsets", offsets, "--to", "/other"])
    assert (wrong.exit_code, "load 'flights' has no table at /other" in wrong.output) == (2, True)
