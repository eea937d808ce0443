"""An Iceberg table that tasks write, through the pyiceberg library (extra ``iceberg``), without Spark's
runtime. Files lie in the table's location first; then one snapshot names them, with the record of their
plan. Tasks know the location only: the catalog and its secrets stay in the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.lake_table import (
    ICEBERG_PROPERTY,
    LakeTable,
    TableCommit,
    count_of,
    decode_table_commit,
)
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.table_schema import simple_types, spark_schema_text, storable
from pyspark_kafkalog.loads.writers.lake_files import write_lake_files
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile
from pyspark_kafkalog.loads.writers.task_files import rows_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.loads.transform import Transform

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_PAUSE_S = 0.2
_NEWEST_FORMAT = 2
_EPOCH = date(1970, 1, 1)


class TaskIcebergTable(LakeTable):
    """A name in a pyiceberg catalog: ``namespace.table``. *Not thread-safe.*"""

    format = "iceberg"

    def __init__(
        self, table: str, catalog: object, layout: Layout, transform: Transform | None = None
    ) -> None:
        """``catalog``: the name of one in the user's pyiceberg configuration, its properties (``name`` among
        them, else ``default``), or a Catalog. The layout's partitioning applies if the table is created.
        """
        super().__init__(table)
        if "." not in table:
            raise InvalidConfig(f"the Iceberg table is {table!r}; it must be namespace.table")
        self._layout = replace(layout, partitioning=replace(layout.partitioning, is_hidden=True))
        self._transform = transform
        self._catalog = _catalog(table, catalog)

    def check(self, work: Work) -> None:
        super().check(work)
        rows = _widened(rows_schema(work, self._transform))
        types = simple_types(spark_schema_text(rows))
        self._layout.partitioning.check(types)
        self._layout.partitioning.check_types(rows)
        table = self._load()
        if table is None:
            return
        _refuse_unwritable(self.table, table)
        partitioning = _partitioning(self.table, table)
        if self._layout.partitioning.names and self._layout.partitioning != partitioning:
            raise LoadError(
                f"{self.table} is partitioned by {_described(table)}, and this load by "
                f"{list(self._layout.partitioning.names)}: leave partition_by out"
            )
        partitioning.check(types)
        columns = simple_types(spark_schema_text(_arrow_schema(table)))
        for name, kind in types.items():
            if name not in columns:
                raise LoadError(f"{self.table} has no column {name}; it has {', '.join(columns)}")
            if columns[name] != kind:
                raise LoadError(f"{self.table}: column {name} is {columns[name]}, and this load has {kind}")
        if required := [field.name for field in table.schema().fields if field.required]:
            raise LoadError(f"{self.table}: loads may have nulls in {', '.join(required)}, which is required")

    def _commits(self, _work: Work) -> list[TableCommit]:
        table = self._load()
        return [] if table is None else list(_commits_of(table))

    def _append(self, work: Work, record: str) -> None:
        rows = _widened(rows_schema(work, self._transform))
        table = self._load() or self._create(rows)
        layout = replace(self._layout, partitioning=_partitioning(self.table, table))
        schema = _chosen(_arrow_schema(table), rows)
        place = f"{table.location().rstrip('/')}/data"
        files = write_lake_files(work, open_store(place), schema, layout, self._transform)
        self._commit(work, record, [_data_file(table, place, file, layout.partitioning) for file in files])

    def _commit(self, work: Work, record: str, files: Sequence[Any]) -> None:
        """Look and commit with one handle that does not try again by itself: else two drivers that both
        looked would append the load twice. What fails in doubt is looked for before it is tried again.
        """
        for attempt in range(_ATTEMPTS):
            table = self._load()
            if table is None:
                raise LoadError(f"{self.table} is gone: another program removed it. The plan stays")
            if self._found(work, _commits_of(table)) is not None:
                return
            table.metadata.properties["commit.retry.num-retries"] = "0"  # in memory only
            try:
                with table.transaction() as transaction:
                    update = transaction.update_snapshot(snapshot_properties={ICEBERG_PROPERTY: record})
                    with update.fast_append() as append:
                        for file in files:
                            append.append_data_file(file)
            except Exception as e:  # of the catalog's client, whichever it is
                if attempt == _ATTEMPTS - 1:
                    raise LoadError(f"cannot commit to {self.table}: {_told(e)}; the plan stays") from e
                log.warning("commit to %s is in doubt, looking again: %s", self.table, _told(e))
                time.sleep(_PAUSE_S * attempt)
            else:
                return

    def _create(self, rows: pa.Schema) -> Any:
        """The new table, or that which another driver created meanwhile."""
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, HourTransform

        partitioning = self._layout.partitioning
        namespace = self.table.rpartition(".")[0]
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
            creation = self._catalog.create_table_transaction(self.table, rows)
            with creation, creation.update_spec() as spec:
                if partitioning.time is not None:
                    transform: Any = DayTransform() if partitioning.grain == "day" else HourTransform()
                    spec.add_field(partitioning.time, transform)
                for name in partitioning.columns:
                    spec.add_identity(name)
        except TableAlreadyExistsError:
            pass
        except Exception as e:
            raise LoadError(f"cannot create {self.table}: {_told(e)}") from e
        table = self._load()
        if table is None:
            raise LoadError(f"{self.table} was created and is gone: does another program drop it?")
        return table

    def _load(self) -> Any | None:
        """A fresh handle; None without a table."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as e:
            raise LoadError(f"cannot read {self.table}: {_told(e)}") from e


