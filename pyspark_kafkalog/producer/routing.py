"""Topics and leaders as the producer knows them, and the partition and queue of each record."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from struct import Struct

from pyspark_kafkalog.client.connection import Address, Connection
from pyspark_kafkalog.client.discovery import NO_LEADER, Cluster, ClusterMetadata, TopicMetadata
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import ProducerEpoch
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    KafkaError,
    UnknownTopicOrPartition,
    error_for,
    reason,
)
from pyspark_kafkalog.producer.accumulator import Accumulator, PartitionQueue
from pyspark_kafkalog.producer.columns import ANYWHERE, ArrowRows, Columns, Rows
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest, InitProducerIdResponse
from pyspark_kafkalog.types import TopicPartition


class ProducerMetadata:
    """*Thread-safe.* Owns the producer's `Cluster`, guarded by a lock held during its I/O. The view is
    replaced as a whole, with its ``version``, so reads need no lock.
    """

    def __init__(self, config: ProducerConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.version = 0
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._cluster = Cluster(config, clock=clock)
        self._names: set[str] = set()
        self._view = ClusterMetadata(None, -1, {}, {})
        self._learned_at = clock.monotonic()
        self.stale = False  # whether the metadata proved wrong, and is due
        self._closed = False

    def topic(self, name: str, deadline: Deadline) -> TopicMetadata:
        """A topic's partitions; waits for them if unknown. The broker may create the topic."""
        known = self._view.topics.get(name)
        if known is not None and known.partitions:
            return known
        with self._held(deadline, f"looking up topic {name}"):
            attempts = self._cluster.retrying(f"looking up topic {name}", deadline)
            while True:
                try:
                    found = self._learn([*self._names, name], deadline).topics[name]
                    if found.error == ErrorCode.NONE and found.partitions:
                        return found
                    error = found.error or ErrorCode.LEADER_NOT_AVAILABLE
                    unknown = error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    why = "it does not exist" if unknown else reason(error, "Describe", topic=name)
                    raise error_for(error, f"topic {name}: {why}")
                except KafkaError as e:
                    attempts.failed(e)

    def leader(self, tp: TopicPartition) -> int | None:
        topic = self._view.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        if partition is None or partition.leader == NO_LEADER or partition.leader not in self._view.brokers:
            return None
        return partition.leader

    def address(self, node_id: int) -> Address | None:
        return self._view.brokers.get(node_id)

    def due(self, now: float) -> bool:
        age = now - self._learned_at
        return bool(self._names) and (self.stale or age >= self._config.metadata_max_age_ms / 1000)

    def refresh(self) -> None:
        """Refresh every topic in use within ``request.timeout.ms``. Raises `ConnectionLost`."""
        deadline = self._deadline()
        with self._held(deadline, "refreshing topics"):
            self._learn([*self._names], deadline)

    def new_identity(self) -> ProducerEpoch:
        deadline = self._deadline()
        request = InitProducerIdRequest(transaction_timeout_ms=self._config.transaction_timeout_ms)

        def ask(connection: Connection) -> InitProducerIdResponse:
            answer: InitProducerIdResponse = connection.request(request, deadline=deadline)
            if answer.error_code != ErrorCode.NONE:
                why = reason(answer.error_code, "IdempotentWrite")
                if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and self._names:
                    # Since Kafka 2.8 Write on any topic includes this right.
                    topics = ", ".join(sorted(self._names))
                    why = f"this needs Write on topic {topics}, and before Kafka 2.8 IdempotentWrite too"
                raise error_for(answer.error_code, f"{connection.peer}: no producer id: {why}")
            return answer

        with self._held(deadline, "requesting a producer id"):
            answer = self._cluster.call("requesting a producer id", ask, deadline)
        return ProducerEpoch(answer.producer_id, answer.producer_epoch)

    def close(self) -> None:
        """Close the connections, at once or after the current look-up. Does not wait."""
        self._closed = True
        self._cluster.give_up()
        if self._lock.acquire(blocking=False):
            self._cluster.close()
            self._lock.release()

    @contextmanager
    def _held(self, deadline: Deadline, doing: str) -> Iterator[None]:
        """Hold the lock; wait for it until ``deadline``, as its holder may be waiting for a broker."""
        if not self._lock.acquire(timeout=deadline.left):
            raise ConnectionLost(f"{doing}: another look-up is still waiting for a broker")
        try:
            yield
        finally:
            if self._closed:
                self._cluster.close()
            self._lock.release()

    def _deadline(self) -> Deadline:
        return Deadline.after(self._config.request_timeout_ms / 1000, self._clock)

    def _learn(self, names: list[str], deadline: Deadline) -> ClusterMetadata:
        """Look up ``names`` and publish the result. Caller holds the lock."""
        self.stale = False
        try:
            view = self._cluster.metadata(names, refresh=True, allow_auto_creation=True, deadline=deadline)
        except KafkaError:
            self.stale = True
            raise
        self._names.update(name for name, topic in view.topics.items() if topic.partitions)
        self._learned_at = self._clock.monotonic()
        changed = (view.topics, view.brokers) != (self._view.topics, self._view.brokers)
        self._view = view
        if changed:
            self.version += 1
        return view


