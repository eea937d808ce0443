"""What differs between databases: quoting, column types, and the form in which values are stored. Pure."""

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

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.ledger.load_errors import DatabaseFailed, UnstorableValue

if TYPE_CHECKING:
    import pyarrow as pa

_Made = TypeVar("_Made")

LOAD_COLUMN = "_kl_load"
"""The usual name of the column with the number of the load."""

_NOT_IN_NAMES = set("?%:\0")
"""Placeholders of some driver; in an identifier they would be taken for one."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of database. ``column_type`` is None where tables are not created: then they must exist.

    ``store`` turns a column into the form that the database keeps.
    """

    name: str
    quote_mark: str
    column_type: Callable[[pa.DataType], str | None] | None
    store: Callable[[pa.Array], pa.Array]

    def quote(self, identifier: str) -> str:
        """An identifier as it stands in a statement.

        Raises:
            InvalidConfig: it is empty, or has a character that drivers take for a placeholder.
        """
        if not identifier or _NOT_IN_NAMES & set(identifier):
            raise InvalidConfig(
                f"{identifier!r}: a name in a database is not empty and has none of ? % : \\0"
            )
        return self.quote_mark + identifier.replace(self.quote_mark, self.quote_mark * 2) + self.quote_mark

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch whose columns have the form that the database keeps; same names, same rows.

        Raises:
            UnstorableValue: a value has no such form, a number of 64 bits without sign for example.
        """
        import pyarrow as pa

        columns = [converted(batch, at, self.store) for at in range(batch.num_columns)]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def converted(batch: pa.RecordBatch, at: int, convert: Callable[[pa.Array], _Made]) -> _Made:
    """What ``convert`` makes of column number ``at``.

    Raises:
        UnstorableValue: it cannot be; with the column, and the record where the batch has its place.
    """
    column, field = batch.column(at), batch.schema.field(at)
    try:
        return convert(column)
    except (ValueError, OverflowError) as e:  # Arrow's own are among them
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
    """Which record a row is, if the batch tells."""
    if row is None or not {"topic", "partition", "offset"} <= {*batch.schema.names}:
        return ""
    topic, partition, offset = (batch[name][row].as_py() for name in ("topic", "partition", "offset"))
    return f" of {topic}-{partition}, offset {offset},"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, perhaps in a schema: ``flights`` or ``dw.flights``."""

    schema: str
    table: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """From its text.

        Raises:
            InvalidConfig: there is more than one dot, or an empty part.
        """
        schema, dot, table = text.rpartition(".")
        if not table or (dot and not schema) or "." in schema:
            raise InvalidConfig(f"table is {text!r}; it must be a name, or schema.name")
        return cls(schema, table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    def beside(self, table: str) -> TableName:
        """Another table of the same schema."""
        return TableName(self.schema, table)

    def quoted(self, dialect: Dialect) -> str:
        """As it stands in a statement."""
        parts = (self.schema, self.table) if self.schema else (self.table,)
        return ".".join(dialect.quote(part) for part in parts)


def _plain(column: pa.Array) -> pa.Array:
    """Without the forms that only Arrow has: dictionaries, nanoseconds, unsigned and half numbers."""
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
    """SQLite has no dates and decimals: they become texts, times in UTC as its date functions take them."""
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
    for is_kind, name in (
        (t.is_boolean, "boolean"),
        (t.is_unsigned_integer, "bigint"),
        (t.is_int64, "bigint"),
        (t.is_int32, "integer"),
        (t.is_integer, "smallint"),
        (t.is_float64, "double precision"),
        (t.is_floating, "real"),
        (t.is_string, "text"),
        (t.is_large_string, "text"),
        (t.is_binary, "bytea"),
        (t.is_large_binary, "bytea"),
        (t.is_fixed_size_binary, "bytea"),
        (t.is_date, "date"),
        (t.is_time, "time"),
    ):
        if is_kind(kind):
            return name
    return None


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
"""By the scheme of the database's URL."""


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\+([A-Za-z0-9]+))?:")
_SHOWN_PARAMETERS = ("host", "port", "dbname")
"""Of a URL's parameters those that say which database it is, and are no secret."""

_BUSY_SECONDS = 600.0
"""SQLite has one writer at a time; the others wait for it so long, unless ``?timeout=`` says otherwise."""

_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}", "named": ":{}", "dollar": "${}"}

Connect = Callable[[], Any]
"""Opens a connection of any DB-API driver (PEP 249), not in autocommit mode."""


