"""A Delta table that tasks write, through the deltalake library (extra ``delta``), without Spark's
runtime. Files lie in the table's directory first; then one commit of the table names them, with the record
of their plan.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.locations import is_remote, open_store
from pyspark_kafkalog.ledger.stores.object_clients import object_options
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.lake_table import (
    LakeTable,
    TableCommit,
    decode_table_commit,
    delta_application,
    versions_in_effect,
)
from pyspark_kafkalog.loads.table_schema import simple_types, spark_schema_text
from pyspark_kafkalog.loads.writers.lake_files import write_lake_files
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile
from pyspark_kafkalog.loads.writers.task_files import rows_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.loads.transform import Transform

log = logging.getLogger(__name__)

_FEATURES = frozenset({"appendOnly", "changeDataFeed", "invariants", "timestampNtz", "vacuumProtocolCheck"})
"""Writer features that a plain append of files satisfies."""

_ATTEMPTS = 10
_PAUSE_S = 0.2


class TaskDeltaTable(LakeTable):
    """A path or URL. *Not thread-safe.*"""

    format = "delta"

    def __init__(
        self,
        table: str,
        layout: Layout,
        transform: Transform | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """The layout's partitioning applies if the table is created; else that of the table.
        ``storage_options`` are those of deltalake, added to the settings of our stores.
        """
        super().__init__(table)
        self._store = open_store(table)
        self._layout, self._transform = layout, transform
        self._options = dict(storage_options or {})
        self._library()

    def check(self, work: Work) -> None:
        super().check(work)
        rows = rows_schema(work, self._transform)
        types = simple_types(spark_schema_text(rows))
        self._layout.partitioning.check(types)
        self._layout.partitioning.check_types(rows)
        handle = self._handle()
        if handle is None:
            return
        _refuse_unwritable(self.table, handle)
        columns = simple_types(handle.schema().to_json())
        named = self._layout.partitioning.names
        theirs = tuple(handle.metadata().partition_columns)
        if named != theirs:
            raise LoadError(
                f"{self.table} is partitioned by {list(theirs)}, this load by {list(named)}: give the same "
                "partition_by and partition_by_time"
            )
        ours = {**types, **self._layout.partitioning.made_types}
        for name, kind in ours.items():
            if name not in columns:
                raise LoadError(f"{self.table} has no column {name}; it has {', '.join(columns)}")
            if columns[name] != kind:
                raise LoadError(f"{self.table}: column {name} is {columns[name]}, and this load has {kind}")

    def _commits(self, _work: Work) -> list[TableCommit]:
        handle = self._handle()
        return [] if handle is None else self._commits_of(handle)

    def _append(self, work: Work, record: str) -> None:
        rows = rows_schema(work, self._transform)
        schema = self._layout.partitioning.table_schema(rows)
        if self._handle() is None:
            self._create(schema)
        files = write_lake_files(work, self._store, rows, self._layout, self._transform)
        actions = [_action(file, self._layout, rows) for file in files]
        self._commit(work, record, schema, actions)

    def _commit(self, work: Work, record: str, schema: pa.Schema, actions: list[Any]) -> None:
        """Look and commit with one handle: Delta refuses it if the load was committed in between. What
        fails in doubt is looked for before it is tried again.
        """
        deltalake = self._library()
        for attempt in range(_ATTEMPTS):
            handle = self._handle()
            if handle is None:
                raise LoadError(f"{self.table} is gone: another program removed it. The plan stays")
            if self._found(work, self._commits_of(handle)) is not None:
                return
            application = delta_application(work.ledger)
            if (handle.transaction_version(application) or 0) >= work.plan.number:
                raise LoadError(
                    f"{self.table} was restored to before load {work.plan.number} of {work.ledger.name!r}, "
                    "which it still counts as written (txn): load again with on_pending='discard'"
                )
            properties = deltalake.CommitProperties(
                custom_metadata={"userMetadata": record},
                app_transactions=[deltalake.Transaction(application, work.plan.number)],
            )
            try:
                handle.create_write_transaction(
                    actions,
                    "append",
                    schema,
                    list(self._layout.partitioning.names),
                    commit_properties=properties,
                )
            except (deltalake.exceptions.DeltaError, OSError) as e:
                if attempt == _ATTEMPTS - 1:
                    raise LoadError(f"cannot commit to {self.table}: {e}; the plan stays") from e
                log.warning("commit to %s is in doubt, looking again: %s", self.table, e)
                time.sleep(_PAUSE_S * attempt)
            else:
                return

    def _create(self, schema: pa.Schema) -> None:
        deltalake = self._library()
        try:
            deltalake.DeltaTable.create(
                self._url,
                schema,
                mode="ignore",
                partition_by=list(self._layout.partitioning.names),
                storage_options=self._storage,
            )
        except (deltalake.exceptions.DeltaError, OSError) as e:
            raise LoadError(f"cannot create {self.table}: {e}") from e

    def _commits_of(self, handle: Any) -> list[TableCommit]:
        history = handle.history()
        in_effect = {*versions_in_effect((one["version"], _restored(history, one)) for one in history)}
        found = (
            decode_table_commit(one["version"], one.get("userMetadata"), None)
            for one in history
            if one["version"] in in_effect
        )
        return [one for one in found if one is not None]

    def _handle(self) -> Any | None:
        """A fresh one; None without a table."""
        deltalake = self._library()
        try:
            return deltalake.DeltaTable(self._url, storage_options=self._storage)
        except deltalake.exceptions.TableNotFoundError:
            return None
        except (deltalake.exceptions.DeltaError, OSError) as e:
            raise LoadError(f"cannot read {self.table}: {e}") from e

    @property
    def _url(self) -> str:
        if not is_remote(self._store.location):
            return self._store.location
        scheme, _, rest = self._store.url.partition("://")
        return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"

    @property
    def _storage(self) -> dict[str, str]:
        return {**object_options(self._store.location), **self._options}

    def _library(self) -> Any:
        try:
            import deltalake
            import deltalake.exceptions
        except ImportError:
            raise UnsafeStore(
                f"{self.table}: Delta tables that tasks write need deltalake: pip install "
                "'pyspark-kafkalog[delta]'. engine='spark' uses Spark's runtime"
            ) from None
        return deltalake


def _refuse_unwritable(table: str, handle: Any) -> None:
    """Raise `LoadError` for a table that an append of plain files would break."""
    protocol, configuration = handle.protocol(), handle.metadata().configuration
    reasons = sorted({*(protocol.writer_features or ())} - _FEATURES)
    reasons += [key for key in configuration if key.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("delta.columnMapping.mode")
    for field in json.loads(handle.schema().to_json())["fields"]:
        known = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
        reasons += [f"{key} of column {field['name']}" for key in known if key in field["metadata"]]
    if reasons:
        raise LoadError(
            f"{table} uses {', '.join(reasons)}, which tasks cannot write: use engine='spark' with Delta's "
            "runtime"
        )


def _restored(history: list[dict[str, Any]], one: Mapping[str, Any]) -> int | None:
    """The version that a RESTORE went back to."""
    if one.get("operation") != "RESTORE":
        return None
    said = one.get("operationParameters") or {}
    if said.get("version") is not None:
        return int(said["version"])
    moment = said.get("datetime") or said.get("timestamp")
    if moment is None:
        raise LoadError(f"version {one['version']} restored the table, and does not say to which version")
    until = int(moment) if str(moment).isdecimal() else _millis(str(moment))
    return max(int(other["version"]) for other in history if int(other["timestamp"]) <= until)


def _millis(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def _action(file: WrittenFile, layout: Layout, rows: pa.Schema) -> Any:
    from deltalake.transaction import AddAction

    known = {"numRecords": file.rows, **_stats(file, rows)}
    return AddAction(
        file.name,  # deltalake escapes it
        file.bytes,
        layout.partitioning.values(file.name),
        int(time.time() * 1000),
        True,
        json.dumps(known, ensure_ascii=False),
    )


def _stats(file: WrittenFile, rows: pa.Schema) -> dict[str, Any]:
    least: dict[str, int | str] = {}
    greatest: dict[str, int | str] = {}
    nulls: dict[str, int] = {}
    for name, column in file.columns.items():
        if column.nulls is not None:
            nulls[name] = column.nulls
        for bound, to in ((column.least, least), (column.greatest, greatest)):
            for value in _bound(bound, rows.field(name).type):
                to[name] = value
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls}


def _bound(value: int | str | None, kind: pa.DataType) -> Iterator[int | str]:
    """As Delta's JSON has it; nothing for decimals, whose JSON numbers are not exact."""
    import pyarrow as pa

    if value is None or pa.types.is_decimal(kind):
        return
    if pa.types.is_date(kind):
        yield (date(1970, 1, 1) + timedelta(days=int(value))).isoformat()
    elif pa.types.is_timestamp(kind):
        moment = datetime(1970, 1, 1) + timedelta(microseconds=int(value))
        yield moment.isoformat(timespec="microseconds") + ("" if kind.tz is None else "Z")
    else:
        yield value
