"""The interface of a load's targets, and files as one (mode ``dir``): Spark writes them, and the commit lists
them. `Load.write` passes a `Work` to the target, and the commit records the `LoadOutput` it returns; targets
know nothing of locks and commits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.errors import InvalidConfig, LoadError, ReceiptMismatch
from pyspark_kafkalog.ledger.commit import FILE_FORMATS, ORC, PARQUET, LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.stores.locations import is_remote, open_store
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.output_files import give_spark_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Work:
    """What to write, and for which load. With ``is_whole`` the rows of ``frame`` are exactly the load's, to
    be counted against receipts. ``before``: this block's earlier outputs. Some targets read from ``source``.
    """

    spark: SparkSession
    ledger: Ledger
    plan: Plan
    run: str
    frame: DataFrame
    is_whole: bool
    has_receipts: bool
    before: tuple[LoadOutput, ...]
    source: BatchOptions


class Target(Protocol):
    """A place that loads write to. *Belongs to one driver; used once in a block.*"""

    @property
    def mode(self) -> str:
        """The mode of the commit: one of `LOAD_MODES`."""
        ...

    def check(self, work: Work, /) -> None:
        """Raise `InvalidConfig` or `LoadError` if the rows cannot be written, before writing any."""
        ...

    def find(self, work: Work, /) -> LoadOutput | None:
        """The complete, durable output of an earlier attempt at this plan, which lacks only the commit."""
        ...

    def write(self, work: Work, /) -> LoadOutput:
        """Write the rows; repeatable for the same plan. After `LoadError` the plan stays pending."""
        ...


class FileTable:
    """``<path>/load=<number>/kl_run=<run>`` of a load; the commit publishes one run. *Not thread-safe.*"""

    mode = "dir"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = PARQUET,
        partition_by: str | Sequence[str] = (),
        partition_by_time: str | None = None,
        grain: str = "day",
        options: Mapping[str, str] | None = None,
    ) -> None:
        """``options`` are those of Spark's writer. The days (with ``grain="hour"`` also hours) of column
        ``partition_by_time`` divide the load's directory, before ``partition_by``.
        """
        if format not in FILE_FORMATS:
            raise InvalidConfig(f"format is {format!r}; it must be one of {', '.join(FILE_FORMATS)}")
        self._store = output_files.table_store(path)
        self.format = format
        if grain not in GRAINS:
            raise InvalidConfig(f"grain is {grain!r}; it must be one of {', '.join(GRAINS)}")
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._time, self._grain = partition_by_time, grain
        self._columns = (*(GRAINS[grain] if partition_by_time else ()), *columns)
        self._options = dict(options or {})

    def find(self, _work: Work, /) -> LoadOutput | None:
        """None: files that no commit lists are written again."""
        return None

    def check(self, work: Work) -> None:
        give_spark_keys(work.spark, self._store.location)
        _check_columns(self._frame(work), self._columns)
        claimed = output_files.claim_path(self._store.location, work.ledger, self.format)
        if any(done.path == claimed.path for done in work.before):
            raise LoadError(
                f"{claimed.path} was written in this block already, and a second write would replace it: "
                "union the frames and write once"
            )
        self._check_table(claimed.path, work)

    def write(self, work: Work) -> LoadOutput:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        observed = Observation()
        frame = self._frame(work).observe(observed, f.count(f.lit(1)).alias("rows"))
        writer = frame.write.mode("overwrite").options(**self._options)
        # A session that overwrites by partition would keep the files of a failed attempt in this block.
        writer = writer.option("partitionOverwriteMode", "static")
        if self._columns:
            writer = writer.partitionBy(*self._columns)
        inside = output_files.load_directory(work.plan.number, work.run)
        writer.format(self.format).save(f"{self._store.url}/{inside}")
        written = output_files.written_files(self._store.location, inside)
        wrote, is_counted = observed.get["rows"], work.is_whole and work.has_receipts
        read = sum(r.records for r in work.ledger.receipts(work.plan)) if is_counted else None
        check_rows(work.plan.number, f"{self._store.location}/{inside}", read, wrote, written.rows)
        return replace(written, wrote=wrote)

    def _frame(self, work: Work) -> DataFrame:
        return work.frame if self._time is None else with_event_time(work.frame, self._time, self._grain)

    def _check_table(self, path: str, work: Work) -> None:
        number, before = _last_output(work, path)
        if before is None:
            return
        theirs = output_files.partition_columns(before)
        if theirs != self._columns:
            raise LoadError(
                f"{path}: load {number} is partitioned by {list(theirs or ())}, this one by "
                f"{list(self._columns)}; one table has one partitioning. Write to another path"
            )
        types = _types_of(work.spark, before)
        changed = [
            f"{field.name} was {types[field.name]} and is {field.dataType.simpleString()}"
            for field in work.frame.schema.fields
            if types.get(field.name, field.dataType.simpleString()) != field.dataType.simpleString()
        ]
        if changed:
            raise LoadError(
                f"{path}: since load {number} {'; '.join(changed)}. Spark cannot read two types of one "
                "column as one table: cast, use another name for the column, or write to another path"
            )


def _last_output(work: Work, path: str) -> tuple[int, LoadOutput | None]:
    at = work.plan.parent
    while at:
        commit = work.ledger.commit_at(at)
        for done in commit.outputs:
            if done.path == path and done.files:
                return at, done
        at = commit.parent
    return 0, None


def _types_of(spark: SparkSession, before: LoadOutput) -> dict[str, str]:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    schema = StructType()
    if before.format == ORC:  # Spark must read it: ORC's types do not determine Spark's
        file = f"{before.directory}/{before.files[0].name}"
        with suppress(PySparkException):  # moved or damaged: `kafkalog verify` reports it
            schema = spark.read.orc(f"{open_store(before.path).url}/{file}").schema
    elif noted := output_files.spark_schema(before):
        schema = StructType.fromJson(json.loads(noted))
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def check_rows(number: int, place: str, read: int | None, wrote: int, rows: int | None) -> None:
    """Compare what the tasks ``read``, if that is known, with what Spark ``wrote`` and what ``place`` holds.
    Raises `ReceiptMismatch`.
    """
    if rows == wrote and read in (None, wrote):
        return
    cause = (
        "Does another program or a lifecycle rule remove files there, or does the store list new ones late?"
        if is_remote(place)
        else "Do all executors write to this machine's file system?"
    )
    by_tasks = "" if read is None else f"the tasks read {read} records, "
    raise ReceiptMismatch(
        f"load {number}: {by_tasks}Spark wrote {wrote} rows, and {place} holds {rows} rows. {cause} "
        "The plan stays: the next load replays it"
    )


def _check_columns(frame: DataFrame, partition_by: Sequence[str]) -> None:
    ours = ("load", output_files.RUN_COLUMN, output_files.COMPACTION_COLUMN)
    taken = [name for name in frame.columns if name.lower() in ours]
    if taken:
        raise InvalidConfig(
            f"a column is called {taken[0].lower()}, as one of the directories of loads "
            "(load=42/kl_run=...): rename it"
        )
    unknown = [name for name in partition_by if name not in frame.columns]
    if unknown:
        raise InvalidConfig(f"partition_by names {', '.join(unknown)}; columns: {', '.join(frame.columns)}")


GRAINS = {"day": ("day",), "hour": ("day", "hour")}
"""Columns of each grain: ``day`` is a date, ``hour`` a number from 0 to 23."""

_NO_TIME_US = -1000
"""The time of a record without one: -1 in milliseconds."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


