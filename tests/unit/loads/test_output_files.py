"""The files of loads: whose a path is, what is noted of them, which of them count."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import DamagedRecord, InvalidConfig, LoadError, ReceiptMismatch
from pyspark_kafkalog.ledger.commit import Commit, LoadOutput, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads import output_files, verification
from pyspark_kafkalog.loads.writers.spark_files import check_rows
from tests.support.ledger.plans import begun
from tests.support.loads import written_tables


def made(offsets: Path, name: str) -> Ledger:
    ledger = Ledger.at(offsets, name)
    ledger.identify("cluster-a", {"subscribe": name})
    return ledger


def of_load(number: int) -> str:
    """The directory of its run."""
    return output_files.load_directory(number, "won")


def write(table: Path, number: int, *names: str, rows: int = 2) -> None:
    written_tables.write(table, *(f"{of_load(number)}/{name}" for name in names), rows=range(rows))


def load(ledger: Ledger, table: Path, *names: str) -> Commit:
    return written_tables.load(ledger, table, of_load(ledger.head_number() + 1), *names)


def test_files_that_spark_takes_for_data_are_listed(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    write(table, 7, "part-0.parquet", "part-1.parquet", "_day=1/part-2.parquet", rows=3)
    write(
        table, 7, "_temporary/0/part-9.parquet", ".part-0.parquet.crc", "_SUCCESS", "part-0.parquet._COPYING_"
    )
    found = output_files.written_files(table, of_load(7))
    assert (found.path, found.directory) == (str(table), of_load(7))
    assert [(f.name, f.rows) for f in found.files] == [
        ("_day=1/part-2.parquet", 3), ("part-0.parquet", 3), ("part-1.parquet", 3),
    ]  # fmt: skip
    sizes = [(table / of_load(7) / f.name).stat().st_size for f in found.files]
    assert [f.bytes for f in found.files] == sizes
    assert found.rows == 9


def test_listing_forces_files_and_directories_to_disk(
    ledger: Ledger, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output_files.claim_path(table, ledger)
    write(table, 1, "day=1/part-0.parquet", "day=2/part-1.parquet")
    synced = []
    fsync = output_files.os.fsync
    monkeypatch.setattr(
        output_files.os,
        "fsync",
        lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)),
    )
    output_files.written_files(table, of_load(1))
    load = table / of_load(1)
    assert set(synced) == {
        load / "day=1" / "part-0.parquet", load / "day=2" / "part-1.parquet",
        load / "day=1", load / "day=2", load, load.parent, table,
    }  # fmt: skip
    assert synced[-1] == table


def test_a_torn_file_is_not_output(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    write(table, 1, "part-0.parquet")
    file = table / of_load(1) / "part-0.parquet"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(LoadError, match=r"part-0\.parquet is not a complete Parquet file"):
        output_files.written_files(table, of_load(1))


def test_a_missing_directory_cannot_be_listed(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    with pytest.raises(LoadError, match=r"load=00000003/kl_run=won, and it is not on this machine"):
        output_files.written_files(table, of_load(3))


def test_files_of_two_writes_are_not_taken_for_one_load(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    ours, theirs = (f"{digit * 8}-1111-2222-3333-444444444444" for digit in "ab")
    write(table, 1, f"part-00000-{ours}-c000.parquet", f"day=1/part-00001-{ours}.c000.parquet")
    assert len(output_files.written_files(table, of_load(1)).files) == 2
    write(table, 1, f"day=1/part-00000-{theirs}-c000.parquet")
    with pytest.raises(LoadError, match=r"files of 2 writes.*load again"):
        output_files.written_files(table, of_load(1))


def test_only_files_of_commits_in_effect_are_published(ledger: Ledger, table: Path) -> None:
    load(ledger, table, "a.parquet", "b.parquet")
    load(ledger, table, "c.parquet")
    write(table, 3, "of-a-load-that-died.parquet")
    write(table, 1, "stale.parquet")
    assert output_files.files_in_effect(ledger, table) == [
        "load=00000001/kl_run=won/a.parquet",
        "load=00000001/kl_run=won/b.parquet",
        "load=00000002/kl_run=won/c.parquet",
    ]


def test_files_of_fewer_rows_than_spark_wrote_are_reported(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    plan = begun(ledger)
    write(table, 1, "a.parquet", "b.parquet", rows=3)
    whole = output_files.written_files(table, of_load(1))
    commit = ledger.commit(plan, mode="dir", run="won", outputs=[replace(whole, wrote=9)], receipts=False)
    assert verification.verify_outputs([replace(commit, outputs=(replace(whole, wrote=6),))]) == []
    assert verification.verify_outputs(ledger.lineage()) == [
        f"load 1: {table}/load=00000001 has files of 6 rows, and 9 were written"
    ]


def test_with_nothing_committed_there_is_nothing_to_read(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    begun(ledger)
    write(table, 1, "a.parquet")
    with pytest.raises(LoadError, match="no load was committed yet"):
        output_files.files_in_effect(ledger, table)


def test_two_tables_of_one_load_are_published_each_by_itself(ledger: Ledger, tmp_path: Path) -> None:
    plan = begun(ledger)
    written = []
    for name in ("one", "two"):
        output_files.claim_path(tmp_path / name, ledger)
        write(tmp_path / name, 1, f"{name}.parquet")
        written.append(output_files.written_files(tmp_path / name, of_load(1)))
    ledger.commit(plan, mode="dir", run="a-run", outputs=tuple(written), receipts=False)
    assert output_files.files_in_effect(ledger, tmp_path / "two") == ["load=00000001/kl_run=won/two.parquet"]


def test_two_partitionings_of_one_table_are_refused(ledger: Ledger, table: Path) -> None:
    load(ledger, table, "day=1/a.parquet")
    load(ledger, table, "a.parquet")
    files = output_files.files_in_effect(ledger, table)
    output_files.check_one_partitioning("t", files[:1])
    with pytest.raises(LoadError, match=r"load 1 is partitioned by \['day'\] and load 2 by \[\].*Rewind"):
        output_files.check_one_partitioning("t", files)
    of_runs = ["load=00000009/kl_run=a/day=1/hour=2/x", "kl_compact=00000010/kl_run=b/day=1/x"]
    with pytest.raises(
        LoadError, match=r"load 9 is partitioned by \['day', 'hour'\] and load 10 by \['day'\]"
    ):
        output_files.check_one_partitioning("t", of_runs)


def test_a_path_belongs_to_the_load_that_claimed_it(ledger: Ledger, table: Path, tmp_path: Path) -> None:
    first = output_files.claim_path(table, ledger)
    assert output_files.claim_path(table, ledger) == first
    other = made(tmp_path / "offsets", "trains")
    with pytest.raises(
        LoadError, match=r"belongs to load 'flights'.*not to load 'trains'.*write to another path"
    ):
        output_files.claim_path(table, other)
    assert output_files.ledger_of(table).location == ledger.location


def test_a_recreated_ledger_does_not_get_the_old_ones_path(
    ledger: Ledger, table: Path, tmp_path: Path
) -> None:
    output_files.claim_path(table, ledger)
    again = made(tmp_path / "elsewhere", "flights")
    with pytest.raises(LoadError, match="the ledger was created again since"):
        output_files.claim_path(table, again)


def test_a_copy_of_a_ledger_does_not_write_over_the_files_of_the_other(
    ledger: Ledger, table: Path, tmp_path: Path
) -> None:
    load(ledger, table, "a.parquet")
    shutil.copytree(tmp_path / "offsets", tmp_path / "copied")
    copied = Ledger.at(tmp_path / "copied", "flights")
    with pytest.raises(LoadError, match="copied/flights is a copy of it: use the original"):
        output_files.claim_path(table, copied)
    (tmp_path / "link").symlink_to("offsets")
    claimed = output_files.claim_path(table, Ledger.at(tmp_path / "link", "flights"))
    shutil.rmtree(tmp_path / "offsets")
    assert output_files.claim_path(table, copied) == claimed


def test_directories_of_loads_that_nobody_claimed_are_left_alone(ledger: Ledger, table: Path) -> None:
    write(table, 1, "a.parquet")
    with pytest.raises(LoadError, match=r"no _kafkalog\.json: it was removed"):
        output_files.claim_path(table, ledger)
    assert (table / of_load(1) / "a.parquet").exists()


def test_a_claim_that_was_removed_is_recreated_by_the_load_that_wrote_there(
    ledger: Ledger, table: Path
) -> None:
    load(ledger, table, "a.parquet")
    claimed = output_files.read_claim(table)
    (table / output_files.CLAIM).unlink()
    assert output_files.claim_path(table, ledger) == claimed


def test_a_claim_that_was_edited_is_damaged(ledger: Ledger, table: Path) -> None:
    output_files.claim_path(table, ledger)
    record = json.loads((table / output_files.CLAIM).read_text())
    assert (record["record"], record["load"]) == ("output", "flights")
    (table / output_files.CLAIM).write_text(json.dumps({**record, "load": "trains"}))
    with pytest.raises(DamagedRecord, match=r"_kafkalog\.json was changed"):
        output_files.ledger_of(table)


def test_a_ledger_inside_the_table_moves_with_it(table: Path, tmp_path: Path) -> None:
    ledger = made(table / "_offsets", "flights")
    load(ledger, table, "a.parquet")
    moved = table.rename(tmp_path / "moved")
    found = output_files.ledger_of(moved)
    assert found.location == str(moved / "_offsets" / "flights")
    assert output_files.files_in_effect(found, moved) == ["load=00000001/kl_run=won/a.parquet"]


def test_a_moved_ledger_has_to_be_named(ledger: Ledger, table: Path, tmp_path: Path) -> None:
    load(ledger, table, "a.parquet")
    (tmp_path / "offsets").rename(tmp_path / "ledgers")
    with pytest.raises(LoadError, match=r"its ledger is not at .*offsets=\.\.\."):
        output_files.ledger_of(table)
    assert output_files.files_in_effect(output_files.ledger_of(table, tmp_path / "ledgers"), table) != []


def test_any_other_directory_is_not_the_output_of_a_load(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is not the output of a load"):
        output_files.ledger_of(tmp_path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("ftp://host/table", "cannot be at a URL of 'ftp'.*mode job"),
        ("dbfs:/lake/table", r"Use the cloud URL behind it .*mode job"),
        ("s3a://bucket/day=*", r"contain \* \?"),
        ("/lake/day=*", r"contain \* \?"),
    ],
)
def test_paths_that_cannot_be_published_are_refused(path: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        output_files.table_store(path)


def test_local_paths_are_absolute_whatever_their_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("table", f"file:{tmp_path}/table", f"file://{tmp_path}/x/../table", str(tmp_path / "table")):
        assert output_files.table_store(text).location == str(tmp_path / "table")


def test_what_happened_to_published_files_is_found(ledger: Ledger, table: Path) -> None:
    commit = load(ledger, table, "gone.parquet", "grown.parquet", "rewritten.parquet", "whole.parquet")
    assert verification.verify_outputs([commit]) == []
    directory = table / of_load(1)
    (directory / "gone.parquet").unlink()
    with (directory / "grown.parquet").open("ab") as file:
        file.write(b"x")
    write(table, 1, "rewritten.parquet", rows=1)
    size = (directory / "rewritten.parquet").stat().st_size
    files = tuple(
        replace(f, bytes=size) if f.name == "rewritten.parquet" else f for f in commit.outputs[0].files
    )
    commit = replace(commit, outputs=(replace(commit.outputs[0], files=files),))
    whole = size_of(commit, "grown.parquet")
    assert verification.verify_outputs([commit]) == [
        f"load 1: {directory}/gone.parquet is missing; it had 2 rows",
        f"load 1: {directory}/grown.parquet has {whole + 1} bytes and had {whole} when it was committed",
        f"load 1: {directory}/rewritten.parquet has 1 rows and had 2 when it was committed",
    ]


def size_of(commit: Commit, name: str) -> int:
    return next(f.bytes for f in commit.outputs[0].files if f.name == name)


def test_the_partition_columns_are_those_of_the_directories() -> None:
    def of(*names: str) -> tuple[str, ...] | None:
        return output_files.partition_columns(
            LoadOutput("/t", "load=1", tuple(OutputFile(n, 1, 1) for n in names))
        )

    assert of("day=1/hour=2/a.parquet") == ("day", "hour")
    assert of("at%3Autc=00%3A15/a%25b=1/a.parquet") == ("at:utc", "a%b"), "by their own names"
    assert of("a.parquet") == ()
    assert of() is None


def test_rows_of_orc_files_come_from_their_footers_and_a_torn_one_is_not_output(
    ledger: Ledger, table: Path
) -> None:
    from pyarrow import orc

    output_files.claim_path(table, ledger, "orc")
    with pytest.raises(LoadError, match="holds orc files of load 'flights'; parquet files cannot be added"):
        output_files.claim_path(table, ledger)
    file = table / of_load(1) / "part-0.orc"
    file.parent.mkdir(parents=True)
    orc.write_table(pa.table({"n": [1, 2, 3]}), file)
    found = output_files.written_files(table, of_load(1))
    assert (found.format, found.rows, found.files[0].name) == ("orc", 3, "part-0.orc")
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(LoadError, match=r"part-0\.orc is not a complete ORC file"):
        output_files.written_files(table, of_load(1))


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("/lake/t/load=1", "Do all executors write to this machine's file system"),
        ("s3a://lake/t/load=1", "lifecycle rule"),
    ],
)
def test_rows_that_are_missing_have_a_cause_of_their_store(place: str, cause: str) -> None:
    check_rows(1, place, 3, 3, 3)
    check_rows(1, place, None, 2, 2)
    for read, wrote, said in [
        (3, 3, "read 3 records, Spark wrote 3"),
        (3, 2, "read 3 "),
        (None, 3, "wrote 3"),
    ]:
        with pytest.raises(ReceiptMismatch, match=rf"{said}.* and {place} holds 2 rows\. .*{cause}"):
            check_rows(1, place, read, wrote, 2)
