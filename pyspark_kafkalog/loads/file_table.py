"""The interface of a load's targets, and files as one (mode ``dir``), which the commit lists. `Load.write`
passes a `Work` to the target, and the commit records the `LoadOutput` it returns; targets know nothing of
locks and commits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import PARQUET, LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.engines.engine import Engine
from pyspark_kafkalog.loads.output_files import give_spark_keys
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.table_schema import simple_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Work(msgspec.Struct, frozen=True):
    """What to write, and for which load. With ``is_whole`` the rows are exactly the load's, to be counted
    against receipts: ``frame``, which is None without Spark, or what tasks on ``engine`` read from
    ``source``. ``before``: this block's earlier outputs.
    """

    spark: SparkSession | None
    engine: Engine
    ledger: Ledger
    plan: Plan
    run: str
    frame: DataFrame | None
    is_whole: bool
    has_receipts: bool
    before: tuple[LoadOutput, ...]
    source: BatchOptions

    @property
    def session(self) -> SparkSession:
        if self.spark is None:
            raise LoadError("this needs Spark, and the load has none: kafkalog.load(spark, ...)")
        return self.spark

    @property
    def rows(self) -> DataFrame:
        assert self.frame is not None  # there is one wherever there is a session
        return self.frame


class Target(Protocol):
    """A place that loads write to. *Belongs to one driver; used once in a block.*"""

    @property
    def mode(self) -> str:
        """The mode of the commit: one of `LOAD_MODES`."""
        ...

    def check(self, work: Work, /) -> None:
        """Raise `InvalidConfig` or `LoadError` if the rows cannot be written, before writing any."""
        ...

    def find(self, work: Work, /) -> tuple[LoadOutput, ...]:
        """The complete, durable outputs of an earlier attempt at this plan, which lack only the commit; empty
        if there are none.
        """
        ...

    def write(self, work: Work, /) -> tuple[LoadOutput, ...]:
        """Write the rows, and their dead letters; repeatable for the same plan. After `LoadError` the plan
        stays pending.
        """
        ...


class FileWriter(Protocol):
    """Writes a load's files: Spark's writer, or tasks. *Used once in a block.*"""

    format: str
    partitioning: Partitioning

    def types(self, work: Work, /) -> Mapping[str, str]:
        """The rows' columns before they are divided, with Spark's names of their types."""
        ...

    def check(self, work: Work, /) -> None:
        """Raise `InvalidConfig` or `LoadError` if it cannot write, whatever the table."""
        ...

    def write(self, work: Work, store: FileStore, inside: str, /) -> tuple[LoadOutput, ...]:
        """Write files below the directory ``inside``; returns those that are whole, durable, and of one
        attempt, and dead letters. Raises `ReceiptMismatch` if their rows are not those that were read or
        written.
        """
        ...


class FileTable:
    """``<path>/load=<number>/kl_run=<run>`` of a load; the commit publishes one run. *Not thread-safe.*"""

    mode = "dir"

    def __init__(self, path: str | os.PathLike[str], writer: FileWriter) -> None:
        self._store = output_files.table_store(path)
        self._writer = writer

    def find(self, _work: Work, /) -> tuple[LoadOutput, ...]:
        """None: files that no commit lists are written again."""
        return ()

    def check(self, work: Work) -> None:
        if work.spark is not None:
            give_spark_keys(work.spark, self._store.location)
        self._writer.check(work)
        types = self._writer.types(work)
        self._writer.partitioning.check(types)
        claimed = output_files.claim_path(self._store.location, work.ledger, self._writer.format)
        if any(done.path == claimed.path for done in work.before):
            raise LoadError(
                f"{claimed.path} was written in this block already, and a second write would replace it: "
                "union the frames and write once"
            )
        self._check_table(claimed.path, work, types)

    def write(self, work: Work) -> tuple[LoadOutput, ...]:
        return self._writer.write(work, self._store, output_files.load_directory(work.plan.number, work.run))

    def _check_table(self, path: str, work: Work, types: Mapping[str, str]) -> None:
        number, before = _last_output(work, path)
        if before is None:
            return
        theirs, ours = output_files.partition_columns(before), self._writer.partitioning.names
        if theirs != ours:
            raise LoadError(
                f"{path}: load {number} is partitioned by {list(theirs or ())}, this one by "
                f"{list(ours)}; one table has one partitioning. Write to another path"
            )
        known = _types_of(work, before)
        changed = [
            f"{name} was {known[name]} and is {kind}"
            for name, kind in types.items()
            if known.get(name, kind) != kind
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


def _types_of(work: Work, before: LoadOutput) -> dict[str, str]:
    if before.format == PARQUET:
        noted = output_files.spark_schema(before)
        return simple_types(noted) if noted else {}
    from pyspark.errors import PySparkException

    # Spark must read it: ORC's types do not determine Spark's.
    file = f"{before.directory}/{before.files[0].name}"
    with suppress(PySparkException):  # moved or damaged: `kafkalog verify` reports it
        return simple_types(work.session.read.orc(f"{open_store(before.path).url}/{file}").schema.json())
    return {}
