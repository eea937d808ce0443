"""Asks the cluster what a plan needs to know: which partitions there are, and their offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.client.discovery import ClusterMetadata, TopicMetadata
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client07 import PROTOCOL_08
from pyspark_kafkalog.datasource import density
from pyspark_kafkalog.datasource.again import again
from pyspark_kafkalog.datasource.generations import ignore_loss
from pyspark_kafkalog.datasource.idle_clusters import IDLE_CLUSTERS
from pyspark_kafkalog.datasource.offsets import GlobalTimestamp, PartitionTimestamps
from pyspark_kafkalog.datasource.options import BatchOptions, SourceOptions
from pyspark_kafkalog.datasource.planning import OffsetRange, split_ranges
from pyspark_kafkalog.datasource.subscription import Assign, SubscribePattern
from pyspark_kafkalog.errors import ErrorCode, UnknownTopicOrPartition, error_for
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, IsolationLevel, TopicPartition, encode_id

if TYPE_CHECKING:
    from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig
    from pyspark_kafkalog.datasource.range_reader08 import RangeReader08
    from pyspark_kafkalog.datasource.zookeeper_group import ZooKeeperGroup
    from pyspark_kafkalog.ledger.plan import PartitionFacts

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
            from pyspark_kafkalog.datasource.sampling import sample

            asked = density.by_partition(ranges)
            samples = self._again(lambda: sample(self.cluster, asked))
            ranges = [
                part
                for r in ranges
                for part in density.cut_by_bytes(r, samples.get(r.topic_partition, []), options.max_bytes)
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
        from pyspark_kafkalog.datasource.range_reader08 import RangeReader08

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
    from pyspark_kafkalog.datasource.zookeeper_group import ZooKeeperGroup

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
