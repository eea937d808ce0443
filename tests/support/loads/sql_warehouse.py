"""A load into a database without Spark: its topic, its ledger, its table, and what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.load import Load, load
from pyspark_kafkalog.loads.sql.database import Database, TableName, database_of
from pyspark_kafkalog.loads.sql.offset_tables import OffsetTables, RangeRow
from pyspark_kafkalog.loads.sql.reconcile import audit_database
from pyspark_kafkalog.loads.sql.sql_table import SqlTable
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_spark import LocalSpark

NAME = "events"


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
        return load(self.spark, name=name, **{"offsets": self.root / "offsets", **given})  # type: ignore[arg-type]

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
            spark=current._spark, engine=current._engine, ledger=current.ledger, plan=current.plan,
            run="another", frame=current.df, is_whole=True, has_receipts=True, before=(),
            source=current._options,
        )  # fmt: skip

    def another_attempt(self, current: Load) -> list[bool]:
        """All tasks of a load once more, as an attempt elsewhere would run them; which of them wrote."""
        tasks = SqlTable(self.url, self.table).tasks(self.work(current))
        return [tasks.write(index) for index in range(len(tasks.ranges.parts))]


def rows(number: int, *ranges: range) -> list[tuple[int, int]]:
    return [(number, value) for r in ranges for value in r]
