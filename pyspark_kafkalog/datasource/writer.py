"""``df.write`` and ``df.writeStream``: what Spark calls in the driver and in each task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_kafkalog.datasource.sink_options import SinkOptions
from pyspark_kafkalog.datasource.sink_rows import rows_by_topic
from pyspark_kafkalog.datasource.sink_schema import check_sink_schema
from pyspark_kafkalog.datasource.sink_task import TaskWritten, Written, write_rows
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_SHOWN_PARTITIONS = 20


class _Writer:
    """Pickled from planner to tasks, so it holds settings only: no connection and no thread."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = check_sink_schema(schema, options)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        producer = Producer(options.producer)
        try:
            rows = (part for batch in iterator for part in rows_by_topic(batch, self._columns, options.topic))
            return TaskWritten(write_rows(producer, rows))
        except BaseException:
            # The task has failed: what is left is not waited for.
            producer.close(timeout=0)
            raise
        finally:
            producer.close()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write: at least once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one task's rows; returns once all are stored.

        Raises:
            KafkaError: the first row that could not be delivered.
        """
        return self._write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what was written. Rows are stored by now."""
        log.info("written: %s", summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what stays of a write that failed: Kafka takes nothing back."""
        log.warning("the write failed; what its tasks wrote stays: %s", summary(messages))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write: at least once; a batch that is run again is written again."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """As `BatchWriter.write`."""
        return self._write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what was written. Rows are stored by now."""
        log.info("batch %d written: %s", batchId, summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what stays of a batch that failed; it will be written again."""
        log.warning("batch %d failed; what its tasks wrote stays: %s", batchId, summary(messages))


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``.

    Raises:
        InvalidConfig: the mode is overwrite, or ``schema`` cannot be written.
    """
    if overwrite:
        raise InvalidConfig(
            "Save mode Overwrite not allowed for Kafka. Allowed save mode is Append: .mode('append')"
        )
    return BatchWriter(options, schema)


def stream_writer(options: SinkOptions, schema: StructType) -> StreamWriter:
    """The writer of ``df.writeStream``, in any output mode: in complete mode each batch is written whole.

    Raises:
        InvalidConfig: ``schema`` cannot be written.
    """
    return StreamWriter(options, schema)


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """What the tasks of a write have written, in one line: counts, and offsets by partition."""
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
    return f"{count} records by {len(tasks)} tasks ({'; '.join(shown) or 'nothing'})"
