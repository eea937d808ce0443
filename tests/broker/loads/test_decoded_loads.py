"""Loads whose tasks decode: each record is in the table or a dead letter, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog import decoding
from pyspark_kafkalog.errors import InvalidConfig, LoadError, TooManyDead
from pyspark_kafkalog.loads.output_cleaning import removable_files
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_lake import FileLake
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("tasks_here")

JSON = decoding.json_values({"n": pa.int64(), "name": pa.string()})


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> FileLake:
    """Of one load in which all fifteen records are dead, and then three records."""
    made = FileLake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)
    made.run(decode=JSON)
    made.topic.add('{"n": 1, "name": "one", "more": [1]}', '{"n": "two"}', partition=0)
    made.topic.add('{"name": "three"}', partition=1)
    return made


def test_what_can_be_decoded_is_in_the_table_and_all_else_with_its_reason_is_not(lake: FileLake) -> None:
    load = lake.run(decode=JSON)
    assert load.commit is not None
    assert (load.commit.mode, load.commit.records) == ("dir", 3)
    assert [(out.rows, out.wrote) for out in load.commit.outputs] == [(1, 1), (2, 2)]
    assert lake.rows("n", "name", "offset", "load") == [(None, "three", 5, 2), (1, "one", 10, 2)]
    dead = lake.dead("load", "value", "partition", "offset", "reason")
    assert len(dead) == 16
    assert dead[0] == (1, b"0", 0, 0, "not a JSON object")
    assert dead[-1] == (2, b'{"n": "two"}', 0, 11, 'does not fit the columns: n is "two", not int64')
    assert verify_outputs(lake.ledger.lineage()) == []


def test_a_function_gets_what_was_decoded(lake: FileLake) -> None:
    def doubled(rows: pa.RecordBatch) -> pa.Table:
        return pa.table({"twice": pc.multiply(rows["n"], 2), "at": rows["offset"]}).drop_null()

    with lake.load() as load:
        load.write_parquet(lake.root / "other", decode=JSON, transform=doubled)
    found = kafkalog.read_load(None, lake.root / "other").read_all()
    assert found.select(["twice", "at"]).to_pylist() == [{"twice": 2, "at": 10}]


@pytest.mark.parametrize("limit", [0, 0.3])
def test_too_many_dead_letters_publish_nothing(lake: FileLake, limit: float) -> None:
    with pytest.raises(TooManyDead, match=r'load 2 has 1 dead letters, .*First reasons: .*n is "two"'):
        lake.run(decode=JSON, max_dead=limit)
    assert len(lake.dead("load")) == 15
    assert lake.run(decode=JSON, max_dead=0.5).number == 2
    assert len(lake.dead("load")) == 16
    assert len(lake.rows("n")) == 2


def test_dead_letters_of_a_load_that_is_in_a_lake_table_are_those_of_its_run(lake: FileLake) -> None:
    """A replay may decode more, for example with a newer schema: what it decodes is not in the table."""

    def all_of_them(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = JSON(batch).drop_columns(["reason"])
        return rows.append_column("reason", pa.nulls(len(rows), pa.string()))

    delta = lake.root / "delta"
    with lake.load(on_pending="discard") as load:
        load.write_delta(str(delta), decode=JSON)
        load.keep()
    with lake.load() as load:
        load.write_delta(str(delta), decode=all_of_them)
    assert load.commit is not None
    assert [(out.format, out.rows) for out in load.commit.outputs] == [("parquet", 1), ("delta", None)]
    assert lake.dead("load", "value")[15:] == [(load.number, b'{"n": "two"}')]
    assert sorted(pa.table(DeltaTable(delta).to_pyarrow_table())["name"].to_pylist()) == ["one", "three"]
    assert removable_files(lake.ledger, 10**13)[0].unlisted == ()


def test_a_lake_table_whose_dead_letters_are_too_many_is_not_written(lake: FileLake) -> None:
    delta = lake.root / "delta"
    with pytest.raises(TooManyDead), lake.load() as load:
        load.write_delta(str(delta), decode=JSON, max_dead=0)
    assert DeltaTable(delta).version() == 0
    with lake.load() as load:
        load.write_delta(str(delta), decode=JSON, max_dead=1)
    assert DeltaTable(delta).version() == 1
    assert len(lake.dead("load")) == 16


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"max_dead": 1}, "max_dead= limits the dead letters of decode="),
        (
            {"decode": decoding.json_values({"Topic": pa.string()})},
            "have the fields Topic, topic, as other columns",
        ),
        (
            {"decode": decoding.json_values({"n": pa.int64()}, column="body")},
            "needs the column body; there are key",
        ),
        ({"decode": lambda batch: batch}, "the last one must be reason, of strings"),
        ({"decode": lambda batch: None}, "returned NoneType"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_anything_is_read(
    lake: FileLake, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        lake.run(**how)


def test_a_function_must_return_a_row_for_each_record(lake: FileLake) -> None:
    def fewer(batch: pa.RecordBatch) -> pa.RecordBatch:
        return JSON(batch)[:1]

    with pytest.raises(InvalidConfig, match="returned 1 rows for 2 records"):
        lake.run(decode=fewer)


def test_dead_letters_need_a_ledger_that_tasks_reach_and_are_written_once(lake: FileLake) -> None:
    with (
        pytest.raises(InvalidConfig, match="beside the ledger, which tasks cannot reach: receipts=False"),
        kafkalog.load(None, name="events", offsets=lake.offsets, receipts=False, **lake.options) as load,
    ):
        load.write_parquet(lake.table, decode=JSON)
    with lake.load() as load:
        load.write_parquet(lake.table, decode=JSON)
        with pytest.raises(LoadError, match="dead letters of this load were written in this block already"):
            load.write_delta(str(lake.root / "delta"), decode=JSON)
