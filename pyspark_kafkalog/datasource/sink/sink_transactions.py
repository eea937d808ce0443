"""Writes in transactions: prepared by tasks, committed by the driver, written once however often they run.

A task's transactional id is the prefix and its number, so a later attempt fences an earlier one. With the
rows the task commits a mark, which names query and batch, so that after a driver died half way the next
attempt finds what is committed. It is the metadata of an offset of a group with the same name, in a partition
that every cluster with groups has.
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
from pyspark_kafkalog.config.producer_config import ProducerConfig
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
"""For aborting a failed task's transaction: readers wait for it, and the coordinator would abort it late."""


def write_in_transaction(
    config: ProducerConfig, transactional_id: str, unit: Unit | None, rows: Rows
) -> TaskWritten:
    """Write ``rows`` in a transaction left open for `end_all`, aborted on an error; if ``unit`` is committed,
    only count them. `WrittenOtherwise`: it has another number of rows, or a later batch is committed.
    """
    producer = Producer(replace(config, transactional_id=transactional_id))
    try:
        producer.init_transactions()
        before = _mark_of(config, transactional_id) if unit is not None else None
        if before is not None and _is_committed(before, unit, transactional_id):
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
    """For a task without rows, which needs no transaction; raises like `write_in_transaction`."""
    before = _mark_of(config, transactional_id, stable=False) if unit is not None else None
    if before is not None and _is_committed(before, unit, transactional_id):
        return _counted(before, iter(()), transactional_id)
    return TaskWritten(unit=unit)


def end_all(config: ProducerConfig, prefix: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the tasks' prepared transactions; none if an earlier run had more tasks and committed."""
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
                    "are not. Run it again: batches of streams and writes with transactional.write.id go on",
                ) from e


def abort_all(config: ProducerConfig, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort the tasks' transactions that the driver did not commit. A failure is logged: it will time out."""
    with closing(Cluster(config)) as cluster:
        for transaction in prepared_by(messages):
            try:
                end_transaction(cluster, transaction, commit=False)
            except KafkaError as e:
                if e.code == ErrorCode.INVALID_TXN_STATE:
                    log.warning("%s is committed and stays so", transaction.transactional_id)
                else:
                    log.warning("not aborted (the coordinator aborts it after transaction.timeout.ms): %s", e)


def prepared_by(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    tasks = (message for message in messages if isinstance(message, TaskWritten))
    return [task.transaction for task in tasks if task.transaction is not None]


def _check_task_count(cluster: Cluster, prefix: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Refuse a run with fewer tasks than an earlier one committed. Transactions are committed in the order of
    the tasks, so a run that found no rows committed checks only one mark more than its own.
    """
    tasks = [message for message in messages if isinstance(message, TaskWritten)]
    unit = next((task.unit for task in tasks if task.unit is not None), None)
    is_repeated = any(task.rows_there for task in tasks)
    number = len(messages)
    while unit is not None:
        beyond = f"{prefix}-{number}"
        mark = _mark_at(cluster, beyond, stable=False)
        if mark is not None and mark.unit == unit:
            raise WrittenOtherwise(
                f"{beyond}: {mark.row_count} rows of {unit.name}, batch {unit.batch}, are committed by a "
                f"task that this run does not have: it has {len(messages)} tasks, and an earlier run had "
                "more. A repeated batch must have the same rows in the same tasks: set what decides their "
                "number (minPartitions, maxRecordsPerPartition, spark.sql.shuffle.partitions) as it was and "
                "start again. With another transactional.id.prefix the whole batch is written again"
            )
        if mark is None or not is_repeated:
            return
        number += 1


def _mark_of(config: ProducerConfig, transactional_id: str, *, stable: bool = True) -> Mark | None:
    with closing(Cluster(config)) as cluster:
        return _mark_at(cluster, transactional_id, stable=stable)


def _mark_at(cluster: Cluster, transactional_id: str, *, stable: bool) -> Mark | None:
    """The last mark committed under this id; ``stable`` waits for the end of pending transactions."""
    found = committed_offsets(cluster, transactional_id, [MARKS_AT], stable=stable)
    return Mark.parse(found[MARKS_AT].metadata) if MARKS_AT in found else None


def _is_committed(before: Mark, unit: Unit | None, transactional_id: str) -> bool:
    if unit is not None and before.unit.name == unit.name and before.unit.batch > unit.batch:
        raise WrittenOtherwise(
            f"{transactional_id}: batch {unit.batch} is to be written, but batch {before.unit.batch} of the "
            "same query is committed: the checkpoint was reset, or two queries run from copies of it. With "
            "another transactional.id.prefix it is written again"
        )
    return before.unit == unit


def _counted(before: Mark, rows: Rows, transactional_id: str) -> TaskWritten:
    count = sum(batch.num_rows for _, batch in rows)
    if count != before.row_count:
        raise WrittenOtherwise(
            f"{transactional_id}: {before.row_count} rows of {before.unit.name}, batch {before.unit.batch}, "
            f"are committed, but the task has {count} now: a repeated batch must have the same rows in the "
            "same tasks"
        )
    log.info("%s: batch %d is already committed", transactional_id, before.unit.batch)
    return TaskWritten(rows_there=count, unit=before.unit)


_VERSION = 1


class WrittenOtherwise(KafkaError):
    """The committed write of this name differs from the present one."""


class Mark(NamedTuple):
    unit: Unit
    row_count: int

    def text(self) -> str:
        """The committed text: some 100 bytes, where brokers accept 4096."""
        return json.dumps(
            {"v": _VERSION, "unit": self.unit.name, "batch": self.unit.batch, "rows": self.row_count}
        )

    @classmethod
    def parse(cls, text: str) -> Mark:
        try:
            read = json.loads(text)
            if read["v"] != _VERSION:
                raise ValueError(f"version {read['v']}")
            return cls(Unit(str(read["unit"]), int(read["batch"])), int(read["rows"]))
        except (KeyError, TypeError, ValueError) as e:
            raise WrittenOtherwise(
                f"the group has committed {text!r}, which is not a mark of a write: {e!r}; "
                "transactional.id.prefix must be this query's own"
            ) from None
