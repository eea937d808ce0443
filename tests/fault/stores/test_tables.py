"""The files of a load in an object store, which Spark wrote there: listed, checked, compacted, removed."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import Commit, LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.manifest import FILES, write_manifests
from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files
from pyspark_kafkalog.loads.output_files import (
    claim_path,
    compaction_directory,
    files_in_effect,
    ledger_of,
    written_files,
)
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.command_line import kafkalog
from tests.support.ledger.plans import P0, P1, begun, facts, read_all


@pytest.fixture
def table(url: str) -> str:
    """Tables at a path are in tests/unit/loads."""
    return f"{url}/table"


@pytest.fixture
def ledger(table: str) -> Ledger:
    """Inside the table, so that it moves with it."""
    made = Ledger.at(f"{table}/_offsets", "flights")
    made.identify("cluster-a", {"subscribe": "clicks"})
    return made


def write(table: str, *names: str, rows: Sequence[int] = (1, 2)) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": list(rows)}), file)
    for name in names:
        open_store(table).replace(name, file.getvalue())


def load(ledger: Ledger, table: str, *names: str) -> Commit:
    claim_path(table, ledger)
    number = ledger.head_number() + 1
    plan = begun(ledger, {P0: facts(0, 10 * number), P1: facts(0, 4)})
    read_all(ledger, plan)
    inside = f"load={number:08d}/kl_run=won"
    write(table, *(f"{inside}/{name}" for name in names))
    return ledger.commit(plan, mode="dir", run="won", outputs=[written_files(table, inside)])


def left(table: str) -> list[str]:
    names = (file.name for file in open_store(table).files(""))
    return sorted(name for name in names if not name.startswith("_"))


@pytest.mark.long("many writers at one store")
def test_files_are_listed_as_spark_reads_them_and_verified(ledger: Ledger, table: str) -> None:
    claim_path(table, ledger)
    write(table, *(f"load=00000001/kl_run=won/{name}" for name in ("_SUCCESS", "_temporary/0/x", ".a.crc")))
    commit = load(ledger, table, "day=1/a.parquet", "day=2/b.parquet")
    (output,) = commit.outputs
    assert [(file.name, file.rows) for file in output.files] == [
        ("day=1/a.parquet", 2), ("day=2/b.parquet", 2)
    ]  # fmt: skip
    assert output.path == table
    assert ledger_of(table).location == ledger.location
    assert files_in_effect(ledger, table) == [f"{output.directory}/{file.name}" for file in output.files]
    assert kafkalog("verify", "flights", "--offsets", f"{table}/_offsets").returncode == 0

    store = open_store(table)
    a, b = (f"{output.directory}/{file.name}" for file in output.files)
    store.remove(a)
    whole = store.read(b) or b""
    store.replace(b, whole[:-1] + b"X")
    missing, torn = verify_outputs([commit])
    assert missing == f"load 1: {table}/{a} is missing; it had 2 rows"
    assert "b.parquet is not a complete Parquet file" in torn
    store.replace(b, whole + b"X")
    assert f"has {len(whole) + 1} bytes and had {len(whole)}" in verify_outputs([commit])[1]


def test_files_that_nobody_wrote_cannot_be_listed(ledger: Ledger, table: str) -> None:
    claim_path(table, ledger)
    with pytest.raises(LoadError, match=r"Spark wrote .*/load=00000001/kl_run=lost, and (nothing|it) is "):
        written_files(table, "load=00000001/kl_run=lost")


def test_gc_removes_what_no_commit_names_and_what_was_compacted(ledger: Ledger, table: str) -> None:
    load(ledger, table, "a.parquet")
    load(ledger, table, "b.parquet")
    write(table, "load=00000002/kl_run=lost/a.parquet", "load=00000002/kl_run=lost/_SUCCESS")
    write(table, "load=00000004/kl_run=now/a.parquet", "mine/a.parquet")
    inside = compaction_directory(3, "run")
    write(table, f"{inside}/all.parquet", rows=range(4))
    found = written_files(table, inside)
    head = ledger.head()
    assert head is not None
    compaction = ledger.compact(
        head, [LoadOutput(found.path, inside, found.files, replaces=((1, 3),))], "run"
    )
    write_manifests(ledger, compaction)
    (listed,) = (open_store(table).read(FILES) or b"").decode().splitlines()
    assert listed.endswith(f"/table/{inside}/all.parquet")
    now = SYSTEM_CLOCK.time_ms()
    old = [one for one in removable_files(ledger, now - 60_000) if one.location == table]
    assert [(one.unlisted, one.replaced, one.young_count) for one in old] == [((), (), 2)]
    (one,) = (one for one in removable_files(ledger, now + 60_000) if one.location == table)
    assert one.unlisted == ("load=00000002/kl_run=lost/_SUCCESS", "load=00000002/kl_run=lost/a.parquet")
    assert one.replaced == ("load=00000001/kl_run=won/a.parquet", "load=00000002/kl_run=won/b.parquet")
    remove_files(ledger, one, now)
    assert left(table) == [f"{inside}/all.parquet", "load=00000004/kl_run=now/a.parquet", "mine/a.parquet"]
    assert verify_outputs(ledger.lineage()) == []


@pytest.mark.long("many writers at one store")
def test_a_table_belongs_to_one_load(ledger: Ledger, table: str) -> None:
    claim_path(table, ledger)
    other = Ledger.at(f"{table}/_offsets", "trains")
    other.identify("cluster-a", {"subscribe": "clicks"})
    with pytest.raises(LoadError, match=r"belongs to load 'flights' with its offsets in .*/_offsets, not to"):
        claim_path(table, other)
    open_store(table).remove("_kafkalog.json")
    write(table, "load=00000001/a.parquet")
    with pytest.raises(LoadError, match=r"has directories of loads, but no _kafkalog\.json"):
        claim_path(table, ledger)
