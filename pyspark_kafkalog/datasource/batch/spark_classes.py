"""What the batch read needs of PySpark, or stands in for it where loads run without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSourceReader, InputPartition
else:
    try:
        from pyspark import TaskContext
        from pyspark.sql.datasource import DataSourceReader, InputPartition
    except ImportError:

        class TaskContext:
            @staticmethod
            def get() -> None:
                return None

        DataSourceReader = InputPartition = object

__all__ = ["DataSourceReader", "InputPartition", "TaskContext"]
