"""Delta Lake and Iceberg tables as targets of a load (mode ``sink``); the user brings their JARs. One commit
of the table holds both the rows and the record of their plan, which the next attempt finds after a crash.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.records import entry
from pyspark_kafkalog.loads.file_table import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_KIND = "kafkalog"
_ABANDONED = {
    "discard": "the ledger discarded it",
    "rewind": "the ledger was rewound before it was committed",
    "compact": "the load's files were compacted before it was committed",
}
"""Why the plan of that number is not in effect, by the mode of its commit."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A load in a commit of a table. ``version`` is the table's; ``rows`` is None if unknown."""

    version: int
    load: str
    ledger: str
    number: int
    plan_sha256: str
    run: str
    rows: int | None = None


def encode_table_commit(ledger: Ledger, plan: Plan, run: str) -> str:
    fields = {
        "load": ledger.name,
        "ledger": ledger.identity(),
        "number": plan.number,
        "plan_sha256": plan.sha256,
        "run": run,
        "positions": [entry(p) for p in plan.positions.values()],
    }
    return json.dumps({_KIND: fields}, separators=(",", ":"), ensure_ascii=False)


def decode_table_commit(version: int, text: str | None, rows: int | None) -> TableCommit | None:
    try:
        found = json.loads(text or "")[_KIND]
        load, ledger, sha256, run = (str(found[name]) for name in ("load", "ledger", "plan_sha256", "run"))
        return TableCommit(version, load, ledger, int(found["number"]), sha256, run, rows)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def versions_in_effect(history: Iterable[tuple[int, int | None]]) -> Iterator[int]:
    """Versions in effect, newest first, from ``(version, restored)``: a restore undoes those in between."""
    last: int | None = None
    for version, restored in history:
        if last is None or version <= last:
            yield version
            last = restored if restored is not None else last


def commit_of_plan(
    table: str, commits: Iterable[TableCommit], ledger: Ledger, plan: Plan
) -> TableCommit | None:
    """This plan's commit among ``commits``, newest first; `LoadError` if table and ledger disagree."""
    identity = ledger.identity()
    ours = [c for c in commits if (c.load, c.ledger) == (ledger.name, identity)]
    _refuse_repeated(table, ours)
    same = [c for c in ours if (c.number, c.plan_sha256) == (plan.number, plan.sha256)]
    if same:
        return same[0]
    if ours:
        _check(table, ours[0], ledger, plan)
    return None


def _refuse_repeated(table: str, ours: list[TableCommit]) -> None:
    """The JVM of a killed driver may still have written the load a second time."""
    versions: dict[tuple[int, str], list[int]] = {}
    for commit in ours:
        versions.setdefault((commit.number, commit.plan_sha256), []).append(commit.version)
    for (number, _), found in versions.items():
        if len(found) > 1:
            raise LoadError(
                f"{table} holds load {number} of {ours[0].load!r} more than once, in versions "
                f"{', '.join(map(str, found))}: an earlier attempt was still writing. Roll the table back to "
                "before the later one, then load again"
            )


def _check(table: str, newest: TableCommit, ledger: Ledger, plan: Plan) -> None:
    commit = ledger.commit_of(newest.number) if newest.number < plan.number else None
    why = ""
    if commit is not None and commit.plan_sha256 == newest.plan_sha256 and commit.is_load:
        at = plan.parent
        while at > newest.number:
            at = ledger.commit_at(at).parent
        if at == newest.number:
            return
        why = "the ledger was rewound to before it"
    elif commit is not None and commit.mode in _ABANDONED:
        why = _ABANDONED[commit.mode]
    if why:
        raise LoadError(
            f"{table} holds load {newest.number} of {ledger.name!r}, in its version {newest.version}, and "
            f"{why}: its rows would be there twice. Roll the table back to before that version, "
            "or rewind the ledger and write to another table"
        )
    raise LoadError(
        f"{table} holds load {newest.number} of {ledger.name!r}, in its version {newest.version}, and "
        f"{ledger.location} does not: it is an old copy. Restore the newer one; to continue without it, "
        "begin a load of another name at the positions in the table's commit"
    )


SHORT_IDENTITY = 12
"""Characters of a ledger's seal that tell it from a ledger created again."""


ICEBERG_PROPERTY = "kafkalog.commit"
"""The snapshot property with a load's record."""


def delta_application(ledger: Ledger) -> str:
    """The application id of a ledger's loads; with its seal, for a new ledger counts from 1 again."""
    return f"kafkalog:{ledger.name}:{ledger.identity()[:SHORT_IDENTITY]}"


_MISSING_TABLE = frozenset(
    {
        "TABLE_OR_VIEW_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
    }
)


class LakeTable(ABC):
    """A table whose commits hold the record of each load. *Not thread-safe.*"""

    mode = "sink"
    format: str

    def __init__(
        self, table: str, partition_by: str | Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> None:
        """``partition_by`` applies if the table is created; ``options`` are those of the format's writer."""
        if not table or "`" in table:
            raise InvalidConfig(
                f"the name of the table is {table!r}; it must not be empty or contain a backquote"
            )
        self.table = table
        self._columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._options = dict(options or {})

    def check(self, work: Work) -> None:
        if any((done.path, done.format) == (self.table, self.format) for done in work.before):
            raise LoadError(
                f"{self.table} was written in this block already: union the frames and write once"
            )

    def find(self, work: Work) -> LoadOutput | None:
        return self._found(work, self._commits(work))

    def _found(self, work: Work, commits: Iterable[TableCommit]) -> LoadOutput | None:
        found = commit_of_plan(self.table, commits, work.ledger, work.plan)
        if found is None:
            return None
        evidence: dict[str, str | int] = {"version": found.version, "run": found.run}
        if found.rows is not None:
            evidence["rows"] = found.rows
        return LoadOutput(self.table, format=self.format, evidence=evidence)

    def write(self, work: Work) -> LoadOutput:
        self._append(work, encode_table_commit(work.ledger, work.plan, work.run))
        output = self.find(work)
        if output is None:
            raise LoadError(
                f"{self.table} has no commit of load {work.plan.number} after writing it: the plan "
                "stays. Does another writer of the same name, or a trigger, change its history?"
            )
        return output

    @abstractmethod
    def _commits(self, work: Work) -> list[TableCommit]:
        """The loads in the table's commits in effect, newest first; empty without a table."""

    @abstractmethod
    def _append(self, work: Work, record: str) -> None:
        """Append the rows in one commit that holds ``record``; create the table if it is missing."""


class DeltaTable(LakeTable):
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


class IcebergTable(LakeTable):
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


def count_of(metrics: Mapping[str, Any] | None, name: str) -> int | None:
    value = (metrics or {}).get(name)
    return int(value) if value is not None and str(value).isdecimal() else None