_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_CACHED_KEYS = 10_000


@lru_cache(maxsize=256)
def _words(count: int) -> Struct:
    return Struct(f"<{count}I")


def murmur2(data: bytes) -> int:
    """MurmurHash2 (Austin Appleby, public domain) with the seed of Kafka's ``Utils.murmur2``; unsigned."""
    length = len(data)
    whole = length >> 2
    h = _SEED ^ length
    for word in _words(whole).unpack_from(data):
        k = word * _MULTIPLIER & _MASK
        h = h * _MULTIPLIER & _MASK ^ ((k ^ k >> 24) * _MULTIPLIER & _MASK)
    if length & 3:
        h = (h ^ int.from_bytes(data[whole << 2 :], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


def partition_for(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def key_partitioner(partition_count: int) -> Callable[[bytes], int]:
    """`partition_for` with a cache, as it takes microseconds. *Thread-safe.*"""
    return lru_cache(_CACHED_KEYS)(partial(partition_for, partition_count=partition_count))


class StickyPartitioner:
    """*Thread-safe.* Partition for records without a key; kept until `moved`, to fill batches (KIP-480)."""

    def __init__(self, partitions: Sequence[int], seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._choices = list(partitions)
        self.current = self._random.choice(self._choices)

    def moved(self) -> int:
        others = [partition for partition in self._choices if partition != self.current]
        if others:
            self.current = self._random.choice(others)
        return self.current


class Route:
    """*Thread-safe.* One topic's queues. Threads racing in `sticky` may move a record early or late."""

    def __init__(
        self,
        topic: str,
        version: int,
        queues: Mapping[int, PartitionQueue],
        sticky: StickyPartitioner,
        config: ProducerConfig,
    ) -> None:
        self.topic, self.version, self.queues = topic, version, queues
        self.by_key = None if config.partitioner_ignore_keys else key_partitioner(len(queues))
        self._sticky = sticky
        self.current = queues[sticky.current]
        """Queue for records without key or partition while its open batch has room; see `sticky`."""
        self.spread_bytes = 0  # bytes appended to it since it was chosen; callers add to this
        self.batch_size = max(config.batch_size, 1)
        self._stay_bytes = config.partitioner_sticky_bytes or self.batch_size
        self._moves_when_full = not config.partitioner_sticky_bytes

    @classmethod
    def of(
        cls,
        topic: TopicMetadata,
        version: int,
        accumulator: Accumulator,
        config: ProducerConfig,
        previous: Route | None,
    ) -> Route:
        """The route to a topic; keeps the previous sticky partition if it still exists."""
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
        try:
            return self.queues[partition]
        except KeyError:
            raise UnknownTopicOrPartition(
                f"{self.topic}-{partition}: no such partition; topic {self.topic} has {len(self.queues)}"
            ) from None

    def sticky(self, size: int) -> PartitionQueue:
        """The queue for a record without key or partition; changes only between batches, to fill them."""
        batch = self.current.open
        if batch is None or batch.size + size > self.batch_size:
            full = batch is not None and self._moves_when_full
            if full or self.spread_bytes >= self._stay_bytes:
                self.spread_bytes = 0
                self.current = self.queues[self._sticky.moved()]
        return self.current

    def parts(self, rows: Rows) -> Iterator[tuple[PartitionQueue | None, Rows]]:
        """The rows of each queue; None for those that `sticky` decides. Raises before yielding anything."""
        if isinstance(rows, ArrowRows):
            numbered = rows.by_partition(len(self.queues), by_key=self.by_key is not None)
            if len(numbered) > 1 and numbered[0][0] == ANYWHERE:
                # They may share a partition with other rows and must stay in order, so all go to the same
                # one.
                size = numbered[0][1].size(0, len(numbered[0][1]))
                number = self.sticky(size).tp.partition
                self.spread_bytes += size
                numbered = rows.by_partition(
                    len(self.queues), by_key=self.by_key is not None, otherwise=number
                )
            yield from [(None if n == ANYWHERE else self.queue(n), own) for n, own in numbered]
            return
        if rows.partitions is None and (rows.keys is None or self.by_key is None):
            yield None, rows
            return
        chosen: dict[PartitionQueue, list[int]] = {}
        for row, queue in enumerate(self.choose(rows)):
            chosen.setdefault(queue, []).append(row)
        for queue, indexes in chosen.items():
            yield queue, rows if len(indexes) == len(rows) else rows.select(indexes)

    def choose(self, rows: Columns) -> Iterator[PartitionQueue]:
        """The queue of each row: its partition's, else its key's, else the sticky one."""
        keys, by_key = rows.keys, self.by_key
        for row in range(len(rows)):
            partition = rows.partitions[row] if rows.partitions is not None else None
            if partition is not None:
                yield self.queue(partition)
            elif keys is not None and by_key is not None and (key := keys[row]) is not None:
                yield self.queues[by_key(key)]
            else:
                size = rows.size(row, row + 1)
                yield self.sticky(size)
                self.spread_bytes += size
