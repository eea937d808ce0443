"""Parquet files that the tasks of a load write themselves: the driver's side of `file_tasks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07, arrow_schema
from pyspark_kafkalog.errors import LoadError, ReceiptMismatch
from pyspark_kafkalog.ledger.commit import PARQUET, LoadOutput, OutputFile
from pyspark_kafkalog.ledger.stores.store import FileStore, side_by_side
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.range_tasks import RangeTasks
from pyspark_kafkalog.loads.table_schema import simple_types, spark_schema_text, storable
from pyspark_kafkalog.loads.transform import Transform, transformed_schema
from pyspark_kafkalog.loads.writers.file_tasks import FileTasks, Written, accepted
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


class TaskFiles:
    """A `FileWriter`. *Not thread-safe.*"""

    format = PARQUET

    def __init__(self, layout: Layout, transform: Transform | None = None) -> None:
        self._layout, self._transform = layout, transform
        self.partitioning = layout.partitioning

    def types(self, work: Work) -> Mapping[str, str]:
        return simple_types(spark_schema_text(rows_schema(work, self._transform)))

    def write(self, work: Work, store: FileStore, inside: str) -> LoadOutput:
        schema = rows_schema(work, self._transform)
        self.partitioning.check_types(schema)
        written = write_files(work, store, inside, schema, self._layout, self._transform)
        owner = output_files.read_claim(store.location)
        if owner is None:
            raise LoadError(f"no load owns {store.location}: {output_files.CLAIM} is missing")
        files = [OutputFile(one.name, one.bytes, one.rows, one.crc32c) for one in written.files]
        in_order = tuple(sorted(files, key=lambda file: file.name))
        return LoadOutput(owner.path, inside, in_order, PARQUET, wrote=written.rows)


def rows_schema(work: Work, transform: Transform | None) -> pa.Schema:
    """That of the rows which tasks write. `InvalidConfig` if a column has a type that Spark has not."""
    source = arrow_schema(work.source.row_columns, COLUMNS_07)
    return storable(transformed_schema(source, transform))


def write_files(
    work: Work,
    store: FileStore,
    inside: str,
    schema: pa.Schema,
    layout: Layout,
    transform: Transform | None,
    *,
    stem: str = "part",
) -> Written:
    """Let tasks write the rows to files below ``inside``; returns those of the attempts that count."""
    tasks = FileTasks(
        RangeTasks.of(work, "offset"),
        work.source.row_columns,
        store.url,
        inside,
        stem,
        schema,
        transform,
        layout,
    )
    lines = work.engine.run(tasks, len(work.plan.ranges))
    written = accepted(lines, work.plan, is_whole=transform is None)
    _check_there(store, inside, written.files)
    return written


def _check_there(store: FileStore, inside: str, files: Iterable[WrittenFile]) -> None:
    """Whether the driver sees what the tasks wrote, each on its machine."""

    def lacks(file: WrittenFile) -> bool:
        found = store.file(f"{inside}/{file.name}" if inside else file.name)
        return found is None or found.bytes != file.bytes

    wanted = list(files)
    gone = [file for file, is_gone in zip(wanted, side_by_side(store, lacks, wanted), strict=True) if is_gone]
    if gone:
        raise ReceiptMismatch(
            f"tasks wrote {len(wanted)} files, and {len(gone)} are not at {store.location}/{inside}, first "
            f"{gone[0].name}: driver and executors must share that place, and nothing else may remove files "
            "there. The plan stays: the next load replays it"
        )