def _catalog(table: str, given: object) -> Any:
    try:
        from pyiceberg.catalog import Catalog, load_catalog
    except ImportError:
        raise UnsafeStore(
            f"{table}: Iceberg tables that tasks write need pyiceberg: pip install "
            "'pyspark-kafkalog[iceberg]'. engine='spark' uses Spark's runtime"
        ) from None
    if isinstance(given, Catalog):
        return given
    try:
        if isinstance(given, str):
            return load_catalog(given)
        if isinstance(given, Mapping):
            properties = {str(key): str(value) for key, value in given.items()}
            return load_catalog(properties.pop("name", "default"), **properties)
    except Exception as e:
        raise LoadError(f"cannot open the catalog of {table}: {_told(e)}") from e
    raise InvalidConfig(
        f"catalog= is {type(given).__name__}; it must be the name of a pyiceberg catalog, its properties, or "
        "a Catalog"
    )


def _told(error: BaseException) -> str:
    return masked(f"{type(error).__name__}: {str(error).strip()[:300]}")


def _refuse_unwritable(name: str, table: Any) -> None:
    if table.metadata.format_version > _NEWEST_FORMAT:
        raise LoadError(
            f"{name} has Iceberg's format version {table.metadata.format_version}; tasks write up to "
            f"{_NEWEST_FORMAT}: use engine='spark' with Iceberg's runtime"
        )
    location = table.location()
    if location.startswith("hdfs:") and "py-io-impl" not in {**table.io.properties, **table.properties}:
        raise LoadError(
            f"{name} lies at {location}, where pyiceberg needs a JVM for its metadata: give the catalog a "
            "FileIO (py-io-impl), or use engine='spark'"
        )


def _partitioning(name: str, table: Any) -> Partitioning:
    """That of an existing table. `LoadError`: tasks cannot compute one of its transforms."""
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

    columns: list[str] = []
    times: list[tuple[str, str]] = []
    for field in table.spec().fields:
        source = table.schema().find_column_name(field.source_id)
        if isinstance(field.transform, IdentityTransform):
            columns.append(source)
        elif isinstance(field.transform, DayTransform | HourTransform):
            times.append((source, "day" if isinstance(field.transform, DayTransform) else "hour"))
        else:
            times += [("", "")] * 2
    if len(times) > 1:
        raise LoadError(
            f"{name} is partitioned by {_described(table)}; tasks write columns as they are, and one day or "
            "hour: use engine='spark' with Iceberg's runtime"
        )
    time_of, grain = times[0] if times else (None, "day")
    return Partitioning(tuple(columns), time_of, grain, is_hidden=True)


def _described(table: Any) -> str:
    fields = table.spec().fields
    return ", ".join(f"{one.transform}({table.schema().find_column_name(one.source_id)})" for one in fields)


def _arrow_schema(table: Any) -> pa.Schema:
    """The table's columns, with the ids of their fields."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return storable(schema_to_pyarrow(table.schema()))


def _chosen(known: pa.Schema, rows: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([known.field(name) for name in rows.names])


def _widened(rows: pa.Schema) -> pa.Schema:
    """Iceberg has no integers of less than 32 bits."""
    import pyarrow as pa

    small = (pa.int8(), pa.int16())
    return pa.schema([field.with_type(pa.int32()) if field.type in small else field for field in rows])


def _commits_of(table: Any) -> Iterator[TableCommit]:
    """The loads in the ancestors of the main branch, newest first: a snapshot that was rolled back is
    none.
    """
    at = table.current_snapshot()
    while at is not None:
        summary = at.summary.additional_properties if at.summary is not None else {}
        found = decode_table_commit(
            at.snapshot_id, summary.get(ICEBERG_PROPERTY), count_of(summary, "added-records")
        )
        if found is not None:
            yield found
        at = None if at.parent_snapshot_id is None else table.snapshot_by_id(at.parent_snapshot_id)


def _data_file(table: Any, place: str, file: WrittenFile, partitioning: Partitioning) -> Any:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = table.schema()
    ids = {name: schema.find_field(name).field_id for name in file.columns}
    least: dict[int, bytes] = {}
    greatest: dict[int, bytes] = {}
    for name, column in file.columns.items():
        kind = schema.find_type(name)
        for bound, to in ((column.least, least), (column.greatest, greatest)):
            if bound is not None:
                is_decimal = str(kind).startswith("decimal")
                to[ids[name]] = to_bytes(kind, Decimal(bound) if is_decimal else bound)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{place}/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=Record(*_partition_values(table, file, partitioning)),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        column_sizes={ids[name]: column.bytes for name, column in file.columns.items()},
        value_counts={ids[name]: column.values for name, column in file.columns.items()},
        null_value_counts={ids[n]: c.nulls for n, c in file.columns.items() if c.nulls is not None},
        nan_value_counts={},
        lower_bounds=least,
        upper_bounds=greatest,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        split_offsets=None,
    )


def _partition_values(table: Any, file: WrittenFile, partitioning: Partitioning) -> Iterable[object]:
    """As Iceberg's metadata hold them, in the order of the table's specification."""
    from pyiceberg.transforms import DayTransform, HourTransform

    texts = partitioning.values(file.name)
    for field in table.spec().fields:
        if isinstance(field.transform, DayTransform | HourTransform):
            day = texts["day"]
            days = None if day is None else (date.fromisoformat(day) - _EPOCH).days
            is_hour = days is not None and isinstance(field.transform, HourTransform)
            yield days * 24 + int(texts["hour"] or 0) if is_hour and days is not None else days
        else:
            name = table.schema().find_column_name(field.source_id)
            yield _value(texts[name], str(table.schema().find_type(name)))


def _value(text: str | None, kind: str) -> object:
    if text is None or kind == "string":
        return text
    if kind in ("int", "long"):
        return int(text)
    if kind == "boolean":
        return text == "true"
    if kind == "date":
        return (date.fromisoformat(text) - _EPOCH).days
    return Decimal(text)
