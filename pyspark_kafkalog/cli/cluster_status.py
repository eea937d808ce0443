"""What a cluster and the loads of a ledger are doing now, asked by Kafka's protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata
from pyspark_kafkalog.client.groups import committed_offsets, describe_group, list_groups
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.cluster import DescribeLogDirsRequest
from pyspark_kafkalog.status.snapshot import (
    BrokerStatus,
    GroupStatus,
    PartitionStatus,
    Snapshot,
    TopicStatus,
    by_partition,
    lag_of,
)
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.cli.ledger_loads import LedgerLoads

_ASK_SECONDS = 10.0
"""Most time for each part of a snapshot."""

Ends = Mapping[TopicPartition, int]
Known = Mapping[TopicPartition, PartitionStatus]


class ClusterSnapshots:
    """*Not thread-safe.* Asks a cluster, and the ledgers at ``place`` if given. What one part of it does
    not answer is a problem of the snapshot, not its end.
    """

    def __init__(self, cluster: Cluster, place: str | None = None) -> None:
        """Raises `KafkaError` if there cannot be ledgers at ``place``."""
        self._cluster = cluster
        self._loads: LedgerLoads | None = None
        if place is not None:
            from pyspark_kafkalog.cli.ledger_loads import LedgerLoads

            self._loads = LedgerLoads(place)
        self._problems: list[str] = []

    def take(self) -> Snapshot:
        """The present. Raises `KafkaError` if no broker answers."""
        self._problems = []
        cluster = self._cluster
        metadata = cluster.metadata(None, refresh=True, deadline=self._deadline())
        led = [
            TopicPartition(topic.name, number)
            for topic in metadata.topics.values()
            for number, partition in topic.partitions.items()
            if partition.leader >= 0
        ]
        starts, ends = self._listed(led, EARLIEST_TIMESTAMP), self._listed(led, LATEST_TIMESTAMP)
        at_ms = SYSTEM_CLOCK.time_ms()
        topics = tuple(_topics(metadata, starts, ends, self._sizes(metadata.brokers)))
        known = by_partition(topics)
        groups = tuple(self._groups(known))
        loads = () if self._loads is None else tuple(self._loads.take(metadata, known, self._problems))
        return Snapshot(
            at_ms=at_ms,
            cluster_id=metadata.cluster_id or "",
            brokers=tuple(_brokers(metadata)),
            topics=topics,
            groups=groups,
            loads=loads,
            problems=tuple(self._problems),
        )

    def _deadline(self) -> Deadline:
        return Deadline.after(_ASK_SECONDS, SYSTEM_CLOCK)

    def _listed(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        try:
            found = list_offsets(
                self._cluster, dict.fromkeys(partitions, timestamp), deadline=self._deadline()
            )
        except KafkaError as e:
            self._problems.append(f"offsets: {e}")
            return {}
        return {tp: one.offset for tp, one in found.items()}

    def _sizes(self, brokers: Iterable[int]) -> dict[TopicPartition, int]:
        """Of the largest replica."""
        sizes: dict[TopicPartition, int] = {}
        for node_id in brokers:
            try:
                deadline = self._deadline()
                connection = self._cluster.connection(node_id, deadline)
                answer = connection.request(DescribeLogDirsRequest(), deadline=deadline)
            except KafkaError as e:
                self._problems.append(f"sizes at broker {node_id}: {e}")
                continue
            for directory in answer.results:
                if directory.error_code != ErrorCode.NONE:
                    self._problems.append(
                        f"broker {node_id}, {directory.log_dir}: {directory.error_code.name}"
                    )
                for topic in directory.topics:
                    for one in topic.partitions:
                        tp = TopicPartition(topic.name, one.partition_index)
                        sizes[tp] = max(sizes.get(tp, 0), one.partition_size)
        return sizes

    def _groups(self, known: Known) -> Iterable[GroupStatus]:
        try:
            listed = list_groups(self._cluster, deadline=self._deadline())
        except KafkaError as e:
            self._problems.append(f"consumer groups: {e}")
            return
        for one in listed:
            try:
                described = describe_group(self._cluster, one.group, deadline=self._deadline())
                committed = committed_offsets(self._cluster, one.group, deadline=self._deadline())
            except KafkaError as e:
                self._problems.append(f"consumer group {one.group}: {e}")
                continue
            positions = {tp: stored.offset for tp, stored in committed.items()}
            topics = tuple(sorted({tp.topic for tp in positions}))
            yield GroupStatus(
                one.group, described.state, len(described.members), lag_of(positions, known), topics
            )


def _brokers(metadata: ClusterMetadata) -> Iterable[BrokerStatus]:
    """The live ones, and those that have partitions without being live."""
    led: Counter[int] = Counter()
    away: Counter[int] = Counter()
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            led[partition.leader] += 1
            away.update(node_id for node_id in partition.replicas if node_id not in metadata.brokers)
    for node_id, (host, port, *_) in sorted(metadata.brokers.items()):
        yield BrokerStatus(node_id, host, port, led[node_id])
    for node_id, count in sorted(away.items()):
        yield BrokerStatus(node_id, "", -1, count, is_live=False)


def _topics(
    metadata: ClusterMetadata, starts: Ends, ends: Ends, sizes: Mapping[TopicPartition, int]
) -> Iterable[TopicStatus]:
    for name, topic in sorted(metadata.topics.items()):
        numbered = sorted(topic.partitions.items())
        yield TopicStatus(
            name,
            tuple(
                PartitionStatus(
                    number,
                    partition.leader if partition.leader >= 0 else -1,
                    starts.get(tp, -1),
                    ends.get(tp, -1),
                    sizes.get(tp, -1),
                )
                for number, partition in numbered
                for tp in (TopicPartition(name, number),)
            ),
        )
