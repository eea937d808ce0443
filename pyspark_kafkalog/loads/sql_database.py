"""A database that loads write to: how it is named, opened and spoken to. No text here shows a secret."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from pyspark_kafkalog.config.secrets import masked
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.loads.errors import DatabaseFailed
from pyspark_kafkalog.loads.sql_dialect import DIALECTS, STANDARD, Dialect, converted

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.loads.sql_dialect import TableName

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