def with_event_time(frame: DataFrame, column: str, grain: str) -> DataFrame:
    """In UTC whatever the session's time zone, so that a replay creates the same directories."""
    kind = next(
        (field.dataType.simpleString() for field in frame.schema.fields if field.name == column), None
    )
    if kind is None:
        raise InvalidConfig(f"partition_by_time names {column}; columns: {', '.join(frame.columns)}")
    taken = [name for name in frame.columns if name.lower() in GRAINS[grain]]
    if taken:
        raise InvalidConfig(
            f"partition_by_time makes the columns {', '.join(GRAINS[grain])}: rename {taken[0]}"
        )
    made = _expressions(column, kind, grain)
    return frame.selectExpr("*", *(f"{made[name]} AS {name}" for name in GRAINS[grain]))


def _expressions(column: str, kind: str, grain: str) -> dict[str, str]:
    """SQL for the day and the hour, in integers, so that it is exact before 1970 as well."""
    name = f"`{column.replace('`', '``')}`"
    if kind == "timestamp":
        micros = f"nullif(unix_micros({name}), {_NO_TIME_US})"
        return {
            "day": f"date_from_unix_date(CAST(({micros} - pmod({micros}, {_DAY_US})) DIV {_DAY_US} AS INT))",
            "hour": f"CAST(pmod({micros}, {_DAY_US}) DIV {_HOUR_US} AS INT)",
        }
    if kind == "timestamp_ntz" or (kind == "date" and grain == "day"):
        return {"day": f"CAST({name} AS DATE)", "hour": f"hour({name})"}
    wanted = "a timestamp or a date" if grain == "day" else "a timestamp"
    raise InvalidConfig(f"partition_by_time={column} is of type {kind}; it must be {wanted}: cast it")
