"""Databases that loads write to: their URLs, connections and dialects. No message shows a secret."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import msgspec

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import DatabaseFailed, InvalidConfig, KafkaError, UnstorableValue

if TYPE_CHECKING:
    import pyarrow as pa

_Made = TypeVar("_Made")

LOAD_COLUMN = "_kl_load"

_NOT_IN_NAMES = set("?%:\0")
"""Characters that some driver would take for a placeholder."""


class Dialect(msgspec.Struct, frozen=True):
    """One kind of database: ``store`` converts a column; without ``column_type`` loads create no tables."""

    name: str
    quote_mark: str
    column_type: Callable[[pa.DataType], str | None] | None
    store: Callable[[pa.Array], pa.Array]

    def quote(self, identifier: str) -> str:
        if not identifier or _NOT_IN_NAMES & set(identifier):
            raise InvalidConfig(
                f"the name {identifier!r} of a table or column must not be empty or contain ? % : \\0"
            )
        return self.quote_mark + identifier.replace(self.quote_mark, self.quote_mark * 2) + self.quote_mark

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        columns = [converted(batch, at, self.store) for at in range(batch.num_columns)]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def converted(batch: pa.RecordBatch, at: int, convert: Callable[[pa.Array], _Made]) -> _Made:
    column, field = batch.column(at), batch.schema.field(at)
    try:
        return convert(column)
    except (ValueError, OverflowError) as e:  # includes Arrow's errors
        row = next((row for row in range(len(column)) if _fails(convert, column.slice(row, 1))), None)
        raise UnstorableValue(
            f"column {field.name} ({field.type}){_place(batch, row)} cannot be stored: {e}. "
            "Cast it with transform= or df="
        ) from None


def _fails(convert: Callable[[pa.Array], object], column: pa.Array) -> bool:
    try:
        convert(column)
    except (ValueError, OverflowError):
        return True
    return False


def _place(batch: pa.RecordBatch, row: int | None) -> str:
    if row is None or not {"topic", "partition", "offset"} <= {*batch.schema.names}:
        return ""
    topic, partition, offset = (batch[name][row].as_py() for name in ("topic", "partition", "offset"))
    return f" of {topic}-{partition}, offset {offset},"


class TableName(msgspec.Struct, frozen=True):
    schema: str
    table: str

    @classmethod
    def of(cls, text: str) -> TableName:
        schema, dot, table = text.rpartition(".")
        if not table or (dot and not schema) or "." in schema:
            raise InvalidConfig(f"table is {text!r}; it must be a name, or schema.name")
        return cls(schema, table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    def beside(self, table: str) -> TableName:
        return TableName(self.schema, table)

    def quoted(self, dialect: Dialect) -> str:
        parts = (self.schema, self.table) if self.schema else (self.table,)
        return ".".join(dialect.quote(part) for part in parts)


def _plain(column: pa.Array) -> pa.Array:
    """Convert Arrow-only types: dictionaries, nanoseconds, unsigned and half-precision numbers."""
    import pyarrow as pa
    from pyarrow import types as t

    kind = column.type
    if t.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if t.is_timestamp(kind) and kind.unit != "us":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if t.is_unsigned_integer(kind):
        return column.cast(pa.int64())
    if t.is_float16(kind):
        return column.cast(pa.float32())
    return column


def _sqlite_type(kind: pa.DataType) -> str | None:
    from pyarrow import types as t

    if t.is_boolean(kind) or t.is_integer(kind):
        return "INTEGER"
    if t.is_floating(kind):
        return "REAL"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "BLOB"
    texts = (t.is_string, t.is_large_string, t.is_timestamp, t.is_date, t.is_time, t.is_decimal)
    if any(is_kind(kind) for is_kind in texts):
        return "TEXT"
    return _sqlite_type(kind.value_type) if t.is_dictionary(kind) else None


def _store_sqlite(column: pa.Array) -> pa.Array:
    """SQLite has no dates and decimals: they become text, times in UTC as its date functions expect."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types as t

    column = _plain(column)
    kind = column.type
    if t.is_boolean(kind):
        return column.cast(pa.int64())
    if t.is_timestamp(kind):
        return pc.strftime(column.cast(pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
    if t.is_date(kind) or t.is_time(kind) or t.is_decimal(kind):
        return column.cast(pa.string())
    return column


def _postgresql_type(kind: pa.DataType) -> str | None:
    from pyarrow import types as t

    if t.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if t.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if t.is_dictionary(kind):
        return _postgresql_type(kind.value_type)
    kinds = {
        "boolean": (t.is_boolean,),
        "bigint": (t.is_unsigned_integer, t.is_int64),
        "integer": (t.is_int32,),
        "smallint": (t.is_integer,),
        "double precision": (t.is_float64,),
        "real": (t.is_floating,),
        "text": (t.is_string, t.is_large_string),
        "bytea": (t.is_binary, t.is_large_binary, t.is_fixed_size_binary),
        "date": (t.is_date,),
        "time": (t.is_time,),
    }
    return next((name for name, tests in kinds.items() if any(test(kind) for test in tests)), None)


SQLITE = Dialect("sqlite", '"', _sqlite_type, _store_sqlite)
POSTGRESQL = Dialect("postgresql", '"', _postgresql_type, _plain)
MYSQL = Dialect("mysql", "`", None, _plain)
STANDARD = Dialect("standard", '"', None, _plain)
"""Any other database: standard SQL only, and tables must exist."""

DIALECTS = {
    "sqlite": SQLITE,
    "postgresql": POSTGRESQL,
    "postgres": POSTGRESQL,
    "mysql": MYSQL,
    "mariadb": MYSQL,
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\+([A-Za-z0-9]+))?:")
_SHOWN_PARAMETERS = ("host", "port", "dbname")

_BUSY_SECONDS = 600.0
"""How long a writer of SQLite waits for its turn, unless ``?timeout=`` says otherwise."""

_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}", "named": ":{}", "dollar": "${}"}

Connect = Callable[[], Any]
"""Opens a connection of any DB-API driver (PEP 249), not in autocommit mode."""


@dataclass(frozen=True)
class Database:
    """A database by its URL, pickled into tasks. ``name`` is the URL without secrets."""

    name: str
    dialect: Dialect
    connect: Connect = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())

    @contextmanager
    def session(self) -> Iterator[DatabaseSession]:
        with self.failures("cannot be opened"):
            connection = self.connect()
        try:
            yield DatabaseSession(self, connection)
        finally:
            with suppress(Exception):
                connection.rollback()
            with suppress(Exception):
                connection.close()

    @contextmanager
    def failures(self, what: str) -> Iterator[None]:
        """Turn the driver's errors into `DatabaseFailed`, without the secrets that they may quote."""
        try:
            yield
        except KafkaError:
            raise
        except Exception as e:
            text = str(e).strip()
            for secret in self.secrets:
                text = text.replace(secret, "***")
            # Not chained: the driver's own message may have secrets.
            raise DatabaseFailed(f"{self.name}: {what}: {type(e).__name__}: {masked(text)}") from None


