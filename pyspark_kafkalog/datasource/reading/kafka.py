"""Reads clusters over the wire since 0.8: partitions, offsets, and ranges as record batches.

`open_cluster` chooses between this wire and that of Kafka 0.7, in `kafka07`.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark_kafkalog.client.corrupt_batches import CORRUPT, Detour
from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata, TopicMetadata
from pyspark_kafkalog.client.fetcher import Fetched, FirstAnswer, FirstFetches, PartitionFetcher
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import Source07Config
from pyspark_kafkalog.config.client_config import ClientConfig, ConsumerConfig
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions, LoadOptions, SourceOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    GlobalTimestamp,
    PartitionTimestamps,
    SubscribePattern,
)
from pyspark_kafkalog.datasource.reading.source_cluster import (
    Begun,
    OffsetRange,
    OffsetsGone,
    OnOffsets,
    SmallRanges,
    SourceCluster,
    assigned,
)
from pyspark_kafkalog.errors import (
    ErrorCode,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
    error_for,
    reason,
)
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.types import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    PROTOCOL_08,
    IsolationLevel,
    TopicPartition,
    encode_id,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
    from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
    from pyspark_kafkalog.formats.message_set import AbortedTransactions
    from pyspark_kafkalog.ledger.plan import PartitionFacts
    from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup


class KafkaCluster(SourceCluster):
    """*Not thread-safe.* Kafka since 0.8. With read_committed a partition ends at its last stable offset."""

    protocol = PROTOCOL_08

    def __init__(
        self,
        options: SourceOptions,
        config: ConsumerConfig,
        clock: Clock = SYSTEM_CLOCK,
        *,
        answered_before: bool = False,
    ) -> None:
        """``answered_before``: see `ClientConfig`; of the planner that created this task."""
        super().__init__(options, clock)
        self.config = config
        self.client = IDLE_CLUSTERS.take(config)
        self.client.answered_before = answered_before

    def close(self) -> None:
        self.client.close()

    def release(self) -> None:
        IDLE_CLUSTERS.give_back(self.client)

    def leaders(self, *, missing_ok: bool = False) -> Mapping[TopicPartition, int]:
        return self._retry(lambda: self._leaders(missing_ok))

    def address_of(self, broker: int) -> str:  # noqa: ARG002
        """Empty: a task asks for its partition's current leader."""
        return ""

    def offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Brokers before 0.10.1 answer with an earlier offset: see `list_offsets`."""
        return self._retry(lambda: self._list_offsets(asked, self.config.isolation))

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        # Imported here: tasks do not split.
        from pyspark_kafkalog.datasource.reading.task_ranges import split_by_bytes, split_ranges

        options = self.options
        if options.max_bytes is not None:
            most = options.max_bytes
            ranges = self._retry(lambda: split_by_bytes(self.client, ranges, most))
        return split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records)

    def cap(self, ranges: Sequence[OffsetRange], load: LoadOptions) -> list[OffsetRange]:
        from pyspark_kafkalog.datasource.reading.task_ranges import (
            by_partition,
            cap_bytes,
            cap_offsets,
            sample,
        )

        if load.max_records is not None:
            ranges = cap_offsets(ranges, load.max_records)
        if load.max_bytes is not None:
            asked = by_partition(ranges)
            ranges = cap_bytes(ranges, self._retry(lambda: sample(self.client, asked)), load.max_bytes)
        return list(ranges)

    def facts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        """The ends are the log's own, even with open transactions. Each leader is asked twice."""

        def edge(offset: int) -> Mapping[TopicPartition, int]:
            asked = dict.fromkeys(partitions, offset)
            return self._retry(lambda: self._list_offsets(asked, IsolationLevel.READ_UNCOMMITTED))

        earliest, latest = edge(EARLIEST_OFFSET), edge(LATEST_OFFSET)
        seen = self._retry(lambda: self._metadata(partitions))
        # Only a load's plan asks; tasks do not import the ledger.
        from pyspark_kafkalog.ledger.plan import PartitionFacts

        facts = {}
        for p in partitions:
            topic = seen.topics[p.topic]
            leader, epoch = topic.partitions[p.partition].leader, topic.partitions[p.partition].leader_epoch
            address = peer_name(*seen.brokers[leader]) if leader in seen.brokers else ""
            facts[p] = PartitionFacts(_topic_id(topic), leader, address, epoch, earliest[p], latest[p])
        return facts

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, str]:
        seen = self._retry(lambda: self._metadata(partitions))
        return {name: _topic_id(topic) for name, topic in seen.topics.items() if _topic_id(topic)}

    def cluster_id(self) -> str:
        return self._retry(lambda: self.client.metadata([], refresh=True)).cluster_id or ""

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked, store = list(partitions), self.options.group_store
        if store is not None:
            stored = _zookeeper_group(store, group)
            return self._retry(lambda: stored.offsets(asked))
        return {p: offset for p, (offset, _) in self.group_metadata(group, asked).items()}

    def group_metadata(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        if self.options.group_store is not None:
            return {}
        from pyspark_kafkalog.client import groups  # tasks never ask for these

        asked = list(partitions)
        found = self._retry(lambda: groups.committed_offsets(self.client, group, asked))
        return {p: (committed.offset, committed.metadata) for p, committed in found.items()}

    def commit_group(
        self, group: str, positions: Mapping[TopicPartition, int], *, metadata: str = ""
    ) -> None:
        store = self.options.group_store
        if store is None:
            from pyspark_kafkalog.client import groups

            groups.commit_offsets(self.client, group, positions, metadata=metadata)
        else:
            _zookeeper_group(store, group).commit(positions)

    def begin_small(self, asked: Sequence[OffsetRange], starts: Mapping[TopicPartition, int]) -> SmallRanges:
        once = {one.topic_partition: one for one in reversed(asked)}
        starts = self.resolve({p: starts.get(p, one.start) for p, one in once.items()})
        ends = self.resolve({p: one.end for p, one in once.items()})
        wanted = {p: OffsetRange(p, starts[p], ends[p]) for p in once if starts[p] < ends[p]}
        fetches = FirstFetches(self.client, {p: one.start for p, one in wanted.items()}, self.config)
        return _FetchedRanges(once, wanted, fetches)

    def _read(
        self, wanted: OffsetRange, columns: tuple[str, ...], on_skip: OnOffsets, first: FirstAnswer | None
    ) -> Iterator[pa.RecordBatch]:
        return _RangeRead(self, wanted, columns, on_skip, first).batches()

    def _metadata(self, partitions: Collection[TopicPartition]) -> ClusterMetadata:
        seen = self.client.metadata(sorted({p.topic for p in partitions}), refresh=True)
        missing = [str(p) for p in sorted(partitions) if p.partition not in seen.topics[p.topic].partitions]
        if missing:
            servers = self.config.bootstrap_servers
            raise UnknownTopicOrPartition(f"not on {servers} any more: {', '.join(missing)}")
        return seen

    def _list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, int]:
        # An old broker's answer is good enough for a start; as an end it would leave out records.
        end = self.options.end if isinstance(self.options, BatchOptions) else None
        only_starts = not isinstance(end, (GlobalTimestamp, PartitionTimestamps))
        found = list_offsets(self.client, asked, isolation=isolation, by_segment=only_starts)
        return {partition: answer.offset for partition, answer in found.items()}

    def _leaders(self, missing_ok: bool) -> Mapping[TopicPartition, int]:
        subscription = self.options.subscription
        if isinstance(subscription, SubscribePattern):
            every = self.client.metadata(None, refresh=True).topics
            topics = {n: t for n, t in every.items() if not t.is_internal and subscription.matches(n)}
            return self._partitions(topics, missing_ok)
        named = self.client.metadata(sorted(subscription.names), refresh=True).topics
        leaders = self._partitions(named, missing_ok)
        if isinstance(subscription, Assign):
            return {p: leaders[p] for p in assigned(subscription, leaders, missing_ok=missing_ok)}
        return leaders

    def _partitions(self, topics: Mapping[str, TopicMetadata], missing_ok: bool) -> dict[TopicPartition, int]:
        servers = self.config.bootstrap_servers
        leaders: dict[TopicPartition, int] = {}
        for name, topic in topics.items():
            if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                why = reason(topic.error, "Describe", topic=name)
                raise error_for(topic.error, f"topic {name!r} on {servers}: {why}")
            if not topic.partitions and not missing_ok:
                raise UnknownTopicOrPartition(f"topic {name!r} is not on {servers}")
            leaders |= {
                TopicPartition(name, n): partition.leader for n, partition in topic.partitions.items()
            }
        return leaders


