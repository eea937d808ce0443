"""Reads brokers of Kafka 0.7. Without ZooKeeper, fetches of no bytes show whether a listed broker has a
partition; a look-up of offsets would close the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.client.corrupt_batches import CORRUPT
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import Source07Config
from pyspark_kafkalog.datasource.options.client_options import NO_MAX_RECORDS
from pyspark_kafkalog.datasource.options.option_definitions import LoadOptions, SourceOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import Assign, SubscribePattern
from pyspark_kafkalog.datasource.reading.source_cluster import (
    OffsetRange,
    OffsetsGone,
    OnOffsets,
    SourceCluster,
    assigned,
)
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
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    PROTOCOL_07,
    TopicPartition,
    parse_address,
)
from pyspark_kafkalog.zookeeper.paths import MAX_PARTITIONS, layout_of

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.columnar.decoder import EngineName, RecordBatchDecoder
    from pyspark_kafkalog.ledger.plan import PartitionFacts
    from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup
    from pyspark_kafkalog.zookeeper.session import ZooKeeperSession

Address = tuple[str, int]


class ZooKeeperRegistry:
    """*Not thread-safe.* The znodes of 0.7. Each question opens a session: a plan has three."""

    def __init__(self, config: Source07Config) -> None:
        self._config = config
        self._layout = layout_of(config, PROTOCOL_07)

    def addresses(self) -> Mapping[int, Address]:
        from pyspark_kafkalog.zookeeper.registries import brokers

        with self._session() as session:
            live = brokers(session, self._layout)
        return {id: (node.host, node.port) for id, node in live.items()}

    def topics(self) -> list[str]:
        from pyspark_kafkalog.zookeeper.registries import topics

        with self._session() as session:
            return topics(session, self._layout)

    def partitions(
        self, topics: Iterable[str], brokers: Collection[int] | None = None
    ) -> list[TopicPartition]:
        from pyspark_kafkalog.zookeeper.registries import partitions

        with self._session() as session:
            return sorted(
                TopicPartition(topic, node.number, node.broker)
                for topic in topics
                for node in partitions(session, self._layout, topic)
                if brokers is None or node.broker in brokers
            )

    def cluster_id(self) -> str:
        """The value of ``/cluster/id``, which our brokers write."""
        from pyspark_kafkalog.zookeeper.registries import cluster_id

        with self._session() as session:
            return cluster_id(session, self._layout) or ""

    def group(self, name: str) -> ZooKeeperGroup:
        from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup

        return ZooKeeperGroup(self._config, name, PROTOCOL_07)

    def _session(self) -> ZooKeeperSession:
        # kazoo is imported only if needed.
        from pyspark_kafkalog.zookeeper.session import session_of

        return session_of(self._config)


class ListedBrokers:
    """*Not thread-safe.* The brokers of ``broker.list``; ``consumer`` returns a broker's connection."""

    def __init__(self, config: Source07Config, consumer: Callable[[int], SimpleConsumer]) -> None:
        self._brokers = {broker.id: (broker.host, broker.port) for broker in config.brokers}
        self._consumer = consumer

    def addresses(self) -> Mapping[int, Address]:
        return self._brokers

    def topics(self) -> list[str]:
        raise InvalidConfig(
            "subscribePattern needs zookeeper.connect: brokers of Kafka 0.7 cannot be asked for their "
            "topics; with broker.list use subscribe or assign"
        )

    def partitions(
        self, topics: Iterable[str], brokers: Collection[int] | None = None
    ) -> list[TopicPartition]:
        asked = [broker for broker in self._brokers if brokers is None or broker in brokers]
        return sorted(
            TopicPartition(topic, number, broker)
            for topic in topics
            for broker in asked
            for number in range(self._count(broker, topic))
        )

    def cluster_id(self) -> str:
        return ""

    def group(self, name: str) -> ZooKeeperGroup:
        raise InvalidConfig(
            f"the offsets of group {name!r} need zookeeper.connect: Kafka 0.7 keeps them in ZooKeeper, "
            "and broker.list names none"
        )

    def _count(self, broker: int, topic: str) -> int:
        """The topic's partitions on a broker; for an unknown topic, the number it would have."""
        # One at a time: a broker of 0.7 logs a stack trace for each partition that it does not have.
        for number in range(MAX_PARTITIONS):
            try:
                self._consumer(broker).fetch(topic, number, 0, 0)
            except UnknownTopicOrPartition:
                return number
            except OffsetOutOfRange:
                # Offset 0 has aged out, so the partition exists.
                continue
        return MAX_PARTITIONS