class DatabaseSession:
    """*Not thread-safe.* One connection, always in a transaction. ``?`` stands for values with any driver."""

    def __init__(self, database: Database, connection: Any) -> None:
        """Raises `InvalidConfig` for a connection in autocommit mode, or not of a DB-API driver."""
        self.database = database
        self._connection = connection
        if _commits_itself(connection):
            raise InvalidConfig(
                f"{database.name}: the connection is in autocommit mode; connect= must return one that is "
                "not, to commit rows and offsets together"
            )
        self._mark = _MARKS[_paramstyle(connection)]

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        with self.database.failures(_head(statement)), closing(self._connection.cursor()) as cursor:
            cursor.execute(*self._bound(statement, values))

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.database.failures(_head(statement)), closing(self._connection.cursor()) as cursor:
            cursor.execute(*self._bound(statement, values))
            return [tuple(row) for row in cursor.fetchall()]

    def columns(self, table: TableName) -> list[str] | None:
        """The names of a table's columns; None if it cannot be read, most likely because it is missing."""
        statement = f"SELECT * FROM {table.quoted(self.database.dialect)} WHERE 1 = 0"
        try:
            with self.database.failures(""), closing(self._connection.cursor()) as cursor:
                cursor.execute(statement)
                found = [str(column[0]) for column in cursor.description]
                cursor.fetchall()
        except DatabaseFailed:
            self.rollback()
            return None
        return found

    def insert(self, table: TableName, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, in the fastest way that the driver has within a transaction."""
        batch = self.database.dialect.stored(batch)
        with self.database.failures(f"INSERT INTO {table}"), closing(self._connection.cursor()) as cursor:
            if hasattr(cursor, "adbc_ingest"):
                cursor.adbc_ingest(table.table, batch, mode="append", db_schema_name=table.schema or None)
                return
            quote = self.database.dialect.quote
            into = f"{table.quoted(self.database.dialect)} ({', '.join(map(quote, batch.schema.names))})"
            # May fail: Python's times end with the year 9999.
            columns = (converted(batch, at, lambda c: c.to_pylist()) for at in range(batch.num_columns))
            rows = zip(*columns, strict=True)
            if type(self._connection).__module__.partition(".")[0] == "psycopg":
                with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
                return
            (statement,) = self._bound(f"INSERT INTO {into} VALUES ({placeholders(batch.num_columns)})", ())
            cursor.executemany(statement, list(rows))

    def commit(self) -> None:
        """Commit the transaction. If this fails, it may or may not be committed."""
        with self.database.failures("COMMIT"):
            self._connection.commit()

    def rollback(self) -> None:
        """Undo everything since the last commit; never fails: a lost connection has rolled back."""
        with suppress(Exception):
            self._connection.rollback()

    def _bound(self, statement: str, values: Sequence[object]) -> tuple[Any, ...]:
        numbers = itertools.count(1)
        text = re.sub(r"\?", lambda _: self._mark.format(next(numbers)), statement)
        return (text, tuple(values)) if values else (text,)


def placeholders(count: int) -> str:
    return ", ".join("?" * count)


def database_of(url: str, connect: Connect | None = None) -> Database:
    """The database at ``sqlite:///`` and a path, or ``postgresql://...``; with ``connect`` only its name."""
    found = _SCHEME.match(url)
    if found is None:
        raise InvalidConfig(
            "the URL of the database has no scheme; it must be one like sqlite:////path/to/file.db, "
            "postgresql://user@host/database, or with connect=..., mydb://any-name"
        )
    scheme, driver = found[1].lower(), (found[2] or "").lower()
    dialect = DIALECTS.get(scheme, STANDARD)
    if connect is not None:
        return Database(_shown(scheme, url), dialect, connect, _secrets(url))
    if scheme == "sqlite" and driver in ("", "adbc"):
        return _sqlite(url, driver)
    if scheme in ("postgresql", "postgres") and driver in ("", "psycopg", "adbc"):
        opened = partial(_open_postgresql, "postgresql:" + url[found.end() :], driver == "adbc")
        return Database(_shown("postgresql", url), dialect, opened, _secrets(url))
    raise InvalidConfig(
        f"{_shown(found[0][:-1].lower(), url)}: without connect=, loads open sqlite, sqlite+adbc, "
        "postgresql, postgresql+psycopg and postgresql+adbc; for any other database pass connect=, a "
        "function that returns a connection of its driver"
    )


def _sqlite(url: str, driver: str) -> Database:
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path or path == ":memory:":
        raise InvalidConfig(
            f"{masked(url)}: SQLite needs a file, which tasks share: sqlite:///relative/file.db or "
            "sqlite:////absolute/file.db"
        )
    asked = parse_qs(parts.query, keep_blank_values=True)
    if asked.keys() - {"timeout"}:
        raise InvalidConfig(
            f"{masked(url)}: the only parameter is timeout, the seconds to wait for other writers"
        )
    try:
        seconds = float(asked["timeout"][0]) if asked else _BUSY_SECONDS
    except ValueError:
        raise InvalidConfig(f"{masked(url)}: timeout must be a number of seconds") from None
    file = Path(path).absolute()  # executors run elsewhere
    opened = partial(_open_sqlite, str(file), seconds, driver == "adbc")
    return Database(f"sqlite:///{file}", DIALECTS["sqlite"], opened)


def _open_sqlite(path: str, busy_seconds: float, adbc: bool) -> Any:
    if adbc:
        dbapi = _driver("adbc_driver_sqlite.dbapi", "adbc-driver-sqlite")
        connection = dbapi.connect(path)
        with closing(connection.cursor()) as cursor:
            # This runs in a transaction, in which journal_mode cannot change: the file keeps its own.
            cursor.execute(f"PRAGMA busy_timeout = {round(busy_seconds * 1000)}")
            cursor.fetchall()
        return connection
    import sqlite3

    # IMMEDIATE: a writing transaction waits for its turn at its start, not in the middle.
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level="IMMEDIATE")
    connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for a writer
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk, like the ledger's
    return connection


