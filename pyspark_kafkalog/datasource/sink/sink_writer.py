"""``df.write`` and ``df.writeStream``: Spark's calls in the driver and in each task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_kafkalog.datasource.batch.spark_classes import session_time_zone
from pyspark_kafkalog.datasource.options.option_definitions import SinkOptions, Unit
from pyspark_kafkalog.datasource.sink.sink_rows import (
    TaskWritten,
    Written,
    check_sink_schema,
    rows_by_topic,
    unless_empty,
    write_rows,
)
from pyspark_kafkalog.datasource.sink.sink_transactions import (
    abort_all,
    end_all,
    write_in_transaction,
    write_nothing,
)
from pyspark_kafkalog.errors import InvalidConfig, briefly
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import TopicPartition

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0, whose tasks give record batches to any Arrow writer, of streams too

    class DataSourceStreamArrowWriter(DataSourceArrowWriter):  # type: ignore[no-redef]
        """Spark 4.1's name for it."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_kafkalog.config.producer_config import ProducerConfig

log = logging.getLogger(__name__)

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties with a task's query and batch; the query's id is in its checkpoint."""
"""Also a local property, where the session sets it; its default is known to the driver's JVM only."""
_SHOWN_PARTITIONS = 20


class _Writer:
    """Pickled from planner to tasks, so it holds settings only: no connection and no thread."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = check_sink_schema(schema, options)

    @briefly
    def _write(self, iterator: Iterator[pa.RecordBatch], *, stream: bool) -> WriterCommitMessage:
        options = self._options
        context = TaskContext.get()
        producer_config = _for_batch(options.producer, context) if stream else options.producer
        zone = session_time_zone()
        rows = unless_empty(
            part for batch in iterator for part in rows_by_topic(batch, self._columns, options.topic, zone)
        )
        if options.transactional_prefix is not None:
            number = context.partitionId() if context is not None else 0
            unit = _batch_of_stream(context) if stream else options.unit
            transactional_id = f"{options.transactional_prefix}-{number}"
            if rows is None:
                return write_nothing(producer_config, transactional_id, unit)
            return write_in_transaction(producer_config, transactional_id, unit, rows)
        if rows is None:
            return TaskWritten()
        producer = Producer(producer_config)
        try:
            written = write_rows(producer, rows)
        except BaseException:
            # The task has failed: do not wait for the rest.
            producer.close(timeout=0)
            raise
        producer.close()
        return TaskWritten(written)

    def _commit(self, what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.transactional_prefix is not None:
            end_all(self._options.producer, self._options.transactional_prefix, messages)
        log.info("%s is done: %s", what, summary(messages))

    def _abort(self, what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.transactional_prefix is not None:
            abort_all(self._options.producer, messages)
            log.warning("%s failed; its transactions are aborted, unless committed before", what)
        else:
            log.warning("%s failed; what its tasks wrote stays: %s", what, summary(messages))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write: at least once; in transactions, visible once all tasks have succeeded."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, stream=False)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit("the write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions, or log the records that stay: Kafka cannot remove them."""
        self._abort("the write", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write: at least once, as a repeated batch is written again; in transactions once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, stream=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(f"batch {batchId}", messages)


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise InvalidConfig(
            "Save mode Overwrite not allowed for Kafka. Allowed save mode is Append: .mode('append')"
        )
    return BatchWriter(options, schema)


def stream_writer(options: SinkOptions, schema: StructType) -> StreamWriter:
    """The writer of ``df.writeStream``, in any output mode: complete mode writes each batch whole."""
    if options.unit is not None:
        raise InvalidConfig("transactional.write.id has no meaning in a stream: its batches have numbers")
    return StreamWriter(options, schema)


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    total: dict[TopicPartition, Written] = {}
    tasks = [message for message in messages if isinstance(message, TaskWritten)]
    for task in tasks:
        for where, written in task.partitions.items():
            total[where] = total[where].with_more(written) if where in total else written
    shown = [
        f"{where}: {w.record_count} within [{w.first_offset}, {w.last_offset}]"
        for where, w in sorted(total.items())[:_SHOWN_PARTITIONS]
    ]
    if len(total) > len(shown):
        shown.append(f"and {len(total) - len(shown)} partitions more")
    count = sum(written.record_count for written in total.values())
    there = sum(task.rows_there for task in tasks)
    before = f", {there} were written by an earlier run" if there else ""
    return f"{count} records by {len(tasks)} tasks{before} ({'; '.join(shown) or 'nothing'})"


def _for_batch(config: ProducerConfig, context: TaskContext | None) -> ProducerConfig:
    batch = context and context.getLocalProperty(_BATCH_ID)
    return replace(config, answered_before=True) if batch and int(batch) > 0 else config


def _batch_of_stream(context: TaskContext | None) -> Unit:
    query, batch = (context and context.getLocalProperty(key) for key in (_QUERY_ID, _BATCH_ID))
    if not query or not batch:
        raise InvalidConfig(
            "transactional.id.prefix: Spark does not say which batch a task writes; use foreachBatch "
            "and a write with transactional.write.id"
        )
    return Unit(query, int(batch))
