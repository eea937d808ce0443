"""What one broker is doing now, from its own logs and groups, for its status page and Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.cluster.ownership import Ownership
from broker.group.coordinator import GroupCoordinator
from broker.store.manager import LogManager
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.status.snapshot import (
    BrokerStatus,
    GroupStatus,
    PartitionStatus,
    Snapshot,
    TopicStatus,
)
from pyspark_kafkalog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerSnapshots:
    """*Thread-safe.* Asks the owners of the state; of a cluster it knows its own partitions and groups."""

    node_id: int
    cluster_id: str
    logs: LogManager
    groups: GroupCoordinator
    ownership: Ownership | None
    endpoint: Callable[[], tuple[str, int]]
    listener: str
    clock: Clock

    def take(self) -> Snapshot:
        """The present."""
        groups, problems = self._groups()
        return Snapshot(
            at_ms=self.clock.time_ms(),
            cluster_id=self.cluster_id,
            brokers=tuple(self._brokers()),
            topics=tuple(self._topics()),
            groups=tuple(groups),
            problems=(*self._offline_directories(), *problems),
        )

    def health(self) -> str | None:
        """What is wrong, or None: a directory that failed."""
        return "; ".join(self._offline_directories()) or None

    def _offline_directories(self) -> list[str]:
        return [
            f"{each.path} is offline; see the broker's log"
            for each in self.logs.directories()
            if not each.online
        ]

    def _brokers(self) -> Iterable[BrokerStatus]:
        live = self.ownership.live(self.listener) if self.ownership is not None else {}
        for node_id, (host, port) in sorted({**live, self.node_id: self.endpoint()}.items()):
            yield BrokerStatus(node_id, host, port)

    def _topics(self) -> Iterable[TopicStatus]:
        logs = self.logs.logs()
        for name, stored in sorted(self.logs.topics().items()):
            partitions = []
            for number in stored.partitions:
                log = logs.get(TopicPartition(name, number))
                if log is None or not log.directory.online:
                    partitions.append(PartitionStatus(number, -1))
                    continue
                partitions.append(
                    PartitionStatus(number, self.node_id, log.start_offset, log.readable_end, log.size_bytes)
                )
            yield TopicStatus(name, tuple(partitions))

    def _groups(self) -> tuple[list[GroupStatus], list[str]]:
        try:
            return [self._group(one.group) for one in self.groups.groups()], []
        except KafkaError as e:
            return [], [f"consumer groups: {e}"]

    def _group(self, name: str) -> GroupStatus:
        described, logs = self.groups.describe(name), self.logs.logs()
        lag, known, topics = 0, True, set()
        for partition, committed in self.groups.offsets.fetch(name).items():
            topics.add(partition.topic)
            log = logs.get(partition)
            if log is None:
                known = False  # another broker's
            else:
                lag += max(log.readable_end - committed.offset, 0)
        return GroupStatus(
            name, described.state, len(described.members), lag if known else None, tuple(sorted(topics))
        )
