"""A broker's current state from its own logs and groups, for its status page and Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from kafkalog_broker.cluster.ownership import Ownership
from kafkalog_broker.groups.group_coordinator import GroupCoordinator
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.status.snapshot import (
    BrokerStatus,
    GroupStatus,
    PartitionStatus,
    Snapshot,
    TopicStatus,
    by_partition,
    lag_of,
)
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from kafkalog_broker.server.registration import Registration

_AWAY = "ZooKeeper does not answer: this broker goes on serving its partitions, but topics cannot be changed"


class BrokerSnapshots(msgspec.Struct, frozen=True):
    """*Thread-safe.* In a cluster it knows its own partitions and groups, and who owns the others."""

    node_id: int
    cluster_id: str
    logs: LogManager
    groups: GroupCoordinator
    registration: Registration | None
    endpoint: Callable[[], tuple[str, int]]
    listener: str
    clock: Clock

    @property
    def _ownership(self) -> Ownership | None:
        return None if self.registration is None else self.registration.ownership

    def take(self) -> Snapshot:
        topics = tuple(self._topics())
        groups, problems = self._groups(topics)
        return Snapshot(
            at_ms=self.clock.time_ms(),
            cluster_id=self.cluster_id,
            brokers=tuple(self._brokers(topics)),
            topics=topics,
            groups=tuple(groups),
            problems=(*self._failures(), *self._registering(), *problems),
            broker=None if self._ownership is None else self.node_id,
        )

    def health(self) -> str | None:
        """Why the broker does not serve, or None. A lost ZooKeeper does not count: it serves without."""
        return "; ".join(self._failures()) or None

    def _failures(self) -> list[str]:
        failures = [
            f"{each.path} is offline; see the broker's log"
            for each in self.logs.directories()
            if not each.online
        ]
        if self.registration is not None and self.registration.id_in_use is not None:
            failures.append(str(self.registration.id_in_use))
        elif self._ownership is not None and (refusal := self._ownership.refusal) is not None:
            failures.append(refusal)
        return failures

    def _registering(self) -> list[str]:
        registration = self.registration
        if registration is None:
            return []
        if not registration.session.connected:
            return [_AWAY]
        problem = registration.problem
        return [f"not registered in ZooKeeper, trying again: {problem}"] if problem is not None else []

    def _brokers(self, topics: Iterable[TopicStatus]) -> Iterable[BrokerStatus]:
        counts: Counter[int] = Counter()
        ownership = self._ownership
        live, addresses = frozenset((self.node_id,)), {}
        if ownership is not None:
            live, addresses = ownership.live_ids, ownership.live(self.listener)
            if (view := ownership.view) is not None:
                counts.update(owner for each in view.topics.values() for owner in each.owners if owner >= 0)
        counts[self.node_id] = sum(len(each.partitions) for each in topics)
        for number in sorted({*live, *counts}):
            host, port = self.endpoint() if number == self.node_id else addresses.get(number, ("", -1))
            yield BrokerStatus(number, host, port, counts[number], number in live)

    def _topics(self) -> Iterable[TopicStatus]:
        ownership, stored = self._ownership, self.logs.topics
        numbers = {name: set(topic.partitions) for name, topic in stored.items()}
        if ownership is not None:
            for offline in ownership.offline:
                numbers.setdefault(offline.topic, set()).add(offline.partition)
        for name in sorted(numbers):
            shared = ownership is not None and (name not in stored or ownership.shares(stored[name]))
            there = ownership.topic(name) if ownership is not None and shared else None
            yield TopicStatus(
                name,
                tuple(self._partition(TopicPartition(name, n), shared) for n in sorted(numbers[name])),
                None if there is None else len(there.owners),
            )

    def _partition(self, partition: TopicPartition, shared: bool) -> PartitionStatus:
        log = self.logs.logs.get(partition)
        if log is None or not log.directory.online:
            return PartitionStatus(partition.partition, -1)
        is_ours = not shared or self._ownership is None or self._ownership.is_ours(partition)
        leader = self.node_id if is_ours else -1
        return PartitionStatus(
            partition.partition, leader, log.start_offset, log.readable_end, log.size_bytes
        )

    def _groups(self, topics: Iterable[TopicStatus]) -> tuple[list[GroupStatus], list[str]]:
        known = by_partition(topics)
        try:
            return [self._group(one.group, known) for one in self.groups.groups()], []
        except KafkaError as e:
            return [], [f"consumer groups: {e}"]

    def _group(self, name: str, known: dict[TopicPartition, PartitionStatus]) -> GroupStatus:
        described = self.groups.describe(name)
        positions = {
            partition: stored.offset for partition, stored in self.groups.offsets.fetch(name).items()
        }
        topics = tuple(sorted({partition.topic for partition in positions}))
        return GroupStatus(name, described.state, len(described.members), lag_of(positions, known), topics)
