"""How columns divide a table into directories, the same for Spark's writer and for tasks that write:
``day=2026-11-21/hour=7/airport=JFK``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads import output_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

GRAINS = {"day": ("day",), "hour": ("day", "hour")}
"""Columns of each grain: ``day`` is a date, ``hour`` a number from 0 to 23."""

_MADE_TYPES = {"day": "date", "hour": "int"}

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory for null, and, as in Spark, for an empty string."""

_NO_TIME_US = -1000
"""The time of a record without one: -1 in milliseconds."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US

_OURS = ("load", output_files.RUN_COLUMN, output_files.COMPACTION_COLUMN)

_ESCAPED = re.compile(r"[\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
"""``ExternalCatalogUtils.charToEscape`` of Spark."""


class Partitioning(msgspec.Struct, frozen=True):
    """The days (with ``grain="hour"`` also hours, in UTC) of column ``time``, then ``columns``."""

    columns: tuple[str, ...] = ()
    time: str | None = None
    grain: str = "day"
    is_hidden: bool = False
    """Iceberg's way: files keep the columns, "" is not null, and a record without a time is of the day before
    1970.
    """

    @classmethod
    def of(cls, partition_by: str | Sequence[str], time: str | None, grain: str) -> Partitioning:
        if grain not in GRAINS:
            raise InvalidConfig(f"grain is {grain!r}; it must be one of {', '.join(GRAINS)}")
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        return cls(columns, time, grain)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the directories, outermost first."""
        return (*(GRAINS[self.grain] if self.time else ()), *self.columns)

    def check(self, types: Mapping[str, str]) -> None:
        """Raise `InvalidConfig` if rows of these types (Spark's names of them) cannot be divided so."""
        taken = [name for name in types if name.lower() in _OURS]
        if taken:
            raise InvalidConfig(
                f"a column is called {taken[0].lower()}, as one of the directories of loads "
                "(load=42/kl_run=...): rename it"
            )
        known = f"columns: {', '.join(types)}"
        if self.time is not None:
            if self.time not in types:
                raise InvalidConfig(f"partition_by_time names {self.time}; {known}")
            made = GRAINS[self.grain]
            if taken := [name for name in types if name.lower() in made]:
                raise InvalidConfig(
                    f"partition_by_time makes the columns {', '.join(made)}: rename {taken[0]}"
                )
            kind = types[self.time]
            if kind not in ("timestamp", "timestamp_ntz") and (kind, self.grain) != ("date", "day"):
                wanted = "a timestamp or a date" if self.grain == "day" else "a timestamp"
                raise InvalidConfig(
                    f"partition_by_time={self.time} is of type {kind}; it must be {wanted}: cast it"
                )
        unknown = [name for name in self.columns if name not in types]
        if unknown:
            raise InvalidConfig(f"partition_by names {', '.join(unknown)}; {known}")

    @property
    def made_types(self) -> dict[str, str]:
        """The table's columns that are made of the time, with Spark's names of their types."""
        if self.time is None or self.is_hidden:
            return {}
        return {name: _MADE_TYPES[name] for name in GRAINS[self.grain]}

    def table_schema(self, rows: pa.Schema) -> pa.Schema:
        """That of a table with these rows: also the columns that are made of the time."""
        import pyarrow as pa

        made = {"date": pa.date32(), "int": pa.int32()}
        return pa.schema([*rows, *(pa.field(name, made[kind]) for name, kind in self.made_types.items())])

    def with_time(self, frame: DataFrame) -> DataFrame:
        """A checked frame with the columns ``day`` and ``hour``: in UTC whatever the session's time zone,
        so that a replay creates the same directories.
        """
        if self.time is None:
            return frame
        kind = frame.schema[self.time].dataType.simpleString()
        made = _expressions(self.time, kind)
        return frame.selectExpr("*", *(f"{made[name]} AS {name}" for name in GRAINS[self.grain]))

    def check_types(self, rows: pa.Schema) -> None:
        """Raise `InvalidConfig` if tasks cannot name directories by these columns; Spark's writer may."""
        import pyarrow as pa

        t = pa.types
        for name in self.columns:
            kind = rows.field(name).type
            known = (t.is_integer, t.is_string, t.is_boolean, t.is_date, t.is_decimal)
            if not any(is_known(kind) for is_known in known):
                raise InvalidConfig(
                    f"partition_by={name} is of type {kind}; tasks divide by text, whole numbers, decimals, "
                    "booleans and dates: make such a column in transform=, or use partition_by_time"
                )
        if not self.in_files(rows):
            raise InvalidConfig("partition_by names all columns: at least one must be left for the files")

    def divide(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each directory, in order, without the columns that name it."""
        if not self.names:
            yield "", rows
            return
        columns = [rows.column(name) for name in self.columns]
        keys = [*self._times(rows), *(columns if self.is_hidden else map(_as_named, columns))]
        for values, part in _grouped(keys, rows.select(self.in_files(rows.schema))):
            yield "/".join(map(_directory, self.names, values)), part

    def in_files(self, rows: pa.Schema) -> list[str]:
        """The columns of rows that are in files."""
        return [name for name in rows.names if self.is_hidden or name not in self.names]

    def _times(self, rows: pa.RecordBatch) -> list[pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.time is None:
            return []
        times = rows.column(self.time)
        if pa.types.is_date(times.type):
            return [times]
        if times.type.tz is not None and not self.is_hidden:
            no_time = pa.scalar(_NO_TIME_US, pa.int64()).cast(times.type)
            times = pc.if_else(pc.equal(times, no_time), pa.scalar(None, times.type), times)
        days = pc.floor_temporal(times, unit="day").cast(pa.date32())
        return [days] if self.grain == "day" else [days, pc.hour(times)]


def directory_values(file: str) -> dict[str, str | None]:
    """The texts of the columns that name a file's directories; None for null."""
    pairs = (part.partition("=") for part in file.split("/")[:-1])
    return {unquote(key): None if text == NULL_DIRECTORY else unquote(text) for key, _, text in pairs}


def _as_named(key: pa.Array) -> pa.Array:
    """With null for an empty string, as in Spark: both have the same directory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(key.type):
        return key
    return pc.if_else(pc.equal(key, ""), pa.scalar(None, key.type), key)


def _grouped(
    keys: Sequence[pa.Array], rows: pa.RecordBatch
) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """The rows with equal keys, by first appearance, in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = [key.dictionary_encode(null_encoding="encode") for key in keys]
    codes = pa.nulls(rows.num_rows, pa.int64()).fill_null(0)
    for one in coded:
        codes = pc.add(pc.multiply(codes, len(one.dictionary)), one.indices.cast(pa.int64()))
    together = codes.dictionary_encode()
    groups = [_values(coded, code) for code in together.dictionary.to_pylist()]
    if len(groups) == 1:
        yield groups[0], rows
        return
    # Stable, and codes are numbered by first appearance: the groups come one after the other.
    counts = pc.value_counts(together.indices).field("counts").to_pylist()
    sorted_rows = rows.take(pc.array_sort_indices(together.indices))
    for values, (start, end) in zip(groups, pairwise(accumulate(counts, initial=0)), strict=True):
        yield values, sorted_rows.slice(start, end - start)


def _values(coded: Sequence[Any], code: int) -> tuple[object, ...]:
    values: list[object] = []
    for one in reversed(coded):
        code, at = divmod(code, len(one.dictionary))
        values.append(one.dictionary[at].as_py())
    return tuple(reversed(values))


def _directory(name: str, value: object) -> str:
    if value is None:
        text = NULL_DIRECTORY
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = format(value, "f" if isinstance(value, Decimal) else "")
    return f"{_escaped(name)}={_escaped(text)}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _expressions(column: str, kind: str) -> dict[str, str]:
    """SQL for the day and the hour, in integers, so that it is exact before 1970 as well."""
    name = f"`{column.replace('`', '``')}`"
    if kind != "timestamp":
        return {"day": f"CAST({name} AS DATE)", "hour": f"hour({name})"}
    micros = f"nullif(unix_micros({name}), {_NO_TIME_US})"
    return {
        "day": f"date_from_unix_date(CAST(({micros} - pmod({micros}, {_DAY_US})) DIV {_DAY_US} AS INT))",
        "hour": f"CAST(pmod({micros}, {_DAY_US}) DIV {_HOUR_US} AS INT)",
    }
