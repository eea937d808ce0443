"""Files of tables whose own commits list them: Delta's and Iceberg's. Their names tell our runs' files from
others', so that those of failed attempts can be removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.lake_table import SHORT_IDENTITY
from pyspark_kafkalog.loads.transform import Transform
from pyspark_kafkalog.loads.writers.parquet_files import Layout, WrittenFile
from pyspark_kafkalog.loads.writers.task_files import write_files

if TYPE_CHECKING:
    import pyarrow as pa


def write_lake_files(
    work: Work, store: FileStore, rows: pa.Schema, layout: Layout, transform: Transform | None
) -> tuple[WrittenFile, ...]:
    """Let tasks write the load's rows below ``store``, under names that no other run uses."""
    identity = work.ledger.identity()[:SHORT_IDENTITY]
    stem = f"kafkalog-{identity}-{work.plan.number:08d}-{work.run}"
    return write_files(work, store, "", rows, layout, transform, stem=stem).files