def _zookeeper_group(store: ZooKeeperConfig, group: str) -> ZooKeeperGroup:
    # kazoo is imported only if needed.
    from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup

    return ZooKeeperGroup(store, group, PROTOCOL_08)


def _topic_id(topic: TopicMetadata) -> str:
    return encode_id(topic.topic_id) if topic.topic_id.int else ""


class _FetchedRanges(SmallRanges):
    def __init__(
        self,
        asked: Mapping[TopicPartition, OffsetRange],
        wanted: Mapping[TopicPartition, OffsetRange],
        fetches: FirstFetches,
    ) -> None:
        self._asked, self._wanted, self._fetches = asked, wanted, fetches

    def begun(self) -> Mapping[OffsetRange, Begun]:
        """A larger range is read at its turn: until then retention may take what follows the first answer."""
        found = self._fetches.answers()
        return {
            self._asked[p]: Begun(self._wanted[p], first)
            for p, first in found.items()
            if first.end >= self._wanted[p].end
        }

    def drop(self) -> None:
        self._fetches.drop()


class _RangeRead:
    """*Not thread-safe.* Reads one range from the partition's leader."""

    def __init__(
        self,
        cluster: KafkaCluster,
        wanted: OffsetRange,
        columns: tuple[str, ...],
        on_skip: OnOffsets,
        first: FirstAnswer | None,
    ) -> None:
        self._first = first
        self._cluster, self._options, self._client = cluster, cluster.options, cluster.client
        self._where, self._start, self._end = wanted.topic_partition, wanted.start, wanted.end
        self._columns, self._on_skip = columns, on_skip
        self._position = wanted.start
        """The first offset whose row was not yielded."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range. Raises `OffsetsGone` before any row of the lost offsets."""
        try:
            while self._position < self._end:
                try:
                    yield from self._fetched()
                except CORRUPT as e:
                    if not self._options.skip_corrupt:
                        raise
                    detour, follows = self._detour(), self._position > self._start
                    self._position = yield from detour.around(self._position, self._end, e, follows=follows)
        except OffsetOutOfRange as e:
            raise self._gone(e.start, e.end) from e
        except UnknownTopicOrPartition as e:
            # It was missing for as long as a step may take, and existed when the range was planned.
            raise self._gone(0, 0) from e
        except RequestTimedOut as e:
            # No data: either it is late, or the log ends before the range does.
            start, end = self._cluster.log_range(self._where)
            if start <= self._position < end:
                raise
            raise self._gone(start, end) from e

    def _fetched(self) -> Iterator[pa.RecordBatch]:
        options, start = self._options, self._position
        first, self._first = self._first, None
        fetcher = PartitionFetcher(
            self._client,
            self._where,
            start,
            self._end,
            config=self._cluster.config,
            poll_timeout_ms=options.poll_timeout_ms,
            first=first,
        )
        decoder, decodes_for = None, None
        try:
            for fetched in fetcher:
                self._check_gap(fetched)
                if decoder is None or decodes_for != fetched.broker_id:
                    decoder, decodes_for = self._decoder(fetched.broker_id), fetched.broker_id
                try:
                    self._position = yield from decoder.stream(
                        fetched.data,
                        self._position,
                        self._end,
                        fetched.aborted,
                        fetched.expected,
                        whole=options.skip_corrupt,
                    )
                except CORRUPT:
                    self._position = decoder.given_to
                    raise
                fetcher.advance(self._position)
        finally:
            fetcher.close()

    def _detour(self) -> Detour[pa.RecordBatch]:
        def decode(
            entry: memoryview,
            start: int,
            end: int,
            aborted: AbortedTransactions,
            place: ExpectedOffsets,
            broker: int,
        ) -> tuple[list[pa.RecordBatch], int]:
            found = self._decoder(broker).decode(entry, start, end, aborted, place)
            return found.batches, found.next_offset

        options = self._options
        return Detour(
            self._client, self._where, self._cluster.config, options.poll_timeout_ms, decode, self._on_skip
        )

    def _decoder(self, broker: int) -> RecordBatchDecoder:
        # Imported here: planning decodes nothing.
        from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder

        return RecordBatchDecoder(
            topic=self._where.topic,
            partition=self._where.partition,
            columns=self._columns,
            broker=broker,
            read_committed=self._cluster.config.isolation is IsolationLevel.READ_COMMITTED,
        )

    def _check_gap(self, fetched: Fetched) -> None:
        """Retention may remove offsets between two fetches: then the first frame is beyond the position.
        While the log still starts at or before the position, a gap is no loss: compaction leaves gaps.
        """
        if fetched.log_start_offset <= self._position:
            return
        first = next(message_set.frames(fetched.data), None)
        if first is not None and first.first_offset > self._position:
            raise self._gone(fetched.log_start_offset, fetched.high_watermark)

    def _gone(self, start: int, end: int) -> OffsetsGone:
        return OffsetsGone(OffsetRange(self._where, self._position, self._end), start, end)