@dataclass(frozen=True)
class Database:
    """A database by its URL. Pickled into tasks, where each opens a connection of its own.

    ``name`` is the URL without what is secret: it stands in messages and in the ledger.
    """

    name: str
    dialect: Dialect
    connect: Connect = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A connection for the time of the context; what it did not commit is undone.

        Raises:
            DatabaseFailed: it cannot be reached.
        """
        with self.telling("cannot be opened"):
            connection = self.connect()
        try:
            yield Session(self, connection)
        finally:
            with suppress(Exception):
                connection.rollback()
            with suppress(Exception):
                connection.close()

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Turn errors of the driver into `DatabaseFailed`, without the secrets that some of them quote."""
        try:
            yield
        except KafkaError:
            raise
        except Exception as e:
            text = self._scrubbed(str(e).strip())
            # Not chained: the driver's own text would be printed with it.
            raise DatabaseFailed(f"{self.name}: {what}: {type(e).__name__}: {text}") from None

    def _scrubbed(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return masked(text)


class Session:
    """One connection, in a transaction from one `commit` or `rollback` to the next. *Not thread-safe.*

    Statements are written with ``?`` for values, whatever the driver wants. Every method raises
    `DatabaseFailed` where the database refuses.
    """

    def __init__(self, database: Database, connection: Any) -> None:
        """A session on an open connection.

        Raises:
            InvalidConfig: the connection commits by itself, or is of no DB-API driver.
        """
        self.database = database
        self._connection = connection
        if _commits_itself(connection):
            raise InvalidConfig(
                f"{database.name}: the connection is in autocommit mode; rows and offsets must be committed "
                "together, so connect= must return one that is not"
            )
        self._mark = _MARKS[_paramstyle(connection)]

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        """Execute a statement that has no result."""
        with self.database.telling(_head(statement)), closing(self._connection.cursor()) as cursor:
            cursor.execute(*self._bound(statement, values))

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.database.telling(_head(statement)), closing(self._connection.cursor()) as cursor:
            cursor.execute(*self._bound(statement, values))
            return [tuple(row) for row in cursor.fetchall()]

    def columns(self, table: TableName) -> list[str] | None:
        """The names of a table's columns; None where it cannot be read, for it is most likely not there."""
        statement = f"SELECT * FROM {table.quoted(self.database.dialect)} WHERE 1 = 0"
        try:
            with self.database.telling(""), closing(self._connection.cursor()) as cursor:
                cursor.execute(statement)
                found = [str(column[0]) for column in cursor.description]
                cursor.fetchall()
        except DatabaseFailed:
            self.rollback()
            return None
        return found

    def insert(self, table: TableName, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, in the fastest way that the driver has within a transaction.

        Raises:
            UnstorableValue: a value cannot be brought into a form that the driver takes.
        """
        batch = self.database.dialect.stored(batch)
        with self.database.telling(f"INSERT INTO {table}"), closing(self._connection.cursor()) as cursor:
            if hasattr(cursor, "adbc_ingest"):
                cursor.adbc_ingest(table.table, batch, mode="append", db_schema_name=table.schema or None)
                return
            quote = self.database.dialect.quote
            into = f"{table.quoted(self.database.dialect)} ({', '.join(map(quote, batch.schema.names))})"
            columns = (converted(batch, at, _python_values) for at in range(batch.num_columns))
            rows = zip(*columns, strict=True)
            if type(self._connection).__module__.partition(".")[0] == "psycopg":
                with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
                return
            (statement,) = self._bound(f"INSERT INTO {into} VALUES ({marks(batch.num_columns)})", ())
            cursor.executemany(statement, list(rows))

    def commit(self) -> None:
        """End the transaction; what it did is durable. If this fails, nobody knows whether it is."""
        with self.database.telling("COMMIT"):
            self._connection.commit()

    def rollback(self) -> None:
        """Undo what was done since the last commit; never fails, for a lost connection has undone it."""
        with suppress(Exception):
            self._connection.rollback()

    def _bound(self, statement: str, values: Sequence[object]) -> tuple[Any, ...]:
        """The arguments of ``execute``."""
        numbers = itertools.count(1)
        text = re.sub(r"\?", lambda _: self._mark.format(next(numbers)), statement)
        return (text, tuple(values)) if values else (text,)


def _python_values(column: pa.Array) -> list[Any]:
    """Not all of Arrow's values have a place in Python's types: times end with the year 9999."""
    return list(column.to_pylist())


def marks(count: int) -> str:
    """So many placeholders."""
    return ", ".join("?" * count)


def database_of(url: str, connect: Connect | None = None) -> Database:
    """The database that a URL names: ``sqlite:///`` and a path, or ``postgresql://...``; each perhaps with
    ``+adbc`` behind the scheme.

    With ``connect`` it is whatever that opens, and the URL only names it: its scheme says which dialect.

    Raises:
        InvalidConfig: the URL is of another kind, or incomplete.
    """
    found = _SCHEME.match(url)
    if found is None:
        raise InvalidConfig(
            "a database is named by a URL, as sqlite:////path/to/file.db, postgresql://user@host/database, "
            "or, with connect=..., mydb://any-name; this one has no scheme"
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
        f"{_shown(found[0][:-1].lower(), url)}: without connect=... loads open sqlite, sqlite+adbc, "
        "postgresql, postgresql+psycopg and postgresql+adbc; for any other database connect= is a function "
        "that returns a connection of its driver"
    )


def _sqlite(url: str, driver: str) -> Database:
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path or path == ":memory:":
        raise InvalidConfig(
            f"{masked(url)}: a database of SQLite is a file that tasks share: sqlite:///relative/file.db or "
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
        raise InvalidConfig(f"{masked(url)}: timeout is a number of seconds") from None
    file = Path(path).absolute()  # executors run elsewhere
    opened = partial(_open_sqlite, str(file), seconds, driver == "adbc")
    return Database(f"sqlite:///{file}", DIALECTS["sqlite"], opened)


def _open_sqlite(path: str, busy_seconds: float, adbc: bool) -> Any:
    if adbc:
        dbapi = _driver("adbc_driver_sqlite.dbapi", "adbc-driver-sqlite")
        connection = dbapi.connect(path)
        with closing(connection.cursor()) as cursor:
            # Of a transaction, and journal_mode cannot change within one; so it is left as the file has it.
            cursor.execute(f"PRAGMA busy_timeout = {round(busy_seconds * 1000)}")
            cursor.fetchall()
        return connection
    import sqlite3

    # IMMEDIATE: a transaction that begins to write waits for its turn then, and not in the middle.
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level="IMMEDIATE")
    connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for a writer
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk, for the ledger's will be
    return connection


def _open_postgresql(url: str, adbc: bool) -> Any:
    if adbc:
        return _driver("adbc_driver_postgresql.dbapi", "adbc-driver-postgresql").connect(url)
    return _driver("psycopg", "psycopg[binary]").connect(url)


def _driver(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as e:
        raise InvalidConfig(
            f"the driver {module} is not installed here ({e}): pip install '{package}', or "
            "pyspark-kafkalog[sql]; executors need it as well"
        ) from e


def _commits_itself(connection: Any) -> bool:
    """Whether a connection says that it is in autocommit mode. Not every driver does."""
    autocommit = getattr(connection, "autocommit", None)
    if type(connection).__module__ == "sqlite3" and connection.isolation_level is None:
        return autocommit is not False  # since Python 3.12 it can be said in two ways
    return autocommit is True


def _paramstyle(connection: Any) -> str:
    """The driver's kind of placeholders: what its module says, or the module above."""
    module = type(connection).__module__
    if hasattr(connection, "adbc_get_info") and connection.adbc_get_info()["vendor_name"] == "PostgreSQL":
        return "dollar"  # whatever the driver says: statements reach the server as they are
    while module:
        style = getattr(sys.modules.get(module), "paramstyle", None)
        if style in _MARKS:
            return str(style)
        module = module.rpartition(".")[0]
    raise InvalidConfig(
        f"{type(connection).__module__}.{type(connection).__qualname__} is of no module with a paramstyle "
        "(PEP 249): connect= must return the driver's own connection, not one of a pool or wrapper"
    )


def _shown(scheme: str, url: str) -> str:
    """A URL without user, password and all parameters but those that say where the database is."""
    parts = urlsplit("//" + _user_and_place(url)[1])
    shown = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _SHOWN_PARAMETERS], safe="/")
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{shown}" if shown else "")


def _secrets(url: str) -> tuple[str, ...]:
    """What of a URL may be shown nowhere, longest first."""
    user, place = _user_and_place(url)
    password = user.partition(":")[2]
    hidden = [value for name, value in parse_qsl(place.partition("?")[2]) if name not in _SHOWN_PARAMETERS]
    found = {url, password, unquote(password), *(value for value in hidden if len(value) > 3)}
    return tuple(sorted(found - {""}, key=len, reverse=True))


def _user_and_place(url: str) -> tuple[str, str]:
    """What stands before the last ``@`` that can end a password, and what comes after it.

    libpq takes a password with ``?`` and ``#`` in it, which `urlsplit` takes for the end of the host; a
    ``/`` in one is a mistake, and is not to be shown for that.
    """
    rest = url.partition(":")[2].removeprefix("//")
    user, _, place = rest.partition("/")[0].rpartition("@")
    if user:
        return user, rest[len(user) + 1 :]
    user, _, place = rest.partition("?")[0].rpartition("@")
    return user, place + rest[len(rest.partition("?")[0]) :]


def _head(statement: str) -> str:
    """The beginning of a statement, for messages; values are not in it."""
    return " ".join(statement.split())[:80]
