"""Dead letters: records that a query could not use, unchanged, each with the reason. They are files of their
load, ``<offsetsPath>/<loadName>/dead/load=00000042/``, published by its commit.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, overload

from msgspec.structs import replace

from pyspark_kafkalog.errors import InvalidConfig, LoadError, TooManyDead
from pyspark_kafkalog.ledger.commit import ORC, PARQUET, LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import StoredFile
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.file_table import FileTable, Work
from pyspark_kafkalog.loads.output_files import give_spark_keys
from pyspark_kafkalog.loads.reading import read_load
from pyspark_kafkalog.loads.writers.spark_files import SparkFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ORIGINAL = ("key", "value", "topic", "partition", "offset", "timestamp")
"""Columns that dead letters have always."""
WHERE_THERE = ("headers", "timestampType", "broker", "innerIndex")
"""Others that they have where the load reads them."""
_NAMED_COUNT = 3
DIRECTORY = "dead"


class DeadLimit:
    """The most dead letters that a load may have: a number, or a share of the records read."""

    def __init__(self, max_dead: float | None) -> None:
        """None is no limit. Raises `InvalidConfig`."""
        self.is_share = isinstance(max_dead, float)
        if max_dead is not None and (max_dead < 0 or (self.is_share and max_dead >= 1)):
            raise InvalidConfig(
                f"max_dead is {max_dead}; it must be a number of records, or a share from 0.0 to below 1.0"
            )
        self.limit = max_dead

    def check(self, work: Work, written: LoadOutput) -> None:
        """Raise `TooManyDead` if these are too many."""
        dead, limit = written.rows or 0, self.limit
        if limit is None or dead == 0:
            return
        allowed, said = limit, f"max_dead={limit}"
        if self.is_share:
            read = sum(r.records for r in work.ledger.receipts(work.plan))
            allowed, said = limit * read, f"max_dead={limit} of {read} records"
        if dead > allowed:
            where = f"{written.path}/{written.directory}"
            raise TooManyDead(
                f"load {work.plan.number} has {dead} dead letters, more than {said}. First reasons: "
                f"{'; '.join(_reasons(written))}. They are in {where}; the plan stays: correct the query, or "
                "raise max_dead, and load again"
            )


class DeadLetters:
    """The target of dead letters that Spark writes. *Not thread-safe.* Each run writes its own, like
    `FileTable`.
    """

    mode = "dir"

    def __init__(self, ledger: Ledger, reason: str, max_dead: float | None) -> None:
        """Records with a ``reason`` that is not null are dead."""
        self._reason, self._limit = reason, DeadLimit(max_dead)
        self._files = FileTable(path_of(ledger), SparkFiles())

    def check(self, work: Work) -> None:
        if any(done.format not in (PARQUET, ORC) for done in work.before):
            raise LoadError(
                "call dead_letters before write_sql, write_delta and write_iceberg: what these write stays "
                "if there are too many dead letters, and a corrected query would not write it again"
            )
        missing = [name for name in (*ORIGINAL, self._reason) if name not in work.rows.columns]
        if missing:
            raise InvalidConfig(
                f"dead letters need the original record: columns {', '.join(missing)} are missing; there are "
                f"{', '.join(work.rows.columns)}"
            )
        if self._limit.is_share and not work.has_receipts:
            raise InvalidConfig(
                "max_dead as a share needs receipts, and receipts=False: give a number of records"
            )
        self._files.check(self._dead(work))

    def find(self, work: Work, /) -> tuple[LoadOutput, ...]:
        return self._files.find(work)

    def write(self, work: Work) -> tuple[LoadOutput, ...]:
        written = self._files.write(self._dead(work))
        for one in written:
            self._limit.check(work, one)
        return written

    def _dead(self, work: Work) -> Work:
        columns = [*ORIGINAL, *(name for name in WHERE_THERE if name in work.rows.columns)]
        dead = work.rows.where(f"`{self._reason}` IS NOT NULL")
        return replace(work, frame=dead.selectExpr(*columns, f"`{self._reason}` AS reason"), is_whole=False)


def path_of(ledger: Ledger) -> str:
    return f"{ledger.location}/{DIRECTORY}"


@overload
def read_dead(spark: SparkSession, name: str, *, offsets: str | os.PathLike[str]) -> DataFrame: ...


@overload
def read_dead(spark: None, name: str, *, offsets: str | os.PathLike[str]) -> pa.RecordBatchReader: ...


def read_dead(
    spark: SparkSession | None, name: str, *, offsets: str | os.PathLike[str]
) -> DataFrame | pa.RecordBatchReader:
    """The dead letters of load ``name``: the original columns, ``reason`` and ``load``; as `read_load`.

    Raises `LoadError` if there is no such load, or it has no dead letters yet.
    """
    ledger = Ledger.at(offsets, name)
    if spark is not None:
        give_spark_keys(spark, ledger.offsets_path)
    where = path_of(ledger)
    if output_files.read_claim(where) is None:
        raise LoadError(f"load {name!r} at {offsets} has no dead letters: load.dead_letters() writes them")
    return read_load(spark, where, offsets)


def _reasons(written: LoadOutput) -> list[str]:
    import pyarrow.parquet as pq

    reasons: dict[str, None] = {}
    store = open_store(written.path)
    for file in written.files:
        with store.open_file(StoredFile(f"{written.directory}/{file.name}", file.bytes, 0)) as opened:
            column = pq.ParquetFile(opened).read(columns=["reason"])["reason"]
        reasons |= dict.fromkeys(column.unique().to_pylist())
        if len(reasons) >= _NAMED_COUNT:
            break
    return list(reasons)[:_NAMED_COUNT]
