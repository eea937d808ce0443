"""A Delta table that tasks write, through the deltalake library (extra ``delta``), without Spark's
runtime.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.errors import LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.locations import is_remote, open_store
from pyspark_kafkalog.ledger.stores.object_clients import object_options
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.partitioning import directory_values
from pyspark_kafkalog.loads.table_schema import simple_types
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.lake_table import (
    TableCommit,
    decode_table_commit,
    delta_application,
    versions_in_effect,
)
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile
from pyspark_kafkalog.loads.writers.task_lake_table import Destination, TaskLakeTable, told

if TYPE_CHECKING:
    import pyarrow as pa

_FEATURES = frozenset({"appendOnly", "changeDataFeed", "invariants", "timestampNtz", "vacuumProtocolCheck"})
"""Writer features that a plain append of files satisfies."""


_LOG_ENTRY = re.compile(r"_delta_log/[0-9]{20}\.json")


class TaskDeltaTable(TaskLakeTable):
    """A path or URL. *Not thread-safe.*"""

    format = "delta"

    def __init__(
        self,
        table: str,
        layout: Layout,
        functions: RowFunctions,
        max_dead: float | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """The layout's partitioning must be that of an existing table. ``storage_options`` are those of
        deltalake, added to the settings of our stores.
        """
        super().__init__(table, layout, functions, max_dead)
        self._store = open_store(table)
        self._options = dict(storage_options or {})
        self._library = _library(table)

    @property
    def _doubtful(self) -> tuple[type[Exception], ...]:
        return self._library.exceptions.DeltaError, OSError

    def _handle(self) -> Any | None:
        try:
            return self._library.DeltaTable(self._url, storage_options=self._storage)
        except self._library.exceptions.TableNotFoundError:
            return None
        except self._doubtful as e:
            raise LoadError(f"cannot read {self.table}: {told(e)}") from e

    def _commits_of(self, handle: Any) -> list[TableCommit]:
        history = handle.history()
        in_effect = {*versions_in_effect((one["version"], _restored(history, one)) for one in history)}
        found = (
            decode_table_commit(one["version"], one.get("userMetadata"), None)
            for one in history
            if one["version"] in in_effect
        )
        return [one for one in found if one is not None]

    def _columns_of(self, handle: Any) -> dict[str, str]:
        return simple_types(handle.schema().to_json())

    def _check_table(self, handle: Any, _types: dict[str, str]) -> None:
        _refuse_unwritable(self.table, handle)
        ours, theirs = self._partitioning.names, tuple(handle.metadata().partition_columns)
        if ours != theirs:
            raise LoadError(
                f"{self.table} is partitioned by {list(theirs)}, this load by {list(ours)}: give the same "
                "partition_by and partition_by_time"
            )

    def _create(self, rows: pa.Schema) -> None:
        try:
            self._library.DeltaTable.create(
                self._url,
                self._partitioning.table_schema(rows),
                mode="ignore",
                partition_by=list(self._partitioning.names),
                storage_options=self._storage,
            )
        except self._doubtful as e:
            raise LoadError(f"cannot create {self.table}: {told(e)}") from e

    def _place(self, _handle: Any) -> FileStore:
        return self._store

    def _names(self, handle: Any) -> set[str]:
        """Of the newest version, and what the log adds or removes: older versions have no others."""
        paths = list(handle.file_uris())
        for file in self._store.files("_delta_log"):
            if _LOG_ENTRY.fullmatch(file.name):
                lines = (self._store.read(file.name) or b"").splitlines()
                actions = [action for line in lines for action in json.loads(line).values()]
                paths += [action["path"] for action in actions if "path" in action]
        return {path.rpartition("/")[2] for path in paths}

    def _destination(self, handle: Any, rows: pa.Schema) -> Destination:
        return Destination(self._place(handle), rows, self._layout)

    def _commit_files(
        self, handle: Any, work: Work, record: str, files: tuple[WrittenFile, ...], to: Destination
    ) -> None:
        application, number = delta_application(work.ledger), work.plan.number
        if (handle.transaction_version(application) or 0) >= number:
            raise LoadError(
                f"{self.table} was restored to before load {number} of {work.ledger.name!r}, "
                "which it still counts as written (txn): load again with on_pending='discard'"
            )
        properties = self._library.CommitProperties(
            custom_metadata={"userMetadata": record},
            app_transactions=[self._library.Transaction(application, number)],
        )
        handle.create_write_transaction(
            [_action(file, to) for file in files],
            "append",
            self._partitioning.table_schema(to.schema),
            list(self._partitioning.names),
            commit_properties=properties,
        )

    @property
    def _url(self) -> str:
        if not is_remote(self._store.location):
            return self._store.location
        scheme, _, rest = self._store.url.partition("://")
        return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"

    @property
    def _storage(self) -> dict[str, str]:
        return {**object_options(self._store.location), **self._options}


def _library(table: str) -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise UnsafeStore(
            f"{table}: Delta tables that tasks write need deltalake: pip install "
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


def _action(file: WrittenFile, to: Destination) -> Any:
    from deltalake.transaction import AddAction

    known = {"numRecords": file.rows, **_stats(file, to.schema)}
    return AddAction(
        file.name,  # deltalake escapes it
        file.bytes,
        directory_values(file.name),
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
