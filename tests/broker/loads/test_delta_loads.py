"""Delta tables that tasks write: each load once, whatever happens between its files and its commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.cli.terminal_output import size
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.loads.lake_cleaning import removable_lake_files
from pyspark_kafkalog.loads.load import Load
from tests.support.command_line import kafkalog
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_lake import LocalLake
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("tasks_here")


class Lake(LocalLake):
    """A Delta table."""

    @property
    def path(self) -> str:
        return str(self.root / "table")

    def write(self, load: Load, **how: Any) -> None:
        load.write_delta(self.path, **how)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def values(self) -> list[int]:
        return sorted(int(value) for value in pa.table(self.table.to_pyarrow_table())["value"].to_pylist())


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> Lake:
    return Lake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)


def test_each_load_is_one_commit_of_the_table(lake: Lake) -> None:
    assert lake.run().number == 1
    lake.topic.add(15)
    commit = lake.run().commit
    assert commit is not None
    assert (commit.mode, commit.records, commit.outputs[0].evidence["version"]) == ("sink", 1, 2)
    assert lake.values() == list(range(16))
    assert lake.table.transaction_version(f"kafkalog:events:{lake.ledger.identity()[:12]}") == 2
    found = pa.table(lake.table.get_add_actions(flatten=True))
    newest = found.filter(pc.field("num_records") == 1).to_pylist()[0]
    assert (newest["min.offset"], newest["max.offset"], newest["null_count.key"]) == (10, 10, None)
    assert lake.run().is_empty


def test_the_command_appends_to_it(lake: Lake) -> None:
    assert lake.run().number == 1
    lake.topic.add(15)
    ran = kafkalog(*lake.command("--to", lake.path, "--format", "delta"))
    assert (ran.returncode, ran.stdout.splitlines()[-1].partition(",")[0]) == (0, "load 2: 1 record")
    assert lake.values() == list(range(16))
    assert lake.table.version() == 2


def test_a_load_that_is_in_the_table_is_only_committed(lake: Lake) -> None:
    lake.unfinished()
    lake.topic.add(15)
    assert lake.run().number == 1
    assert lake.values() == list(range(15))
    assert lake.table.version() == 1
    assert lake.run().number == 2
    assert lake.values() == list(range(16))


def between(
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[DeltaTable], None],
    *,
    then: BaseException | None = None,
) -> list[DeltaTable]:
    """Let something happen between a load's look at the table and its commit, once."""
    commit, struck = DeltaTable.create_write_transaction, list[DeltaTable]()

    def late(self: DeltaTable, *args: Any, **named: Any) -> None:
        if struck:
            commit(self, *args, **named)
            return
        struck.append(self)
        happens(DeltaTable(self.table_uri))
        commit(self, *args, **named)
        if then is not None:
            raise then

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    return struck