CAPACITY = 16
"""Clusters kept at once; the one idle longest goes first."""
KEPT_SECONDS = 60.0
"""How long one stays: shorter than brokers keep idle connections (``connections.max.idle.ms``, 10 min)."""


class IdleClusters:
    """*Thread-safe.* Idle clusters by client properties. A forked process begins with none."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: deque[tuple[Cluster, float]] = deque()  # idle since when, oldest first
        self._process = os.getpid()

    def take(self, config: ClientConfig) -> Cluster:
        with self._lock:
            self._drop_old()
            idle = next((idle for idle in reversed(self._idle) if idle[0].config == config), None)
            if idle is None:
                return Cluster(config, clock=self._clock)
            self._idle.remove(idle)
        idle[0].drop_lost()
        return idle[0]

    def give_back(self, cluster: Cluster) -> None:
        with self._lock:
            self._drop_old()
            self._idle.append((cluster, self._clock.monotonic()))
            while len(self._idle) > CAPACITY:
                self._idle.popleft()[0].close()

    def clear(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.popleft()[0].close()

    def _drop_old(self) -> None:
        if self._process != os.getpid():
            # They are the parent's, not ours to use or to close.
            self._idle.clear()
            self._process = os.getpid()
        oldest = self._clock.monotonic() - KEPT_SECONDS
        while self._idle and self._idle[0][1] < oldest:
            self._idle.popleft()[0].close()


IDLE_CLUSTERS = IdleClusters()
atexit.register(IDLE_CLUSTERS.clear)


@contextmanager
def opened_cluster(
    options: SourceOptions, brokers: Mapping[int, str] | None = None, *, is_task: bool = False
) -> Iterator[SourceCluster]:
    """`open_cluster` for one piece of work; keeps the connections for the next one unless this one fails."""
    cluster = open_cluster(options, brokers, is_task=is_task)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    cluster.release()


def open_cluster(
    options: SourceOptions, brokers: Mapping[int, str] | None = None, *, is_task: bool = False
) -> SourceCluster:
    """``is_task``: it has answered the planner. ``brokers``: a plan's, by id; ZooKeeper is then not asked."""
    if isinstance(options.wire, Source07Config):
        from pyspark_kafkalog.datasource.reading.kafka07 import Kafka07Cluster

        return Kafka07Cluster(options, options.wire, brokers or {})
    return KafkaCluster(options, options.wire, answered_before=is_task)
