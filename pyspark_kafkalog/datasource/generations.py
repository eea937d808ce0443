"""The generations of Kafka that can be read, and the one place that chooses between them.

What differs is behind `SourceLookup`: whom to ask which partitions there are, what an offset is, where a
range may be cut, and how it is read. Planning, loads and readers know no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.options import SourceOptions
    from pyspark_kafkalog.datasource.planning import OffsetRange
    from pyspark_kafkalog.ledger.plan import PartitionFacts


class Rows(Protocol):
    """*Not thread-safe: belongs to one task.* Reads ranges of offsets."""

    def rows(self, asked: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The rows of ``asked``; see `RangeReader.rows`."""
        ...


def ignore_loss(start: int, end: int) -> None:
    """Nobody wants to know which offsets are lost, beside the log."""


class SourceLookup(Protocol):
    """*Not thread-safe: used by one planner or one task.* Owns its connections; close it.

    Every question is asked again after a passing failure, ``fetchOffset.numRetries`` times.
    """

    def close(self) -> None:
        """Close the connections."""
        ...

    def release(self) -> None:
        """Instead of `close`: all went well and no answer is awaited, so others may use the connections."""
        ...

    def leaders(self, *, missing_ok: bool = False) -> Mapping[TopicPartition, int]:
        """Every partition that is to be read, with the id of the node that serves it; -1 while none does.

        Raises:
            UnknownTopicOrPartition: a topic or partition that was named is not there, or has no partitions;
                with ``missing_ok`` it is left out.
            KafkaError: nobody would say.
        """
        ...

    def address_of(self, broker: int) -> str:
        """Where a task finds this broker, ``host:port``; empty where it asks the cluster itself."""
        ...

    def broker_addresses(self) -> Mapping[str, int] | None:
        """The live brokers' ids by ``host:port``; None where a partition is not a broker's."""
        ...

    def offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Where to begin to see every record from each time in milliseconds on; -1 where there is none."""
        ...

    def resolve(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The same offsets with `EARLIEST_OFFSET` and `LATEST_OFFSET` replaced by what they are now."""
        ...

    def log_range(self, partition: TopicPartition) -> tuple[int, int]:
        """The offsets ``[start, end)`` that the partition's log holds now."""
        ...

    def check_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Refuse offsets at which no record can begin, as far as they are in the logs.

        Raises:
            InvalidConfig: one is none; where offsets count records, all are.
        """
        ...

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Cut resolved ranges into the tasks' ranges, as the options want it and where records begin."""
        ...

    def facts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        """What a load's plan keeps of each partition.

        Raises:
            UnknownTopicOrPartition: one of them is not there (any more).
            KafkaError: nobody would say.
        """
        ...

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """The id of each partition's topic; empty where topics have none."""
        ...

    def cluster_id(self) -> str:
        """What the cluster calls itself; empty where it has no name."""
        ...

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that ``group`` has committed; partitions without one are left out."""
        ...

    def noted_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """The same with the notes of `commit_group`, "" where there is none; nothing of ZooKeeper, which
        keeps no notes.
        """
        ...

    def commit_group(self, group: str, positions: Mapping[TopicPartition, int], *, note: str = "") -> None:
        """Have ``group`` stand at these offsets, for whoever looks at it.

        Brokers keep ``note`` beside them, the ``metadata`` of an offset; ZooKeeper does not.

        Raises:
            KafkaError: some of them may not be stored.
        """
        ...

    def reader(
        self,
        columns: Sequence[str],
        on_loss: Callable[[int, int], None] = ignore_loss,
        on_skip: Callable[[int, int], None] = ignore_loss,
    ) -> Rows:
        """What reads rows through this look-up's connections.

        ``on_loss`` is told of the offsets ``[start, end)`` that are gone, where ``failOnDataLoss`` lets the
        read go on; ``on_skip`` of those that are left out as corrupt, with ``onCorruptBatch=skip``.
        """
        ...


@contextmanager
def opened_lookup(options: SourceOptions, brokers: Mapping[int, str] | None = None) -> Iterator[SourceLookup]:
    """The look-up of `open_lookup` for one piece of work. Its connections wait for the next piece of work of
    this process, unless this one failed or was broken off.
    """
    lookup = open_lookup(options, brokers)
    try:
        yield lookup
    except BaseException:
        lookup.close()
        raise
    lookup.release()


def open_lookup(options: SourceOptions, brokers: Mapping[int, str] | None = None) -> SourceLookup:
    """The look-up of the generation that the options name.

    ``brokers`` is what a task carries: where the brokers of its partitions were when it was planned,
    ``host:port`` by id. ZooKeeper is then not asked.
    """
    if options.v07 is not None:
        from pyspark_kafkalog.datasource.lookup07 import Lookup07

        return Lookup07(options, options.v07, brokers or {})
    from pyspark_kafkalog.datasource.lookup import Lookup

    return Lookup(options)
