"""Which brokers there are and which partitions each one has: told by ZooKeeper, or by a broker."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.producer07 import ClassicProducerConfig
from pyspark_kafkalog.errors import ErrorCode, KafkaError, error_for
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.zookeeper.brokers import brokers, partitions, watch_brokers, watch_topic
from pyspark_kafkalog.zookeeper.connecting import session_of
from pyspark_kafkalog.zookeeper.paths import Layout, layout_of
from pyspark_kafkalog.zookeeper.session import Session
from pyspark_kafkalog.zookeeper.values import BrokerNode
from pyspark_kafkalog.zookeeper.watches import RegistryWatch


class BrokerPartition(NamedTuple):
    """A partition and the broker that has it. Sorted as partitioners index them."""

    broker: int
    partition: int


Changed: TypeAlias = Callable[[Mapping[int, BrokerNode]], object]
"""Told which brokers are live, whenever that has changed."""


class BrokerDirectory(Protocol):
    """*Thread-safe.* What a producer knows of brokers and topics."""

    def start(self, changed: Changed) -> None:
        """Learn of the brokers; ``changed`` is called now, later on any thread. Raises `ConnectionLost`."""
        ...

    def partitions(self, topic: str) -> list[BrokerPartition]:
        """A topic's partitions in the order in which they are numbered for a partitioner; at least one.

        Raises:
            ServerError: BROKER_NOT_AVAILABLE where no broker is live.
            KafkaError: it cannot be found out.
        """
        ...

    def broker(self, broker: int) -> BrokerNode | None:
        """A live broker; None if there is none of this id."""
        ...

    def refresh(self, topic: str) -> None:
        """What is known of ``topic`` and the brokers led nowhere: look again before it is used."""
        ...

    def close(self) -> None: ...


def _tell_nobody(_live: Mapping[int, BrokerNode]) -> None:
    """What is called before `BrokerDirectory.start`."""


class ZooKeeperDirectory:
    """*Thread-safe: its lock guards what is known.* Reads the registries, and again when a watch fires.

    The four watches of the design papers: brokers that come and go are one list of children; that a topic is
    made, or taken up by a further broker, are changes below the topic's node, watched from its first use on.
    A topic that nobody has yet is sent to the first partition of every live broker, which makes it there.
    """

    def __init__(self, session: Session, layout: Layout, first_partition: int) -> None:
        """``first_partition`` is where a topic that is not there yet is sent to."""
        self._session, self._layout, self._first = session, layout, first_partition
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._live: dict[int, BrokerNode] = {}
        self._partitions: dict[str, list[BrokerPartition]] = {}
        self._changes: dict[str, int] = defaultdict(int)
        self._watches: dict[str, RegistryWatch] = {}
        self._changed: Changed = _tell_nobody

    def start(self, changed: Changed) -> None:
        self._changed = changed
        self._session.start()
        self._look()
        watch_brokers(self._session, self._layout, self._look)

    def partitions(self, topic: str) -> list[BrokerPartition]:
        with self._lock:
            known = self._partitions.get(topic)
            if known is not None:
                return known
            if topic not in self._watches:
                self._watches[topic] = watch_topic(
                    self._session, self._layout, topic, lambda: self._topic_changed(topic)
                )
            change = self._changes[topic]
        rows = [BrokerPartition(p.broker, p.number) for p in partitions(self._session, self._layout, topic)]
        found = sorted(rows, key=self._order)
        with self._lock:
            if not found:
                found = [BrokerPartition(broker, self._first) for broker in sorted(self._live)]
            elif change == self._changes[topic]:
                # A watch that fired since then has seen more than this.
                self._partitions[topic] = found
        if not found:
            where = f"{self._session.hosts}{self._session.chroot}{self._layout.brokers}"
            raise error_for(
                ErrorCode.BROKER_NOT_AVAILABLE, f"no broker is registered in ZooKeeper at {where}"
            )
        return found

    def broker(self, broker: int) -> BrokerNode | None:
        return self._live.get(broker)

    def refresh(self, topic: str) -> None:
        self._topic_changed(topic)
        self._look()

    def close(self) -> None:
        self._session.close()

    def _order(self, row: BrokerPartition) -> tuple[int, int]:
        """By broker and number where each broker has partitions of its own, else by number."""
        return (row.broker if self._layout.brokers_own_partitions else 0, row.partition)

    def _topic_changed(self, topic: str) -> None:
        with self._lock:
            self._changes[topic] += 1
            self._partitions.pop(topic, None)

    def _look(self) -> None:
        """Read who is live, and tell it if it has changed."""
        # Held over reading and telling: of two looks the later one must have the last word.
        with self._looking:
            live = brokers(self._session, self._layout)
            with self._lock:
                same = live == self._live
                self._live = live
            if not same:
                self._changed(live)


class ClusterDirectory:
    """*Thread-safe: its lock is held over each look-up.* Asks a broker of today's wire."""

    def __init__(self, config: ClientConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster = Cluster(config, clock=clock)
        self._lock = threading.Lock()
        self._live: dict[int, BrokerNode] = {}
        self._changed: Changed = _tell_nobody

    def start(self, changed: Changed) -> None:
        self._changed = changed

    def partitions(self, topic: str) -> list[BrokerPartition]:
        with self._lock:
            attempts = self._cluster.retrying(f"looking up topic {topic}")
            while True:
                try:
                    found, live = self._ask(topic, attempts.deadline)
                    break
                except KafkaError as e:
                    attempts.failed(e)
            same, self._live = live == self._live, live
        if not same:
            self._changed(live)
        return found

    def broker(self, broker: int) -> BrokerNode | None:
        return self._live.get(broker)

    def refresh(self, topic: str) -> None:
        with self._lock:
            self._cluster.forget(topic)

    def close(self) -> None:
        with self._lock:
            self._cluster.close()

    def _ask(self, topic: str, deadline: Deadline) -> tuple[list[BrokerPartition], dict[int, BrokerNode]]:
        known: ClusterMetadata = self._cluster.metadata([topic], allow_auto_creation=True, deadline=deadline)
        found = known.topics[topic]
        error = found.error
        led = [BrokerPartition(p.leader, n) for n, p in found.partitions.items() if p.leader in known.brokers]
        if error == ErrorCode.NONE and len(led) < max(len(found.partitions), 1):
            error = ErrorCode.LEADER_NOT_AVAILABLE
        if error != ErrorCode.NONE:
            raise error_for(error, f"topic {topic}: {error.name}")
        return led, {id: BrokerNode(id, host, port) for id, (host, port) in known.brokers.items()}


def directory_of(config: ClassicProducerConfig, *, clock: Clock = SYSTEM_CLOCK) -> BrokerDirectory:
    """The directory that a configuration asks for: ZooKeeper's, or that of the brokers on today's wire."""
    if config.zookeeper_connect is None:
        addresses = [(broker.host, broker.port) for broker in config.brokers]
        client = replace(config.todays(*addresses), servers_option="broker.list")
        return ClusterDirectory(client, clock=clock)
    first_partition = 0 if config.protocol == PROTOCOL_07 else ANY_PARTITION
    return ZooKeeperDirectory(session_of(config), layout_of(config, config.protocol), first_partition)
