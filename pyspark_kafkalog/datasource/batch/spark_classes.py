"""What the batch read needs of PySpark, or stands in for it where loads run without Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

WITHOUT_SPARK = "KAFKALOG_WITHOUT_SPARK"
"""Set in processes that never belong to Spark, which start sooner if they do not import PySpark."""

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSourceReader, InputPartition
else:
    try:
        if WITHOUT_SPARK in os.environ:
            raise ImportError
        from pyspark import TaskContext
        from pyspark.sql.datasource import DataSourceReader, InputPartition
    except ImportError:

        class TaskContext:
            @staticmethod
            def get() -> None:
                return None

        DataSourceReader = InputPartition = object


def session_time_zone() -> str | None:
    """The session's zone, in a task of Spark; None if it is not set, but that of the machine."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.sql.session.timeZone")


__all__ = ["WITHOUT_SPARK", "DataSourceReader", "InputPartition", "TaskContext", "session_time_zone"]
