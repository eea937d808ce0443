"""Tables of Delta Lake and Iceberg as a load's target (mode ``sink``): one commit has rows and position.

Their JARs are the user's. A plan that is in the table already is not written again: exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads import table_commits
from pyspark_kafkalog.loads.commit import Output
from pyspark_kafkalog.loads.errors import LoadError
from pyspark_kafkalog.loads.table_commits import TableCommit
from pyspark_kafkalog.loads.target import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_APP_ID_CHARACTERS = 12
_MISSING_TABLE = frozenset(
    {
        "TABLE_OR_VIEW_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
    }
)
"""Error conditions, Spark's and Delta's, of a name or path where no table is."""


class LakeTable(ABC):
    """What both have in common. *Not thread-safe.*"""

    mode = "sink"
    format: str

    def __init__(
        self, table: str, partition_by: str | Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> None:
        """``partition_by`` counts where the table is made; ``options`` are those of the format's writer.

        Raises:
            InvalidConfig: the name is empty, or has a quote.
        """
        if not table or "`" in table:
            raise InvalidConfig(f"{table!r} cannot be the name of a table")
        self.table = table
        self._columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._options = dict(options or {})

    def check(self, work: Work) -> None:
        """See that this table was not written in this block before.

        Raises:
            LoadError: it was: one load has one commit in a table.
        """
        if any((done.path, done.format) == (self.table, self.format) for done in work.before):
            raise LoadError(f"{self.table} was written in this block already: union and write once")

    def find(self, work: Work) -> Output | None:
        """What an earlier attempt at this plan committed in the table.

        Raises:
            LoadError: table and ledger do not tell the same.
        """
        commits = self._commits(work.spark)
        found = table_commits.already(self.table, commits, work.ledger, work.plan)
        return None if found is None else self._output(found)

    def write(self, work: Work) -> Output:
        """Append the rows in one commit of the table, with the record of this load.

        Raises:
            LoadError: the table does not show the commit afterwards, or shows it twice.
        """
        self._append(work, table_commits.encode(work.ledger, work.plan, work.run))
        commits = self._commits(work.spark)
        found = table_commits.already(self.table, commits, work.ledger, work.plan)
        if found is None:
            raise LoadError(
                f"{self.table} shows no commit of load {work.plan.number} after it was written: the plan "
                "stays. Does another writer of the same name, or a trigger, change the table's history?"
            )
        return self._output(found)

    def _output(self, found: TableCommit) -> Output:
        evidence: dict[str, str | int] = {"version": found.version, "run": found.run}
        if found.rows is not None:
            evidence["rows"] = found.rows
        return Output(self.table, format=self.format, evidence=evidence)

    @abstractmethod
    def _commits(self, spark: SparkSession) -> list[TableCommit]:
        """The loads that the table's commits in effect tell of, newest first; none without a table."""

    @abstractmethod
    def _append(self, work: Work, record: str) -> None:
        """Append ``work.frame`` in one commit that holds ``record``; make the table where it is not there."""


class DeltaTable(LakeTable):
    """A path, or a name in a catalog. Delta itself refuses a second write of one ``txnVersion``."""

    format = "delta"

    def _commits(self, spark: SparkSession) -> list[TableCommit]:
        if not self._exists(spark):
            return []
        history = spark.sql(f"DESCRIBE HISTORY {self._quoted}")
        noted = (
            history.where("userMetadata IS NOT NULL OR operation = 'RESTORE'")
            .select("version", "userMetadata", "operation", "operationParameters", "operationMetrics")
            .orderBy("version", ascending=False)
            .collect()
        )
        counts = {*table_commits.not_undone((row.version, _restored(history, row)) for row in noted)}
        found = (
            table_commits.decode(row.version, row.userMetadata, _count(row.operationMetrics, "numOutputRows"))
            for row in noted
            if row.version in counts
        )
        return [one for one in found if one is not None]

    def _exists(self, spark: SparkSession) -> bool:
        from pyspark.errors import AnalysisException

        try:
            spark.sql(f"DESCRIBE DETAIL {self._quoted}").collect()
        except AnalysisException as e:
            if e.getCondition() in _MISSING_TABLE:
                return False
            raise  # it may be there: what is in it must not be taken for nothing
        return True

    def _append(self, work: Work, record: str) -> None:
        identity = work.ledger.identity()[:_APP_ID_CHARACTERS]
        writer = work.frame.write.format("delta").mode("append").options(**self._options)
        # With the ledger's seal: one that was begun anew counts from 1 again.
        writer = writer.option("txnAppId", f"kafkalog:{work.ledger.name}:{identity}")
        writer = writer.option("txnVersion", str(work.plan.number)).option("userMetadata", record)
        if self._columns and not self._exists(work.spark):
            writer = writer.partitionBy(*self._columns)
        if self._is_path:
            writer.save(self.table)
        else:
            writer.saveAsTable(self.table)

    @property
    def _is_path(self) -> bool:
        return "/" in self.table

    @property
    def _quoted(self) -> str:
        return f"delta.`{self.table}`" if self._is_path else self.table


class IcebergTable(LakeTable):
    """A name in a catalog of Iceberg. Its snapshots have the record in the property ``kafkalog.commit``."""

    format = "iceberg"
    _PROPERTY = "kafkalog.commit"

    def _commits(self, spark: SparkSession) -> list[TableCommit]:
        if not spark.catalog.tableExists(self.table):
            return []
        # Its catalogs keep a table for half a minute, in which another driver may have written, and died.
        spark.catalog.refreshTable(self.table)
        # The history has a snapshot once more after a roll-back to it.
        rows = spark.sql(
            f"SELECT snapshot_id, summary FROM {self.table}.snapshots WHERE snapshot_id IN "
            f"(SELECT snapshot_id FROM {self.table}.history WHERE is_current_ancestor) "
            "ORDER BY committed_at DESC"
        ).collect()
        found = (
            table_commits.decode(
                row.snapshot_id, row.summary.get(self._PROPERTY), _count(row.summary, "added-records")
            )
            for row in rows
        )
        return [one for one in found if one is not None]

    def _append(self, work: Work, record: str) -> None:
        from pyspark.sql import functions as f

        writer = work.frame.writeTo(self.table).options(**self._options)
        writer = writer.option(f"snapshot-property.{self._PROPERTY}", record)
        if work.spark.catalog.tableExists(self.table):
            writer.append()
            return
        writer = writer.using("iceberg")
        if self._columns:
            first, *others = (f.col(name) for name in self._columns)
            writer = writer.partitionedBy(first, *others)
        writer.create()


def _restored(history: DataFrame, row: Row) -> int | None:
    """The version that this one of Delta made the table again; None where it did something else."""
    if row.operation != "RESTORE":
        return None
    said = row.operationParameters or {}
    if said.get("version") is not None:
        return int(said["version"])
    from pyspark.sql import functions as f

    then = history.where(f.col("timestamp") <= f.lit(said.get("timestamp")).cast("timestamp"))
    found: int | None = then.agg(f.max("version")).head()[0]  # type: ignore[index]
    if found is None:
        raise LoadError(f"version {row.version} restored the table as it was at {said}: no version is so old")
    return found


def _count(metrics: Mapping[str, Any] | None, name: str) -> int | None:
    value = (metrics or {}).get(name)
    return int(value) if value is not None and str(value).isdecimal() else None
