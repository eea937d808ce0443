"""Parquet files that a task writes: rows divided into directories, row groups of about one size, files
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.stores.store import FileStore, NewFile
from pyspark_kafkalog.loads.output_files import SPARK_SCHEMA_KEY
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.table_schema import spark_schema_text
from pyspark_kafkalog.loads.writers.statistics import ColumnStatistics, statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

TARGET_FILE_BYTES = 128 << 20
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")

_GROUP_ROWS = 1_000_000
_GROUP_BYTES = 64 << 20
"""A row group ends at this many rows, or bytes of Arrow data."""
_HELD_BYTES = 112 << 20
"""Limit of Arrow data in all open files of a task, but for its dead letters; beyond it the largest is
written.
"""
_OPEN_FILES = 200
"""Limit of a task's open files, each of which has a descriptor."""

_DELTA_ENCODED = ("offset", "timestamp")


class Layout(msgspec.Struct, frozen=True):
    """How a table's rows are divided, and how its files are written."""

    partitioning: Partitioning = msgspec.field(default_factory=Partitioning)
    target_file_bytes: int = TARGET_FILE_BYTES
    compression: str = COMPRESSIONS[0]

    @classmethod
    def of(cls, partitioning: Partitioning, target_file_bytes: int | None, compression: str | None) -> Layout:
        """With defaults for None."""
        target = TARGET_FILE_BYTES if target_file_bytes is None else target_file_bytes
        return cls(partitioning, target, compression or COMPRESSIONS[0])

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise InvalidConfig(
                f"compression is {self.compression!r}; it must be one of {', '.join(COMPRESSIONS)}"
            )
        if self.target_file_bytes <= 0:
            raise InvalidConfig(
                f"target_file_bytes is {self.target_file_bytes}; it must be a number of bytes"
            )


class WrittenFile(msgspec.Struct, frozen=True):
    """A finished file: ``name`` below the load's directory; its rows are of offsets ``span``, if that is
    known.
    """

    name: str
    bytes: int
    rows: int
    crc32c: int
    span: tuple[int, int] | None
    columns: dict[str, ColumnStatistics]


class ParquetFiles:
    """The files of one task. *Not thread-safe.*"""

    finished: list[WrittenFile]
    """Those that are whole and durable."""
    schema: pa.Schema
    """That of the rows."""
    held_bytes: int
    """Arrow data of rows that are not in row groups yet."""

    def __init__(
        self,
        store: FileStore,
        directory: str,
        stem: str,
        schema: pa.Schema,
        layout: Layout,
        notes: Mapping[str, str],
        *,
        is_sorted: bool = False,
        most_held_bytes: int | None = None,
    ) -> None:
        """``schema`` is that of the rows, ``stem`` what this task's file names begin with; ``notes`` go into
        each footer. With ``is_sorted`` rows come in the order of their column ``offset``.
        """
        import pyarrow as pa

        self._store, self._directory, self._stem = store, directory, stem
        self._layout = layout
        kept = pa.schema([schema.field(name) for name in layout.partitioning.in_files(schema)])
        self.schema = schema
        self._most_held_bytes = most_held_bytes or _HELD_BYTES
        self._schema = kept.with_metadata({SPARK_SCHEMA_KEY: spark_schema_text(kept)})
        self._notes = dict(notes)
        self._is_sorted = is_sorted
        self._open: dict[str, _OpenFile] = {}
        self.held_bytes = 0
        self._count = 0
        self.finished = []

    def add(self, rows: pa.RecordBatch, span: tuple[int, int] | None = None) -> None:
        """Write rows, at the latest in `close`, made from the records of offsets ``span``, first and last."""
        if not rows.num_rows:
            return
        for inside, part in self._layout.partitioning.divide(rows):
            file = self._open.pop(inside, None) or self._new_file(inside)
            self._open[inside] = file  # the last one written to is last
            self.held_bytes += file.add(part, span)
            if file.rows_held >= _GROUP_ROWS or file.bytes_held >= _GROUP_BYTES:
                self._write_group(inside, file)
            while self.held_bytes > self._most_held_bytes:
                self._write_group(*max(self._open.items(), key=lambda one: one[1].bytes_held))

    def close(self) -> None:
        """Finish all files."""
        for inside in list(self._open):
            self._finish(inside)

    def abort(self) -> None:
        """Leave no unfinished file, as far as the store can be reached."""
        for file in self._open.values():
            file.abort()
        self._open.clear()

    def _new_file(self, inside: str) -> _OpenFile:
        if len(self._open) >= _OPEN_FILES:
            self._finish(next(iter(self._open)))
        name = _joined(inside, f"{self._stem}-c{self._count:03d}.{self._layout.compression}.parquet")
        self._count += 1
        target = self._store.new_file(_joined(self._directory, name))
        return _OpenFile(name, target, self._schema, self._layout, is_sorted=self._is_sorted)

    def _write_group(self, inside: str, file: _OpenFile) -> None:
        self.held_bytes -= file.bytes_held
        file.write_group()
        if file.target.bytes >= self._layout.target_file_bytes:
            self._finish(inside)

    def _finish(self, inside: str) -> None:
        file = self._open[inside]
        self.held_bytes -= file.bytes_held
        file.finish(self._notes)
        del self._open[inside]  # not before: `abort` needs it
        self.finished.append(
            WrittenFile(
                file.name,
                file.target.bytes,
                file.rows,
                file.target.crc32c,
                file.span,
                statistics(file.metadata, self._schema),
            )
        )


def _joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


class _OpenFile:
    """*Not thread-safe.* A file with the rows of its next row group."""

    def __init__(
        self, name: str, target: NewFile, schema: pa.Schema, layout: Layout, *, is_sorted: bool
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.name, self.target = name, target
        self.rows_held = self.bytes_held = self.rows = 0
        self.span: tuple[int, int] | None = None
        self._held: list[pa.RecordBatch] = []
        self._metadata: list[pa.FileMetaData] = []
        delta = [one.name for one in schema if one.name in _DELTA_ENCODED and _is_number(one.type)]
        flat = [one.name for one in schema if not pa.types.is_nested(one.type)]
        short = [name for name in flat if not pa.types.is_binary(schema.field(name).type)]
        sorting: dict[str, Any] = {}
        if is_sorted:
            sorting["sorting_columns"] = [pq.SortingColumn(schema.get_field_index("offset"))]
        self._writer = pq.ParquetWriter(
            target,
            schema,
            compression=layout.compression,
            use_dictionary=[name for name in short if name not in delta],
            column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            write_statistics=short,
            metadata_collector=self._metadata,
            **sorting,
        )

    def add(self, rows: pa.RecordBatch, span: tuple[int, int] | None) -> int:
        """Hold these rows; returns their size."""
        self._held.append(rows)
        self.rows_held += rows.num_rows
        size: int = rows.nbytes
        self.bytes_held += size
        if span is not None:
            self.span = (span[0] if self.span is None else self.span[0], span[1])
        return size

    def write_group(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._held)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows
        self._held.clear()
        self.rows_held = self.bytes_held = 0

    def finish(self, notes: Mapping[str, str]) -> None:
        if self._held:
            self.write_group()
        names = ("kafkalog.first_offset", "kafkalog.last_offset")
        bounds = dict(zip(names, map(str, self.span or ()), strict=self.span is not None))
        self._writer.add_key_value_metadata({**notes, **bounds})
        self._writer.close()
        self.target.close()

    @property
    def metadata(self) -> pa.FileMetaData:
        """That of the finished file."""
        return self._metadata[0]

    def abort(self) -> None:
        self._writer.is_open = False  # else its destructor writes a footer
        self.target.abort()
