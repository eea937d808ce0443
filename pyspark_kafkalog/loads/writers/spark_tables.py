"""Tables of Delta Lake and Iceberg that Spark writes; the user brings their JARs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.writers.lake_table import (
    ICEBERG_PROPERTY,
    LakeTable,
    TableCommit,
    count_of,
    decode_table_commit,
    delta_application,
    versions_in_effect,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = logging.getLogger(__name__)

_MISSING_TABLE = frozenset(
    {
        "TABLE_OR_VIEW_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
    }
)


_OTHER_VERSION = re.compile(
    r"java\.lang\.((?:NoSuch(?:Method|Field)|NoClassDefFound|AbstractMethod|[A-Z]\w*Change)Error: .{,160})"
)
"""What the JVM says of JARs that were made for another Spark."""


class _SparkTable(LakeTable):
    def __init__(
        self, table: str, partition_by: str | Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> None:
        """``partition_by`` applies if the table is created; ``options`` are those of the format's writer."""
        super().__init__(table)
        self._columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._options = dict(options or {})

    def find(self, work: Work) -> tuple[LoadOutput, ...]:
        with self._fitting_jars(work.session):
            return super().find(work)

    def write(self, work: Work) -> tuple[LoadOutput, ...]:
        with self._fitting_jars(work.session):
            return super().write(work)

    @contextmanager
    def _fitting_jars(self, spark: SparkSession) -> Iterator[None]:
        """One sentence, instead of the JVM's hundred lines, for JARs that were made for another Spark."""
        try:
            yield
        except Exception as e:
            told = _OTHER_VERSION.search(str(e))
            if told is None:
                raise
            log.debug("%s: %s", self.table, e)
            raise LoadError(
                f"{self.table}: the session's JARs, probably those of {self.format}, do not fit Spark "
                f"{spark.version}: use those made for it, or let tasks write the table without JARs "
                f"(engine='tasks'). The JVM says {told[1]}"
            ) from None


class SparkDeltaTable(_SparkTable):
    """A path, or a name in a catalog. Delta itself ignores a second write of one ``txnVersion``."""

    format = "delta"

    def _commits(self, work: Work) -> list[TableCommit]:
        spark = work.session
        if not self._exists(spark):
            return []
        history = spark.sql(f"DESCRIBE HISTORY {self._quoted}")
        noted = (
            history.where("userMetadata IS NOT NULL OR operation = 'RESTORE'")
            .select("version", "userMetadata", "operation", "operationParameters", "operationMetrics")
            .orderBy("version", ascending=False)
            .collect()
        )
        in_effect = {*versions_in_effect((row.version, _restored(history, row)) for row in noted)}
        found = (
            decode_table_commit(
                row.version, row.userMetadata, count_of(row.operationMetrics, "numOutputRows")
            )
            for row in noted
            if row.version in in_effect
        )
        return [one for one in found if one is not None]

    def _exists(self, spark: SparkSession) -> bool:
        from pyspark.errors import AnalysisException

        try:
            spark.sql(f"DESCRIBE DETAIL {self._quoted}").collect()
        except AnalysisException as e:
            if e.getCondition() in _MISSING_TABLE:
                return False
            raise  # the table may exist
        return True

    def _append(self, work: Work, record: str) -> None:
        writer = work.rows.write.format("delta").mode("append").options(**self._options)
        writer = writer.option("txnAppId", delta_application(work.ledger))
        writer = writer.option("txnVersion", str(work.plan.number)).option("userMetadata", record)
        if self._columns and not self._exists(work.session):
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


class SparkIcebergTable(_SparkTable):
    """A name in an Iceberg catalog of Spark's."""

    format = "iceberg"

    def _commits(self, work: Work) -> list[TableCommit]:
        spark = work.session
        if not spark.catalog.tableExists(self.table):
            return []
        # Catalogs cache a table for half a minute, and another driver may have written.
        spark.catalog.refreshTable(self.table)
        # The history repeats a snapshot after a roll-back to it.
        rows = spark.sql(
            f"SELECT snapshot_id, summary FROM {self.table}.snapshots WHERE snapshot_id IN "
            f"(SELECT snapshot_id FROM {self.table}.history WHERE is_current_ancestor) "
            "ORDER BY committed_at DESC"
        ).collect()
        found = (
            decode_table_commit(
                row.snapshot_id, row.summary.get(ICEBERG_PROPERTY), count_of(row.summary, "added-records")
            )
            for row in rows
        )
        return [one for one in found if one is not None]

    def _append(self, work: Work, record: str) -> None:
        from pyspark.sql import functions as f

        writer = work.rows.writeTo(self.table).options(**self._options)
        writer = writer.option(f"snapshot-property.{ICEBERG_PROPERTY}", record)
        if work.session.catalog.tableExists(self.table):
            writer.append()
            return
        writer = writer.using("iceberg")
        if self._columns:
            first, *others = (f.col(name) for name in self._columns)
            writer = writer.partitionedBy(first, *others)
        writer.create()


def _restored(history: DataFrame, row: Row) -> int | None:
    if row.operation != "RESTORE":
        return None
    said = row.operationParameters or {}
    if said.get("version") is not None:
        return int(said["version"])
    from pyspark.sql import functions as f

    then = history.where(f.col("timestamp") <= f.lit(said.get("timestamp")).cast("timestamp"))
    found: int | None = then.agg(f.max("version")).head()[0]  # type: ignore[index]
    if found is None:
        raise LoadError(f"version {row.version} restored the table as of {said}, and no version is that old")
    return found
