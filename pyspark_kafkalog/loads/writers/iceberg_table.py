"""An Iceberg table that tasks write, through the pyiceberg library (extra ``iceberg``), without Spark's
runtime. Tasks know the table's location only: the catalog and its secrets stay in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pyspark_kafkalog.errors import InvalidConfig, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.partitioning import Partitioning, directory_values
from pyspark_kafkalog.loads.table_schema import storable, types_of
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.lake_table import (
    ICEBERG_PROPERTY,
    TableCommit,
    count_of,
    decode_table_commit,
)
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile
from pyspark_kafkalog.loads.writers.task_lake_table import Destination, TaskLakeTable, told

if TYPE_CHECKING:
    import pyarrow as pa

_NEWEST_FORMAT = 2
_EPOCH = date(1970, 1, 1)


class TaskIcebergTable(TaskLakeTable):
    """A name in a pyiceberg catalog: ``namespace.table``. *Not thread-safe.*"""

    format = "iceberg"

    def __init__(
        self,
        table: str,
        catalog: object,
        layout: Layout,
        functions: RowFunctions,
        max_dead: float | None = None,
    ) -> None:
        """``catalog``: the name of one in the user's pyiceberg configuration, its properties (``name`` among
        them, else ``default``), or a Catalog. The layout's partitioning applies if the table is created.
        """
        hidden = replace(layout.partitioning, is_hidden=True)
        super().__init__(table, replace(layout, partitioning=hidden), functions, max_dead)
        if "." not in table:
            raise InvalidConfig(f"the Iceberg table is {table!r}; it must be namespace.table")
        self._catalog = _catalog(table, catalog)

    @property
    def _doubtful(self) -> tuple[type[Exception], ...]:
        return (Exception,)  # of the catalog's client, whichever it is

    def _rows(self, work: Work) -> pa.Schema:
        return _widened(super()._rows(work))

    def _handle(self) -> Any | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as e:
            raise LoadError(f"cannot read {self.table}: {told(e)}") from e

    def _commits_of(self, handle: Any) -> Iterator[TableCommit]:
        """Of the ancestors of the main branch: a snapshot that was rolled back is none."""
        at = handle.current_snapshot()
        while at is not None:
            summary = at.summary.additional_properties if at.summary is not None else {}
            found = decode_table_commit(
                at.snapshot_id, summary.get(ICEBERG_PROPERTY), count_of(summary, "added-records")
            )
            if found is not None:
                yield found
            at = None if at.parent_snapshot_id is None else handle.snapshot_by_id(at.parent_snapshot_id)

    def _columns_of(self, handle: Any) -> dict[str, str]:
        return types_of(_arrow_schema(handle))

    def _check_table(self, handle: Any, types: dict[str, str]) -> None:
        _refuse_unwritable(self.table, handle)
        theirs = _partitioning(self.table, handle)
        if self._partitioning.names and self._partitioning != theirs:
            raise LoadError(
                f"{self.table} is partitioned by {_described(handle)}, and this load by "
                f"{list(self._partitioning.names)}: leave partition_by out"
            )
        theirs.check(types)

    def _create(self, rows: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, HourTransform

        ours = self._partitioning
        try:
            self._catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            creation = self._catalog.create_table_transaction(self.table, rows)
            with creation, creation.update_spec() as spec:
                if ours.time is not None:
                    transform: Any = DayTransform() if ours.grain == "day" else HourTransform()
                    spec.add_field(ours.time, transform)
                for name in ours.columns:
                    spec.add_identity(name)
        except TableAlreadyExistsError:
            pass
        except Exception as e:
            raise LoadError(f"cannot create {self.table}: {told(e)}") from e

    def _place(self, handle: Any) -> FileStore:
        return open_store(_data_place(handle))

    def _names(self, handle: Any) -> set[str]:
        """Of all snapshots, whatever branch has them."""
        paths = handle.inspect.all_files()["file_path"].to_pylist() if handle.snapshots() else []
        return {path.rpartition("/")[2] for path in paths}

    def _destination(self, handle: Any, rows: pa.Schema) -> Destination:
        layout = replace(self._layout, partitioning=_partitioning(self.table, handle))
        return Destination(self._place(handle), _chosen(_arrow_schema(handle), rows), layout)

    def _commit_files(
        self, handle: Any, _work: Work, record: str, files: tuple[WrittenFile, ...], _to: Destination
    ) -> None:
        # In memory only: else two drivers that both looked would append the load twice.
        handle.metadata.properties["commit.retry.num-retries"] = "0"
        with handle.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties={ICEBERG_PROPERTY: record})
            with update.fast_append() as append:
                for file in files:
                    append.append_data_file(_data_file(handle, file))


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
        raise LoadError(f"cannot open the catalog of {table}: {told(e)}") from e
    raise InvalidConfig(
        f"catalog= is {type(given).__name__}; it must be the name of a pyiceberg catalog, its properties, or "
        "a Catalog"
    )


def _refuse_unwritable(name: str, table: Any) -> None:
    if table.metadata.format_version > _NEWEST_FORMAT:
        raise LoadError(
            f"{name} has Iceberg's format version {table.metadata.format_version}; tasks write up to "
            f"{_NEWEST_FORMAT}: use engine='spark' with Iceberg's runtime"
        )
    if required := [field.name for field in table.schema().fields if field.required]:
        raise LoadError(f"{name}: loads may have nulls in {', '.join(required)}, which is required")
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


def _data_place(table: Any) -> str:
    return f"{table.location().rstrip('/')}/data"


def _data_file(table: Any, file: WrittenFile) -> Any:
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
        file_path=f"{_data_place(table)}/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=Record(*_partition_values(table, file)),
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


def _partition_values(table: Any, file: WrittenFile) -> Iterator[object]:
    """As Iceberg's metadata hold them, in the order of the table's specification."""
    from pyiceberg.transforms import DayTransform, HourTransform

    texts = directory_values(file.name)
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