def test_of_two_drivers_that_both_looked_one_commits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slept after its look; its lock expired, and the second wrote the load meanwhile."""

    def second(_: DeltaTable) -> None:
        current.write_delta(lake.path)

    with lake.load() as current:
        struck = between(monkeypatch, second)
        current.write_delta(lake.path)
    assert struck
    assert lake.values() == list(range(15))
    assert lake.table.version() == 1


def test_another_writer_does_not_disturb(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run()
    lake.topic.add(15)
    between(monkeypatch, lambda table: table.alter.set_table_properties({"user": "elsewhere"}))
    assert lake.run().number == 2
    assert lake.values() == list(range(16))


def test_an_answer_that_is_lost_is_looked_for(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, lambda _: None, then=OSError("connection reset"))
    assert lake.run().number == 1
    assert lake.values() == list(range(15))
    assert lake.table.version() == 1


def test_a_commit_that_never_succeeds_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
    monkeypatch.setattr("pyspark_kafkalog.loads.writers.task_lake_table._PAUSE_S", 0)
    with pytest.raises(LoadError, match=r"cannot commit to .*: no route to host; the plan stays"):
        lake.run()
    monkeypatch.undo()
    assert lake.run().number == 1
    assert lake.values() == list(range(15))


def test_a_load_that_was_restored_away_is_not_lost_in_silence(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15)
    lake.unfinished()
    lake.table.restore(1)
    said = r"was restored to before load 2 of 'events', which it still counts as written .*'discard'"
    with pytest.raises(LoadError, match=said):
        lake.run()
    assert lake.values() == list(range(15))
    with lake.load(on_pending="discard") as load:
        load.write_delta(lake.path)
    assert load.number == 3
    assert lake.values() == list(range(16))


def test_what_was_rewound_must_leave_the_table_first(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15)
    lake.run()
    lake.ledger.rewind(1, "a rewind")
    with pytest.raises(
        LoadError, match="holds load 2 of 'events', in its version 2, and the ledger was rewound"
    ):
        lake.run()
    lake.table.restore(1)
    assert lake.run().number == 4
    assert lake.values() == list(range(16))


def test_rows_are_divided_as_the_table_says(lake: Lake) -> None:
    def words(batch: pa.RecordBatch) -> pa.RecordBatch:
        odd = pc.equal(pc.bit_wise_and(batch["offset"], 1), 1)
        return pa.record_batch(
            {"value": batch["value"], "word": pc.if_else(odd, "a b/c=d%e", None), "time": batch["timestamp"]}
        )

    how: dict[str, Any] = {"transform": words, "partition_by": "word", "partition_by_time": "time"}
    lake.run(**how)
    found = pa.table(lake.table.to_pyarrow_table())
    assert found.schema.names == ["value", "word", "time", "day"]
    by_word = {
        word: sorted(
            map(int, found.filter(pc.equal(pc.coalesce(found["word"], ""), word))["value"].to_pylist())
        )
        for word in ("a b/c=d%e", "")
    }
    assert by_word == {"a b/c=d%e": [1, 3, 5, 7, 9, 11, 13], "": [0, 2, 4, 6, 8, 10, 12, 14]}
    assert found["day"].to_pylist() == [time.date() for time in found["time"].to_pylist()]
    lake.topic.add(15)
    with pytest.raises(
        LoadError, match=r"is partitioned by \['day', 'word'\], this load by \[\]: give the same"
    ):
        lake.run(transform=words)
    more = {**how, "transform": lambda batch: words(batch).append_column("more", batch["offset"])}
    with pytest.raises(LoadError, match="has no column more; it has value, word, time, day"):
        lake.run(**more)
    assert lake.run(**how).number == 2


def test_what_tasks_cannot_write_is_refused_by_name_before_anything_is_read(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15)
    lake.table.alter.add_constraint({"small": "offset < 100"})
    with pytest.raises(
        LoadError, match=r"uses .*delta\.constraints\.small, which tasks cannot write: use engine='spark'"
    ):
        lake.run()
    assert lake.load().ledger.store.names("receipts/00000002") == []


def test_a_column_of_another_type_is_refused(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15)

    def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(
            batch.schema.get_field_index("offset"), "offset", batch["offset"].cast(pa.int32())
        )

    with pytest.raises(LoadError, match="column offset is bigint, and this load has int"):
        lake.run(transform=narrow)


def test_a_table_is_written_once_in_a_block(lake: Lake) -> None:
    with lake.load() as load:
        load.write_delta(lake.path)
        with pytest.raises(LoadError, match="was written in this block already"):
            load.write_delta(lake.path)


ALL = 10**13  # milliseconds: later than any file


def test_only_files_that_no_version_has_are_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that died before its commit; not what an older version still has, nor what others wrote."""

    def die(*_: Any, **__: Any) -> None:
        raise InterruptedError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", die)
        patch.setattr("pyspark_kafkalog.loads.writers.task_lake_table._PAUSE_S", 0)
        with pytest.raises(LoadError, match="power cut"):
            lake.run()
    assert removable_lake_files(lake.ledger, ALL) == []  # the ledger does not know the table yet
    lake.run()
    foreign = Path(lake.path, "part-0.parquet")
    foreign.write_bytes(b"")
    lake.table.delete("partition = 0")
    (found,) = removable_lake_files(lake.ledger, ALL)
    assert (found.location, len(found.unlisted), found.young_count) == (lake.path, 2, 0)
    assert removable_lake_files(lake.ledger, 0)[0].young_count == 2
    lake.topic.add(15)
    lake.unfinished()
    (pending,) = removable_lake_files(lake.ledger, ALL)
    assert (pending.unlisted, pending.refused) == ((), "a plan is pending, and its files may be there")
    lake.run()
    said = CliRunner().invoke(app, ["gc", "events", "--offsets", str(lake.offsets), "--older-than", "0s"])
    assert f"removed 2 files with {size(found.bytes)} from {lake.path}\n" in said.stdout
    assert foreign.exists()
    assert not any(Path(lake.path, name).exists() for name in found.unlisted)
    assert lake.values() == [*range(10, 15), 15]
    assert len(DeltaTable(lake.path, version=1).to_pyarrow_table()) == 15
