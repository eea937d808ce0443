"""Files that Spark's writers write, from any DataFrame, in Parquet or ORC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafkalog.errors import InvalidConfig, ReceiptMismatch
from pyspark_kafkalog.ledger.commit import FILE_FORMATS, PARQUET, LoadOutput
from pyspark_kafkalog.ledger.stores.locations import is_remote
from pyspark_kafkalog.ledger.stores.store import FileStore
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.table_schema import simple_types


class SparkFiles:
    """A `FileWriter`. *Not thread-safe.*"""

    def __init__(
        self,
        format: str = PARQUET,
        partitioning: Partitioning | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """``options`` are those of Spark's writer."""
        if format not in FILE_FORMATS:
            raise InvalidConfig(f"format is {format!r}; it must be one of {', '.join(FILE_FORMATS)}")
        self.format = format
        self.partitioning = partitioning or Partitioning()
        self._options = dict(options or {})

    def types(self, work: Work) -> Mapping[str, str]:
        return simple_types(work.rows.schema.json())

    def check(self, work: Work) -> None:
        """Spark checks its options as it writes."""

    def write(self, work: Work, store: FileStore, inside: str) -> tuple[LoadOutput, ...]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        observed = Observation()
        frame = self.partitioning.with_time(work.rows).observe(observed, f.count(f.lit(1)).alias("rows"))
        writer = frame.write.mode("overwrite").options(**self._options)
        # A session that overwrites by partition would keep the files of a failed attempt in this block.
        writer = writer.option("partitionOverwriteMode", "static")
        if self.partitioning.names:
            writer = writer.partitionBy(*self.partitioning.names)
        writer.format(self.format).save(f"{store.url}/{inside}")
        written = output_files.written_files(store.location, inside)
        wrote, is_counted = observed.get["rows"], work.is_whole and work.has_receipts
        read = sum(r.records for r in work.ledger.receipts(work.plan)) if is_counted else None
        check_rows(work.plan.number, f"{store.location}/{inside}", read, wrote, written.rows)
        return (replace(written, wrote=wrote),)


def check_rows(number: int, place: str, read: int | None, wrote: int, rows: int | None) -> None:
    """Compare what the tasks ``read``, if that is known, with what Spark ``wrote`` and what ``place``
    holds.
    """
    if rows == wrote and read in (None, wrote):
        return
    cause = (
        "Does another program or a lifecycle rule remove files there, or does the store list new ones late?"
        if is_remote(place)
        else "Do all executors write to this machine's file system?"
    )
    by_tasks = "" if read is None else f"the tasks read {read} records, "
    raise ReceiptMismatch(
        f"load {number}: {by_tasks}Spark wrote {wrote} rows, and {place} holds {rows} rows. {cause} "
        "The plan stays: the next load replays it"
    )
