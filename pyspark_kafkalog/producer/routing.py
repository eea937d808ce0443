"""From a record to its partition's queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark_kafkalog.client.discovery import NO_LEADER, TopicMetadata
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.errors import UnknownTopicOrPartition
from pyspark_kafkalog.producer.accumulator import Accumulator
from pyspark_kafkalog.producer.columns import Columns
from pyspark_kafkalog.producer.partition_queue import PartitionQueue
from pyspark_kafkalog.producer.partitioner import KeyPartitioner, StickyPartitioner
from pyspark_kafkalog.types import TopicPartition


class Route:
    """*Thread-safe.* One topic's queues as the metadata of one moment has them.

    Threads that race in `sticky` may move on a record early or late; every record goes to one queue.
    """

    def __init__(
        self,
        topic: str,
        version: int,
        queues: Mapping[int, PartitionQueue],
        sticky: StickyPartitioner,
        config: ProducerConfig,
    ) -> None:
        self.topic, self.version, self.queues = topic, version, queues
        self.by_key = None if config.partitioner_ignore_keys else KeyPartitioner(len(queues))
        self._sticky = sticky
        self._batch_size = max(config.batch_size, 1)
        self._stay_bytes = config.partitioner_sticky_bytes or self._batch_size
        self._moves_when_full = not config.partitioner_sticky_bytes
        self._spread_bytes = 0

    @classmethod
    def of(
        cls,
        topic: TopicMetadata,
        version: int,
        accumulator: Accumulator,
        config: ProducerConfig,
        previous: Route | None,
    ) -> Route:
        """The route to a topic; records without a key stay where they were going, if that still is."""
        queues = {
            partition: accumulator.queue(TopicPartition(topic.name, partition))
            for partition in topic.partitions
        }
        led = [number for number, partition in topic.partitions.items() if partition.leader != NO_LEADER]
        sticky = StickyPartitioner(led or list(queues))
        if previous is not None and previous._sticky.current in (led or queues):
            sticky.current = previous._sticky.current
        return cls(topic.name, version, queues, sticky, config)

    def queue(self, partition: int) -> PartitionQueue:
        """The queue of a partition that the caller chose.

        Raises:
            UnknownTopicOrPartition: the topic does not have it.
        """
        try:
            return self.queues[partition]
        except KeyError:
            raise UnknownTopicOrPartition(
                f"{self.topic}-{partition}: no such partition; topic {self.topic} has {len(self.queues)}"
            ) from None

    def sticky(self, size: int) -> PartitionQueue:
        """The queue for a record of ``size`` bytes that may go anywhere.

        Another one than before only where a batch begins, so that batches fill up.
        """
        queue = self.queues[self._sticky.current]
        batch = queue.open
        if batch is None or batch.size + size > self._batch_size:
            full = batch is not None and self._moves_when_full
            if full or self._spread_bytes >= self._stay_bytes:
                self._spread_bytes = 0
                queue = self.queues[self._sticky.moved()]
        self._spread_bytes += size
        return queue

    def spread(self, size: int) -> None:
        """``size`` more bytes went where `sticky` said."""
        self._spread_bytes += size

    def choose(self, rows: Columns) -> Iterator[PartitionQueue]:
        """The queue of each row: its own partition's, else its key's, else the sticky one's.

        Raises:
            UnknownTopicOrPartition: a row names a partition that there is not.
        """
        keys, by_key = rows.keys, self.by_key
        for row in range(len(rows)):
            partition = rows.partitions[row] if rows.partitions is not None else None
            if partition is not None:
                yield self.queue(partition)
            elif keys is not None and by_key is not None and (key := keys[row]) is not None:
                yield self.queues[by_key(key)]
            else:
                yield self.sticky(rows.size(row, row + 1))