def _open_postgresql(url: str, adbc: bool) -> Any:
    adbc_driver = "adbc_driver_postgresql.dbapi", "adbc-driver-postgresql"
    return _driver(*(adbc_driver if adbc else ("psycopg", "psycopg[binary]"))).connect(url)


def _driver(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as e:
        raise InvalidConfig(
            f"the driver {module} is not installed here ({e}): pip install '{package}', or "
            "pyspark-kafkalog[sql], on executors as well"
        ) from e


def _commits_itself(connection: Any) -> bool:
    autocommit = getattr(connection, "autocommit", None)
    if type(connection).__module__ == "sqlite3" and connection.isolation_level is None:
        return autocommit is not False  # Python 3.12 has a second attribute for it
    return autocommit is True


def _paramstyle(connection: Any) -> str:
    module = type(connection).__module__
    if hasattr(connection, "adbc_get_info") and connection.adbc_get_info()["vendor_name"] == "PostgreSQL":
        return "dollar"  # statements reach the server unchanged, whatever the driver says
    while module:
        style = getattr(sys.modules.get(module), "paramstyle", None)
        if style in _MARKS:
            return str(style)
        module = module.rpartition(".")[0]
    raise InvalidConfig(
        f"the module of {type(connection).__module__}.{type(connection).__qualname__} has no paramstyle (PEP "
        "249): connect= must return the driver's own connection, not one of a pool or wrapper"
    )


def _shown(scheme: str, url: str) -> str:
    parts = urlsplit("//" + _user_and_place(url)[1])
    shown = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _SHOWN_PARAMETERS], safe="/")
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{shown}" if shown else "")


def _secrets(url: str) -> tuple[str, ...]:
    user, place = _user_and_place(url)
    password = user.partition(":")[2]
    hidden = [value for name, value in parse_qsl(place.partition("?")[2]) if name not in _SHOWN_PARAMETERS]
    found = {url, password, unquote(password), *(value for value in hidden if len(value) > 3)}
    return tuple(sorted(found - {""}, key=len, reverse=True))


def _user_and_place(url: str) -> tuple[str, str]:
    """Split at the last ``@``: libpq allows ``?`` and ``#`` in a password, unlike `urlsplit`."""
    rest = url.partition(":")[2].removeprefix("//")
    user, _, place = rest.partition("/")[0].rpartition("@")
    if user:
        return user, rest[len(user) + 1 :]
    user, _, place = rest.partition("?")[0].rpartition("@")
    return user, place + rest[len(rest.partition("?")[0]) :]


def _head(statement: str) -> str:
    return " ".join(statement.split())[:80]
