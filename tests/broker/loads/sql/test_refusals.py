"""What a load into a database refuses, and that it then writes nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from pyspark_kafkalog.errors import (
    DatabaseFailed,
    IncompleteLoad,
    InvalidConfig,
    LoadError,
    LostRace,
    ReceiptMismatch,
    UnstorableValue,
)
from pyspark_kafkalog.loads.engines.spark_engine import SparkEngine
from pyspark_kafkalog.loads.sql.offset_tables import SUPERSEDED, OffsetTables, range_row
from pyspark_kafkalog.loads.sql.sql_table import SqlTable
from tests.support.loads.sql_warehouse import Warehouse, rows


def test_rows_that_were_removed_do_not_come_back_by_a_second_rewind(warehouse: Warehouse) -> None:
    warehouse.run()
    warehouse.topic.add(15)
    warehouse.run()
    warehouse.ledger.rewind(1, "back")
    warehouse.run()
    warehouse.ledger.rewind(2, "forth")
    warehouse.topic.add(16)
    with pytest.raises(LoadError, match=r"load 2 is in effect again .* rewind to a commit before load 2"):
        warehouse.run()
    warehouse.ledger.rewind(1, "back again")
    assert warehouse.run(on_pending="discard").records == 2
    assert warehouse.findings() == []


def test_without_a_load_column_rows_of_a_rewound_load_are_not_guessed(warehouse: Warehouse) -> None:
    warehouse.run(load_column=None)
    warehouse.topic.add(15)
    warehouse.run(load_column=None)
    warehouse.ledger.rewind(1, "back")
    with pytest.raises(LoadError, match=r"1 rows of it that cannot be told from others \(load_column=None\)"):
        warehouse.run(load_column=None)
    with closing(sqlite3.connect(warehouse.root / "warehouse.db")) as mine, mine:
        mine.execute(f'DELETE FROM "{warehouse.table}" WHERE value = ?', (b"15",))
        mine.execute("UPDATE _kafkalog_offsets SET row_count = 0 WHERE load_number = 2")
    warehouse.run(load_column=None)
    assert warehouse.query(f'SELECT COUNT(*) FROM "{warehouse.table}"') == [(16,)]
    assert warehouse.findings() == []


@pytest.mark.parametrize("columns", [("_kl_load", None), (None, "_kl_load")])
def test_all_loads_of_a_table_have_one_load_column(
    warehouse: Warehouse, columns: tuple[str | None, str | None]
) -> None:
    with warehouse.database.session() as session:
        session.run(f'CREATE TABLE "{warehouse.table}" (value INTEGER, "_kl_load" INTEGER)')
        session.commit()
    warehouse.run(load_column=columns[0], transform=_ones)
    warehouse.topic.add(15)
    with pytest.raises(LoadError, match="has rows written with load_column="):
        warehouse.run(load_column=columns[1], transform=_ones)
    assert warehouse.run(load_column=columns[0], transform=_ones).records == 1


def test_a_load_column_counts_from_the_first_rows_on(warehouse: Warehouse) -> None:
    with warehouse.database.session() as session:
        session.run(f'CREATE TABLE "{warehouse.table}" (value INTEGER, number INTEGER)')
        session.commit()
    with pytest.raises(LoadError, match="has no column _kl_load"):
        warehouse.run(transform=_ones)
    warehouse.run(load_column="number", transform=_ones)
    warehouse.ledger.rewind(0, "back")
    warehouse.run(load_column="number", transform=_ones)
    assert warehouse.query(f'SELECT number, COUNT(*) FROM "{warehouse.table}" GROUP BY number') == [(3, 15)]


def test_other_records_than_were_written_are_refused(warehouse: Warehouse) -> None:
    with warehouse.load() as first:
        first.write_sql(warehouse.url, warehouse.table)
        first.keep()
    with closing(sqlite3.connect(warehouse.root / "warehouse.db")) as mine, mine:
        mine.execute("UPDATE _kafkalog_offsets SET record_count = 9 WHERE kafka_partition = 0")
    with pytest.raises(
        ReceiptMismatch, match=r"the database has 9 records of \[0, 10\), .*, and 10 were read"
    ):
        warehouse.run()


def test_one_table_belongs_to_one_load(warehouse: Warehouse) -> None:
    warehouse.run()
    with (
        pytest.raises(LoadError, match=r"table .* belongs to load 'events' .*not to load 'other'"),
        warehouse.load("other") as other,
    ):
        other.write_sql(warehouse.url, warehouse.table)
    warehouse.topic.add(15)
    with warehouse.load() as twice:
        twice.write_sql(warehouse.url, warehouse.table)
        with pytest.raises(LoadError, match="was written in this block already"):
            twice.write_sql(warehouse.url, warehouse.table)


@pytest.mark.parametrize("another", [str.upper, "main.{}".format])
def test_a_table_is_not_claimed_again_under_another_name_of_it(warehouse: Warehouse, another: Any) -> None:
    warehouse.run()
    warehouse.topic.add(15)
    with (
        pytest.raises(LoadError, match=f"loads have written to table .* as {warehouse.table}: use that name"),
        warehouse.load("other") as other,
    ):
        other.write_sql(warehouse.url, another(warehouse.table))
    assert warehouse.run().records == 1


@pytest.mark.long("several loads, and commands between them")
def test_a_table_without_the_columns_is_refused_by_their_names(either: Warehouse) -> None:
    with either.database.session() as session:
        session.run(f'CREATE TABLE "{either.table}" (value INTEGER, other INTEGER)')
        session.commit()
    with pytest.raises(LoadError, match=r"has no column key, topic, .*_kl_load; it has value, other"):
        either.run()
    either.run(load_column=None, on_pending="discard", transform=_ones)
    assert either.query(f'SELECT COUNT(*), SUM(value) FROM "{either.table}"') == [(15, 15)]


def _ones(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)})


def test_a_column_without_a_type_in_the_database_is_refused(either: Warehouse) -> None:
    with (
        pytest.raises(InvalidConfig, match=r"has no type for headers list<.*make flat columns"),
        either.load(includeHeaders=True) as current,
    ):
        current.write_sql(either.url, either.table)


def test_a_database_that_refuses_leaves_neither_rows_nor_offsets(either: Warehouse) -> None:
    either.run()
    either.topic.add(15)
    with either.database.session() as session:
        session.run(f'CREATE UNIQUE INDEX "{either.table}-key" ON "{either.table}" ("partition", "offset")')
        session.run(f'INSERT INTO "{either.table}" ("partition", "offset", "_kl_load") VALUES (0, 10, 0)')
        session.commit()
    with pytest.raises(DatabaseFailed, match=r"(?i)unique"):
        either.run()
    assert either.ranges(2) == []
    assert either.query(f'SELECT COUNT(*) FROM "{either.table}"') == [(16,)]


def test_a_value_that_cannot_be_stored_is_reported_with_the_range_that_it_is_of(warehouse: Warehouse) -> None:
    def too_large(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array([2**64 - 1] * batch.num_rows, pa.uint64())})

    said = rf"{warehouse.topic.name}-0 \[0, 10\): column n \(uint64\) cannot be stored: .* Cast it"
    with pytest.raises(UnstorableValue, match=said):
        warehouse.run(transform=too_large)
    assert warehouse.ranges(1) == []


def test_a_load_that_somebody_gave_up_while_it_was_written_has_lost(
    warehouse: Warehouse, monkeypatch: Any
) -> None:
    run = SparkEngine.run

    def run_and_give_up(self: SparkEngine, task: Any, count: int) -> list[str]:
        lines = run(self, task, count)
        with warehouse.database.session() as session:
            OffsetTables(session, task.table).supersede(task.ranges.plan.number)
            session.commit()
        return lines

    monkeypatch.setattr(SparkEngine, "run", run_and_give_up)
    with pytest.raises(LostRace, match=f"{warehouse.topic.name}-0: the load was abandoned or rewound"):
        warehouse.run()


def test_rows_of_a_frame_whose_load_somebody_gave_up_meanwhile_have_lost(
    either: Warehouse, monkeypatch: Any
) -> None:
    def give_up(_: Any) -> Iterator[pa.RecordBatch]:
        with either.database.session() as session:
            tables = OffsetTables(session, target.table)
            tables.add(
                range_row(
                    target.table, "events", plan, planned, None,
                    ranges=2, rows=0, run=None, now="", state=SUPERSEDED,
                )
                for planned in plan.ranges
            )  # fmt: skip
            session.commit()
        yield pa.record_batch({"n": pa.array([1], pa.int64())})

    monkeypatch.setattr("pyspark_kafkalog.loads.sql.sql_table._batches", give_up)
    frame: Any = SimpleNamespace(limit=lambda _: frame, toArrow=lambda: pa.table({"n": pa.array([1])}))
    with either.load() as current:
        work = replace(either.work(current), frame=frame, is_whole=False, has_receipts=False)
        plan, target = work.plan, SqlTable(either.url, either.table)
        target.check(work)
        with pytest.raises(LostRace, match="abandoned or rewound"):
            target.write(work)
        current.keep()
    assert either.query(f'SELECT COUNT(*) FROM "{either.table}"') == [(0,)]


def test_ranges_that_are_not_in_the_drivers_database_are_not_a_load(
    warehouse: Warehouse, monkeypatch: Any
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.loads.sql.sql_table.SqlTasks.write", lambda self, index, tell: True)
    with pytest.raises(IncompleteLoad, match=r"2 of 2 ranges are not in sqlite:.*reach the same database"):
        warehouse.run()


def test_sqlite_wants_a_local_master(warehouse: Warehouse) -> None:
    warehouse.spark.master = "spark://somewhere:7077"
    with pytest.raises(InvalidConfig, match=r"spark\.master is spark://somewhere:7077: use a local master"):
        warehouse.run()


def test_the_audit_finds_rows_and_ranges_that_are_gone(warehouse: Warehouse) -> None:
    warehouse.run()
    with closing(sqlite3.connect(warehouse.root / "warehouse.db")) as mine, mine:
        mine.execute(f'DELETE FROM "{warehouse.table}" WHERE value = ?', (b"3",))
        mine.execute("DELETE FROM _kafkalog_offsets WHERE kafka_partition = 1")
        mine.execute("UPDATE _kafkalog_offsets SET record_count = 11")
    at = f"sqlite:///{warehouse.root}/warehouse.db: table {warehouse.table}, load 1: "
    found = warehouse.findings()
    assert found[0].startswith(f"{at}{warehouse.topic.name}-0 [0, 10): 11 records (digest ")
    assert found[1:] == [
        f"{at}{warehouse.topic.name}-1 [0, 5) is missing",
        f"{at}14 rows are there, 10 were written",
    ]


def test_an_older_copy_of_the_ledger_writes_nothing_again(warehouse: Warehouse) -> None:
    warehouse.run()
    shutil.copytree(warehouse.root / "offsets", warehouse.root / "copy")
    warehouse.topic.add(15, 16)
    warehouse.run()
    warehouse.topic.add(17)
    with (
        pytest.raises(LoadError, match="is a copy of it: use the original"),
        warehouse.load(offsets=warehouse.root / "copy") as copied,
    ):
        copied.write_sql(warehouse.url, warehouse.table)
    shutil.rmtree(warehouse.root / "offsets")
    with (
        pytest.raises(ReceiptMismatch, match="rows of another plan of load 2"),
        warehouse.load(offsets=warehouse.root / "copy", minPartitions=4) as restored,
    ):
        restored.write_sql(warehouse.url, warehouse.table)
    assert warehouse.rows() == rows(1, range(15)) + rows(2, range(15, 17))
