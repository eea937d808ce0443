"""Where a message goes: the broker, and its partition there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.producer07 import ClassicProducerConfig
from pyspark_kafkalog.errors import ErrorCode, InvalidPartitions, error_for
from pyspark_kafkalog.producer.broker_directory import BrokerDirectory, Changed, directory_of
from pyspark_kafkalog.producer.key_partitioner import (
    PARTITIONERS,
    JavaHashPartitioner,
    Murmur2Partitioner,
    Partitioner,
)
from pyspark_kafkalog.producer.message_encoder import made
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.zookeeper.values import BrokerNode


class Route(NamedTuple):
    """One of a broker's partitions; `ANY_PARTITION` leaves it to the broker."""

    broker: BrokerNode
    partition: int


class Router(Protocol):
    """*Thread-safe.* Chooses for each message."""

    def start(self, changed: Changed) -> None:
        """Learn of the brokers; ``changed`` is called with them now and later. Raises `ConnectionLost`."""
        ...

    def route(self, topic: str, key: Any) -> Route:
        """Where a message with this key goes. Raises `KafkaError`."""
        ...

    def failed(self, topic: str) -> None:
        """A send there failed: what is known may be out of date."""
        ...

    def close(self) -> None: ...


class RandomRouter:
    """*Thread-safe: it does not change.* ``broker.list``: any broker, any partition, whatever the key.

    Brokers are not watched: a message for one that is dead fails.
    """

    def __init__(self, brokers: Sequence[BrokerNode], seed: int | None = None) -> None:
        self._brokers = list(brokers)
        self._random = random.Random(seed)

    def start(self, changed: Changed) -> None:
        changed({broker.id: broker for broker in self._brokers})

    def route(self, topic: str, key: Any) -> Route:  # noqa: ARG002  (as every router)
        return Route(self._random.choice(self._brokers), ANY_PARTITION)

    def failed(self, topic: str) -> None:
        """Nothing can be asked."""

    def close(self) -> None:
        """Nothing is open."""


class PartitionRouter:
    """*Thread-safe: its directory is.* The partitioner's number indexes the topic's sorted partitions."""

    def __init__(
        self, directory: BrokerDirectory, partitioner: Partitioner, retries: int, seed: int | None = None
    ) -> None:
        """``retries`` is how often the directory looks again for a broker that it does not know."""
        self._directory, self._partitioner, self._retries = directory, partitioner, retries
        self._random = random.Random(seed)

    def start(self, changed: Changed) -> None:
        self._directory.start(changed)

    def route(self, topic: str, key: Any) -> Route:
        """See `Router`.

        Raises:
            InvalidPartitions: the partitioner's number is none of a partition.
            ServerError: BROKER_NOT_AVAILABLE where no broker is live, or the partition's is not.
        """
        for _ in range(self._retries + 1):
            rows = self._directory.partitions(topic)
            chosen = rows[self._chosen(topic, key, len(rows))]
            broker = self._directory.broker(chosen.broker)
            if broker is not None:
                return Route(broker, chosen.partition)
            self._directory.refresh(topic)
        code = ErrorCode.BROKER_NOT_AVAILABLE
        raise error_for(code, f"{topic}: broker {chosen.broker}, which has the partition chosen, is not live")

    def failed(self, topic: str) -> None:
        self._directory.refresh(topic)

    def close(self) -> None:
        self._directory.close()

    def _chosen(self, topic: str, key: Any, count: int) -> int:
        if key is None:
            return self._random.randrange(count)
        number = self._partitioner.partition(key, count)
        if not 0 <= number < count:
            raise InvalidPartitions(
                f"{topic}: the partitioner chose {number} for key {key!r}; allowed: 0 to {count - 1}"
            )
        return number


def router_of(config: ClassicProducerConfig, partitioner: Partitioner | None = None) -> Router:
    """The router that a configuration asks for; ``partitioner`` goes before ``partitioner.class``.

    Raises:
        InvalidConfig: the class cannot be found or made.
    """
    if config.zookeeper_connect is None and config.protocol == PROTOCOL_07:
        return RandomRouter([BrokerNode(*broker) for broker in config.brokers])
    if partitioner is None and config.partitioner_class is not None:
        partitioner = made(config.partitioner_class, PARTITIONERS, "partitioner.class")
    if partitioner is None:
        partitioner = JavaHashPartitioner() if config.protocol == PROTOCOL_07 else Murmur2Partitioner()
    return PartitionRouter(directory_of(config), partitioner, config.zk_read_retries)
