"""The batch read: a plan in the driver, one task for each broker, topic and partition (or part of one)."""

from __future__ import annotations

import gc
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from pyspark_kafkalog.datasource.batch.spark_classes import (
    DataSourceReader,
    InputPartition,
    TaskContext,
    session_time_zone,
)
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions, SourceOptions
from pyspark_kafkalog.datasource.reading.kafka import IDLE_CLUSTERS, opened_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange, SourceCluster
from pyspark_kafkalog.datasource.reading.start_positions import Bounds, asked_ranges, bounds_now
from pyspark_kafkalog.errors import InvalidConfig, briefly
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, NO_BROKER, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):
    """One task: offsets ``[start, end)`` (perhaps placeholders) of a partition, led by node ``broker`` when
    planned. ``address``: ``host:port`` of the broker that owns it, in 0.7. ``topic_id``: if another topic has
    the name now, the offsets are lost. ``more``: what the task reads after it.
    """

    topic: str
    partition: int
    start: int
    end: int
    broker: int
    address: str = field(default="", kw_only=True)
    topic_id: str = field(default="", kw_only=True)
    more: tuple[KafkaInputPartition, ...] = field(default=(), kw_only=True)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition, self.broker if self.address else NO_BROKER)


class TaskReader:
    """The task side of batches and streams. Pickled to tasks, so it holds settings only."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self.has_local_times = False
        """Whether ``timestamp`` is the time in the session's zone, a timestamp_ntz."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = self._rows(partition)
        return _with_local_times(rows) if self.has_local_times else rows

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark creates one task for an empty plan, with a partition that is not ours.
        if isinstance(partition, KafkaInputPartition):
            parts = (partition, *partition.more)
            wanted = [OffsetRange(part.topic_partition, part.start, part.end) for part in parts]
            ids = {part.topic: part.topic_id for part in parts if part.topic_id}
            with self._opened(partition) as cluster:
                yield from cluster.rows_of_all(wanted, self._columns, ids)

    def _opened(self, task: KafkaInputPartition | None = None) -> AbstractContextManager[SourceCluster]:
        if attempt_number() > 0:
            # They may have caused the last attempt's failure.
            IDLE_CLUSTERS.clear()
        if task is not None:
            _keep_loaded()
        brokers = {} if task is None else {t.broker: t.address for t in (task, *task.more) if t.address}
        return opened_cluster(self._options, brokers, is_task=task is not None)


def _with_local_times(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As Spark casts to TIMESTAMP_NTZ."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zone = session_time_zone()
    if zone is None:
        raise InvalidConfig(
            "the schema has timestamp as a timestamp_ntz, and this session's time zone is not known: set "
            "spark.sql.session.timeZone, or write timestamp_ltz"
        )
    for batch in batches:
        times = batch.column("timestamp").cast(pa.timestamp("us", zone))
        place = batch.schema.get_field_index("timestamp")
        yield batch.set_column(place, "timestamp", pc.local_timestamp(times))


_TASKS = itertools.count()


def _keep_loaded() -> None:
    """Exempt loaded modules from garbage collection, 10 ms after each task; repeated as more is loaded."""
    number = 0 if TaskContext.get() is None else next(_TASKS)
    if number > 0 and number & (number - 1) == 0:
        gc.freeze()


def attempt_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def tasks_of(
    cluster: SourceCluster,
    ranges: Sequence[OffsetRange],
    leaders: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, str] | None = None,
) -> list[KafkaInputPartition]:
    nodes = {r.topic_partition: leaders.get(r.topic_partition, -1) for r in ranges}
    addresses = {node: cluster.address_of(node) for node in set(nodes.values())}
    return [
        KafkaInputPartition(
            r.topic_partition.topic,
            r.topic_partition.partition,
            r.start,
            r.end,
            nodes[r.topic_partition],
            address=addresses[nodes[r.topic_partition]],
            topic_id=(topic_ids or {}).get(r.topic_partition.topic, ""),
        )
        for r in ranges
    ]


def together(tasks: Sequence[KafkaInputPartition], most: int) -> list[KafkaInputPartition]:
    """Tasks that each read up to ``most`` of these."""
    return [
        replace(tasks[first], more=tuple(tasks[first + 1 : first + most]))
        for first in range(0, len(tasks), most)
    ]


class BatchReader(TaskReader, DataSourceReader):
    """Pickled from planner to tasks, so it holds settings only: no connection and no thread."""

    _options: BatchOptions

    @briefly
    def partitions(self) -> Sequence[InputPartition]:
        with self._opened() as cluster:
            leaders, ids = cluster.leaders(), self._options.topic_ids
            ranges = asked_ranges(self._options, cluster, sorted(leaders))
            if not self._options.divides(len(leaders)):
                if self._options.fail_on_data_loss:
                    # A task cannot tell: retention may pass a part's end.
                    bounds_now(cluster, [r for r in ranges if r.start == EARLIEST_OFFSET and r.end >= 0])
                return together(tasks_of(cluster, ranges, leaders, ids), self._options.per_task)
            planned, empty = plan_ranges(ranges, bounds_now(cluster, ranges), cluster.split)
            tasks = together(tasks_of(cluster, planned, leaders, ids), self._options.per_task)
            if empty:
                first, *more = tasks_of(cluster, empty, leaders, ids)
                tasks.append(replace(first, more=tuple(more)))
            return tasks


def plan_ranges(
    asked: Sequence[OffsetRange],
    resolved: Bounds,
    split: Callable[[Sequence[OffsetRange]], Sequence[OffsetRange]],
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """The tasks of the ranges ``asked``, which ``split`` cuts by their ``resolved`` offsets, and the ranges
    that are empty now but open. A partition's outermost parts keep its placeholders: a task binds "latest"
    when it runs, so a rerun sees new records.
    """
    sized = [OffsetRange(r.topic_partition, *resolved[r.topic_partition]) for r in asked]
    parts: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for part in split(sized):
        parts[part.topic_partition].append(part)
    planned: list[OffsetRange] = []
    for r in asked:
        if cut := parts[r.topic_partition]:
            cut[0] = structs.replace(cut[0], start=r.start)
            cut[-1] = structs.replace(cut[-1], end=r.end)
            planned += cut
    return planned, [r for r in asked if r.end == LATEST_OFFSET and not parts[r.topic_partition]]
