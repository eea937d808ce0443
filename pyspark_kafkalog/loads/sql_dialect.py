"""What differs between databases: quoting, column types, and the form in which values are stored. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.errors import UnstorableValue

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
