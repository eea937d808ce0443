"""Stores of a group's offsets: in ZooKeeper, in Kafka, or in both during a migration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import KAFKA, ConnectorConfig
from pyspark_kafkalog.errors import ConnectionLost
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import PartitionKey, RegistryLayout
from pyspark_kafkalog.zookeeper.registries import brokers, read_group_offset, write_group_offset
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession

T = TypeVar("T")


class ZooKeeperOffsets:
    """*Thread-safe.* Offsets in a group's ``offsets`` znodes, of either layout. Uses its owner's session. In
    every store `load` omits partitions without an offset, and a `save` that fails may have stored some.
    """

    def __init__(self, session: ZooKeeperSession, layout: RegistryLayout, group: str) -> None:
        self._session, self._layout, self._group = session, layout, group

    def load(self, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        stored = {
            key: read_group_offset(self._session, self._layout, self._group, key.topic, key.name)
            for key in partitions
        }
        return {key: offset for key, offset in stored.items() if offset is not None}

    def save(self, offsets: Mapping[PartitionKey, int]) -> None:
        for key, offset in offsets.items():
            write_group_offset(self._session, self._layout, self._group, key.topic, key.name, offset)

    def close(self) -> None: ...


class KafkaOffsets:
    """*Thread-safe: one call at a time.* Offsets in ``__consumer_offsets``, through the group's coordinator.
    A call is retried while the coordinator loads or moves; ``bootstrap`` returns addresses to connect to.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        bootstrap: Callable[[], Collection[tuple[str, int]]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._bootstrap, self._clock = config, bootstrap, clock
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None

    def load(self, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        keys = {TopicPartition(key.topic, key.number): key for key in partitions}
        group = self._config.group_id
        stored = self._ask(lambda at, deadline: committed_offsets(at, group, list(keys), deadline=deadline))
        return {keys[tp]: committed.offset for tp, committed in stored.items() if tp in keys}

    def save(self, offsets: Mapping[PartitionKey, int]) -> None:
        if offsets:
            group = self._config.group_id
            by_number = {TopicPartition(key.topic, key.number): offset for key, offset in offsets.items()}
            self._ask(lambda at, deadline: commit_offsets(at, group, by_number, deadline=deadline))

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _ask(self, ask: Callable[[Cluster, Deadline], T]) -> T:
        deadline = Deadline.after(self._config.offsets_timeout_ms / 1000, self._clock)
        with self._lock:
            try:
                return ask(self._open(), deadline)
            except ConnectionLost:
                # All known brokers may have moved: use ZooKeeper's addresses next time.
                self._drop()
                raise

    def _open(self) -> Cluster:
        if self._cluster is None:
            servers = self._bootstrap()
            if not servers:
                raise ConnectionLost(
                    f"group {self._config.group_id}: no broker is registered to store offsets"
                )
            # A registered broker that refuses connections is starting: wait for it.
            config = replace(self._config.for_todays_wire(*servers), answered_before=True)
            self._cluster = Cluster(config, clock=self._clock)
        return self._cluster

    def _drop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()


class DualOffsets:
    """*Thread-safe.* Both stores, for a migration. The larger offset counts: others commit to one only."""

    def __init__(self, kafka: OffsetStore, zookeeper: OffsetStore) -> None:
        self._kafka, self._zookeeper = kafka, zookeeper

    def load(self, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        """Raises `KafkaError` if either store fails: the other's offset may be old."""
        one, other = self._kafka.load(partitions), self._zookeeper.load(partitions)
        found = {
            key: max(one.get(key, -1), other.get(key, -1)) for key in partitions if key in one or key in other
        }
        # Also write to the store that is behind, for consumers that go back to it.
        for store, known in ((self._kafka, one), (self._zookeeper, other)):
            behind = {key: offset for key, offset in found.items() if known.get(key) != offset}
            if behind:
                store.save(behind)
        return found

    def save(self, offsets: Mapping[PartitionKey, int]) -> None:
        self._kafka.save(offsets)
        self._zookeeper.save(offsets)

    def close(self) -> None:
        self._kafka.close()
        self._zookeeper.close()


OffsetStore = ZooKeeperOffsets | KafkaOffsets | DualOffsets


def open_offsets(
    config: ConnectorConfig, session: ZooKeeperSession, layout: RegistryLayout, *, clock: Clock = SYSTEM_CLOCK
) -> OffsetStore:
    zookeeper = ZooKeeperOffsets(session, layout, config.group_id)
    if config.offsets_storage != KAFKA and not config.dual_commit:
        return zookeeper

    def bootstrap() -> list[tuple[str, int]]:
        return [(node.host, node.port) for node in brokers(session, layout).values()]

    kafka = KafkaOffsets(config, bootstrap, clock=clock)
    return DualOffsets(kafka, zookeeper) if config.dual_commit else kafka
