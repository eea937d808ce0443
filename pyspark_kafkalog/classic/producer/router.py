"""From an event to its broker and partition: encoders, partitioners, directories of brokers, and routers.

``partition(key, count)`` indexes the topic's sorted partitions: by broker and number on 0.7's wire, by number
alone on today's. Without a key the partition is random.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.producer07 import ClassicProducerConfig
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, InvalidPartitions, KafkaError, error_for
from pyspark_kafkalog.producer.routing import partition_for
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION
from pyspark_kafkalog.zookeeper.paths import BrokerNode, RegistryLayout, layout_of
from pyspark_kafkalog.zookeeper.registries import (
    RegistryWatch,
    brokers,
    partitions,
    watch_brokers,
    watch_topic,
)
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession, session_of

_INT_BITS, _LONG_BITS = 32, 64


class Partitioner(Protocol):
    """Chooses a partition by a key that is not None. May be called by several threads."""

    def partition(self, key: Any, partition_count: int) -> int:
        """A number from 0 to ``partition_count`` - 1."""
        ...


class JavaHashPartitioner:
    """*Thread-safe: immutable.* ``abs(key.hashCode) % count``, as 0.7's ``DefaultPartitioner``.

    For -2^31, whose absolute value does not fit Java's int, 0.7 may raise; here 2^31 is used.
    """

    def partition(self, key: Any, partition_count: int) -> int:
        """The partition of a str, an int or bytes. Raises `TypeError` for any other key."""
        return abs(java_hash(key)) % partition_count


class Murmur2Partitioner:
    """*Thread-safe: immutable.* As Kafka's own clients since 0.8.2."""

    def partition(self, key: Any, partition_count: int) -> int:
        """The partition of bytes, or of a str's UTF-8. Raises `TypeError` for any other key."""
        return partition_for(key_bytes(key), partition_count)


PARTITIONERS: dict[str, type] = {"kafka.producer.DefaultPartitioner": JavaHashPartitioner}
"""Java class names in configurations of the first generation."""


def java_hash(key: Any) -> int:
    """Java's ``hashCode``, a signed 32-bit number.

    A str as ``String``, by its UTF-16 units; an int as ``Integer`` if it fits, else as
    ``Long``. Bytes as the string of these characters, so that an ASCII key hashes the same as str and as
    bytes: Java itself hashes arrays by identity. `TypeError` for a number beyond ``Long``.
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
    found = 0
    for unit in units:
        found = 31 * found + unit & 0xFFFFFFFF
    return _signed(found)


def _signed(bits: int) -> int:
    bits &= 0xFFFFFFFF
    return bits - (1 << _INT_BITS) if bits >> _INT_BITS - 1 else bits


class BrokerPartition(NamedTuple):
    """A partition and its broker. Sorted as partitioners index them."""

    broker: int
    partition: int


Changed: TypeAlias = Callable[[Mapping[int, BrokerNode]], object]
"""Called with the live brokers when they have changed."""


class BrokerDirectory(Protocol):
    """*Thread-safe.* A producer's knowledge of brokers and topics."""

    def start(self, changed: Changed) -> None:
        """Look up the brokers; ``changed`` is called now, and later on any thread."""
        ...

    def partitions(self, topic: str) -> list[BrokerPartition]:
        """A topic's partitions in the order for partitioners; at least one."""
        ...

    def broker(self, broker: int) -> BrokerNode | None:
        """A live broker; None if there is none with this id."""
        ...

    def refresh(self, topic: str) -> None:
        """Metadata of ``topic`` or the brokers proved wrong: look up again before the next use."""
        ...

    def close(self) -> None: ...


def _ignore_change(_live: Mapping[int, BrokerNode]) -> None:
    """The callback before `BrokerDirectory.start`."""


class ZooKeeperDirectory:
    """*Thread-safe: its lock guards its data.* Reads the registries, and again when a watch fires.

    The watches are the design papers' four: one on the list of brokers; others below a topic's node, from its
    first use on, for its creation and for further brokers. A new topic is sent to the first partition of
    every live broker, which creates it.
    """

    def __init__(self, session: ZooKeeperSession, layout: RegistryLayout, first_partition: int) -> None:
        """``first_partition`` is where a new topic is sent to."""
        self._session, self._layout, self._first = session, layout, first_partition
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._live: dict[int, BrokerNode] = {}
        self._partitions: dict[str, list[BrokerPartition]] = {}
        self._changes: dict[str, int] = defaultdict(int)
        self._watches: dict[str, RegistryWatch] = {}
        self._changed: Changed = _ignore_change

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
                # A watch that fired since then has newer data.
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
        """By broker and number if each broker has its own partitions, else by number."""
        return (row.broker if self._layout.brokers_own_partitions else 0, row.partition)

    def _topic_changed(self, topic: str) -> None:
        with self._lock:
            self._changes[topic] += 1
            self._partitions.pop(topic, None)

    def _look(self) -> None:
        """Read the live brokers, and call back if they have changed."""
        # Held during reading and calling back, so that the latest data is reported last.
        with self._looking:
            live = brokers(self._session, self._layout)
            with self._lock:
                same = live == self._live
                self._live = live
            if not same:
                self._changed(live)


