"""Mode ``sql`` on a real broker and real databases, without Spark: every range once, whoever tries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from pyspark_kafkalog.cli.app import app as command_line
from pyspark_kafkalog.errors import (
    LostRace,
)
from pyspark_kafkalog.loads.range_tasks import RangeTasks
from pyspark_kafkalog.loads.sql.sql_table import SqlTable
from tests.support.loads.sql_warehouse import NAME, Warehouse, rows

DRIVERS = ("sqlite", "sqlite+adbc", "postgresql", "postgresql+adbc")


@pytest.mark.long("several loads, and commands between them")
@pytest.mark.parametrize("driver", ["sqlite+adbc", "postgresql"])
def test_each_load_begins_where_the_last_one_ended(driver: str, make: Callable[[str], Warehouse]) -> None:
    warehouse = make(driver)
    commit = warehouse.run(minPartitions=4)
    assert (commit.mode, commit.records) == ("sql", 15)
    (output,) = commit.outputs
    assert (output.format, output.rows) == ("sql", 15)
    assert "hidden" not in str(commit)
    assert warehouse.rows() == rows(1, range(15))

    warehouse.topic.add(15, 16, partition=1)
    second = warehouse.run()
    assert (second.number, second.records) == (2, 2)
    assert warehouse.rows() == rows(1, range(15)) + rows(2, range(15, 17))
    assert warehouse.findings() == []
    (row,) = warehouse.ranges(2)
    assert (row.kafka_partition, row.start_offset, row.end_offset) == (1, 5, 7)
    assert (row.record_count, row.row_count, row.first_offset, row.last_offset) == (2, 2, 5, 6)


@pytest.mark.parametrize("driver", DRIVERS)
def test_values_arrive_as_they_are_in_every_column(driver: str, make: Callable[[str], Warehouse]) -> None:
    warehouse = make(driver)
    odd = b"\0\xff'\"\\%s?\n"
    warehouse.topic.add(odd, timestamp=1_700_000_000_123)
    warehouse.run()
    names = ", ".join(
        f'"{name}"' for name in ("topic", "partition", "offset", "timestamp", "timestampType", "key")
    )
    (row,) = warehouse.query(f'SELECT {names}, value FROM "{warehouse.table}" WHERE "offset" = 10')
    topic, partition, offset, when, kind, key, value = row
    assert (topic, partition, offset, kind, key) == (warehouse.topic.name, 0, 10, 0, None)
    assert bytes(value) == odd
    if driver.startswith("sqlite"):
        assert when == "2023-11-14 22:13:20.123000"
    else:
        assert when.timestamp() == 1_700_000_000.123


def test_a_load_that_died_before_its_commit_is_found_and_only_committed(either: Warehouse) -> None:
    with either.load(minPartitions=4) as first:
        first.write_sql(either.url, either.table)
        first.keep()
    assert either.ledger.head() is None
    either.spark.before = lambda number: pytest.fail("nothing is to be written again")
    with either.load() as again:
        assert again.number == first.number
        again.write_sql(either.url, either.table)
    assert again.commit is not None
    assert again.commit.records == 15
    assert either.rows() == rows(1, range(15))
    assert either.findings() == []


def test_a_load_that_died_in_its_tasks_writes_what_is_missing(either: Warehouse) -> None:
    def die(number: int) -> None:
        if number == 2:
            raise RuntimeError("killed")

    either.spark.before = die
    with pytest.raises(RuntimeError, match="killed"):
        either.run(minPartitions=4)
    there = len(either.rows())
    assert 0 < there < 15
    either.spark.before = lambda _: None
    assert either.run().records == 15
    assert either.rows() == rows(1, range(15))
    assert either.findings() == []


def test_an_attempt_elsewhere_that_was_first_wins_and_the_second_undoes_its_rows(either: Warehouse) -> None:
    with either.load(minPartitions=4) as current:
        target = SqlTable(either.url, either.table)
        work = either.work(current)
        target.check(work)
        tasks = target.tasks(work)

        class Slow(RangeTasks):
            """It looks, finds nothing, and only then somebody else writes all."""

            def read(self, *args: Any, **named: Any) -> Any:
                if not other:
                    other.extend(either.another_attempt(current))
                return super().read(*args, **named)

        other: list[bool] = []
        slow = replace(tasks, ranges=Slow(**vars(tasks.ranges)))
        wrote = [slow.write(index) for index in range(len(tasks.ranges.parts))]
        assert other == [True] * len(tasks.ranges.parts)
        assert wrote == [False] * len(tasks.ranges.parts)
        current.write_sql(either.url, either.table)
    assert either.rows() == rows(1, range(15))
    assert either.another_attempt(current) == [False] * len(tasks.ranges.parts)
    assert either.findings() == []


def test_what_was_rewound_over_is_removed_and_comes_again_once(either: Warehouse) -> None:
    either.run()
    either.topic.add(15, 16)
    either.run()
    either.topic.add(17)
    either.run()
    either.ledger.rewind(1, "a rewind")
    assert "rows of load 2, which is not in effect" in either.findings()[0]
    assert either.run().number == 5
    assert either.rows() == rows(1, range(15)) + rows(5, range(15, 18))
    assert {row.state for row in either.ranges(2) + either.ranges(3)} == {"superseded"}
    assert either.findings() == []


def test_a_late_attempt_at_a_load_that_was_given_up_brings_nothing_back(either: Warehouse) -> None:
    either.run()
    either.topic.add(15, partition=0)
    either.topic.add(16, partition=1)
    with either.load() as given_up:
        target = SqlTable(either.url, either.table)
        target.check(either.work(given_up))
        tasks = target.tasks(either.work(given_up))
        assert tasks.write(0)
        given_up.keep()
    assert either.run(on_pending="discard").number == 3
    assert either.rows() == rows(1, range(15)) + rows(3, range(15, 17))
    for late in range(2):  # the range that it had written, and the one that it had not
        with pytest.raises(LostRace, match="abandoned or rewound"):
            tasks.write(late)
    assert either.rows() == rows(1, range(15)) + rows(3, range(15, 17))
    assert either.findings() == []


def test_rows_are_what_the_transformation_makes_of_each_batch(either: Warehouse) -> None:
    def numbers(batch: pa.RecordBatch) -> pa.Table:
        table = pa.table(
            {"n": pc.cast(pc.cast(batch["value"], pa.string()), pa.int64()), "at": batch["timestamp"]}
        )
        return table.filter(pc.greater(table["n"], 11))

    commit = either.run(transform=numbers)
    assert (commit.records, commit.outputs[0].rows) == (15, 3)
    assert sorted(either.query(f'SELECT n, "_kl_load" FROM "{either.table}"')) == [(12, 1), (13, 1), (14, 1)]
    assert either.findings() == []


def test_without_receipts_the_offset_rows_vouch_for_the_load(warehouse: Warehouse) -> None:
    commit = warehouse.run(receipts=False)
    assert commit.outputs[0].rows == 15
    assert not (warehouse.root / "offsets" / NAME / "receipts").exists()
    assert [row.record_count for row in warehouse.ranges(1)] == [10, 5]
    assert warehouse.findings() == []


def test_a_receipt_that_was_deleted_is_left_again_by_reading(warehouse: Warehouse) -> None:
    with warehouse.load() as first:
        first.write_sql(warehouse.url, warehouse.table)
        first.keep()
    (receipt, _) = sorted((warehouse.root / "offsets" / NAME / "receipts").rglob("*.json"))
    receipt.unlink()
    assert warehouse.run().records == 15
    assert receipt.exists()
    assert warehouse.rows() == rows(1, range(15))


def test_two_tables_in_one_block_have_their_own_offsets(warehouse: Warehouse) -> None:
    with warehouse.load() as both:
        both.write_sql(warehouse.url, warehouse.table)
        both.write_sql(warehouse.url, "copy")
    assert both.commit is not None
    assert [out.evidence["table"] for out in both.commit.outputs] == [warehouse.table, "copy"]
    assert warehouse.query('SELECT COUNT(*) FROM "copy"') == [(15,)]
    assert warehouse.findings() == []


def test_any_driver_is_opened_by_a_function(warehouse: Warehouse) -> None:
    path = warehouse.root / "warehouse.db"
    warehouse.run()
    warehouse.topic.add(15)
    calls = []

    def connect() -> sqlite3.Connection:
        calls.append(1)
        return sqlite3.connect(path)

    with warehouse.load() as current:
        current.write_sql("mydb://user:secret@warehouse", warehouse.table, connect=connect)
    assert calls
    assert current.commit is not None
    assert current.commit.outputs[0].path == "mydb://warehouse"
    assert warehouse.rows() == rows(1, range(15)) + rows(2, range(15, 16))


def test_the_command_line_verifies_the_database_too(warehouse: Warehouse) -> None:
    warehouse.run()
    command = ["verify", NAME, "--offsets", str(warehouse.root / "offsets"), "--database", warehouse.url]
    sound = CliRunner().invoke(command_line, command)
    assert (sound.exit_code, sound.stdout[:27]) == (0, "sound: 1 commit in effect w"), sound.output
    with closing(sqlite3.connect(warehouse.root / "warehouse.db")) as mine, mine:
        mine.execute(f'DELETE FROM "{warehouse.table}" WHERE value = ?', (b"3",))
    found = CliRunner().invoke(command_line, command)
    assert found.exit_code == 1
    assert "load 1: 14 rows are there, 15 were written" in found.stdout
