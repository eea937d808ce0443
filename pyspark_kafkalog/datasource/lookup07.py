"""Asks brokers of Kafka 0.7 what a plan needs to know; which brokers there are is `registry07`'s."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client import parse_address
from pyspark_kafkalog.config.consumer07 import Source07Config
from pyspark_kafkalog.datasource.again import again
from pyspark_kafkalog.datasource.generations import ignore_loss
from pyspark_kafkalog.datasource.options import SourceOptions
from pyspark_kafkalog.datasource.options07 import NO_MAX_RECORDS
from pyspark_kafkalog.datasource.planning import OffsetRange, split_at
from pyspark_kafkalog.datasource.registry07 import Address, ListedBrokers, Registry07, ZooKeeperRegistry
from pyspark_kafkalog.datasource.subscription import Assign, SubscribePattern
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    InvalidConfig,
    MessageTooLarge,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.formats.v07 import entries, verify_entry
from pyspark_kafkalog.ledger.plan import UNKNOWN, PartitionFacts
from pyspark_kafkalog.types import (
    EARLIEST_OFFSET,
    EARLIEST_TIMESTAMP,
    LATEST_OFFSET,
    LATEST_TIMESTAMP,
    TopicPartition,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.range_reader07 import RangeReader07

T = TypeVar("T")

_MOST_SEGMENTS = 1 << 16
_FIRST_ENTRY_BYTES = 1 << 12


class Lookup07:
    """*Not thread-safe: used by one planner or one task.* Owns its connections; close it.

    See `SourceLookup`. Offsets are byte positions, and the visible end is the flushed one.
    """

    def __init__(
        self,
        options: SourceOptions,
        config: Source07Config,
        brokers: Mapping[int, str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``brokers``: what a task carries, ``host:port`` by id; nobody else is then asked for addresses."""
        self.config = config
        self.clock = clock
        self._options = options
        self._registry: Registry07 = (
            ZooKeeperRegistry(config) if config.zookeeper_connect else ListedBrokers(config, self.consumer)
        )
        self._carried = {id: parse_address(address) for id, address in brokers.items()}
        self._found: Mapping[int, Address] | None = None
        self._consumers: dict[int, SimpleConsumer] = {}

    def close(self) -> None:
        """Close the connections."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.close()

    def release(self) -> None:
        """Close the connections: a partition's broker may be another by the next task."""
        self.close()

    def leaders(self, *, missing_ok: bool = False) -> Mapping[TopicPartition, int]:
        """Every partition that is to be read, with its broker.

        Raises:
            UnknownTopicOrPartition: a topic or partition that was named is not there; with ``missing_ok`` it
                is left out.
            KafkaError: ZooKeeper or a broker would not say.
        """
        return {p: p.broker for p in self._again(lambda: self._partitions(missing_ok))}

    def address_of(self, broker: int) -> str:
        """``host:port`` of a broker. Raises `KafkaError` where it is not known."""
        return self._again(lambda: peer_name(*self._address(broker)))

    def broker_addresses(self) -> Mapping[str, int]:
        """The live brokers' ids by ``host:port``."""
        return {peer_name(*address): id for id, address in self._again(self._addresses).items()}

    def consumer(self, broker: int) -> SimpleConsumer:
        """The connection to a broker. Raises `KafkaError` where its address is not known."""
        if broker not in self._consumers:
            self._consumers[broker] = SimpleConsumer(*self._address(broker), self.config, clock=self.clock)
        return self._consumers[broker]

    def lost(self, partition: TopicPartition, e: ConnectionLost) -> ConnectionLost:
        """The same failure with the partition, and where its broker was thought to be."""
        broker = partition.broker
        if broker not in self._carried:
            return ConnectionLost(f"{partition}, of broker {broker}: {e}")
        return ConnectionLost(
            f"{partition}: broker {broker} was at {self.address_of(broker)} when this read was planned, and "
            f"does not answer there: {e}. One that came back elsewhere is found by a new load()"
        )

    def offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The beginning of the youngest segment that was last written to at or before each time in ms.

        That is as fine as a broker knows; where no segment is that old, it is the log's beginning. All that
        was written since the time lies behind it.
        """

        def ask(partition: TopicPartition, timestamp: int) -> int:
            try:
                return self._again(lambda: self._offset(partition, timestamp))
            except ConnectionLost as e:
                raise self.lost(partition, e) from e

        return {partition: ask(partition, timestamp) for partition, timestamp in asked.items()}

    def resolve(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The same offsets with `EARLIEST_OFFSET` and `LATEST_OFFSET` replaced by what they are now."""
        # OFFSETS has the same two numbers for its two edges as Spark's JSON.
        open_ends = {p: o for p, o in offsets.items() if o in (EARLIEST_OFFSET, LATEST_OFFSET)}
        return {**offsets, **self.offsets(open_ends)}

    def log_range(self, partition: TopicPartition) -> tuple[int, int]:
        """The offsets ``[start, end)`` that the partition's log holds now, as far as it is flushed."""
        start, end = (self.offsets({partition: edge})[partition] for edge in (EARLIEST_OFFSET, LATEST_OFFSET))
        return start, end

    def check_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Refuse positions at which no entry begins, as far as they are in the logs.

        Raises:
            InvalidConfig: one is none; the text names it.
            KafkaError: a broker would not say.
        """

        def check(partition: TopicPartition, offset: int) -> None:
            self._again(lambda: self._check_position(partition, offset))

        for partition, offset in sorted(positions.items()):
            if offset > 0 and offset not in self.segment_starts(partition):
                check(partition, offset)

    def segment_starts(self, partition: TopicPartition) -> list[int]:
        """The offsets at which the log's segments begin, and its end; the largest first."""
        return self._again(
            lambda: self.consumer(partition.broker).get_offsets_before(
                partition.topic, partition.partition, LATEST_TIMESTAMP, _MOST_SEGMENTS
            )
        )

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """As `planning.split_at`, at the beginnings of segments: other entries' are not known unread.

        Positions count bytes, so that is what ``maxBytesPerPartition`` is of.
        """
        options = self._options
        if options.max_records is not None:
            raise InvalidConfig(NO_MAX_RECORDS)
        partitions = sorted({r.topic_partition for r in ranges}) if options.splits else ()
        starts = {p: self.segment_starts(p) for p in partitions}
        return split_at(ranges, starts, min_partitions=options.min_partitions, max_size=options.max_bytes)

    def reader(
        self,
        columns: Sequence[str],
        on_loss: Callable[[int, int], None] = ignore_loss,
        on_skip: Callable[[int, int], None] = ignore_loss,
    ) -> RangeReader07:
        """What reads rows through these connections; see `SourceLookup.reader`."""
        # Here, for planning does without what decodes.
        from pyspark_kafkalog.datasource.range_reader07 import RangeReader07

        return RangeReader07(tuple(columns), self._options, self, on_loss, on_skip)

    def facts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        """What a load's plan keeps of each partition: its broker and the ends of its log.

        Raises:
            UnknownTopicOrPartition: a topic or partition is not there (any more).
            KafkaError: ZooKeeper or a broker would not say.
        """
        missing = sorted(set(partitions) - self._again(lambda: self._there(partitions)))
        if missing:
            names = ", ".join(map(str, missing))
            raise UnknownTopicOrPartition(f"not found by {self.config.place} any more: {names}")
        found = {}
        for p in partitions:
            earliest, latest = self.log_range(p)
            found[p] = PartitionFacts("", p.broker, self.address_of(p.broker), UNKNOWN, earliest, latest)
        return found

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Empty: in 0.7 a topic has a name only."""
        return dict.fromkeys(partitions, "")

    def cluster_id(self) -> str:
        """What stands in ``/cluster/id`` of ZooKeeper, as our brokers write it; empty where nothing does."""
        return self._again(self._registry.cluster_id)

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions that ``group`` keeps in ZooKeeper; partitions without one are left out.

        Raises:
            InvalidConfig: there is no ZooKeeper to ask.
        """
        kept, asked = self._registry.group(group), list(partitions)
        return self._again(lambda: kept.offsets(asked))

    def noted_offsets(
        self,
        group: str,  # noqa: ARG002
        partitions: Iterable[TopicPartition],  # noqa: ARG002
    ) -> dict[TopicPartition, tuple[int, str]]:
        """None: ZooKeeper keeps no notes."""
        return {}

    def commit_group(
        self,
        group: str,
        positions: Mapping[TopicPartition, int],
        *,
        note: str = "",  # noqa: ARG002
    ) -> None:
        """Have ``group`` stand at these positions, in ZooKeeper. Raises `KafkaError` where it may not."""
        self._registry.group(group).commit(positions)

    def _partitions(self, missing_ok: bool) -> list[TopicPartition]:
        subscription = self._options.subscription
        if isinstance(subscription, Assign):
            there = self._there(subscription.partitions)
            missing = [str(p) for p in subscription.partitions if p not in there]
            if missing and not missing_ok:
                raise UnknownTopicOrPartition(f"assigned partitions are not there: {', '.join(missing)}")
            return [p for p in subscription.partitions if p in there]
        if isinstance(subscription, SubscribePattern):
            return self._registry.partitions(filter(subscription.matches, self._registry.topics()))
        found = self._registry.partitions(subscription.topics)
        for topic in sorted(set(subscription.topics) - {p.topic for p in found}):
            if not missing_ok:
                raise UnknownTopicOrPartition(f"topic {topic!r} is on no live broker of {self.config.place}")
        return found

    def _there(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that the topics of ``partitions`` have at their brokers."""
        asked = set(partitions)
        return set(self._registry.partitions({p.topic for p in asked}, {p.broker for p in asked}))

    def _offset(self, partition: TopicPartition, timestamp: int) -> int:
        consumer = self.consumer(partition.broker)
        for time in (timestamp, EARLIEST_TIMESTAMP):
            found = consumer.get_offsets_before(partition.topic, partition.partition, time, 1)
            if found:
                return found[0]
        return 0

    def _check_position(self, partition: TopicPartition, offset: int) -> None:
        consumer = self.consumer(partition.broker)
        try:
            found = consumer.fetch(partition.topic, partition.partition, offset, _FIRST_ENTRY_BYTES)
            for entry in entries(found.data):
                verify_entry(entry)
                return
        except OffsetOutOfRange:
            return
        except (CorruptMessage, MessageTooLarge) as e:
            raise InvalidConfig(no_entry_at(partition, offset, e)) from e

    def _addresses(self) -> Mapping[int, Address]:
        """Every live broker, as ``broker.list`` or ZooKeeper says."""
        if self._found is None:
            self._found = self._registry.addresses()
        return self._found

    def _address(self, broker: int) -> Address:
        if broker in self._carried:
            return self._carried[broker]
        found = self._addresses().get(broker)
        if found is None:
            raise ConnectionLost(f"broker {broker} is not among those of {self.config.place}: is it running?")
        return found

    def _again(self, ask: Callable[[], T]) -> T:
        return again(ask, self._forget, self._options, self.clock)

    def _forget(self) -> None:
        """A broker may have come back elsewhere."""
        self.close()
        self._found = None


def no_entry_at(partition: TopicPartition, offset: int, found: Exception) -> str:
    """What is said of a position at which no entry begins."""
    return (
        f"{partition}: no message begins at offset {offset}: {found}. Offsets of Kafka 0.7 are byte "
        "positions: say one at which a message begins, as the column offset has them, or -2 for the "
        "earliest. If it is one, the log is damaged there, or the message is above kafka.max.message.size"
    )