class ClusterDirectory:
    """*Thread-safe: its lock is held during each look-up.* Asks a broker on today's wire."""

    def __init__(self, config: ClientConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster = Cluster(config, clock=clock)
        self._lock = threading.Lock()
        self._live: dict[int, BrokerNode] = {}
        self._changed: Changed = _ignore_change

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
    """The directory for a configuration: in ZooKeeper, or of the brokers on today's wire."""
    if config.zookeeper_connect is None:
        addresses = [(broker.host, broker.port) for broker in config.brokers]
        client = replace(config.for_todays_wire(*addresses), servers_option="broker.list")
        return ClusterDirectory(client, clock=clock)
    first_partition = 0 if config.protocol == PROTOCOL_07 else ANY_PARTITION
    return ZooKeeperDirectory(session_of(config), layout_of(config, config.protocol), first_partition)


class Destination(NamedTuple):
    """A broker and its partition; `ANY_PARTITION` lets the broker choose."""

    broker: BrokerNode
    partition: int


class Router(Protocol):
    """*Thread-safe.* Chooses broker and partition for each message."""

    def start(self, changed: Changed) -> None:
        """Look up the brokers; ``changed`` is called with them now and later."""
        ...

    def route(self, topic: str, key: Any) -> Destination:
        """The broker and partition for a message with this key.

        Raises `InvalidPartitions` for a partitioner's wrong number, BROKER_NOT_AVAILABLE for no live broker.
        """
        ...

    def failed(self, topic: str) -> None:
        """A send to the topic failed: the metadata may be outdated."""
        ...

    def close(self) -> None: ...


class RandomRouter:
    """*Thread-safe: immutable.* ``broker.list``: a random broker and partition, whatever the key.

    Brokers are not watched: a message for a dead one fails.
    """

    def __init__(self, brokers: Sequence[BrokerNode], seed: int | None = None) -> None:
        self._brokers = list(brokers)
        self._random = random.Random(seed)

    def start(self, changed: Changed) -> None:
        changed({broker.id: broker for broker in self._brokers})

    def route(self, topic: str, key: Any) -> Destination:  # noqa: ARG002  (as every router)
        return Destination(self._random.choice(self._brokers), ANY_PARTITION)

    def failed(self, topic: str) -> None:
        """There is nothing to refresh."""

    def close(self) -> None: ...


class PartitionRouter:
    """*Thread-safe: its directory is.* The partitioner's number indexes the topic's sorted partitions."""

    def __init__(
        self, directory: BrokerDirectory, partitioner: Partitioner, retries: int, seed: int | None = None
    ) -> None:
        """``retries`` is how often the directory looks again for an unknown broker."""
        self._directory, self._partitioner, self._retries = directory, partitioner, retries
        self._random = random.Random(seed)

    def start(self, changed: Changed) -> None:
        self._directory.start(changed)

    def route(self, topic: str, key: Any) -> Destination:
        """See `Router`."""
        for _ in range(self._retries + 1):
            rows = self._directory.partitions(topic)
            chosen = rows[self._chosen(topic, key, len(rows))]
            broker = self._directory.broker(chosen.broker)
            if broker is not None:
                return Destination(broker, chosen.partition)
            self._directory.refresh(topic)
        code = ErrorCode.BROKER_NOT_AVAILABLE
        raise error_for(code, f"{topic}: broker {chosen.broker} of the chosen partition is not live")

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
    """The router for a configuration; ``partitioner`` has precedence over ``partitioner.class``."""
    if config.zookeeper_connect is None and config.protocol == PROTOCOL_07:
        return RandomRouter([BrokerNode(*broker) for broker in config.brokers])
    if partitioner is None and config.partitioner_class is not None:
        partitioner = new_instance(config.partitioner_class, PARTITIONERS, "partitioner.class")
    if partitioner is None:
        partitioner = JavaHashPartitioner() if config.protocol == PROTOCOL_07 else Murmur2Partitioner()
    return PartitionRouter(directory_of(config), partitioner, config.zk_read_retries)


class Encoder(Protocol):
    """Makes the payload of a message from an event. May be called by several threads."""

    def to_message(self, event: Any) -> bytes:
        """The payload. Its errors are reported to the event's sender."""
        ...


class DefaultEncoder:
    """*Thread-safe.* Events are bytes, used unchanged."""

    def to_message(self, event: Any) -> bytes:
        """``event``, which must be bytes. Raises `TypeError`."""
        if isinstance(event, bytes):
            return event
        if isinstance(event, (bytearray, memoryview)):
            return bytes(event)
        raise TypeError(
            f"an event must be bytes, not {type(event).__name__}: set a serializer.class for other types"
        )


class StringEncoder:
    """*Thread-safe.* Events are text; messages are UTF-8."""

    def to_message(self, event: Any) -> bytes:
        """``event`` as UTF-8. Raises `TypeError` for other types."""
        if not isinstance(event, str):
            raise TypeError(f"an event must be str, not {type(event).__name__}")
        return event.encode()


def key_bytes(key: Any) -> bytes:
    """A key for today's wire: bytes, or str as UTF-8. Raises `TypeError`."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"on today's wire a key must be bytes or str, not {type(key).__name__}")


ENCODERS: dict[str, type] = {
    "kafka.serializer.DefaultEncoder": DefaultEncoder,
    "kafka.serializer.StringEncoder": StringEncoder,
}
"""Those that the first generation's configurations name."""


def new_instance(name: str, known: dict[str, type], source: str) -> Any:
    """An instance of the class ``name``: one of ``known``, or Python's ``package.module.Class``."""
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
