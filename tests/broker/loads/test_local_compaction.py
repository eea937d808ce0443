"""Small files of many loads become few, without Spark: the same rows, each with its load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.loads.engines.local_engine import LocalEngine
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_lake import FileLake
from tests.support.loads.tasks_here import run_here
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("tasks_here")


class Lake(FileLake):
    """A table divided by `code`, in which columns may come later."""

    def add(self, *values: int, code: str, **more: Any) -> None:
        """A load of these values."""

        def coded(batch: pa.RecordBatch) -> pa.Table:
            same = {"code": code, **more}
            columns = {name: pa.repeat(value, len(batch)) for name, value in same.items()}
            return pa.table({"value": batch["value"], "offset": batch["offset"], **columns})

        if values:
            self.topic.add(*values)
        self.run(transform=coded, partition_by="code")

    def everything(self, **how: Any) -> list[tuple[Any, ...]]:
        return self.rows("load", "value", "code", **how)


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> Lake:
    """Of four loads: 0-14, 15 and 16 as 007, and 17 as 7: with one more column."""
    made = Lake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)
    made.add(code="007")
    made.add(15, code="007")
    made.add(16, code="007")
    made.add(17, code="7:", more=5)
    return made


def test_a_compaction_leaves_rows_loads_and_values_as_they_are(lake: Lake) -> None:
    before = lake.everything()
    assert len(before) == 18
    commit = kafkalog.compact(None, lake.table)
    assert commit is not None
    (output,) = commit.outputs
    assert (commit.number, commit.mode, output.replaces, output.wrote) == (5, "compact", ((1, 4),), 17)
    assert [(file.name.rpartition("/")[0], file.rows) for file in output.files] == [("code=007", 17)]
    assert lake.everything() == before
    assert [row[0] for row in lake.everything(between="commit:1,commit:5")] == [2, 3, 4]
    lake.add(18, code="7:", more=6)
    assert kafkalog.compact(None, lake.table) is not None
    assert lake.everything() == [*before, (6, b"18", "7:")]
    assert kafkalog.compact(None, lake.table) is None
    newest = next(lake.table.glob("kl_compact=00000007/*/*/*.parquet"))
    found = pq.ParquetFile(newest)
    assert found.schema_arrow.names == ["value", "offset", "more", "load"]
    assert found.metadata.row_group(0).sorting_columns == ()
    assert b"kafkalog.first_offset" not in found.metadata.metadata
    assert lake.ledger.verify() == verify_outputs(lake.ledger.lineage()) == []
    lake.ledger.rewind(3, "run")
    assert lake.everything() == [row for row in before if row[0] <= 3]


def test_files_grow_to_the_size_that_was_asked_for(lake: Lake) -> None:
    largest = max(file.bytes for file in lake.ledger.commit_at(1).outputs[0].files)
    commit = kafkalog.compact(None, lake.table, target_bytes=largest * 2)
    assert commit is not None
    assert sorted(file.rows for file in commit.outputs[0].files) == [2, 15]


def test_a_task_that_dies_leaves_what_was_there(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(engine: LocalEngine, task: Any, count: int) -> list[str]:
        return run_here(engine, task, count)[:-1]

    before = lake.everything()
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "run", die)
        with pytest.raises(LoadError, match="0 tasks merged group 0 of files; it must be one"):
            kafkalog.compact(None, lake.table)
    assert lake.everything() == before
    assert kafkalog.compact(None, lake.table) is not None
    assert lake.everything() == before


def test_what_needs_spark_and_what_cannot_be_one_file_is_told(lake: Lake) -> None:
    with pytest.raises(InvalidConfig, match="compression: Spark writes this, and spark is None"):
        kafkalog.compact(None, lake.table, compression="zstd")
    lake.add(19, code="7:")
    lake.add(20, code="7:", more="text")
    with pytest.raises(LoadError, match="has column more as string, and older files as int64"):
        kafkalog.compact(None, lake.table)


def test_the_command_compacts_here(lake: Lake) -> None:
    ran = CliRunner().invoke(app, ["compact", "events", "--offsets", str(lake.offsets)])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines() == [
        f"{lake.table}: 4 small files with {ran.stdout.split(' with ')[1].splitlines()[0]}",
        f"commit 5: 1 file in {lake.table}/kl_compact=00000005",
    ]
