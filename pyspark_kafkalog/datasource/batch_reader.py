"""The batch read: a plan in the driver, one task for each broker, topic and partition (or part of one)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kafkalog.datasource import offsets
from pyspark_kafkalog.datasource.options import BatchOptions
from pyspark_kafkalog.datasource.planning import OffsetRange, plan_ranges
from pyspark_kafkalog.datasource.starting import locate_start
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.lookup import Lookup


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):
    """One task: offsets ``[start, end)`` of a partition, led by node ``broker`` when it was planned.

    ``start`` and ``end`` may be placeholders, which the task resolves when it runs.
    """

    topic: str
    partition: int
    start: int
    end: int
    broker: int


class BatchReader(DataSourceReader):
    """Pickled from planner to tasks, so it holds settings only: no connection and no thread.

    Memory of a task: two fetch answers, one record batch and what it is decompressed from; the figures are
    in docs/datasource.md, "Memory".
    """

    def __init__(self, options: BatchOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, in the order of topic, partition and offset.

        Raises:
            InvalidConfig: the positions asked for do not fit the partitions there are.
            KafkaError: the cluster could not be asked, or lacks a topic.
        """
        lookup = self._lookup()
        try:
            leaders = lookup.leaders()
            ranges = self._plan(lookup, sorted(leaders))
        finally:
            lookup.close()
        return [
            KafkaInputPartition(
                r.topic_partition.topic,
                r.topic_partition.partition,
                r.start,
                r.end,
                leaders[r.topic_partition],
            )
            for r in ranges
        ]

    def _plan(self, lookup: Lookup, partitions: Sequence[TopicPartition]) -> list[OffsetRange]:
        options = self._options
        starts = locate_start(options, lookup, partitions)
        ends = offsets.locate(options.end, partitions, look_up=lookup.offsets, missing_is_latest=True)
        offsets.check_order(starts, ends, resolved=False)
        resolved = {}
        if options.min_partitions is not None or options.max_records is not None:
            first, last = lookup.resolve(starts), lookup.resolve(ends)
            offsets.check_order(first, last, resolved=True)
            resolved = {p: (first[p], last[p]) for p in partitions}
        return plan_ranges(
            [OffsetRange(p, starts[p], ends[p]) for p in partitions],
            resolved,
            min_partitions=options.min_partitions,
            max_records=options.max_records,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as record batches of about 1 MiB.

        Raises:
            KafkaError: the broker could not be read, a message is corrupt, or (with ``failOnDataLoss``)
                offsets are gone.
        """
        # Spark makes one task of an empty plan, and gives it a partition that is not ours.
        if isinstance(partition, KafkaInputPartition):
            from pyspark_kafkalog.datasource.range_reader import RangeReader

            lookup = self._lookup()
            try:
                reader = RangeReader(self._columns, self._options, lookup)
                where = TopicPartition(partition.topic, partition.partition)
                yield from reader.rows(OffsetRange(where, partition.start, partition.end))
            finally:
                lookup.close()

    def _lookup(self) -> Lookup:
        from pyspark_kafkalog.datasource.lookup import Lookup

        return Lookup(self._options)
