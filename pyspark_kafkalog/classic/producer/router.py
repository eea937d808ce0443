"""Chooses broker and partition of an event: encoders, partitioners, broker directories and routers.

``partition(key, count)`` indexes the topic's sorted partitions: by broker and number on 0.7's wire, by number
on today's. Without a key the partition is random.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import ClassicProducerConfig
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, InvalidPartitions, KafkaError, error_for, reason
from pyspark_kafkalog.producer.routing import partition_for
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.types import PROTOCOL_07
from pyspark_kafkalog.zookeeper.paths import BrokerNode, RegistryLayout, layout_of
from pyspark_kafkalog.zookeeper.registries import (
    RegistryWatch,
    brokers,
    partitions,
    watch_brokers,
    watch_topic,
)
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession, session_of

_log = logging.getLogger(__name__)

_INT_BITS, _LONG_BITS = 32, 64


class Partitioner(Protocol):
    """Chooses a partition by a key that is not None. Called from several threads."""

    def partition(self, key: Any, partition_count: int) -> int: ...


class JavaHashPartitioner:
    """*Thread-safe.* 0.7's ``abs(key.hashCode) % count``; for -2^31, where 0.7 may raise, this uses 2^31."""

    def partition(self, key: Any, partition_count: int) -> int:
        """For str, int or bytes. Raises `TypeError` for other keys."""
        return abs(java_hash(key)) % partition_count


class Murmur2Partitioner:
    """*Thread-safe: immutable.* As in Kafka's clients since 0.8.2."""

    def partition(self, key: Any, partition_count: int) -> int:
        return partition_for(key_bytes(key), partition_count)


PARTITIONERS: dict[str, type] = {"kafka.producer.DefaultPartitioner": JavaHashPartitioner}
"""By Java class name, as in configurations of the first generation."""


def java_hash(key: Any) -> int:
    """Java's ``hashCode``: of ``String``, ``Integer`` or ``Long``; bytes hash as the str of these characters.

    Raises `TypeError` for ints beyond ``Long``.
    """
    if isinstance(key, str):
        data = key.encode("utf-16-be", "surrogatepass")
        return _string_hash([high << 8 | low for high, low in zip(data[::2], data[1::2], strict=True)])
    if isinstance(key, (bytes, bytearray, memoryview)):
        return _string_hash(list(bytes(key)))
    if isinstance(key, int) and not isinstance(key, bool) and -(1 << 63) <= key < 1 << 63:
        fits_int = -(1 << 31) <= key < 1 << 31
        bits = key & (1 << _LONG_BITS) - 1
        return key if fits_int else _signed(bits ^ bits >> _INT_BITS)
    raise TypeError(
        f"a key must be str, bytes or a whole number of 64 bits to be hashed as in Java, not {key!r}"
    )


def _string_hash(units: list[int]) -> int:
    bits = 0
    for unit in units:
        bits = 31 * bits + unit & 0xFFFFFFFF
    return _signed(bits)


def _signed(bits: int) -> int:
    bits &= 0xFFFFFFFF
    return bits - (1 << _INT_BITS) if bits >> _INT_BITS - 1 else bits


class BrokerPartition(NamedTuple):
    broker: int
    partition: int


Changed: TypeAlias = Callable[[Mapping[int, BrokerNode]], object]


