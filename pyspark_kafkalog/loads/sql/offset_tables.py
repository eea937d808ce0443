"""The tables that loads keep beside their rows: the offsets read, and which load owns a table.

    _kafkalog_offsets    one row for each range of a load, written in the transaction of its rows
    _kafkalog_tables     one row for each table that loads write to

They are in the schema of that table. docs/loads.md, "What is in the database", describes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, fields, replace

from pyspark_kafkalog.errors import DatabaseFailed, LoadError
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.sql.database import SQLITE, DatabaseSession, TableName, placeholders

SQL_FORMAT = "sql"

OFFSETS_TABLE = "_kafkalog_offsets"
TABLES_TABLE = "_kafkalog_tables"

WRITTEN = "written"
SUPERSEDED = "superseded"
"""States of a range: its rows are in the table; or they were removed, or must never be written."""

_KEY = ("table_name", "load_number", "topic", "kafka_partition", "broker", "start_offset")


def _of(sql_type: str) -> dict[str, str]:
    """Field metadata with the column's type, if that is not BIGINT."""
    return {"sql": sql_type}


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A row of ``_kafkalog_offsets``, its fields in the order of the columns; receipt's fields may be None.
    If one transaction wrote the load, ``row_count`` of the first range counts all rows.
    """

    table_name: str = field(metadata=_of("VARCHAR(200)"))
    load_number: int
    topic: str = field(metadata=_of("VARCHAR(249)"))
    kafka_partition: int = field(metadata=_of("INTEGER"))
    broker: int = field(metadata=_of("INTEGER"))
    start_offset: int
    end_offset: int
    state: str = field(metadata=_of("VARCHAR(10)"))
    load_name: str = field(metadata=_of("VARCHAR(200)"))
    plan_sha256: str = field(metadata=_of("VARCHAR(64)"))
    topic_id: str | None = field(metadata=_of("VARCHAR(22)"))
    range_count: int = field(metadata=_of("INTEGER"))
    row_count: int
    record_count: int | None
    byte_count: int | None
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    digest: str | None = field(metadata=_of("VARCHAR(40)"))
    run: str | None = field(metadata=_of("VARCHAR(64)"))
    worker_host: str | None = field(metadata=_of("VARCHAR(255)"))
    written_at: str = field(metadata=_of("VARCHAR(30)"))

    @property
    def range(self) -> tuple[str, int, int, int, int]:
        return self.topic, self.kafka_partition, self.broker, self.start_offset, self.end_offset


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of ``_kafkalog_tables``, its fields in the order of the columns. ``ledger`` is the seal of its
    ``load.json``; rows not in effect are removed up to commit ``checked_to``.
    """

    table_name: str = field(metadata=_of("VARCHAR(200)"))
    load_name: str = field(metadata=_of("VARCHAR(200)"))
    ledger: str = field(metadata=_of("VARCHAR(64)"))
    offsets_path: str = field(metadata=_of("VARCHAR(1000)"))
    load_column: str | None = field(metadata=_of("VARCHAR(200)"))
    checked_to: int
    claimed_at: str = field(metadata=_of("VARCHAR(30)"))


def _columns(row: type[RangeRow | TableRow]) -> dict[str, str]:
    return {
        one.name: one.metadata.get("sql", "BIGINT") + ("" if "None" in str(one.type) else " NOT NULL")
        for one in fields(row)
    }


_OFFSETS_COLUMNS, _TABLES_COLUMNS = _columns(RangeRow), _columns(TableRow)
_OF_RECEIPT = {
    "record_count": "records", "byte_count": "bytes", "first_offset": "first_offset",
    "last_offset": "last_offset", "first_timestamp_ms": "first_timestamp_ms",
    "last_timestamp_ms": "last_timestamp_ms", "digest": "digest", "worker_host": "host",
}  # fmt: skip


def range_key(planned: PlannedRange) -> tuple[str, int, int, int, int]:
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
        **{column: getattr(receipt, name, None) for column, name in _OF_RECEIPT.items()},
        run=run,
        written_at=now,
    )


