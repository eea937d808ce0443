"""Writes in transactions: prepared by tasks, committed by the driver, done once however often they are run.

A task's transactional id is the prefix and its number, so a later attempt fences an earlier one. What makes a
write known again, the query and batch it belongs to, is committed with the rows: as the text of an
offset of a group of the same name. So an attempt that comes after a driver died half way sees whether its
rows are there. The partition of that offset is one that every cluster with groups has; nothing reads it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset, committed_offsets
from pyspark_kafkalog.client.transactions import PreparedTransaction, end_transaction
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.datasource.options.option_definitions import Unit
from pyspark_kafkalog.datasource.sink.sink_rows import Rows, TaskWritten, write_rows
from pyspark_kafkalog.errors import ErrorCode, KafkaError, error_for
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

log = logging.getLogger(__name__)

MARKS_AT = TopicPartition(INTERNAL_TOPICS[0], 0)
_CLOSE_SECONDS = 5.0
"""For aborting the transaction of a task that failed: readers wait, and the coordinator would be late."""


def write_in_transaction(
    config: ProducerConfig, transactional_id: str, unit: Unit | None, rows: Rows
) -> TaskWritten:
    """Write ``rows`` in a transaction that is left open, for `end_all`; if ``unit`` is there, only count.

    Raises:
        WrittenOtherwise: ``unit`` is there with another number of rows, or a later one of the same name is.
        KafkaError: the rows could not be written; the transaction is aborted.
    """
    producer = Producer(replace(config, transactional_id=transactional_id))
    try:
        producer.init_transactions()
        before = _mark_of(config, transactional_id) if unit is not None else None
        if before is not None and _is_there(before, unit, transactional_id):
            return _counted(before, rows, transactional_id)
        producer.begin_transaction()
        written = write_rows(producer, rows)
        if unit is not None:
            count = sum(part.record_count for part in written.values())
            mark = CommittedOffset(unit.batch, -1, Mark(unit, count).text())
            producer.send_offsets_to_transaction({MARKS_AT: mark}, transactional_id)
        return TaskWritten(written, producer.prepare_transaction(), unit=unit)
    finally:
        producer.close(timeout=_CLOSE_SECONDS)


def write_nothing(config: ProducerConfig, transactional_id: str, unit: Unit | None) -> TaskWritten:
    """For a task without rows, which needs no transaction.

    Raises:
        WrittenOtherwise: ``unit`` is there with rows, which another task has by now; or a later one is.
        KafkaError: nobody would say.
    """
    before = _mark_of(config, transactional_id, stable=False) if unit is not None else None
    if before is not None and _is_there(before, unit, transactional_id):
        return _counted(before, iter(()), transactional_id)
    return TaskWritten(unit=unit)


def end_all(config: ProducerConfig, prefix: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit what the tasks have prepared; ``prefix`` is that of their transactional ids.

    Raises:
        WrittenOtherwise: an earlier run of the same had more tasks, and committed rows of those; nothing is
            committed now.
        KafkaError: one could not be committed; how many were before it is said.
    """
    prepared = prepared_by(messages)
    with closing(Cluster(config)) as cluster:
        _check_task_count(cluster, prefix, messages)
        for done, transaction in enumerate(prepared):
            try:
                end_transaction(cluster, transaction, commit=True)
            except KafkaError as e:
                raise error_for(
                    e.code,
                    f"{e}. {done} of {len(prepared)} transactions of this write are committed, the others "
                    "are not. Run again, batches of streams and writes with transactional.write.id go on",
                ) from e