class BrokerDirectory(ABC):
    """*Thread-safe: its lock guards its data.* Metadata of brokers and topics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, BrokerNode] = {}
        self._changed: Changed = lambda _live: None

    def start(self, changed: Changed) -> None:
        """Calls ``changed`` with the live brokers, and again after each change, on any thread."""
        self._changed = changed

    @abstractmethod
    def partitions(self, topic: str) -> list[BrokerPartition]:
        """In partitioner order; at least one."""

    def broker(self, broker: int) -> BrokerNode | None:
        return self._live.get(broker)

    @abstractmethod
    def refresh(self, topic: str) -> None:
        """Looks up ``topic`` and the brokers again before the next use."""

    @abstractmethod
    def close(self) -> None: ...


class ZooKeeperDirectory(BrokerDirectory):
    """Reads the registries, and again when a watch fires. A new topic goes to the first partition of every
    live broker, which creates it.
    """

    def __init__(self, session: ZooKeeperSession, layout: RegistryLayout, first_partition: int) -> None:
        super().__init__()
        self._session, self._layout, self._first = session, layout, first_partition
        self._looking = threading.Lock()
        self._partitions: dict[str, list[BrokerPartition]] = {}
        self._changes: dict[str, int] = defaultdict(int)
        self._watches: dict[str, RegistryWatch] = {}

    def start(self, changed: Changed) -> None:
        super().start(changed)
        self._session.start()
        self._look()
        watch_brokers(self._session, self._layout, self._look)

    def partitions(self, topic: str) -> list[BrokerPartition]:
        with self._lock:
            if topic in self._partitions:
                return self._partitions[topic]
            if topic not in self._watches:
                self._watches[topic] = watch_topic(
                    self._session, self._layout, topic, lambda: self._topic_changed(topic)
                )
            change = self._changes[topic]
        nodes = partitions(self._session, self._layout, topic)
        rows = [BrokerPartition(node.broker, node.number) for node in nodes]
        rows.sort(key=lambda row: row if self._layout.brokers_own_partitions else (0, row.partition))
        with self._lock:
            if not rows:
                rows = [BrokerPartition(broker, self._first) for broker in sorted(self._live)]
            elif change == self._changes[topic]:
                # If a watch has fired since then, this data is old.
                self._partitions[topic] = rows
        if not rows:
            where = f"{self._session.hosts}{self._session.chroot}{self._layout.brokers}"
            raise error_for(
                ErrorCode.BROKER_NOT_AVAILABLE, f"no broker is registered in ZooKeeper at {where}"
            )
        return rows

    def refresh(self, topic: str) -> None:
        self._topic_changed(topic)
        self._look()

    def close(self) -> None:
        self._session.close()

    def _topic_changed(self, topic: str) -> None:
        with self._lock:
            self._changes[topic] += 1
            self._partitions.pop(topic, None)

    def _look(self) -> None:
        # Held for both reading and calling back, so that the latest data is reported last.
        with self._looking:
            live = brokers(self._session, self._layout)
            with self._lock:
                same = live == self._live
                self._live = live
            if not same:
                self._changed(live)


class ClusterDirectory(BrokerDirectory):
    """*Thread-safe: its lock is held during each look-up.* Asks a broker, on today's wire."""

    def __init__(self, config: ClientConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._cluster = Cluster(config, clock=clock)

    def partitions(self, topic: str) -> list[BrokerPartition]:
        with self._lock:
            attempts = self._cluster.retrying(f"looking up topic {topic}")
            found, live = attempts.run(lambda deadline: self._ask(topic, deadline))
            same, self._live = live == self._live, live
        if not same:
            self._changed(live)
        return found

    def refresh(self, topic: str) -> None:
        with self._lock:
            self._cluster.forget(topic)

    def close(self) -> None:
        with self._lock:
            self._cluster.close()

    def _ask(self, topic: str, deadline: Deadline) -> tuple[list[BrokerPartition], dict[int, BrokerNode]]:
        metadata = self._cluster.metadata([topic], allow_auto_creation=True, deadline=deadline)
        all_of_them, live = metadata.topics[topic].partitions, metadata.brokers
        error = metadata.topics[topic].error
        led = [BrokerPartition(p.leader, n) for n, p in all_of_them.items() if p.leader in live]
        if error == ErrorCode.NONE and len(led) < max(len(all_of_them), 1):
            error = ErrorCode.LEADER_NOT_AVAILABLE
        if error != ErrorCode.NONE:
            raise error_for(error, f"topic {topic}: {reason(error, 'Describe', topic=topic)}")
        return led, {id: BrokerNode(id, host, port) for id, (host, port) in live.items()}


def directory_of(config: ClassicProducerConfig, *, clock: Clock = SYSTEM_CLOCK) -> BrokerDirectory:
    if config.zookeeper_connect is None:
        addresses = [(broker.host, broker.port) for broker in config.brokers]
        client = replace(config.for_todays_wire(*addresses), servers_option="broker.list")
        return ClusterDirectory(client, clock=clock)
    first_partition = 0 if config.protocol == PROTOCOL_07 else ANY_PARTITION
    return ZooKeeperDirectory(session_of(config), layout_of(config, config.protocol), first_partition)


class Destination(NamedTuple):
    """`ANY_PARTITION` lets the broker choose."""

    broker: BrokerNode
    partition: int


class RandomRouter:
    """*Thread-safe.* ``broker.list``: a random broker, whatever the key. Messages for a dead one fail."""

    def __init__(self, brokers: Sequence[BrokerNode]) -> None:
        self._brokers, self._random = list(brokers), random.Random()

    def start(self, changed: Changed) -> None:
        changed({broker.id: broker for broker in self._brokers})

    def route(self, topic: str, key: Any) -> Destination:  # noqa: ARG002  (as `PartitionRouter`)
        return Destination(self._random.choice(self._brokers), ANY_PARTITION)

    def failed(self, topics: Iterable[str]) -> None: ...

    def close(self) -> None: ...


class PartitionRouter:
    """*Thread-safe: its directory is.* Uses a partitioner on the topic's sorted partitions."""

    def __init__(self, directory: BrokerDirectory, partitioner: Partitioner, retries: int) -> None:
        self._directory, self._partitioner, self._retries = directory, partitioner, retries
        self._random = random.Random()

    def start(self, changed: Changed) -> None:
        self._directory.start(changed)

    def route(self, topic: str, key: Any) -> Destination:
        """Raises `InvalidPartitions` for a partitioner's number; BROKER_NOT_AVAILABLE: none is live."""
        for _ in range(self._retries + 1):
            rows = self._directory.partitions(topic)
            chosen = rows[self._chosen(topic, key, len(rows))]
            broker = self._directory.broker(chosen.broker)
            if broker is not None:
                return Destination(broker, chosen.partition)
            self._directory.refresh(topic)
        text = f"{topic}: broker {chosen.broker} of the chosen partition is not live"
        raise error_for(ErrorCode.BROKER_NOT_AVAILABLE, text)

    def failed(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                self._directory.refresh(topic)
            except KafkaError as e:
                _log.warning("%s: the brokers to send to cannot be looked up: %s", topic, e)

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


Router = RandomRouter | PartitionRouter


def router_of(config: ClassicProducerConfig, partitioner: Partitioner | None = None) -> Router:
    if config.zookeeper_connect is None and config.protocol == PROTOCOL_07:
        return RandomRouter([BrokerNode(*broker) for broker in config.brokers])
    if partitioner is None and config.partitioner_class is not None:
        partitioner = new_instance(config.partitioner_class, PARTITIONERS, "partitioner.class")
    if partitioner is None:
        partitioner = JavaHashPartitioner() if config.protocol == PROTOCOL_07 else Murmur2Partitioner()
    return PartitionRouter(directory_of(config), partitioner, config.zk_read_retries)


class Encoder(Protocol):
    def to_message(self, event: Any) -> bytes: ...


class DefaultEncoder:
    def to_message(self, event: Any) -> bytes:
        if isinstance(event, bytes):
            return event
        if isinstance(event, (bytearray, memoryview)):
            return bytes(event)
        raise TypeError(
            f"an event must be bytes, not {type(event).__name__}: set a serializer.class for other types"
        )


class StringEncoder:
    def to_message(self, event: Any) -> bytes:
        if not isinstance(event, str):
            raise TypeError(f"an event must be str, not {type(event).__name__}")
        return event.encode()


def key_bytes(key: Any) -> bytes:
    """A key on today's wire: bytes, or str as UTF-8. Raises `TypeError` for other types."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"on today's wire a key must be bytes or str, not {type(key).__name__}")


ENCODERS: dict[str, type] = {
    "kafka.serializer.DefaultEncoder": DefaultEncoder,
    "kafka.serializer.StringEncoder": StringEncoder,
}


def new_instance(name: str, known: dict[str, type], source: str) -> Any:
    """An instance of ``name``: one of ``known``, or a Python ``package.module.Class``."""
    cls: Any = known.get(name)
    if cls is None:
        module, _, last = name.rpartition(".")
        try:
            cls = getattr(import_module(module), last)
        except (ImportError, AttributeError, ValueError) as e:
            names = "".join(f", {java}" for java in known)
            raise InvalidConfig(
                f"{source}={name} is not a class: {e}; allowed: package.module.Class{names}"
            ) from e
    try:
        return cls()
    except TypeError as e:
        raise InvalidConfig(f"{source}={name} cannot be made without arguments: {e}") from e
