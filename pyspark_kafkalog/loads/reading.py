"""``kafkalog.read_load()``: the published rows of loads, each once; ``audit()``: what each load read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from inspect import signature
from typing import TYPE_CHECKING, overload

from pyspark_kafkalog.clock import parse_iso_time
from pyspark_kafkalog.config.definition import nearest
from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.audit import AuditRow, audit_rows
from pyspark_kafkalog.ledger.history import HistoryRange, last_commit, parse_as_of, parse_between
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.manifest import listed_files
from pyspark_kafkalog.loads.output_files import give_spark_keys
from pyspark_kafkalog.loads.partitioning import directory_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


@overload
def read_load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    *,
    as_of: str | int | None = None,
    between: str | None = None,
    **options: object,
) -> DataFrame: ...


@overload
def read_load(
    spark: None,
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    *,
    as_of: str | int | None = None,
    between: str | None = None,
) -> pa.RecordBatchReader: ...


def read_load(
    spark: SparkSession | None,
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    *,
    as_of: str | int | None = None,
    between: str | None = None,
    **options: object,
) -> DataFrame | pa.RecordBatchReader:
    """The rows that loads published below ``path``, each once, with the number of its load in ``load``.

    Without Spark, ``spark=None``, they come as Arrow batches, with the columns of the oldest load.

    Reads only files that a commit in effect lists, not those of a load that is running, died or was rewound.
    ``offsets`` is the directory of the ledgers if they were moved; ``options`` are those of Spark's reader of
    the table's format, for example ``mergeSchema=True``. ``as_of`` is a time, ISO 8601 or milliseconds, and
    reads the table as it was then. ``between="commit:30,commit:37"`` reads the rows of loads 31 to 37.

    Raises:
        InvalidConfig: ``as_of`` is not a time, ``between`` not two commits, or an argument is misspelt.
        LoadError: the path does not belong to a load, nothing was committed for it yet, or it has no rows.
    """
    texts = option_texts(options, read_load)
    store = output_files.table_store(path)
    where = store.location
    ledger = output_files.ledger_of(where, offsets, spark)
    former = _former(as_of, between)
    after, until = (former.since, last_commit(ledger, former)) if former else (0, None)
    head = ledger.head() if former is None else None
    files = None if head is None else listed_files(store, head)
    if files is None:
        files = output_files.files_in_effect(ledger, where, after, until)
    if not files:
        raise LoadError(f"{where}: no load has written a file yet, so the columns are unknown")
    output_files.check_one_partitioning(where, files)
    claim = output_files.read_claim(where)
    assert claim is not None  # ledger_of found it
    if spark is None:
        if texts:
            raise InvalidConfig(f"{', '.join(texts)}: options are of Spark's reader, and spark is None")
        from pyspark_kafkalog.loads.arrow_reading import arrow_table

        return arrow_table(store, claim.format, files, after)
    frame = table_of(spark, store.url, claim.format, files, texts)
    if after and any(file.startswith(f"{output_files.COMPACTION_COLUMN}=") for file in files):
        frame = frame.where(f"load > {after}")
    return frame


def table_of(
    spark: SparkSession,
    url: str,
    format: str,
    files: Sequence[str],
    options: Mapping[str, str],
    *,
    guess: bool = True,
) -> DataFrame:
    """These files as one table, by default with the columns of the oldest ones, like Spark's own reader."""
    reader = spark.read.options(**options).option("basePath", url).format(format)
    given = {name.lower(): value for name, value in options.items()}
    merge = given.get("mergeschema", spark.conf.get(f"spark.sql.{format}.mergeSchema", "false")) == "true"
    by_kind: dict[str, list[str]] = {}  # Spark reads one kind of directory at a time
    for file in files:
        by_kind.setdefault(file.partition("=")[0], []).append(file)
    kinds = list(by_kind.values())
    urls = [[f"{url}/{file}" for file in some] for some in kinds]
    frames = [reader.load(some).drop(*_OURS) for some in urls]
    if len(frames) == 1 and guess:
        return frames[0]
    values = [_directory_values(some) for some in kinds]
    to = common_types([frame.schema for frame in frames], values, guess=guess)
    if to:
        frames = [
            reader.schema(_with_types(frame.schema, to)).load(some).drop(*_OURS)
            for frame, some in zip(frames, urls, strict=True)
        ]
    # ``load`` is a string if Spark does not guess types, and a number in compacted files.
    found, *others = [frame.withColumn("load", frame["load"].cast("int")) for frame in frames]
    names = found.columns
    for frame in others:
        found = found.unionByName(frame, allowMissingColumns=True)
    return found if merge else found.select(*(f"`{name.replace('`', '``')}`" for name in names))


