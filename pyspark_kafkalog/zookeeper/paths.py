"""Every znode and its value, in the layouts of Kafka's two generations. Pure.

Below the prefix of a layout; first 0.7 (`V07Layout`), then later versions (`JsonLayout`):

* ``/brokers/ids/<broker>``, ephemeral: ``<host>-<ms>:<host>:<port>``, the first field being the creator;
  JSON with jmx_port, timestamp, endpoints, host, version 2, port
* ``/brokers/topics/<topic>/<broker>``, ephemeral: number of partitions; later instead
  ``/brokers/topics/<topic>/partitions/<n>/state``: JSON with controller_epoch, leader, version, leader_epoch,
  isr
* ``/consumers/<group>/ids/<consumer>``, ephemeral: ``{ "topic": streams }``, for a white list
  ``*streams*regex``, for a black list ``!streams!regex``; JSON with version, subscription, pattern, timestamp
* ``/consumers/<group>/owners/<topic>/<partition>``, ephemeral: ``<consumer>-<stream>`` in both
* ``/consumers/<group>/offsets/<topic>/<partition>``, persistent: the next offset, decimal, in both
* ``/cluster/id``, persistent: JSON with version and id; not in 0.7

A ``<partition>`` is ``<broker>-<n>`` in 0.7, where each broker has its own, and ``<n>`` later. The design
papers write some values more simply (a broker as ``host:port``, the cluster id as plain text); these are read
too. Sources: kafka 0.7 ``utils/ZkUtils.scala``, ``consumer/TopicCount.scala``; 0.9 ``utils/ZkUtils.scala``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig, znode_name
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.types import PROTOCOL_07
from pyspark_kafkalog.zookeeper.topic_filters import topic_regex

STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"
"""How a consumer selects topics; the values in the later JSON."""

NUMBER = re.compile(r"[0-9]{1,19}")
_CLUSTER_ID = re.compile(r"[a-zA-Z0-9_-]{1,22}")
_SHOWN_CHARS = 100

MAX_PARTITIONS = 100_000  # limit per topic and broker, so that a znode's value cannot cause large allocations


V07_PREFIX, JSON_PREFIX = "/", "/kafka"
"""Default prefixes: clients of 0.7 use no other; later the usual chroot."""

_MARKS = {WHITE_LIST: "*", BLACK_LIST: "!"}
_FILTER = re.compile(r"([*!])([0-9]{1,9})\1(.*)", re.DOTALL)
_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+)://(.*):([0-9]{1,5})")


class MalformedNode(KafkaError):
    def __init__(self, what: str, data: bytes | str) -> None:
        super().__init__(f"{what} cannot be {data[:_SHOWN_CHARS]!r}")


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A live broker; ``since_ms`` is its registration time, -1 if unknown.

    ``listeners`` are written if one of them is not PLAINTEXT; then host and port may be empty and -1.
    """

    id: int
    host: str
    port: int
    since_ms: int = -1
    listeners: tuple[ListenerNode, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"broker {self.id} at {self.host}:{self.port}"


class ListenerNode(NamedTuple):
    """One of a broker's addresses; ``protocol`` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class PartitionNode(NamedTuple):
    name: str
    broker: int
    number: int


class PartitionKey(NamedTuple):
    """A topic's partition by its name in the registries: ``<broker>-<n>`` in 0.7, ``<n>`` later."""

    topic: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


class ConsumerSubscription(msgspec.Struct, frozen=True):
    """Streams per topic, or for filters the one expression with its number of streams.

    ``by_broker`` asks for ranges of partitions of the same leaders; our field in the later JSON.
    """

    streams: Mapping[str, int]
    pattern: str = STATIC
    by_broker: bool = False

    def __post_init__(self) -> None:
        if self.pattern != STATIC and (
            self.pattern not in (WHITE_LIST, BLACK_LIST) or len(self.streams) != 1
        ):
            raise InvalidConfig(f"a {self.pattern} subscription of {len(self.streams)} expressions")
        if any(count < 1 for count in self.streams.values()):
            raise InvalidConfig(f"a topic needs at least one stream: {dict(self.streams)}")
        force_setattr(self, "streams", MappingProxyType(dict(self.streams)))

    def chosen(self, topics: Collection[str]) -> dict[str, int]:
        """Streams by topic; a filter is applied to ``topics``. Raises `InvalidConfig` if it is invalid."""
        if self.pattern == STATIC:
            return dict(self.streams)
        ((text, count),) = self.streams.items()
        matches, wanted = topic_regex(text).fullmatch, self.pattern == WHITE_LIST
        return {topic: count for topic in topics if (matches(topic) is not None) is wanted}


def write_cluster_id(cluster_id: str) -> bytes:
    return json_bytes({"version": "1", "id": cluster_id})


def read_cluster_id(data: bytes) -> str:
    text = text_of(data, "a cluster id").strip()
    if text.startswith("{"):
        text = str(json_object(text, "a cluster id").get("id") or "")
    if not _CLUSTER_ID.fullmatch(text):
        raise MalformedNode("a cluster id of up to 22 letters, digits, - and _", data)
    return text


def read_offset(data: bytes) -> int:
    return number_of(data, "an offset")


def subscription_of(
    counts: Mapping[str, Any], pattern: object, data: bytes, by_broker: bool = False
) -> ConsumerSubscription:
    if not isinstance(pattern, str) or not all(is_count(count) for count in counts.values()):
        raise MalformedNode("a subscription", data)
    try:
        return ConsumerSubscription(counts, pattern, by_broker)
    except InvalidConfig:
        raise MalformedNode("a subscription", data) from None


def json_bytes(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def json_object(data: bytes | str, what: str) -> dict[str, Any]:
    text = data if isinstance(data, str) else text_of(data, what)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise MalformedNode(what, text)
    return fields


def text_of(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedNode(what, data) from None


def number_of(data: bytes, what: str) -> int:
    text = text_of(data, what).strip()
    if not NUMBER.fullmatch(text):
        raise MalformedNode(what, data)
    return int(text)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_port(text: str) -> bool:
    return bool(NUMBER.fullmatch(text)) and 1 <= int(text) <= 65535


class _GroupPaths:
    """*Thread-safe: immutable.* Paths that are alike in both layouts, below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = checked_path(prefix)
        self.brokers = f"{self.prefix}/brokers/ids"
        self.topics = f"{self.prefix}/brokers/topics"
        self.cluster_id = f"{self.prefix}/cluster/id"
        self.groups = f"{self.prefix}/consumers"

    def broker(self, broker: int) -> str:
        return f"{self.brokers}/{broker}"

    def consumers(self, group: str) -> str:
        return f"{self.groups}/{checked_name(group)}/ids"

    def consumer(self, group: str, consumer: str) -> str:
        return f"{self.consumers(group)}/{checked_name(consumer)}"

    def owned_topics(self, group: str) -> str:
        return f"{self.groups}/{checked_name(group)}/owners"

    def owners(self, group: str, topic: str) -> str:
        return f"{self.owned_topics(group)}/{checked_name(topic)}"

    def owner(self, group: str, topic: str, partition: str) -> str:
        return f"{self.owners(group, topic)}/{checked_name(partition)}"

    def stored_topics(self, group: str) -> str:
        return f"{self.groups}/{checked_name(group)}/offsets"

    def offsets(self, group: str, topic: str) -> str:
        return f"{self.stored_topics(group)}/{checked_name(topic)}"

    def offset(self, group: str, topic: str, partition: str) -> str:
        return f"{self.offsets(group, topic)}/{checked_name(partition)}"


class V07Layout(_GroupPaths):
    brokers_own_partitions = True  # each broker numbers its own from 0

    def __init__(self, prefix: str = V07_PREFIX) -> None:
        super().__init__(prefix)

    def topic(self, topic: str) -> str:
        """The znode whose children describe the topic's partitions."""
        return f"{self.topics}/{checked_name(topic)}"

    def topic_nodes(
        self,
        topic: str,
        broker: int,
        partitions: int,
        numbers: Collection[int] | None = None,  # noqa: ARG002
        epochs: Mapping[int, int] = MappingProxyType({}),  # noqa: ARG002
    ) -> dict[str, bytes]:
        """Znodes that register partitions on a broker; ``numbers`` selects some where brokers share them.
        ``epochs`` are leader epochs other than 0.
        """
        return {f"{self.topic(topic)}/{broker}": b"%d" % partitions}

    def topic_child(self, topic: str, child: str) -> str:
        return f"{self.topic(topic)}/{child}"

    def read_partitions(self, child: str, data: bytes) -> list[PartitionNode]:
        broker = number_of(child.encode(), "a broker's id")
        count = number_of(data, "a number of partitions")
        if count > MAX_PARTITIONS:
            raise MalformedNode("a number of partitions", data)
        return [PartitionNode(self.partition_name(broker, n), broker, n) for n in range(count)]

    def partition_name(self, broker: int, partition: int) -> str:
        """The partition's name below ``owners`` and ``offsets``."""
        return f"{broker}-{partition}"

    def partition_order(self, name: str) -> Any:
        # As strings, like consumers of that time: all members of a group must sort alike.
        return name

    def write_broker(self, broker: BrokerNode) -> bytes:
        """Raises `InvalidConfig` for an address that the value cannot hold."""
        if ":" in broker.host:
            raise InvalidConfig(
                f"{broker}: 0.7 separates host and port by a colon; advertise a host name or an IPv4 address"
            )
        return f"{broker.host}-{broker.since_ms}:{broker.host}:{broker.port}".encode()

    def read_broker(self, broker: int, data: bytes) -> BrokerNode:
        fields = text_of(data, "a broker's address").split(":")
        creator, *address = fields if len(fields) >= 3 else ["", *fields]
        if len(address) < 2 or not address[0] or not is_port(address[1]):
            raise MalformedNode(f"broker {broker}: creator:host:port", data)
        since = creator.rpartition("-")[2]
        return BrokerNode(broker, address[0], int(address[1]), int(since) if NUMBER.fullmatch(since) else -1)

    def write_subscription(self, subscription: ConsumerSubscription, now_ms: int) -> bytes:  # noqa: ARG002
        mark = _MARKS.get(subscription.pattern)
        if mark is None:
            counts = (f"{json.dumps(topic)}: {count}" for topic, count in subscription.streams.items())
            return f"{{ {','.join(counts)} }}".encode()
        ((expression, count),) = subscription.streams.items()
        return f"{mark}{count}{mark}{expression}".encode()

    def read_subscription(self, data: bytes) -> ConsumerSubscription:
        text = text_of(data, "a subscription")
        expression = _FILTER.fullmatch(text)
        if expression is None:
            return subscription_of(json_object(text, "a subscription"), STATIC, data)
        pattern = WHITE_LIST if expression[1] == "*" else BLACK_LIST
        return subscription_of({expression[3]: int(expression[2])}, pattern, data)


class JsonLayout(_GroupPaths):
    brokers_own_partitions = False

    def __init__(self, prefix: str = JSON_PREFIX) -> None:
        super().__init__(prefix)

    def topic(self, topic: str) -> str:
        return f"{self.topics}/{checked_name(topic)}/partitions"

    def topic_nodes(
        self,
        topic: str,
        broker: int,
        partitions: int,
        numbers: Collection[int] | None = None,
        epochs: Mapping[int, int] = MappingProxyType({}),
    ) -> dict[str, bytes]:
        state = {"controller_epoch": 1, "leader": broker, "version": 1, "leader_epoch": 0, "isr": [broker]}
        usual = json_bytes(state)
        return {
            self.topic_child(topic, str(number)): (
                json_bytes({**state, "leader_epoch": epochs[number]}) if number in epochs else usual
            )
            for number in (range(partitions) if numbers is None else numbers)
        }

    def topic_child(self, topic: str, child: str) -> str:
        return f"{self.topic(topic)}/{child}/state"

    def read_partitions(self, child: str, data: bytes) -> list[PartitionNode]:
        number = number_of(child.encode(), "a partition's number")
        leader: Any = json_object(data, "a partition's state").get("leader")
        if not is_count(leader) and leader != -1:
            raise MalformedNode("a partition's state", data)
        # -1: the partition has no leader and cannot be read.
        return [PartitionNode(child, leader, number)] if leader >= 0 else []

    def partition_name(self, broker: int, partition: int) -> str:  # noqa: ARG002
        return str(partition)

    def partition_order(self, name: str) -> Any:
        return (int(name), "") if NUMBER.fullmatch(name) else (-1, name)

    def write_broker(self, broker: BrokerNode) -> bytes:
        plain = ListenerNode("PLAINTEXT", "PLAINTEXT", broker.host, broker.port)
        listeners = broker.listeners or (plain,)
        named = {} if listeners == (plain,) else {each.name: each.protocol for each in listeners}
        return json_bytes(
            {
                "jmx_port": -1,
                "timestamp": str(broker.since_ms),
                "endpoints": [str(each) for each in listeners],
                "host": broker.host or None,
                "version": 4 if named else 2,
                "port": broker.port,
                **({"listener_security_protocol_map": named} if named else {}),
            }
        )

    def read_broker(self, broker: int, data: bytes) -> BrokerNode:
        text = text_of(data, "a broker's address")
        if not text.lstrip().startswith("{"):
            return V07Layout().read_broker(broker, data)
        fields = json_object(text, f"broker {broker}")
        host, port = fields.get("host"), fields.get("port")
        if not host and isinstance(fields.get("endpoints"), list):
            # Brokers without a PLAINTEXT listener leave both empty; any address will do.
            found = [each for text in fields["endpoints"] if (each := _ENDPOINT.fullmatch(str(text)))]
            best = next((each for each in found if each[1] == "PLAINTEXT"), found[0] if found else None)
            host, port = (best[2].strip("[]"), int(best[3])) if best is not None else (None, None)
        if not isinstance(host, str) or not host or not is_count(port) or not is_port(str(port)):
            raise MalformedNode(f"broker {broker}: host and port", data)
        since = str(fields.get("timestamp", ""))
        return BrokerNode(
            broker, host, int(str(port)), int(since) if NUMBER.fullmatch(since) else -1, _listeners(fields)
        )

    def write_subscription(self, subscription: ConsumerSubscription, now_ms: int) -> bytes:
        pattern, streams = subscription.pattern, dict(subscription.streams)
        fields = {"version": 1, "subscription": streams, "pattern": pattern, "timestamp": str(now_ms)}
        return json_bytes({**fields, "by_broker": True} if subscription.by_broker else fields)

    def read_subscription(self, data: bytes) -> ConsumerSubscription:
        fields = json_object(data, "a subscription")
        counts = fields.get("subscription")
        if not isinstance(counts, dict):
            raise MalformedNode("a subscription", data)
        pattern = fields.get("pattern", STATIC)
        return subscription_of(counts, pattern, data, fields.get("by_broker") is True)


def _listeners(fields: Mapping[str, Any]) -> tuple[ListenerNode, ...]:
    endpoints, protocols = fields.get("endpoints"), fields.get("listener_security_protocol_map")
    named = protocols if isinstance(protocols, dict) else {}
    return tuple(
        ListenerNode(each[1], str(named.get(each[1], each[1])), each[2].strip("[]"), int(each[3]))
        for text in (endpoints if isinstance(endpoints, list) else ())
        if (each := _ENDPOINT.fullmatch(str(text))) and is_port(each[3])
    )


RegistryLayout = V07Layout | JsonLayout


def layout_of(config: ZooKeeperConfig, protocol: str) -> RegistryLayout:
    if protocol == PROTOCOL_07:
        return V07Layout(config.zookeeper_prefix_07)
    return JsonLayout(config.zookeeper_prefix)


def checked_path(text: str) -> str:
    """The path without its trailing slash; "" for the root. Raises `InvalidConfig`."""
    if not text.startswith("/"):
        raise InvalidConfig(f"{text!r} is not a ZooKeeper path: paths begin with a slash")
    path = text.rstrip("/")
    for part in path.split("/")[1:]:
        checked_name(part)
    return path


def checked_name(text: str) -> str:
    if not znode_name.test(text):
        raise InvalidConfig(f"{text!r} cannot be the name of a znode")
    return text
