"""What is read, the same for every generation of Kafka, with retries and the handling of lost offsets."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.datasource.options.topics_and_offsets import check_order
from pyspark_kafkalog.datasource.reading.splitting import OffsetRange
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.types import EARLIEST_OFFSET, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.options.read_options import SourceOptions
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
        from pyspark_kafkalog.datasource.reading.kafka07 import Lookup07

        return Lookup07(options, options.v07, brokers or {})
    from pyspark_kafkalog.datasource.reading.kafka import Lookup

    return Lookup(options)


log = logging.getLogger(__name__)

_HOW_TO_SKIP = (
    "To go on without what is corrupt, set the source option onCorruptBatch to skip: what is left out is "
    "logged, and a load's commit counts it."
)


class DataLoss(KafkaError):
    """Offsets that should be read are no longer, or not yet again, in the log."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read offsets "
            f"[{wanted.start}, {wanted.end}) of {wanted.topic_partition}: the log holds [{start}, {end}). "
            "Some data may have been lost: aged out by retention, or the topic was deleted or created anew. "
            "To go on with what is left, set the source option failOnDataLoss to false."
        )


@dataclass(frozen=True, slots=True)
class RangeReader(ABC):
    """*Not thread-safe: belongs to one task.* ``lookup`` holds the connections and is the caller's.

    What is the same in all generations; each of them reads in its own way.
    """

    columns: tuple[str, ...]
    options: SourceOptions
    lookup: SourceLookup
    on_loss: Callable[[int, int], None] = ignore_loss
    """Told of the offsets ``[start, end)`` that are gone, where ``failOnDataLoss`` lets the read go on."""
    on_skip: Callable[[int, int], None] = ignore_loss
    """Told of the offsets ``[start, end)`` that are left out as corrupt, with ``onCorruptBatch=skip``."""

    def rows(self, asked: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The rows of ``asked``, whose placeholders are resolved now.

        Raises:
            DataLoss: with ``failOnDataLoss``, offsets of the range are gone.
            InvalidConfig: the range, once resolved, ends before it starts.
            KafkaError: the broker could not be read, or a message is corrupt.
        """
        wanted = self._resolve(asked)
        while wanted.size > 0:
            try:
                yield from self.read(wanted)
                return
            except Gone as gone:
                # Raised before any row of the lost offsets was yielded; what remains is read anew.
                wanted = self._after_loss(gone)
            except (CorruptMessage, MessageTooLarge) as e:
                if self.options.skip_corrupt:
                    raise
                raise type(e)(f"{e}. {_HOW_TO_SKIP}") from e

    @abstractmethod
    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The rows of a resolved range.

        Raises:
            Gone: before any row of the offsets that are lost.
            KafkaError: as `rows`.
        """

    def _resolve(self, asked: OffsetRange) -> OffsetRange:
        if asked.start >= 0 and asked.end >= 0:
            return asked
        partition = asked.topic_partition
        starts = self.lookup.resolve({partition: asked.start})
        ends = self.lookup.resolve({partition: asked.end})
        resolved = OffsetRange(partition, starts[partition], ends[partition])
        if asked.start == EARLIEST_OFFSET and resolved.size < 0 and not self.options.fail_on_data_loss:
            log.warning("%s: all offsets below %d are gone", partition, resolved.end)
            return OffsetRange(partition, resolved.end, resolved.end)
        check_order(starts, ends, resolved=True)
        return resolved

    def _after_loss(self, gone: Gone) -> OffsetRange:
        """What is left to read where loss is allowed: always less than was wanted."""
        wanted = gone.wanted
        start = max(wanted.start, gone.start)
        if start >= gone.end:
            # A log that ends before the range was cut or made anew: what it gets now is not what was meant.
            start = wanted.end
        start = min(start, wanted.end)
        if self.options.fail_on_data_loss or start == wanted.start:
            raise DataLoss(wanted, gone.start, gone.end) from gone
        log.warning(
            "%s: offsets [%d, %d) are gone, the log holds [%d, %d); going on without them",
            wanted.topic_partition, wanted.start, start, gone.start, gone.end,
        )  # fmt: skip
        self.on_loss(wanted.start, start)
        return OffsetRange(wanted.topic_partition, start, wanted.end)


class Gone(Exception):
    """The log holds ``[start, end)`` and no longer what was ``wanted``."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(f"the log holds [{start}, {end})")
        self.wanted, self.start, self.end = wanted, start, end


T = TypeVar("T")


def again(ask: Callable[[], T], reconnect: Callable[[], object], options: SourceOptions, clock: Clock) -> T:
    """What ``ask`` gives, asked as often as the options allow; ``reconnect`` is called in between.

    Raises:
        KafkaError: the last failure, or one that will not pass.
    """
    failures = 0
    while True:
        try:
            return ask()
        except KafkaError as e:
            failures += 1
            if failures > options.offset_retries or not e.retriable:
                raise
            log.warning("look-up failed (%d of %d): %s", failures, options.offset_retries, e)
        clock.sleep(options.offset_retry_interval_ms / 1000)
        reconnect()
