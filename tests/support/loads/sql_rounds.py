"""A round of the loads' fault driver that writes to a database: the same faults, and those of its commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.sql.database import Database, TableName, database_of
from pyspark_kafkalog.loads.sql.offset_tables import OffsetTables
from pyspark_kafkalog.loads.sql.reconcile import audit_database
from pyspark_kafkalog.loads.sql.sql_table import SqlTable
from tests.support.loads.growing_topic import key_at, value_at
from tests.support.loads.load_rounds import NAME, LoadRound
from tests.support.loads.loaded_table import committed_places
from tests.support.loads.spark_driver import DRIVER_POINTS

_OF_FILES = ("files written",)


@dataclass
class SqlRound(LoadRound):
    """A round whose output is a table of the database at ``url``; half of them with ``df=``."""

    url: str = ""
    table: str = field(init=False)

    driver_points: ClassVar = tuple(point for point in DRIVER_POINTS if point not in _OF_FILES)
    replays_read: ClassVar = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table = f"growing_{self.topic.name}".replace("-", "_")
        self.note(f"into {self.table} of {self.database.name}")
        if not self.transformed:  # else the tasks write nothing
            self.points_of_a_retry = (*LoadRound.points_of_a_retry, "before sql commit", "after sql commit")
            self.points_for_good = (*LoadRound.points_for_good, "before sql commit")

    @property
    def database(self) -> Database:
        return database_of(self.url)

    def order(self, on_pending: str = "replay") -> dict[str, Any]:
        return super().order(on_pending) | {"database": self.url, "table": self.table}

    def look(self) -> None:
        """The table holds what is committed, and of the plan that is pending whole ranges."""
        if any(commit.outputs for commit in self.ledger.lineage()):
            self.note(f"seen: {check_database(self.database, self.table, self.ledger)} rows")

    def finish(self) -> None:
        super().finish()
        assert self.ledger.pending() is None
        assert audit_database(self.ledger, self.database) == []

    def rows_before_a_wait(self) -> int:
        """With SQLite none are inserted, for a task that did keeps the others out."""
        return 0 if self.url.startswith("sqlite") else super().rows_before_a_wait()

    def read_again(self, number: int) -> None:
        """Every task of a plan once more, here: what is there stays, what is not is written."""
        if self.transformed:
            super().read_again(number)
            return
        load = {"loadName": NAME, "offsetsPath": str(self.directory / "offsets")}
        nothing: Any = None
        work = Work(
            spark=nothing, engine=nothing, ledger=self.ledger, plan=self.ledger.plan(number), run="again",
            frame=nothing, is_whole=True, has_receipts=True, before=(),
            source=parse_batch_options({**self.options, **load}),
        )  # fmt: skip
        tasks = SqlTable(self.url, self.table).tasks(work)
        wrote = [tasks.write(index) for index in range(len(tasks.ranges.parts))]
        self.note(f"    plan {number} once more: {sum(wrote)} of {len(wrote)} ranges were not there")


def sqlite_in(directory: Path, driver: str = "sqlite") -> str:
    """The URL of a database in this directory."""
    return f"{driver}:///{directory}/warehouse.db"


def check_database(database: Database, table: str, ledger: Ledger) -> int:
    """Every committed offset is in the table once, with its value, in its load; of a pending plan the ranges
    are whole or not there. Returns the number of rows.
    """
    expected = committed_places(ledger)
    with database.session() as session:
        pending = ledger.pending()
        if pending is not None:
            for row in OffsetTables(session, TableName.of(table)).of_load(pending.number):
                for offset in range(row.start_offset, row.end_offset):
                    assert (row.kafka_partition, offset) not in expected
                    expected[row.kafka_partition, offset] = pending.number
        rows = session.query(f'SELECT "partition", "offset", key, value, "_kl_load" FROM "{table}"')
    counted = Counter((partition, offset) for partition, offset, *_ in rows)
    twice = [place for place, count in counted.items() if count > 1]
    assert twice == [], f"rows that are there more than once: {twice[:10]}"
    assert sorted(expected.keys() - counted.keys())[:10] == [], "offsets that are missing"
    assert sorted(counted.keys() - expected.keys())[:10] == [], "offsets that no load wrote"
    for partition, offset, key, value, load in rows:
        assert (key and bytes(key), bytes(value)) == (key_at(partition, offset), value_at(partition, offset))
        assert load == expected[partition, offset], (partition, offset)
    return len(rows)
