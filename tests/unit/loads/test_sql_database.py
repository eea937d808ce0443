"""Databases by their URLs: what is opened, what is shown, and in which form values are stored."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from dataclasses import fields
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import DatabaseFailed, InvalidConfig, UnstorableValue
from pyspark_kafkalog.loads.sql import offset_tables
from pyspark_kafkalog.loads.sql.database import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    STANDARD,
    Database,
    DatabaseSession,
    TableName,
    database_of,
)
from pyspark_kafkalog.loads.sql.sql_table import SqlTable

SECRET = "p%40ss-word"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"postgresql://me:{SECRET}@db:5433/lake?sslmode=require", "postgresql://db:5433/lake"),
        (f"postgres+psycopg://me:{SECRET}@db/lake", "postgresql://db/lake"),
        (f"postgresql+adbc://me:{SECRET}@a,b/lake?password=hidden", "postgresql://a,b/lake"),
        ("postgresql:///lake?host=/run/pg&user=me", "postgresql:///lake?host=/run/pg"),
        ("postgresql://db/lake?user=a@b.c", "postgresql://db/lake"),
        ("postgresql://me:se#ss-word@db/lake?user=a@b", "postgresql://db/lake"),
        ("postgresql://me:ss-word?ss-word@db/lake", "postgresql://db/lake"),
        ("postgresql://me:ss-word@ss-word@db/lake", "postgresql://db/lake"),
        ("postgresql://me:ss-word/ss-word@db/lake?dbname=x", "postgresql://db/lake?dbname=x"),
        ("sqlite:////lake/flights.db?timeout=5", "sqlite:////lake/flights.db"),
        ("sqlite+adbc:////lake/with%20blank.db", "sqlite:////lake/with blank.db"),
    ],
)
def test_a_database_is_named_without_what_is_secret(url: str, name: str) -> None:
    database = database_of(url)
    assert database.name == name
    assert "ss-word" not in repr(database)
    assert pickle.loads(pickle.dumps(database)).name == name


def test_a_relative_path_is_of_the_drivers_directory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_of("sqlite:///flights.db").name == f"sqlite:///{tmp_path}/flights.db"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/lake/flights.db", "has no scheme; it must be one like sqlite:////path/to/file.db"),
        ("sqlite://", "SQLite needs a file, which tasks share"),
        ("sqlite:///:memory:", "SQLite needs a file, which tasks share"),
        ("sqlite://lake/flights.db", "SQLite needs a file, which tasks share"),
        ("sqlite:////lake/f.db?cache=shared", "the only parameter is timeout"),
        ("sqlite:////lake/f.db?timeout=soon", "timeout must be a number of seconds"),
        (f"mysql://me:{SECRET}@db/lake", "without connect=, loads open sqlite"),
        ("postgresql+pg8000://db/lake", "without connect=, loads open sqlite"),
    ],
)
def test_a_url_that_cannot_be_opened_is_refused_by_what_can(url: str, text: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        database_of(url)
    assert text in str(raised.value)
    assert "ss-word" not in str(raised.value)


def test_what_a_driver_says_is_reported_without_secrets_and_not_chained() -> None:
    def connect() -> Any:
        raise OSError(f"no: me:{SECRET} or p@ss-word at postgresql://me:{SECRET}@db/lake, password='else'")

    database = Database("db", STANDARD, connect, database_of(f"postgresql://me:{SECRET}@db/lake").secrets)
    with pytest.raises(DatabaseFailed) as raised, database.session():
        pass
    assert str(raised.value) == "db: cannot be opened: OSError: no: me:*** or *** at ***, password=***"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_driver_that_is_not_installed_is_named_with_its_package(monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with (
        pytest.raises(InvalidConfig, match=r"pip install 'psycopg\[binary\]', or pyspark-kafkalog\[sql\]"),
        database_of("postgresql://db/lake").session(),
    ):
        pass


@pytest.mark.parametrize(
    ("style", "statement"),
    [
        ("qmark", "a = ? AND b = ?"),
        ("pyformat", "a = %s AND b = %s"),
        ("format", "a = %s AND b = %s"),
        ("numeric", "a = :1 AND b = :2"),
        ("named", "a = :1 AND b = :2"),
    ],
)
def test_values_are_marked_as_the_driver_wants_them(style: str, statement: str, monkeypatch: Any) -> None:
    asked = []
    cursor = SimpleNamespace(execute=lambda *given: asked.append(given), close=lambda: None)
    module = SimpleNamespace(paramstyle=style)
    kind = type("Connection", (), {"__module__": "odd.driver", "cursor": lambda self: cursor})
    monkeypatch.setitem(__import__("sys").modules, "odd", module)
    DatabaseSession(Database("db", STANDARD, kind), kind()).run("a = ? AND b = ?", (1, "x"))
    assert asked == [(statement, (1, "x"))]


def test_a_connection_that_commits_by_itself_or_that_no_driver_made_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = database_of("sqlite://x", lambda: sqlite3.connect(path, isolation_level=None))
    with pytest.raises(InvalidConfig, match="autocommit mode"), database.session():
        pass
    pool = SimpleNamespace(rollback=lambda: None, close=lambda: None)
    with pytest.raises(InvalidConfig, match="no paramstyle"), database_of("mydb://x", lambda: pool).session():
        pass


@pytest.mark.parametrize("table", ["", "a.b.c", ".a", "a.", "a?b", "50%", "a:b"])
def test_a_name_that_a_driver_could_misread_is_refused(table: str) -> None:
    with pytest.raises(InvalidConfig):
        SqlTable("sqlite:////lake/x.db", table)


def test_identifiers_are_quoted_in_each_dialect() -> None:
    assert TableName.of('dw.fl"ights').quoted(POSTGRESQL) == '"dw"."fl""ights"'
    assert TableName.of("fl`ights").quoted(MYSQL) == "`fl``ights`"


COLUMNS = pa.table(
    {
        "bool": pa.array([True, None]),
        "int": pa.array([1, None], pa.int8()),
        "uint": pa.array([1, None], pa.uint32()),
        "float": pa.array([0.5, None]),
        "text": pa.array(["x", None]).dictionary_encode(),
        "bytes": pa.array([b"x", None]),
        "at": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", "Europe/Berlin")),
        "local": pa.array([1_700_000_000_123, None], pa.timestamp("ms")),
        "day": pa.array([date(2026, 11, 22), None]),
        "money": pa.array([Decimal("1.20"), None], pa.decimal128(9, 2)),
    }
)


def test_sqlite_keeps_dates_as_texts_that_its_functions_read() -> None:
    (batch,) = COLUMNS.to_batches()
    assert [SQLITE.column_type(column.type) for column in batch.columns] == [
        "INTEGER", "INTEGER", "INTEGER", "REAL", "TEXT", "BLOB", "TEXT", "TEXT", "TEXT", "TEXT",
    ]  # fmt: skip
    stored = SQLITE.stored(batch)
    assert stored.schema.names == batch.schema.names
    first, second = stored.to_pylist()
    assert list(first.values()) == [
        1, 1, 1, 0.5, "x", b"x",
        "2023-11-14 22:13:20.123456", "2023-11-14 22:13:20.123000", "2026-11-22", "1.20",
    ]  # fmt: skip
    assert set(second.values()) == {None}
    with closing(sqlite3.connect(":memory:")) as db:
        assert db.execute("SELECT strftime('%H:%M', ?)", (first["at"],)).fetchone() == ("22:13",)


def test_a_value_that_cannot_be_stored_is_reported_with_its_column_and_record() -> None:
    batch = pa.record_batch(
        {
            "n": pa.array([1, 2**63, 2**64 - 1], pa.uint64()),
            "topic": pa.array(["t"] * 3),
            "partition": pa.array([4] * 3, pa.int32()),
            "offset": pa.array([7, 8, 9], pa.int64()),
        }
    )
    for dialect in (SQLITE, POSTGRESQL):
        said = r"^column n \(uint64\) of t-4, offset 8, cannot be stored: .*9223372036854775808"
        with pytest.raises(UnstorableValue, match=said):
            dialect.stored(batch)
        with pytest.raises(UnstorableValue, match=r"^column n \(uint64\) cannot be stored: "):
            dialect.stored(batch.select(["n", "topic"]))


def test_a_time_that_python_has_not_is_reported_with_its_column(tmp_path: Path) -> None:
    late = pa.record_batch({"at": pa.array([0, 300_000_000_000], pa.timestamp("s"))})
    connect = partial(sqlite3.connect, tmp_path / "db")
    with database_of("mysql://any", connect).session() as session:
        session.run("CREATE TABLE t (at TEXT)")
        with pytest.raises(UnstorableValue, match=r"^column at \(timestamp\[us\]\) cannot be stored: "):
            session.insert(TableName.of("t"), late)


def test_postgresql_has_a_type_for_each_flat_column() -> None:
    (batch,) = COLUMNS.to_batches()
    assert [POSTGRESQL.column_type(column.type) for column in batch.columns] == [
        "boolean", "smallint", "bigint", "double precision", "text", "bytea",
        "timestamptz", "timestamp", "date", "numeric(9,2)",
    ]  # fmt: skip
    stored = POSTGRESQL.stored(batch)
    assert stored.to_pylist()[0]["at"] == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc)
    assert POSTGRESQL.column_type(pa.list_(pa.int32())) is None
    assert SQLITE.column_type(pa.struct([pa.field("a", pa.int32())])) is None


def test_the_tables_beside_the_rows_have_the_columns_that_are_written() -> None:
    assert tuple(offset_tables._OFFSETS_COLUMNS) == tuple(f.name for f in fields(offset_tables.RangeRow))
    assert tuple(offset_tables._TABLES_COLUMNS) == tuple(f.name for f in fields(offset_tables.TableRow))