def abort_all(config: ProducerConfig, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort what the tasks have prepared and nobody has committed. What fails is logged: it will time out."""
    with closing(Cluster(config)) as cluster:
        for transaction in prepared_by(messages):
            try:
                end_transaction(cluster, transaction, commit=False)
            except KafkaError as e:
                if e.code == ErrorCode.INVALID_TXN_STATE:
                    log.warning("%s is committed and stays", transaction.transactional_id)
                else:
                    log.warning("not aborted, the coordinator will after transaction.timeout.ms: %s", e)


def prepared_by(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    """The transactions that tasks have left open."""
    tasks = (message for message in messages if isinstance(message, TaskWritten))
    return [task.transaction for task in tasks if task.transaction is not None]


def _check_task_count(cluster: Cluster, prefix: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Rows of tasks that this run does not have are with others now, or nowhere.

    Transactions are committed in the order of the tasks, so a first run is known by its own marks: it asks
    for one more. A run that found rows there looks at all that have a mark at all.
    """
    tasks = [message for message in messages if isinstance(message, TaskWritten)]
    unit = next((task.unit for task in tasks if task.unit is not None), None)
    again = any(task.rows_there for task in tasks)
    number = len(messages)
    while unit is not None:
        beyond = f"{prefix}-{number}"
        mark = _mark_at(cluster, beyond, stable=False)
        if mark is not None and mark.unit == unit:
            raise WrittenOtherwise(
                f"{beyond}: {mark.row_count} rows of {unit.name}, batch {unit.batch}, are committed by a "
                f"task that this run of it does not have: it has {len(messages)} tasks, and had more. The "
                "rows of a batch must come to the same tasks when it is run again: set what decides their "
                "number (minPartitions, maxRecordsPerPartition, spark.sql.shuffle.partitions) as it was and "
                "start again. With another transactional.id.prefix all of it is written once more"
            )
        if mark is None or not again:
            return
        number += 1


def _mark_of(config: ProducerConfig, transactional_id: str, *, stable: bool = True) -> Mark | None:
    with closing(Cluster(config)) as cluster:
        return _mark_at(cluster, transactional_id, stable=stable)


def _mark_at(cluster: Cluster, transactional_id: str, *, stable: bool) -> Mark | None:
    """What was committed last under this id; with ``stable``, once nothing is pending, which is soon where a
    producer has taken the id over.
    """
    found = committed_offsets(cluster, transactional_id, [MARKS_AT], stable=stable)
    return Mark.parse(found[MARKS_AT].metadata) if MARKS_AT in found else None


def _is_there(before: Mark, unit: Unit | None, transactional_id: str) -> bool:
    if unit is not None and before.unit.name == unit.name and before.unit.batch > unit.batch:
        raise WrittenOtherwise(
            f"{transactional_id}: batch {unit.batch} is to be written, and batch {before.unit.batch} of the "
            "same query is there: the checkpoint was set back, or two queries run from copies of it. With "
            "another transactional.id.prefix it is written again"
        )
    return before.unit == unit


def _counted(before: Mark, rows: Rows, transactional_id: str) -> TaskWritten:
    count = sum(batch.num_rows for _, batch in rows)
    if count != before.row_count:
        raise WrittenOtherwise(
            f"{transactional_id}: {before.row_count} rows of {before.unit.name}, batch {before.unit.batch}, "
            f"are committed, and now the task has {count}: the rows of a batch must come to the same tasks "
            "when it is run again"
        )
    log.info("%s: batch %d is there already", transactional_id, before.unit.batch)
    return TaskWritten(rows_there=count, unit=before.unit)


_VERSION = 1


class WrittenOtherwise(KafkaError):
    """What was committed under this name is not what is to be written now."""


class Mark(NamedTuple):
    """What a task has committed last: of which unit, and how many rows."""

    unit: Unit
    row_count: int

    def text(self) -> str:
        """As it is committed; of some 100 bytes, where brokers take 4096."""
        return json.dumps(
            {"v": _VERSION, "unit": self.unit.name, "batch": self.unit.batch, "rows": self.row_count}
        )

    @classmethod
    def parse(cls, text: str) -> Mark:
        """What `text` made.

        Raises:
            WrittenOtherwise: it is something else: the group is another program's, or of a later version.
        """
        try:
            read = json.loads(text)
            if read["v"] != _VERSION:
                raise ValueError(f"version {read['v']}")
            return cls(Unit(str(read["unit"]), int(read["batch"])), int(read["rows"]))
        except (KeyError, TypeError, ValueError) as e:
            raise WrittenOtherwise(
                f"the group has committed {text!r}, which is no mark of a write: {e!r}; "
                "transactional.id.prefix must be this query's own"
            ) from None