log = logging.getLogger(__name__)

_MOST_SEGMENTS = 1 << 16
_FIRST_ENTRY_BYTES = 1 << 12
_PAUSE_SECONDS = 0.1
_LEAST_FETCH_BYTES = 64
_MOST_CHECKED_BYTES = 64 << 20
"""Limit of entries checked above ``max.message.size``: they may be sound, or their length damaged."""


class Kafka07Cluster(SourceCluster):
    """*Not thread-safe.* Brokers of Kafka 0.7; a partition ends where its broker has flushed it."""

    protocol = PROTOCOL_07
    engine: EngineName = "auto"

    def __init__(
        self,
        options: SourceOptions,
        config: Source07Config,
        brokers: Mapping[int, str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``brokers``: addresses by id from the task's plan; nobody is then asked for them."""
        super().__init__(options, clock)
        self.config = config
        self._registry = (
            ZooKeeperRegistry(config) if config.zookeeper_connect else ListedBrokers(config, self.consumer)
        )
        self._planned = {id: parse_address(address) for id, address in brokers.items()}
        self._found: Mapping[int, Address] | None = None
        self._consumers: dict[int, SimpleConsumer] = {}

    def close(self) -> None:
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.close()

    def leaders(self, *, missing_ok: bool = False) -> Mapping[TopicPartition, int]:
        return {p: p.broker for p in self._retry(lambda: self._partitions(missing_ok))}

    def address_of(self, broker: int) -> str:
        return self._retry(lambda: peer_name(*self._address(broker)))

    def broker_addresses(self) -> Mapping[str, int]:
        return {peer_name(*address): id for id, address in self._retry(self._addresses).items()}

    def consumer(self, broker: int) -> SimpleConsumer:
        if broker not in self._consumers:
            self._consumers[broker] = SimpleConsumer(*self._address(broker), self.config, clock=self.clock)
        return self._consumers[broker]

    def lost(self, partition: TopicPartition, e: ConnectionLost) -> ConnectionLost:
        broker = partition.broker
        if broker not in self._planned:
            return ConnectionLost(f"{partition}, of broker {broker}: {e}")
        return ConnectionLost(
            f"{partition}: broker {broker} was at {self.address_of(broker)} when this read was planned, and "
            f"does not answer there: {e}. If it is at another address now, a new load() finds it"
        )

    def offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The start of the newest segment written to at or before each time: misses nothing written since."""
        offsets = {}
        for partition, timestamp in asked.items():
            try:
                offsets[partition] = self._retry(partial(self._offset, partition, timestamp))
            except ConnectionLost as e:
                raise self.lost(partition, e) from e
        return offsets

    def check_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, offset in sorted(positions.items()):
            if offset > 0 and offset not in self._segment_starts(partition):
                self._retry(partial(self._check_position, partition, offset))

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Like `split_at`, at the starts of segments: other entries are not known before they are read."""
        from pyspark_kafkalog.datasource.reading.task_ranges import split_at

        options = self.options
        if options.max_records is not None:
            raise InvalidConfig(NO_MAX_RECORDS)
        partitions = sorted({r.topic_partition for r in ranges}) if options.splits else ()
        starts = {p: self._segment_starts(p) for p in partitions}
        return split_at(ranges, starts, min_partitions=options.min_partitions, max_size=options.max_bytes)

    def cap(self, ranges: Sequence[OffsetRange], load: LoadOptions) -> list[OffsetRange]:
        from pyspark_kafkalog.datasource.reading.task_ranges import cap_at

        if load.max_bytes is None:
            return list(ranges)
        starts = {r.topic_partition: self._segment_starts(r.topic_partition) for r in ranges}
        return cap_at(ranges, starts, load.max_bytes)

    def facts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        from pyspark_kafkalog.ledger.plan import UNKNOWN, PartitionFacts

        missing = sorted(set(partitions) - self._retry(lambda: self._existing(partitions)))
        if missing:
            names = ", ".join(map(str, missing))
            raise UnknownTopicOrPartition(f"not found by {self.config.place} any more: {names}")
        return {
            p: PartitionFacts("", p.broker, self.address_of(p.broker), UNKNOWN, *self.log_range(p))
            for p in partitions
        }

    def cluster_id(self) -> str:
        return self._retry(self._registry.cluster_id)

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        stored, asked = self._registry.group(group), list(partitions)
        return self._retry(lambda: stored.offsets(asked))

    def commit_group(
        self,
        group: str,
        positions: Mapping[TopicPartition, int],
        *,
        metadata: str = "",  # noqa: ARG002
    ) -> None:
        self._registry.group(group).commit(positions)

    def _read(
        self,
        wanted: OffsetRange,
        columns: tuple[str, ...],
        on_skip: OnOffsets,
        first: object,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        return _RangeRead07(self, wanted, columns, on_skip).batches()

    def _partitions(self, missing_ok: bool) -> list[TopicPartition]:
        subscription = self.options.subscription
        if isinstance(subscription, Assign):
            existing = self._existing(subscription.partitions)
            return assigned(subscription, existing, missing_ok=missing_ok)
        if isinstance(subscription, SubscribePattern):
            return self._registry.partitions(filter(subscription.matches, self._registry.topics()))
        found = self._registry.partitions(subscription.topics)
        for topic in sorted(set(subscription.topics) - {p.topic for p in found}):
            if not missing_ok:
                raise UnknownTopicOrPartition(f"topic {topic!r} is on no live broker of {self.config.place}")
        return found

    def _existing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        asked = set(partitions)
        return set(self._registry.partitions({p.topic for p in asked}, {p.broker for p in asked}))

    def _segment_starts(self, partition: TopicPartition) -> list[int]:
        """The offsets at which the log's segments begin, and its end; the largest first."""
        return self._retry(
            lambda: self.consumer(partition.broker).get_offsets_before(
                partition.topic, partition.partition, LATEST_TIMESTAMP, _MOST_SEGMENTS
            )
        )

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
            raise InvalidConfig(_no_entry_at(partition, offset, e)) from e

    def _addresses(self) -> Mapping[int, Address]:
        if self._found is None:
            self._found = self._registry.addresses()
        return self._found

    def _address(self, broker: int) -> Address:
        if broker in self._planned:
            return self._planned[broker]
        found = self._addresses().get(broker)
        if found is None:
            raise ConnectionLost(f"broker {broker} is not among those of {self.config.place}: is it running?")
        return found

    def _reconnect(self) -> None:
        """A broker may have come back at another address."""
        self.close()
        self._found = None


def _no_entry_at(partition: TopicPartition, offset: int, found: Exception) -> str:
    return (
        f"{partition}: no message begins at offset {offset}: {found}. Offsets of Kafka 0.7 are byte "
        "positions: give one at which a message begins, as in the column offset, or -2 for the earliest. If "
        "this is one, the log is damaged there, or the message is larger than kafka.max.message.size"
    )


class _RangeRead07:
    """*Not thread-safe.* All messages of the entries that begin in the range, even if it ends in one."""

    def __init__(
        self, cluster: Kafka07Cluster, wanted: OffsetRange, columns: tuple[str, ...], on_skip: OnOffsets
    ) -> None:
        self._cluster, self._options, self._config = cluster, cluster.options, cluster.config
        self._where, self._start, self._end = wanted.topic_partition, wanted.start, wanted.end
        self._columns, self._on_skip = columns, on_skip
        self._position = wanted.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        skips, decoder = self._options.skip_corrupt, self._decoder()
        try:
            while self._position < self._end:
                decoder.given_to = self._position
                try:
                    data = self._fetch()
                    self._position = yield from decoder.stream(data, self._position, self._end, whole=skips)
                except CORRUPT as e:
                    if not skips:
                        raise
                    self._position = decoder.given_to
                    self._position = yield from self._around_corruption(e)
        except OffsetOutOfRange as e:
            raise self._gone(e.start, e.end) from e
        except RequestTimedOut as e:
            # No data: either it is late, or the log ends before the range does.
            start, end = self._cluster.log_range(self._where)
            if start <= self._position < end:
                raise
            raise self._gone(start, end) from e

    def _gone(self, start: int, end: int) -> OffsetsGone:
        return OffsetsGone(OffsetRange(self._where, self._position, self._end), start, end)

    def _decoder(self) -> RecordBatchDecoder:
        # Imported here: planning decodes nothing.
        from pyspark_kafkalog.columnar.decoder import KAFKA_07, RecordBatchDecoder

        return RecordBatchDecoder(
            KAFKA_07,
            topic=self._where.topic,
            partition=self._where.partition,
            columns=self._columns,
            broker=self._where.broker,
            engine=self._cluster.engine,
            max_batch_bytes=self._config.max_decompressed_bytes,
        )

    def _around_corruption(self, cause: KafkaError) -> Generator[pa.RecordBatch, None, int]:
        """Fetches once more through a new connection; skips the entry that is still corrupt."""
        start = position = self._position
        decoder = self._decoder()
        log.info("%s: reading from offset %d again, by a new connection: %s", self._where, start, cause)
        self._cluster.close()
        most = self._config.max_message_size
        data = self._bytes(start)
        while position < self._end:
            at = position - start
            entry = sound_entry(data, at, _MOST_CHECKED_BYTES)
            if entry is None and at > 0 and len(data) - at < most + ENTRY_HEADER_BYTES:
                return position  # perhaps only cut short: the next fetch begins with it
            try:
                if entry is None:
                    raise cause if at == 0 else CorruptMessage("no sound entry begins there")
                found = decoder.decode(data[at : entry.end], position, self._end)
            except CORRUPT as e:
                if entry is None:
                    self._check_size(position, data[at:], e)
                after = position + entry.size if entry is not None else self._next(data, start, at)
                after = min(after, self._end)
                text = "%s: offsets [%d, %d) are skipped as corrupt (onCorruptBatch=skip): %s"
                log.warning(text, self._where, position, after, e)
                self._on_skip(position, after)
                return after
            yield from found.batches
            position = found.next_offset
        return position

    def _check_size(self, position: int, data: memoryview, cause: KafkaError) -> None:
        """Raise ``cause`` if an entry is sound and only too large to read: then nothing is damaged."""
        try:
            header = entry_header(data, 0)
        except CorruptMessage:
            return
        if header is None or not len(data) < header[1] <= _MOST_CHECKED_BYTES:
            return
        if sound_entry(self._fetch_bytes(position, header[1]), 0, _MOST_CHECKED_BYTES) is not None:
            raise cause

    def _next(self, data: memoryview, start: int, at: int) -> int:
        most = self._config.max_message_size
        while True:
            found = next_sound_entry(data, at, most)
            if found is not None:
                return start + found
            # An entry that began in the first half of these bytes would be whole.
            start += max(at + 1, len(data) - most - ENTRY_HEADER_BYTES)
            if start >= self._end:
                return self._end
            data, at = self._bytes(start), 0
            if sound_entry(data, 0, most) is not None:
                return start

    def _bytes(self, position: int) -> memoryview:
        """Enough for an entry that begins in the first half, up to the log's end."""
        config = self._config
        size = max(config.fetch_size, 2 * (config.max_message_size + ENTRY_HEADER_BYTES))
        return self._fetch_bytes(position, size)

    def _fetch_bytes(self, position: int, size: int) -> memoryview:
        consumer = self._cluster.consumer(self._where.broker)
        return consumer.fetch_bytes(self._where.topic, self._where.partition, position, size)

    def _fetch(self) -> memoryview:
        """One or more whole entries from the position on; verifies the first of the range."""
        position = self._position
        try:
            data = self._ask(position, self._end - position)
            if position == self._start:
                verify_entry(next(entries(data)))
            return data
        except (CorruptMessage, MessageTooLarge) as e:
            if position > self._start:
                raise
            raise CorruptMessage(_no_entry_at(self._where, position, e)) from e

    def _ask(self, position: int, left: int) -> memoryview:
        cluster, where, timeout_ms = self._cluster, self._where, self._options.poll_timeout_ms
        deadline = Deadline.after(timeout_ms / 1000, cluster.clock)
        # Bytes after the range belong to another task, or to none.
        size = min(self._config.fetch_size, max(left, _LEAST_FETCH_BYTES))
        while True:
            failure: KafkaError = RequestTimedOut(
                f"{where}: nothing came at offset {position} within {timeout_ms} ms "
                "(kafkaConsumer.pollTimeoutMs)"
            )
            try:
                found = cluster.consumer(where.broker).fetch(where.topic, where.partition, position, size)
                if found.data:
                    return found.data
            except ConnectionLost as e:
                failure = cluster.lost(where, e)
            if deadline.passed:
                raise failure
            cluster.clock.sleep(_PAUSE_SECONDS)
