"""Mode ``sql`` on a real broker and real databases, without Spark: every range once, whoever tries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.errors import (
    DatabaseFailed,
    IncompleteLoad,
    LoadError,
    LostRace,
    ReceiptMismatch,
)
from pyspark_kafkalog.loads.ledger import Ledger
from pyspark_kafkalog.loads.load import Load, load
from pyspark_kafkalog.loads.sql_audit import audit_database
from pyspark_kafkalog.loads.sql_database import Database, database_of
from pyspark_kafkalog.loads.sql_dialect import TableName
from pyspark_kafkalog.loads.sql_offsets import OffsetTables, RangeRow
from pyspark_kafkalog.loads.sql_table import SqlTable
from pyspark_kafkalog.loads.target import Work
from tests.support.local_spark import LocalSpark
from tests.support.postgresql import missing, running_postgresql
from tests.support.raw_client import RawClient
from tests.support.spark_topics import Topic

NAME = "events"
DRIVERS = ("sqlite", "sqlite+adbc", "postgresql", "postgresql+adbc")


@dataclass
class Warehouse:
    """One load's topic, with 0-9 in partition 0 and 10-14 in partition 1, its ledger and its table."""

    servers: str
    topic: Topic
    root: Path
    url: str
    table: str
    spark: LocalSpark

    @property
    def ledger(self) -> Ledger:
        return Ledger.at(self.root / "offsets", NAME)

    @property
    def database(self) -> Database:
        return database_of(self.url)

    def load(self, name: str = NAME, **options: Any) -> Load:
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic.name, **options}
        return load(self.spark, name=name, offsets=self.root / "offsets", **given)  # type: ignore[arg-type]

    def run(self, **how: Any) -> Any:
        """A whole load; returns its commit."""
        given = {key: how.pop(key) for key in ("on_pending", "receipts", "minPartitions") if key in how}
        with self.load(**given) as current:
            current.write_sql(self.url, self.table, **how)
        return current.commit

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self.database.session() as session:
            return session.query(statement)

    def rows(self) -> list[tuple[int, int]]:
        """The load and the value of each row."""
        found = self.query(f'SELECT "_kl_load", value FROM "{self.table}"')
        return sorted((number, int(bytes(value))) for number, value in found)

    def ranges(self, number: int) -> list[RangeRow]:
        with self.database.session() as session:
            return OffsetTables(session, TableName.of(self.table)).of_load(number)

    def findings(self) -> list[str]:
        return audit_database(self.ledger, self.database) + self.ledger.verify()

    def work(self, current: Load) -> Work:
        assert current.plan is not None
        return Work(
            spark=current._spark, ledger=current.ledger, plan=current.plan, run="another", frame=current.df,
            is_whole=True, has_receipts=True, before=(), source=current._options,
        )  # fmt: skip

    def another_attempt(self, current: Load) -> list[bool]:
        """All tasks of a load once more, as an attempt elsewhere would run them; which of them wrote."""
        tasks = SqlTable(self.url, self.table).tasks(self.work(current))
        return [tasks.write(index) for index in range(len(tasks.parts))]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture
def make(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path, request: Any) -> Any:
    def warehouse(driver: str) -> Warehouse:
        if driver.startswith("postgresql"):
            url = request.getfixturevalue("postgresql").replace("postgresql", driver, 1)
        else:
            url = f"{driver}:///{tmp_path}/warehouse.db"
        rows = Topic(client, topic)
        rows.add(*range(10), partition=0)
        rows.add(*range(10, 15), partition=1)
        table = topic.partition("-")[0] + "-events"
        return Warehouse(running_broker.bootstrap_servers, rows, tmp_path, url, table, LocalSpark())

    return warehouse


@pytest.fixture
def warehouse(make: Callable[[str], Warehouse]) -> Warehouse:
    return make("sqlite")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.skipif(bool(missing()), reason=missing() or "")),
    ]
)
def either(request: Any, make: Callable[[str], Warehouse]) -> Warehouse:
    return make(request.param)


def rows(number: int, *ranges: range) -> list[tuple[int, int]]:
    return [(number, value) for r in ranges for value in r]


@pytest.mark.parametrize("driver", DRIVERS)
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

        class Slow(type(tasks)):  # type: ignore[misc]
            """It looks, finds nothing, and only then somebody else writes all."""

            def _copy(self, *args: Any) -> Any:
                if not other:
                    other.extend(either.another_attempt(current))
                return super()._copy(*args)

        other: list[bool] = []
        slow = Slow(**{name: getattr(tasks, name) for name in tasks.__dataclass_fields__})
        wrote = [slow.write(index) for index in range(len(tasks.parts))]
        assert other == [True] * len(tasks.parts)
        assert wrote == [False] * len(tasks.parts)
        current.write_sql(either.url, either.table)
    assert either.rows() == rows(1, range(15))
    assert either.another_attempt(current) == [False] * len(tasks.parts)
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
        with pytest.raises(LostRace, match="given up or rewound over"):
            tasks.write(late)
    assert either.rows() == rows(1, range(15)) + rows(3, range(15, 17))
    assert either.findings() == []


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


def test_other_records_than_were_written_are_refused(warehouse: Warehouse) -> None:
    with warehouse.load() as first:
        first.write_sql(warehouse.url, warehouse.table)
        first.keep()
    with closing(sqlite3.connect(warehouse.root / "warehouse.db")) as mine, mine:
        mine.execute("UPDATE _kafkalog_offsets SET record_count = 9 WHERE kafka_partition = 0")
    with pytest.raises(
        ReceiptMismatch, match=r"9 records of \[0, 10\) are in the database .*, and 10 were read"
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


def test_two_tables_in_one_block_have_their_own_offsets(warehouse: Warehouse) -> None:
    with warehouse.load() as both:
        both.write_sql(warehouse.url, warehouse.table)
        both.write_sql(warehouse.url, "copy")
    assert both.commit is not None
    assert [out.evidence["table"] for out in both.commit.outputs] == [warehouse.table, "copy"]
    assert warehouse.query('SELECT COUNT(*) FROM "copy"') == [(15,)]
    assert warehouse.findings() == []


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


def test_ranges_that_are_not_in_the_drivers_database_are_no_load(
    warehouse: Warehouse, monkeypatch: Any
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.loads.sql_task.SqlTasks.write", lambda self, index: True)
    with pytest.raises(IncompleteLoad, match=r"2 of 2 ranges are not in sqlite:.*reach the same database"):
        warehouse.run()


def test_sqlite_wants_a_local_master(warehouse: Warehouse) -> None:
    warehouse.spark.master = "spark://somewhere:7077"
    with pytest.raises(InvalidConfig, match=r"spark\.master is spark://somewhere:7077: use a local master"):
        warehouse.run()


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
