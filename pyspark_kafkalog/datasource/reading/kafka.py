"""Reads clusters over the wire since 0.8: partitions, offsets, and ranges as record batches."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark_kafkalog.client.corrupt_batches import CORRUPT, Detour
from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata, TopicMetadata
from pyspark_kafkalog.client.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.config.client07 import PROTOCOL_08
from pyspark_kafkalog.datasource.options.read_options import BatchOptions, SourceOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    GlobalTimestamp,
    PartitionTimestamps,
    SubscribePattern,
)
from pyspark_kafkalog.datasource.reading import splitting
from pyspark_kafkalog.datasource.reading.source_cluster import Gone, RangeReader, again, ignore_loss
from pyspark_kafkalog.datasource.reading.splitting import OffsetRange, split_ranges
from pyspark_kafkalog.errors import (
    ErrorCode,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
    error_for,
)
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, IsolationLevel, TopicPartition, encode_id

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.columnar.batch_walk import AbortedTransactions
    from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
    from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig
    from pyspark_kafkalog.ledger.plan import PartitionFacts
    from pyspark_kafkalog.zookeeper.groups import ZooKeeperGroup

T = TypeVar("T")


class Lookup:
    """*Not thread-safe: used by one planner or one task.* Owns its connections; close it.

    Every question is asked again after a passing failure, ``fetchOffset.numRetries`` times and through new
    connections, as Spark's connector does. Offsets are those that ``kafka.isolation.level`` lets see: under
    read_committed a partition ends at its last stable offset.
    """

    def __init__(self, options: SourceOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self.cluster = IDLE_CLUSTERS.take(options.consumer)

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def release(self) -> None:
        """Let the next look-up of this process use the connections; see `SourceLookup.release`."""
        IDLE_CLUSTERS.give_back(self.cluster)

    def leaders(self, *, missing_ok: bool = False) -> Mapping[TopicPartition, int]:
        """Every partition that is to be read, with the id of the node that leads it; -1 while none does.

        Raises:
            UnknownTopicOrPartition: a topic or partition that was named is not there, or has no partitions;
                with ``missing_ok`` it is left out.
            KafkaError: the broker would not say.
        """
        return self._again(lambda: self._leaders(missing_ok))

    def offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Offset of the first record at or after each time in milliseconds; -1 where there is none.

        Of brokers before 0.10.1, which do not know it, an earlier one: see `list_offsets`.
        """
        return self._again(lambda: self._list_offsets(asked, self._options.consumer.isolation))

    def resolve(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The same offsets with `EARLIEST_OFFSET` and `LATEST_OFFSET` replaced by what they are now."""
        # ListOffsets has the same two numbers for its two edges as Spark's JSON.
        open_ends = {p: o for p, o in offsets.items() if o in (EARLIEST_OFFSET, LATEST_OFFSET)}
        found = self.offsets(open_ends) if open_ends else {}
        return {**offsets, **found}

    def log_range(self, partition: TopicPartition) -> tuple[int, int]:
        """The offsets ``[start, end)`` that the partition's log holds now."""
        start, end = (self.offsets({partition: edge})[partition] for edge in (EARLIEST_OFFSET, LATEST_OFFSET))
        return start, end

    def check_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Nothing to refuse: offsets count records, and each may be one."""

    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """First by bytes, then as `planning.split_ranges`."""
        options = self._options
        if options.max_bytes is not None:
            # Tasks never split, and readers of messages are long to import.
            from pyspark_kafkalog.datasource.reading.splitting import sample

            asked = splitting.by_partition(ranges)
            samples = self._again(lambda: sample(self.cluster, asked))
            ranges = [
                part
                for r in ranges
                for part in splitting.cut_by_bytes(r, samples.get(r.topic_partition, []), options.max_bytes)
            ]
        return split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records)

    def reader(
        self,
        columns: Sequence[str],
        on_loss: Callable[[int, int], None] = ignore_loss,
        on_skip: Callable[[int, int], None] = ignore_loss,
    ) -> RangeReader08:
        """What reads rows through these connections; see `SourceLookup.reader`."""
        # Here, for planning does without what decodes.

        return RangeReader08(tuple(columns), self._options, self, on_loss, on_skip)

    def facts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        """What a load's plan keeps of each partition: its topic's id, its leader and the ends of its log.

        Those are the log's own ends, behind open transactions too. Two questions to each leader, however many
        partitions there are.

        Raises:
            UnknownTopicOrPartition: one of them is not there (any more).
            KafkaError: the cluster could not be asked, or nobody leads a partition.
        """

        def edge(offset: int) -> Mapping[TopicPartition, int]:
            asked = dict.fromkeys(partitions, offset)
            return self._again(lambda: self._list_offsets(asked, IsolationLevel.READ_UNCOMMITTED))

        earliest, latest = edge(EARLIEST_OFFSET), edge(LATEST_OFFSET)
        seen = self._again(lambda: self._metadata(partitions))
        return {p: _facts(seen, p, earliest[p], latest[p]) for p in partitions}

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """The id of each partition's topic; empty where the broker gives topics none."""
        seen = self._again(lambda: self._metadata(partitions))
        return {p: _topic_id(seen.topics[p.topic]) for p in partitions}

    def address_of(self, broker: int) -> str:  # noqa: ARG002
        """Empty: a task asks who leads its partition by then."""
        return ""

    def broker_addresses(self) -> Mapping[str, int] | None:
        """None: a partition is not a broker's, so an address says nothing of it."""
        return None

    def cluster_id(self) -> str:
        """What the cluster calls itself; empty where it has no name."""
        return self._again(lambda: self.cluster.metadata([], refresh=True)).cluster_id or ""

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that ``group`` has committed; see `SourceLookup`."""
        asked = list(partitions)
        store = self._options.group_store
        if store is not None:
            kept = _kept_by(store, group)
            return self._again(lambda: kept.offsets(asked))
        return {p: offset for p, (offset, _) in self.noted_offsets(group, asked).items()}

    def noted_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """The same with their notes; see `SourceLookup`."""
        if self._options.group_store is not None:
            return {}
        from pyspark_kafkalog.client import groups  # tasks never ask for these

        asked = list(partitions)
        found = self._again(lambda: groups.committed_offsets(self.cluster, group, asked))
        return {p: (committed.offset, committed.metadata) for p, committed in found.items()}

    def commit_group(self, group: str, positions: Mapping[TopicPartition, int], *, note: str = "") -> None:
        """Have ``group`` stand at these offsets. Raises `KafkaError` where it may not."""
        store = self._options.group_store
        if store is None:
            from pyspark_kafkalog.client import groups

            groups.commit_offsets(self.cluster, group, positions, metadata=note)
        else:
            _kept_by(store, group).commit(positions)

    def _metadata(self, partitions: Collection[TopicPartition]) -> ClusterMetadata:
        """The cluster as far as ``partitions`` go, each of which is in it."""
        seen = self.cluster.metadata(sorted({p.topic for p in partitions}), refresh=True)
        missing = [str(p) for p in sorted(partitions) if p.partition not in seen.topics[p.topic].partitions]
        if missing:
            servers = self._options.consumer.bootstrap_servers
            raise UnknownTopicOrPartition(f"not on {servers} any more: {', '.join(missing)}")
        return seen

    def _list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, int]:
        # A broker that knows no better is good for where to begin: an end would leave out records.
        end = self._options.end if isinstance(self._options, BatchOptions) else None
        only_starts = not isinstance(end, (GlobalTimestamp, PartitionTimestamps))
        found = list_offsets(self.cluster, asked, isolation=isolation, by_segment=only_starts)
        return {partition: answer.offset for partition, answer in found.items()}

    def _leaders(self, missing_ok: bool) -> Mapping[TopicPartition, int]:
        subscription = self._options.subscription
        if isinstance(subscription, SubscribePattern):
            every = self.cluster.metadata(None, refresh=True).topics
            topics = {n: t for n, t in every.items() if not t.is_internal and subscription.matches(n)}
            return self._partitions(topics, missing_ok)
        named = self.cluster.metadata(sorted(subscription.names), refresh=True).topics
        found = self._partitions(named, missing_ok)
        if isinstance(subscription, Assign):
            missing = [str(p) for p in subscription.partitions if p not in found]
            if missing and not missing_ok:
                raise UnknownTopicOrPartition(f"assigned partitions are not there: {', '.join(missing)}")
            return {p: found[p] for p in subscription.partitions if p in found}
        return found

    def _partitions(self, topics: Mapping[str, TopicMetadata], missing_ok: bool) -> dict[TopicPartition, int]:
        servers = self._options.consumer.bootstrap_servers
        found: dict[TopicPartition, int] = {}
        for name, topic in topics.items():
            if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise error_for(topic.error, f"topic {name!r} on {servers}: {topic.error.name}")
            if not topic.partitions and not missing_ok:
                raise UnknownTopicOrPartition(f"topic {name!r} is not on {servers}")
            for number, partition in topic.partitions.items():
                found[TopicPartition(name, number)] = partition.leader
        return found

    def _again(self, ask: Callable[[], T]) -> T:
        return again(ask, self.cluster.close, self._options, self._clock)


def _kept_by(store: ZooKeeperConfig, group: str) -> ZooKeeperGroup:
    # kazoo is loaded only where ZooKeeper is asked.
    from pyspark_kafkalog.zookeeper.groups import ZooKeeperGroup

    return ZooKeeperGroup(store, group, PROTOCOL_08)


def _facts(seen: ClusterMetadata, partition: TopicPartition, earliest: int, latest: int) -> PartitionFacts:
    # Only a load's plan asks; tasks do without the modules of loads.
    from pyspark_kafkalog.ledger.plan import PartitionFacts

    topic = seen.topics[partition.topic]
    found = topic.partitions[partition.partition]
    address = seen.brokers.get(found.leader)
    return PartitionFacts(
        topic_id=_topic_id(topic),
        leader=found.leader,
        address=peer_name(*address) if address else "",
        leader_epoch=found.leader_epoch,
        earliest=earliest,
        latest=latest,
    )


def _topic_id(topic: TopicMetadata) -> str:
    return encode_id(topic.topic_id) if topic.topic_id.int else ""


@dataclass(slots=True)
class _Reached:
    """*Not thread-safe: belongs to one read.* The first offset that was not given out."""

    offset: int

    def left(self, wanted: OffsetRange) -> OffsetRange:
        """What is still to be read."""
        return OffsetRange(wanted.topic_partition, self.offset, wanted.end)


@dataclass(frozen=True, slots=True)
class RangeReader08(RangeReader):
    """*Not thread-safe: belongs to one task.* Reads from whoever leads the partition."""

    lookup: Lookup

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        reached = _Reached(wanted.start)
        try:
            yield from self._past_corruption(wanted, reached)
        except OffsetOutOfRange as e:
            raise Gone(reached.left(wanted), e.start, e.end) from e
        except UnknownTopicOrPartition as e:
            # As long as a step may take; it was there when the range was planned.
            raise Gone(reached.left(wanted), 0, 0) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(wanted.topic_partition)
            if start <= reached.offset < end:
                raise
            raise Gone(reached.left(wanted), start, end) from e

    def _past_corruption(self, wanted: OffsetRange, reached: _Reached) -> Iterator[pa.RecordBatch]:
        while reached.offset < wanted.end:
            try:
                yield from self._answers(reached.left(wanted), reached)
            except CORRUPT as e:
                if not self.options.skip_corrupt:
                    raise
                follows = reached.offset > wanted.start
                detour = self._detour(wanted)
                reached.offset = yield from detour.around(reached.offset, wanted.end, e, follows=follows)

    def _answers(self, wanted: OffsetRange, reached: _Reached) -> Iterator[pa.RecordBatch]:
        """The rows, answer by answer, until something is wrong with one."""
        fetcher = PartitionFetcher(
            self.lookup.cluster,
            wanted.topic_partition,
            wanted.start,
            wanted.end,
            config=self.options.consumer,
            poll_timeout_ms=self.options.poll_timeout_ms,
        )
        decoder, decodes_for = None, None
        try:
            for fetched in fetcher:
                self._check_gap(wanted, reached.offset, fetched)
                if decoder is None or decodes_for != fetched.broker_id:
                    decoder, decodes_for = self._decoder(wanted, fetched.broker_id), fetched.broker_id
                try:
                    reached.offset = yield from decoder.stream(
                        fetched.data,
                        reached.offset,
                        wanted.end,
                        fetched.aborted,
                        fetched.expected,
                        whole=self.options.skip_corrupt,
                    )
                except CORRUPT:
                    reached.offset = decoder.given_to
                    raise
                fetcher.advance(reached.offset)
        finally:
            fetcher.close()

    def _detour(self, wanted: OffsetRange) -> Detour[pa.RecordBatch]:
        def decode(
            entry: memoryview,
            start: int,
            end: int,
            aborted: AbortedTransactions,
            place: ExpectedOffsets,
            broker: int,
        ) -> tuple[list[pa.RecordBatch], int]:
            found = self._decoder(wanted, broker).decode(entry, start, end, aborted, place)
            return found.batches, found.next_offset

        return Detour(
            self.lookup.cluster,
            wanted.topic_partition,
            self.options.consumer,
            self.options.poll_timeout_ms,
            decode,
            self.on_skip,
        )

    def _decoder(self, wanted: OffsetRange, broker: int) -> RecordBatchDecoder:
        # Planning does without what decodes.
        from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder

        return RecordBatchDecoder(
            topic=wanted.topic_partition.topic,
            partition=wanted.topic_partition.partition,
            columns=self.columns,
            broker=broker,
            read_committed=self.options.consumer.isolation is IsolationLevel.READ_COMMITTED,
        )

    def _check_gap(self, wanted: OffsetRange, position: int, fetched: Fetched) -> None:
        """Retention may pass by between two fetches: the first frame is then beyond the offset asked for.

        A gap with the log still starting at or before ``position`` is none: compaction leaves such.
        """
        if fetched.log_start_offset <= position:
            return
        first = next(message_set.frames(fetched.data), None)
        if first is not None and first.first_offset > position:
            left = OffsetRange(wanted.topic_partition, position, wanted.end)
            raise Gone(left, fetched.log_start_offset, fetched.high_watermark)


CAPACITY = 16
"""Clusters kept at once; the one that waits longest goes first."""
KEPT_SECONDS = 60.0
"""How long one waits: shorter than brokers keep idle connections (``connections.max.idle.ms``, 10 min)."""


class _Idle(NamedTuple):
    cluster: Cluster
    since: float


class IdleClusters:
    """*Thread-safe.* Each cluster is handed out once: while it is used it is not here.

    They are told apart by all properties of the client, so other addresses or credentials are another
    connection. What has failed is not given back; a process that was forked begins with none, for a
    connection cannot have two owners.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: deque[_Idle] = deque()
        self._process = os.getpid()

    def take(self, config: ClientConfig) -> Cluster:
        """A cluster with these properties: the one used last, or a new one."""
        with self._lock:
            self._drop_old()
            found = next((idle for idle in reversed(self._idle) if idle.cluster.config == config), None)
            if found is None:
                return Cluster(config, clock=self._clock)
            self._idle.remove(found)
        found.cluster.drop_lost()
        return found.cluster

    def give_back(self, cluster: Cluster) -> None:
        """Keep ``cluster``, with which all went well and of which nothing is awaited, for the next `take`."""
        with self._lock:
            self._drop_old()
            self._idle.append(_Idle(cluster, self._clock.monotonic()))
            while len(self._idle) > CAPACITY:
                self._idle.popleft().cluster.close()

    def clear(self) -> None:
        """Close all of them."""
        with self._lock:
            while self._idle:
                self._idle.popleft().cluster.close()

    def _drop_old(self) -> None:
        if self._process != os.getpid():
            # They are the parent's: closing ours would be well, but they are not ours to use or to end.
            self._idle.clear()
            self._process = os.getpid()
        oldest = self._clock.monotonic() - KEPT_SECONDS
        while self._idle and self._idle[0].since < oldest:
            self._idle.popleft().cluster.close()


IDLE_CLUSTERS = IdleClusters()
"""Those of this process."""
atexit.register(IDLE_CLUSTERS.clear)