class OffsetTables:
    """The two tables, for one table of the warehouse. *Not thread-safe.* Only `ensure` and `claim` commit."""

    def __init__(self, session: DatabaseSession, table: TableName) -> None:
        self.session = session
        self.table = table
        dialect = session.database.dialect
        self._offsets = table.beside(OFFSETS_TABLE)
        self._tables = table.beside(TABLES_TABLE)
        self._offsets_sql = self._offsets.quoted(dialect)
        self._tables_sql = self._tables.quoted(dialect)

    def ensure(self) -> None:
        key = f", PRIMARY KEY ({', '.join(_KEY)})"
        self._ensure(self._offsets, _OFFSETS_COLUMNS, key)
        self._ensure(self._tables, _TABLES_COLUMNS, ", PRIMARY KEY (table_name)")

    def exist(self) -> bool:
        return None not in (self.session.columns(self._offsets), self.session.columns(self._tables))

    def claim(self, ours: TableRow) -> TableRow:
        """Make this load the owner of the table, or check that it is, with ``load_column``; commits."""
        found = self.claimed()
        if found is None:
            self._refuse_another_name()
            try:
                self._insert(self._tables_sql, _TABLES_COLUMNS, ours)
                self.session.commit()
            except DatabaseFailed:
                self.session.rollback()  # another driver may have been first
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
        """The name with and without schema, and in SQLite in upper and lower case, is the same table."""

        def bare(name: str) -> str:
            last = name.rpartition(".")[2]
            return last.lower() if self.session.database.dialect is SQLITE else last

        for (name,) in self.session.query(f"SELECT table_name FROM {self._tables_sql}"):
            if bare(str(name)) == bare(str(self.table)):
                raise LoadError(
                    f"{self.session.database.name}: loads have written to table {self.table} as {name}: "
                    "use that name, under which its offsets are stored"
                )

    def _other_column(self, found: TableRow, column: str | None) -> TableRow:
        """Rows of superseded loads are found by one column, so all rows must have it."""
        if any(WRITTEN in states for states in self.states().values()):
            raise LoadError(
                f"{self.session.database.name}: table {self.table} has rows written with "
                f"load_column={found.load_column!r}, and now it is {column!r}: a rewind could not find "
                "the rows to remove. Keep it, or write to another table"
            )
        self.session.run(
            f"UPDATE {self._tables_sql} SET load_column = ? WHERE table_name = ?", (column, str(self.table))
        )
        self.session.commit()
        return replace(found, load_column=column)

    def claimed(self) -> TableRow | None:
        rows = self.session.query(
            f"SELECT {', '.join(_TABLES_COLUMNS)} FROM {self._tables_sql} WHERE table_name = ?",
            (str(self.table),),
        )
        return TableRow(*rows[0]) if rows else None

    def checked(self, number: int) -> None:
        self.session.run(
            f"UPDATE {self._tables_sql} SET checked_to = ? WHERE table_name = ?", (number, str(self.table))
        )

    def find(self, number: int, planned: PlannedRange) -> RangeRow | None:
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        key = (str(self.table), number, planned.topic, planned.partition, planned.broker, planned.start)
        found = self._ranges(f"WHERE {where}", key)
        return found[0] if found else None

    def of_load(self, number: int) -> list[RangeRow]:
        return self._ranges("WHERE table_name = ? AND load_number = ?", (str(self.table), number))

    def states(self, after: int = 0) -> dict[int, set[str]]:
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
        for row in rows:
            self._insert(self._offsets_sql, _OFFSETS_COLUMNS, row)

    def _insert(self, into: str, columns: Iterable[str], row: RangeRow | TableRow) -> None:
        values = astuple(row)
        statement = f"INSERT INTO {into} ({', '.join(columns)}) VALUES ({placeholders(len(values))})"
        self.session.run(statement, values)

    def supersede(self, number: int) -> None:
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
            if self.session.columns(table) is None:  # otherwise another driver was first
                raise
