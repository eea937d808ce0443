"""What the batch read needs of PySpark, or stands in for it where loads run without Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.modules.get("pyspark"):
    # Spark's own processes have imported it before this module. A load without Spark starts sooner without.
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSourceReader, InputPartition
else:

    class TaskContext:
        @staticmethod
        def get() -> None:
            return None

    DataSourceReader = InputPartition = object


def session_time_zone() -> str | None:
    """The session's zone, in a task of Spark; None if it is not set, but that of the machine."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.sql.session.timeZone")


__all__ = ["DataSourceReader", "InputPartition", "TaskContext", "session_time_zone"]
