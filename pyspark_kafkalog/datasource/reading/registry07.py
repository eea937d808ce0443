"""Which brokers of Kafka 0.7 there are, with which partitions: from ZooKeeper, or from the brokers.

A partition belongs to its broker. Without ZooKeeper a broker is asked by fetches of no bytes, which show
whether it has a partition; a look-up of offsets would close the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.consumer07 import Source07Config
from pyspark_kafkalog.errors import InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import MAX_PARTITIONS, layout_of

if TYPE_CHECKING:
    from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup
    from pyspark_kafkalog.zookeeper.session import Session

Address = tuple[str, int]


class Registry07(Protocol):
    """*Not thread-safe.* Each method may raise `KafkaError`: ZooKeeper or a broker does not answer."""

    def addresses(self) -> Mapping[int, Address]:
        """Host and port of every broker by its id."""
        ...

    def topics(self) -> list[str]:
        """The names of all topics. Raises `InvalidConfig` without ZooKeeper."""
        ...

    def partitions(
        self, topics: Iterable[str], brokers: Collection[int] | None = None
    ) -> list[TopicPartition]:
        """Every partition of the topics, or of those only that ``brokers`` have; sorted."""
        ...

    def cluster_id(self) -> str:
        """The cluster's id; empty where it has none, as in 0.7."""
        ...

    def group(self, name: str) -> ZooKeeperGroup:
        """The group's offsets. Raises `InvalidConfig` without ZooKeeper."""
        ...


class ZooKeeperRegistry:
    """*Not thread-safe.* The znodes of 0.7. Each question has a session of its own: a plan has three."""

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

    def _session(self) -> Session:
        # kazoo is loaded only where ZooKeeper is asked.
        from pyspark_kafkalog.zookeeper.session import session_of

        return session_of(self._config)


class ListedBrokers:
    """*Not thread-safe.* The brokers of ``broker.list``; ``consumer`` gives the connection to one of them."""

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
        """How many partitions of the topic a broker has; of an unknown topic, how many it would have."""
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
