"""What Spark tells a task of itself, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def task(number: int, *, query: str | None = None, batch: int | None = None) -> Iterator[None]:
    """This process is task ``number``, of a batch of a streaming query if it is named."""
    before = TaskContext._taskContext
    context = TaskContext()
    context._partitionId = number
    context._localProperties = {}
    if query is not None:
        context._localProperties["sql.streaming.queryId"] = query
    if batch is not None:
        context._localProperties["streaming.sql.batchId"] = str(batch)
    TaskContext._taskContext = context
    try:
        yield
    finally:
        TaskContext._taskContext = before
