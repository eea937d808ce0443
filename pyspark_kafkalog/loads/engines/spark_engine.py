"""Tasks in Spark, classic or Connect: one for each range, tried again and perhaps twice at once, as Spark
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pyspark_kafkalog.loads.engines.engine import RangeTask, tell_nobody

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class SparkEngine:
    """*Not thread-safe.*"""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def master(self) -> str:
        return self._spark.conf.get("spark.master", "") or ""

    def ready(self, count: int, offsets: int) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def progress(self) -> None:
        """Receipts show it."""

    def run(self, task: RangeTask, count: int) -> list[str]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                for index in batch.column("id").to_pylist():
                    for line in task(index, tell_nobody):
                        yield pa.RecordBatch.from_pydict({"line": [line]})

        # `collect` returns the rows of successful attempts only.
        rows = self._spark.range(0, count, 1, count).mapInArrow(run, "line string").collect()
        return [row.line for row in rows]
