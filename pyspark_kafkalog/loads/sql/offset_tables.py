"""The tables that a load keeps beside its rows: which offsets they are of, and whose the table is.

    _kafkalog_offsets    one row for each range of a load, made in the transaction of the range's rows
    _kafkalog_tables     one row for each table that loads write to

They lie in the schema of the table that they tell of. Described in docs/loads.md, "What is in the database".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from pyspark_kafkalog.ledger.load_errors import DatabaseFailed, LoadError
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.sql.database import SQLITE, Session, TableName, marks

SQL_FORMAT = "sql"
"""Of an output in a commit."""

OFFSETS_TABLE = "_kafkalog_offsets"
TABLES_TABLE = "_kafkalog_tables"

WRITTEN = "written"
SUPERSEDED = "superseded"
"""States of a range: its rows are in the table; they were removed, or must never come."""

_OFFSETS_COLUMNS = {
    "table_name": "VARCHAR(200) NOT NULL",
    "load_number": "BIGINT NOT NULL",
    "topic": "VARCHAR(249) NOT NULL",
    "kafka_partition": "INTEGER NOT NULL",
    "broker": "INTEGER NOT NULL",
    "start_offset": "BIGINT NOT NULL",
    "end_offset": "BIGINT NOT NULL",
    "state": "VARCHAR(10) NOT NULL",
    "load_name": "VARCHAR(200) NOT NULL",
    "plan_sha256": "VARCHAR(64) NOT NULL",
    "topic_id": "VARCHAR(22)",
    "range_count": "INTEGER NOT NULL",
    "row_count": "BIGINT NOT NULL",
    "record_count": "BIGINT",
    "byte_count": "BIGINT",
    "first_offset": "BIGINT",
    "last_offset": "BIGINT",
    "first_timestamp_ms": "BIGINT",
    "last_timestamp_ms": "BIGINT",
    "digest": "VARCHAR(40)",
    "run": "VARCHAR(64)",
    "worker_host": "VARCHAR(255)",
    "written_at": "VARCHAR(30) NOT NULL",
}
_KEY = ("table_name", "load_number", "topic", "kafka_partition", "broker", "start_offset")
_TABLES_COLUMNS = {
    "table_name": "VARCHAR(200) NOT NULL",
    "load_name": "VARCHAR(200) NOT NULL",
    "ledger": "VARCHAR(64) NOT NULL",
    "offsets_path": "VARCHAR(1000) NOT NULL",
    "load_column": "VARCHAR(200)",
    "checked_to": "BIGINT NOT NULL",
    "claimed_at": "VARCHAR(30) NOT NULL",
}


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A row of ``_kafkalog_offsets``, its fields in the order of the columns.

    The record's fields are None where nobody counted them: without receipts, and in a range that is
    superseded. ``row_count`` are the rows that came of the range; of a load that was written in one
    transaction the first range has them all.
    """

    table_name: str
    load_number: int
    topic: str
    kafka_partition: int
    broker: int
    start_offset: int
    end_offset: int
    state: str
    load_name: str
    plan_sha256: str
    topic_id: str | None
    range_count: int
    row_count: int
    record_count: int | None
    byte_count: int | None
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    digest: str | None
    run: str | None
    worker_host: str | None
    written_at: str

    @property
    def range(self) -> tuple[str, int, int, int, int]:
        """Topic, partition, broker, start and end."""
        return self.topic, self.kafka_partition, self.broker, self.start_offset, self.end_offset


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of ``_kafkalog_tables``, its fields in the order of the columns.

    ``ledger`` is the seal of its ``load.json``; up to commit ``checked_to`` what is not in effect is removed.
    """

    table_name: str
    load_name: str
    ledger: str
    offsets_path: str
    load_column: str | None
    checked_to: int
    claimed_at: str


def range_key(planned: PlannedRange) -> tuple[str, int, int, int, int]:
    """What `RangeRow.range` is for a range of a plan."""
    return planned.topic, planned.partition, planned.broker, planned.start, planned.end


def range_row(
    table: TableName,
    load_name: str,
    plan: Plan,
    planned: PlannedRange,
    receipt: Receipt | None,
    *,
    ranges: int,
    rows: int,
    run: str | None,
    now: str,
    state: str = WRITTEN,
) -> RangeRow:
    """The row for a range of a plan; ``receipt`` is what was read, ``rows`` what came of it."""
    return RangeRow(
        table_name=str(table),
        load_number=plan.number,
        topic=planned.topic,
        kafka_partition=planned.partition,
        broker=planned.broker,
        start_offset=planned.start,
        end_offset=planned.end,
        state=state,
        load_name=load_name,
        plan_sha256=plan.sha256,
        topic_id=planned.topic_id or None,
        range_count=ranges,
        row_count=rows,
        record_count=receipt.records if receipt else None,
        byte_count=receipt.bytes if receipt else None,
        first_offset=receipt.first_offset if receipt else None,
        last_offset=receipt.last_offset if receipt else None,
        first_timestamp_ms=receipt.first_timestamp_ms if receipt else None,
        last_timestamp_ms=receipt.last_timestamp_ms if receipt else None,
        digest=receipt.digest if receipt else None,
        run=run,
        worker_host=receipt.host if receipt else None,
        written_at=now,
    )


class OffsetTables:
    """The two tables, as they concern one table of the warehouse. *Not thread-safe, like its session.*

    Nothing is committed here but the tables' creation: transactions are the caller's.
    """

    def __init__(self, session: Session, table: TableName) -> None:
        """They need not be there yet; see `ensure`."""
        self.session = session
        self.table = table
        dialect = session.database.dialect
        self._offsets = table.beside(OFFSETS_TABLE)
        self._tables = table.beside(TABLES_TABLE)
        self._offsets_sql = self._offsets.quoted(dialect)
        self._tables_sql = self._tables.quoted(dialect)

    def ensure(self) -> None:
        """Create both tables where they are missing.

        Raises:
            DatabaseFailed: they are missing and cannot be created.
        """
        key = f", PRIMARY KEY ({', '.join(_KEY)})"
        self._ensure(self._offsets, _OFFSETS_COLUMNS, key)
        self._ensure(self._tables, _TABLES_COLUMNS, ", PRIMARY KEY (table_name)")

    def exist(self) -> bool:
        """Whether both tables are there."""
        return None not in (self.session.columns(self._offsets), self.session.columns(self._tables))

    def claim(self, ours: TableRow) -> TableRow:
        """Make the table this load's, or see that it is; commits.

        Raises:
            LoadError: it is another load's, or that of a ledger that was made anew; it was written to under
                another name, or its rows with another ``load_column``.
        """
        found = self.claimed()
        if found is None:
            self._refuse_another_name()
            try:
                names = ", ".join(_TABLES_COLUMNS)
                values = astuple(ours)
                self.session.run(
                    f"INSERT INTO {self._tables_sql} ({names}) VALUES ({marks(len(values))})", values
                )
                self.session.commit()
            except DatabaseFailed:
                self.session.rollback()  # somebody else was first?
                if self.claimed() is None:
                    raise
            found = self.claimed()
        if found is None or (found.load_name, found.ledger) != (ours.load_name, ours.ledger):
            whose = (
                f"load {found.load_name!r} with its offsets in {found.offsets_path}" if found else "nobody"
            )
            raise LoadError(
                f"{self.session.database.name}: table {self.table} belongs to {whose}, not to load "
                f"{ours.load_name!r} with its offsets in {ours.offsets_path}. One table belongs to one "
                f"ledger: write to another table, or delete its rows in {self._tables} and {self._offsets}"
            )
        return found if found.load_column == ours.load_column else self._other_column(found, ours.load_column)

    def _refuse_another_name(self) -> None:
        """These tables lie in the schema of those they tell of, so a name without its schema is the same one;
        SQLite does not tell small letters from large ones either.
        """

        def bare(name: str) -> str:
            last = name.rpartition(".")[2]
            return last.lower() if self.session.database.dialect is SQLITE else last

        for (name,) in self.session.query(f"SELECT table_name FROM {self._tables_sql}"):
            if bare(str(name)) == bare(str(self.table)):
                raise LoadError(
                    f"{self.session.database.name}: table {self.table} is the one that loads have written to "
                    f"as {name}: what belongs to which load is noted under that name. Use it"
                )

    def _other_column(self, found: TableRow, column: str | None) -> TableRow:
        """Rows of a load that no longer counts are found by one column, so all rows must have that one."""
        if any(WRITTEN in states for states in self.states().values()):
            raise LoadError(
                f"{self.session.database.name}: table {self.table} has rows that were written with "
                f"load_column={found.load_column!r}, and now it is {column!r}: after a rewind those of one "
                "load could not be told from others. Keep it, or write to another table"
            )
        self.session.run(
            f"UPDATE {self._tables_sql} SET load_column = ? WHERE table_name = ?", (column, str(self.table))
        )
        self.session.commit()
        return replace(found, load_column=column)

    def claimed(self) -> TableRow | None:
        """Whose the table is; None where nobody claimed it."""
        rows = self.session.query(
            f"SELECT {', '.join(_TABLES_COLUMNS)} FROM {self._tables_sql} WHERE table_name = ?",
            (str(self.table),),
        )
        return TableRow(*rows[0]) if rows else None

    def checked(self, number: int) -> None:
        """Note that up to this commit nothing is left to remove."""
        self.session.run(
            f"UPDATE {self._tables_sql} SET checked_to = ? WHERE table_name = ?", (number, str(self.table))
        )

    def find(self, number: int, planned: PlannedRange) -> RangeRow | None:
        """The row of a range of a load; None while there is none."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        key = (str(self.table), number, planned.topic, planned.partition, planned.broker, planned.start)
        found = self._ranges(f"WHERE {where}", key)
        return found[0] if found else None

    def of_load(self, number: int) -> list[RangeRow]:
        """The rows of all ranges of a load."""
        return self._ranges("WHERE table_name = ? AND load_number = ?", (str(self.table), number))

    def states(self, after: int = 0) -> dict[int, set[str]]:
        """The loads above ``after`` that the table tells of, and the states that their ranges are in."""
        rows = self.session.query(
            f"SELECT DISTINCT load_number, state FROM {self._offsets_sql} "
            "WHERE table_name = ? AND load_number > ?",
            (str(self.table), after),
        )
        found: dict[int, set[str]] = {}
        for number, state in rows:
            found.setdefault(int(number), set()).add(str(state))
        return found

    def add(self, rows: Iterable[RangeRow]) -> None:
        """Add rows for ranges; a key that is there already is refused by the database."""
        names = ", ".join(_OFFSETS_COLUMNS)
        for row in rows:
            values = astuple(row)
            self.session.run(
                f"INSERT INTO {self._offsets_sql} ({names}) VALUES ({marks(len(values))})", values
            )

    def supersede(self, number: int) -> None:
        """Note that the rows of a load are not in the table."""
        self.session.run(
            f"UPDATE {self._offsets_sql} SET state = ?, row_count = 0 "
            "WHERE table_name = ? AND load_number = ?",
            (SUPERSEDED, str(self.table), number),
        )

    def _ranges(self, where: str, values: tuple[object, ...]) -> list[RangeRow]:
        order = ", ".join(_KEY)
        rows = self.session.query(
            f"SELECT {', '.join(_OFFSETS_COLUMNS)} FROM {self._offsets_sql} {where} ORDER BY {order}", values
        )
        return [RangeRow(*row) for row in rows]

    def _ensure(self, table: TableName, columns: dict[str, str], key: str) -> None:
        if self.session.columns(table) is not None:
            return
        wanted = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        try:
            self.session.run(f"CREATE TABLE {table.quoted(self.session.database.dialect)} ({wanted}{key})")
            self.session.commit()
        except DatabaseFailed:
            self.session.rollback()
            if self.session.columns(table) is None:  # else somebody else was first
                raise