_OURS = (output_files.RUN_COLUMN, output_files.COMPACTION_COLUMN)


def _directory_values(files: Iterable[str]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for name, text in (pair for file in files for pair in directory_values(file).items()):
        if name != "load":
            values.setdefault(name, set()).update(() if text is None else (text,))
    return values


def common_types(
    schemas: Sequence[StructType], values: Sequence[Mapping[str, Collection[str]]], *, guess: bool = True
) -> dict[str, DataType]:
    """Types with which the kinds of directories can be read as one table: Spark's guess from ``values`` if
    the kinds agree or all are numbers, else (and without ``guess``) strings.
    """
    from pyspark.sql.types import StringType

    found: dict[str, DataType] = {}
    for name in sorted({name for one in values for name in one} - set(_OURS)):
        pairs = list(zip(schemas, values, strict=True))
        seen = [schema[name].dataType for schema, there in pairs if there[name]]
        kinds = {one.simpleString() for one in seen}
        if not guess or (len(kinds) > 1 and not all(re.match("int|bigint|double|decimal", k) for k in kinds)):
            found[name] = StringType()
        elif seen and len(seen) < len(pairs):
            found[name] = seen[0]
    return found


def _with_types(schema: StructType, to: Mapping[str, DataType]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, to[f.name]) if f.name in to else f for f in schema.fields])


def _former(as_of: str | int | None, between: str | None) -> HistoryRange | None:
    if as_of is not None and between is not None:
        raise InvalidConfig("between and as_of exclude each other: give one of them")
    if as_of is not None:
        return parse_as_of(str(as_of))
    return None if between is None else parse_between(between)


def option_texts(options: Mapping[str, object], of: Callable[..., object] | None = None) -> dict[str, str]:
    """Options as Spark takes them. Raises `InvalidConfig` for one that looks like an argument of ``of``, a
    function that passes unknown names on to Spark, which ignores them.
    """
    arguments = {p.name: str(p).partition(":")[0] for p in signature(of).parameters.values()} if of else {}
    for name in options:
        near = nearest(name.lower(), arguments)
        if near is not None:
            raise InvalidConfig(f"{name} is not an argument here. Did you mean {arguments[near]}?")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def audit(spark: SparkSession, name: str, *, offsets: str | os.PathLike[str]) -> DataFrame:
    """`audit_rows` of load ``name`` as a DataFrame.

    ``at``, ``first_timestamp`` and ``last_timestamp`` are timestamps; ``broker`` and ``partition`` are
    ``int``, all other numbers ``bigint``. Raises `LoadError` if there is no such load, or its ledger is
    damaged.
    """
    ledger = Ledger.at(offsets, name)
    give_spark_keys(spark, ledger.offsets_path)
    if not ledger.known():
        raise LoadError(f"there is no load {name!r} at {offsets}: {ledger.location} does not exist")
    names = [field.name for field in fields(AuditRow)]
    rows = [tuple(_value(name, getattr(row, name)) for name in names) for row in audit_rows(ledger)]
    return spark.createDataFrame(rows, _schema())


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIMES = {"first_timestamp_ms": "first_timestamp", "last_timestamp_ms": "last_timestamp"}
_INTS = ("broker", "partition")


def _schema() -> StructType:
    from pyspark.sql import types as t

    by_type: dict[str, t.DataType] = {
        "str": t.StringType(), "bool": t.BooleanType(), "int": t.LongType(), "int | None": t.LongType()
    }  # fmt: skip
    schema = t.StructType()
    for field in fields(AuditRow):
        kind = t.IntegerType() if field.name in _INTS else by_type[str(field.type)]
        is_time = field.name in _TIMES or field.name == "at"
        schema.add(_TIMES.get(field.name, field.name), t.TimestampType() if is_time else kind)
    return schema


def _value(name: str, value: object) -> object:
    if name == "at" and isinstance(value, str):
        return parse_iso_time(value)
    if name in _TIMES and isinstance(value, int):
        return _EPOCH + timedelta(milliseconds=value)
    return value
