"""Reads brokers of Kafka 0.7; `registry07` says which there are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.client.corrupt_batches import CORRUPT
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.columnar.decoder import EngineName
from pyspark_kafkalog.columnar.v07_batches import V07BatchDecoder
from pyspark_kafkalog.config.client import parse_address
from pyspark_kafkalog.config.consumer07 import Source07Config
from pyspark_kafkalog.datasource.options.client_options import NO_MAX_RECORDS
from pyspark_kafkalog.datasource.options.read_options import SourceOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import Assign, SubscribePattern
from pyspark_kafkalog.datasource.reading.registry07 import (
    Address,
    ListedBrokers,
    Registry07,
    ZooKeeperRegistry,
)
from pyspark_kafkalog.datasource.reading.source_cluster import Gone, RangeReader, again, ignore_loss
from pyspark_kafkalog.datasource.reading.splitting import OffsetRange, split_at
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    InvalidConfig,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.formats.v07 import (
    ENTRY_HEADER_BYTES,
    entries,
    entry_header,
    next_sound_entry,
    sound_entry,
    verify_entry,
)
from pyspark_kafkalog.ledger.plan import UNKNOWN, PartitionFacts
from pyspark_kafkalog.types import (
    EARLIEST_OFFSET,
    EARLIEST_TIMESTAMP,
    LATEST_OFFSET,
    LATEST_TIMESTAMP,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

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


log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1
_LEAST_FETCH_BYTES = 64
_LARGEST_LOOKED_AT = 64 << 20
"""An entry above ``max.message.size`` may be sound, or have a damaged length: so far that is found out."""


@dataclass(frozen=True, slots=True)
class RangeReader07(RangeReader):
    """*Not thread-safe: belongs to one task.* Reads from the broker that the partition belongs to.

    Read are the messages of entries that begin in the range, whole ones where it ends within an entry.
    """

    lookup: Lookup07
    engine: EngineName = "auto"

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """See `RangeReader.read`.

        Raises:
            CorruptMessage: no entry begins where the range does, or the log is damaged.
            MessageTooLarge: an entry is above ``max.message.size``, or holds more than may be decompressed.
        """
        where, position = wanted.topic_partition, wanted.start
        skips, decoder = self.options.skip_corrupt, self._decoder(where)
        try:
            while position < wanted.end:
                decoder.given_to = position
                try:
                    data = self._fetch(wanted, position)
                    position = yield from decoder.stream(data, position, wanted.end, whole=skips)
                except CORRUPT as e:
                    if not skips:
                        raise
                    position = decoder.given_to
                    position = yield from self._around(wanted, position, e)
        except OffsetOutOfRange as e:
            raise Gone(OffsetRange(where, position, wanted.end), e.start, e.end) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(where)
            if start <= position < end:
                raise
            raise Gone(OffsetRange(where, position, wanted.end), start, end) from e

    def _decoder(self, where: TopicPartition) -> V07BatchDecoder:
        return V07BatchDecoder(
            topic=where.topic,
            partition=where.partition,
            columns=self.columns,
            broker=where.broker,
            engine=self.engine,
            max_entry_bytes=self.lookup.config.max_decompressed_bytes,
        )

    def _around(
        self, wanted: OffsetRange, start: int, cause: KafkaError
    ) -> Generator[pa.RecordBatch, None, int]:
        """What can be read from ``start`` up to the corrupt entry, which is left out; its value is where
        reading goes on. All is fetched once more before, by a new connection.
        """
        where, position, decoder = wanted.topic_partition, start, self._decoder(wanted.topic_partition)
        log.info("%s: reading on from offset %d once more, by a new connection: %s", where, start, cause)
        self.lookup.close()
        most = self.lookup.config.max_message_size
        data = self._bytes(where, start)
        while position < wanted.end:
            at = position - start
            entry = sound_entry(data, at, _LARGEST_LOOKED_AT)
            if entry is None and at > 0 and len(data) - at < most + ENTRY_HEADER_BYTES:
                return position  # perhaps only cut short: the next fetch begins with it
            try:
                if entry is None:
                    raise cause if at == 0 else CorruptMessage("no entry that checks out begins there")
                found = decoder.decode(data[at : entry.end], position, wanted.end)
            except CORRUPT as e:
                if entry is None:
                    self._check_size(where, position, data[at:], e)
                after = position + entry.size if entry is not None else self._next(wanted, data, start, at)
                after = min(after, wanted.end)
                text = "%s: offsets [%d, %d) are left out as corrupt (onCorruptBatch=skip): %s"
                log.warning(text, where, position, after, e)
                self.on_skip(position, after)
                return after
            yield from found.batches
            position = found.next_offset
        return position

    def _check_size(self, where: TopicPartition, position: int, data: memoryview, cause: KafkaError) -> None:
        """Raise ``cause`` where an entry that is too large to be read is sound: that is no damage."""
        try:
            header = entry_header(data, 0)
        except CorruptMessage:
            return
        if header is None or not len(data) < header[1] <= _LARGEST_LOOKED_AT:
            return
        found = self.lookup.consumer(where.broker).fetch_bytes(
            where.topic, where.partition, position, header[1]
        )
        if sound_entry(found, 0, _LARGEST_LOOKED_AT) is not None:
            raise cause

    def _next(self, wanted: OffsetRange, data: memoryview, start: int, at: int) -> int:
        """The offset of the next entry that checks out behind the one at byte ``at``; the range's end if none
        does. ``data`` begins at offset ``start``.
        """
        most = self.lookup.config.max_message_size
        while True:
            found = next_sound_entry(data, at, most)
            if found is not None:
                return start + found
            # An entry that began in the first half of these bytes would be whole.
            start += max(at + 1, len(data) - most - ENTRY_HEADER_BYTES)
            if start >= wanted.end:
                return wanted.end
            data, at = self._bytes(wanted.topic_partition, start), 0
            if sound_entry(data, 0, most) is not None:
                return start

    def _bytes(self, where: TopicPartition, position: int) -> memoryview:
        """Enough for an entry that begins in the first half, as far as the log goes."""
        config = self.lookup.config
        size = max(config.fetch_size, 2 * (config.max_message_size + ENTRY_HEADER_BYTES))
        return self.lookup.consumer(where.broker).fetch_bytes(where.topic, where.partition, position, size)

    def _fetch(self, wanted: OffsetRange, position: int) -> memoryview:
        """One whole entry or more from ``position`` on; the first of the range is looked at."""
        try:
            data = self._ask(wanted.topic_partition, position, wanted.end - position)
            if position == wanted.start:
                verify_entry(next(entries(data)))
            return data
        except (CorruptMessage, MessageTooLarge) as e:
            if position > wanted.start:
                raise
            raise CorruptMessage(no_entry_at(wanted.topic_partition, position, e)) from e

    def _ask(self, where: TopicPartition, position: int, left: int) -> memoryview:
        """What the broker has at ``position``; waits for it as long as ``kafkaConsumer.pollTimeoutMs``."""
        lookup, deadline = self.lookup, Deadline.after(self.options.poll_timeout_ms / 1000, self.lookup.clock)
        # What lies behind the range is another task's, or nobody's.
        size = min(lookup.config.fetch_size, max(left, _LEAST_FETCH_BYTES))
        while True:
            failure: KafkaError = RequestTimedOut(
                f"{where}: nothing came at offset {position} within {self.options.poll_timeout_ms} ms "
                "(kafkaConsumer.pollTimeoutMs)"
            )
            try:
                found = lookup.consumer(where.broker).fetch(where.topic, where.partition, position, size)
                if found.data:
                    return found.data
            except ConnectionLost as e:
                failure = lookup.lost(where, e)
            if deadline.passed:
                raise failure
            lookup.clock.sleep(_PAUSE_SECONDS)
