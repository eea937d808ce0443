"""Live brokers and their partitions; members, owners and offsets of consumer groups.

Each group function is one step of the rebalance algorithm; the caller decides what to retry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.types import NO_BROKER, TopicPartition
from pyspark_kafkalog.zookeeper.paths import (
    NUMBER,
    BrokerNode,
    ConsumerSubscription,
    MalformedNode,
    PartitionNode,
    RegistryLayout,
    layout_of,
    read_cluster_id,
    read_offset,
    write_cluster_id,
)
from pyspark_kafkalog.zookeeper.session import NodeExists, Watch, ZooKeeperSession, session_of

_log = logging.getLogger(__name__)

T = TypeVar("T")


class BrokerIdInUse(KafkaError):
    def __init__(self, ours: BrokerNode, other: BrokerNode | None, path: str) -> None:
        holder = f"by {other.host}:{other.port}" if other is not None else "by a znode that is not a broker's"
        super().__init__(
            f"broker id {ours.id} is in use {holder} ({path} in ZooKeeper): give the broker at "
            f"{ours.host}:{ours.port} another node.id, or stop the other one"
        )
        self.other = other


class RegistryWatch:
    """*Not thread-safe: on its session's thread, except `cancel`.* Watches a node's children and their data.

    ``changed`` is called when a child appears, disappears or changes, and sometimes without a change.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        parent: str,
        child: Callable[[str], str],
        changed: Callable[[], object],
    ) -> None:
        self._session = session
        self._child = child
        self._changed = changed
        self._below: dict[str, Watch] = {}
        self._children = session.watch_children(parent, self._found)

    def cancel(self) -> None:
        self._children.cancel()
        for watch in list(self._below.values()):
            watch.cancel()

    def _found(self, names: list[str]) -> None:
        for name in self._below.keys() - set(names):
            self._below.pop(name).cancel()
        for name in set(names) - self._below.keys():
            self._below[name] = self._session.watch_node(self._child(name), lambda _data: self._changed())
        self._changed()


def brokers(session: ZooKeeperSession, layout: RegistryLayout) -> dict[int, BrokerNode]:
    nodes = {number: broker_at(session, layout, number) for number in broker_ids(session, layout)}
    return {number: broker for number, broker in nodes.items() if broker is not None}


def broker_ids(session: ZooKeeperSession, layout: RegistryLayout) -> list[int]:
    return sorted(int(name) for name in session.children(layout.brokers) if NUMBER.fullmatch(name))


def broker_at(session: ZooKeeperSession, layout: RegistryLayout, broker: int) -> BrokerNode | None:
    path = layout.broker(broker)
    return _value(session, path, lambda data: layout.read_broker(broker, data), path)


def _value(session: ZooKeeperSession, path: str, read: Callable[[bytes], T], what: str) -> T | None:
    """None if the node is missing, or malformed, which is logged."""
    node = session.read(path)
    try:
        return None if node is None else read(node.data)
    except MalformedNode as e:
        _log.warning("%s is skipped: %s", what, e)
        return None


def topics(session: ZooKeeperSession, layout: RegistryLayout) -> list[str]:
    return session.children(layout.topics)


def partitions(session: ZooKeeperSession, layout: RegistryLayout, topic: str) -> list[PartitionNode]:
    """Partitions of live brokers, in assignment order."""
    nodes: list[PartitionNode] = []
    for child in session.children(layout.topic(topic)):
        path = layout.topic_child(topic, child)
        nodes += _value(session, path, partial(layout.read_partitions, child), path) or []
    return sorted(nodes, key=lambda partition: layout.partition_order(partition.name))


def watch_brokers(
    session: ZooKeeperSession, layout: RegistryLayout, changed: Callable[[], object]
) -> RegistryWatch:
    """Call ``changed`` on the session's thread soon, and when a broker comes, goes or changes address."""
    return RegistryWatch(session, layout.brokers, lambda name: f"{layout.brokers}/{name}", changed)


def watch_topic(
    session: ZooKeeperSession, layout: RegistryLayout, topic: str, changed: Callable[[], object]
) -> RegistryWatch:
    """Call ``changed`` on the session's thread when `partitions` of the topic may have changed."""
    return RegistryWatch(session, layout.topic(topic), lambda name: layout.topic_child(topic, name), changed)


def cluster_id(session: ZooKeeperSession, layout: RegistryLayout) -> str | None:
    node = session.read(layout.cluster_id)
    return None if node is None else read_cluster_id(node.data)


def agree_on_cluster(session: ZooKeeperSession, layout: RegistryLayout, known: str | None, fresh: str) -> str:
    """The cluster id in ZooKeeper; the first broker writes ``known``, of our data directory, or ``fresh``.

    Raises `InvalidConfig` if ZooKeeper has another id than ``known``.
    """
    path = layout.cluster_id
    ours = known or fresh
    try:
        session.create(path, write_cluster_id(ours))
        return ours
    except NodeExists:
        theirs = cluster_id(session, layout)
    if theirs is None:
        raise KafkaError(f"{path} was removed from ZooKeeper just now")
    if known is not None and known != theirs:
        raise InvalidConfig(
            f"the data directory belongs to cluster {known}, but the brokers at "
            f"{session.hosts}{session.chroot} are cluster {theirs} ({path}): "
            "use another chroot or another log.dirs"
        )
    return theirs


class ConsumerIdInUse(KafkaError): ...


def groups(session: ZooKeeperSession, layout: RegistryLayout) -> list[str]:
    return session.children(layout.groups)


def register_consumer(
    session: ZooKeeperSession,
    layout: RegistryLayout,
    group: str,
    consumer: str,
    subscription: ConsumerSubscription,
    now_ms: int,
) -> None:
    """Raises `ConsumerIdInUse` until an earlier session with this id has expired."""
    data = layout.write_subscription(subscription, now_ms)
    try:
        session.create(layout.consumer(group, consumer), data, ephemeral=True)
    except NodeExists as e:
        raise ConsumerIdInUse(
            f"group {group} already has a consumer {consumer} ({e.path} in ZooKeeper)"
        ) from e


def unregister_consumer(session: ZooKeeperSession, layout: RegistryLayout, group: str, consumer: str) -> None:
    session.delete(layout.consumer(group, consumer))


def consumers(
    session: ZooKeeperSession, layout: RegistryLayout, group: str
) -> dict[str, ConsumerSubscription]:
    subscriptions = {}
    for consumer in session.children(layout.consumers(group)):
        what, path = f"consumer {consumer} of group {group}", layout.consumer(group, consumer)
        subscription = _value(session, path, layout.read_subscription, what)
        if subscription is not None:
            subscriptions[consumer] = subscription
    return subscriptions


def watch_consumers(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, changed: Callable[[], object]
) -> RegistryWatch:
    """Call ``changed`` on the session's thread soon, and when a consumer comes, goes or resubscribes."""
    return RegistryWatch(session, layout.consumers(group), lambda name: layout.consumer(group, name), changed)


def claim(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str, partition: str, thread: str
) -> bool:
    """Own a partition for one of our threads; False if it is owned, even by our own expired session."""
    try:
        session.create(layout.owner(group, topic, partition), thread.encode(), ephemeral=True)
    except NodeExists:
        return False
    return True


def release(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str, partition: str, thread: str
) -> bool:
    path = layout.owner(group, topic, partition)
    node = session.read(path)
    if node is None or node.data != thread.encode():
        return False
    return session.delete(path, node.version)


def owner(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str, partition: str
) -> str | None:
    node = session.read(layout.owner(group, topic, partition))
    return None if node is None else node.data.decode(errors="replace")


def owners(session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str) -> dict[str, str]:
    names = sorted(session.children(layout.owners(group, topic)), key=layout.partition_order)
    threads = {name: owner(session, layout, group, topic, name) for name in names}
    return {name: thread for name, thread in threads.items() if thread is not None}


def read_group_offset(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str, partition: str
) -> int | None:
    node = session.read(layout.offset(group, topic, partition))
    return None if node is None else read_offset(node.data)


def write_group_offset(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str, partition: str, offset: int
) -> None:
    session.write(layout.offset(group, topic, partition), b"%d" % offset)


def group_offsets(
    session: ZooKeeperSession, layout: RegistryLayout, group: str, topic: str
) -> dict[str, int]:
    names = sorted(session.children(layout.offsets(group, topic)), key=layout.partition_order)
    offsets = {name: read_group_offset(session, layout, group, topic, name) for name in names}
    return {name: offset for name, offset in offsets.items() if offset is not None}


def partition_named(topic: str, name: str) -> TopicPartition | None:
    """The partition whose name in the registries is ``name``, of either generation; None for other names."""
    broker, dash, number = name.rpartition("-")
    if not NUMBER.fullmatch(number) or (dash and not NUMBER.fullmatch(broker)):
        return None
    return TopicPartition(topic, int(number), int(broker) if dash else NO_BROKER)


class ZooKeeperGroup:
    """*Not thread-safe.* One group; each call opens its own session, as a load makes only one or two."""

    def __init__(self, config: ZooKeeperConfig, group: str, protocol: str) -> None:
        self._config, self._group = config, group
        self._layout = layout_of(config, protocol)

    def is_known(self) -> bool:
        with session_of(self._config) as session:
            return self._group in groups(session, self._layout)

    def offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        with session_of(self._config) as session:
            wanted = self._stored(session) if partitions is None else partitions
            offsets = {
                p: read_group_offset(session, self._layout, self._group, p.topic, p.number) for p in wanted
            }
        return {partition: offset for partition, offset in offsets.items() if offset is not None}

    def _stored(self, session: ZooKeeperSession) -> list[TopicPartition]:
        named = [
            partition_named(topic, name)
            for topic in session.children(self._layout.stored_topics(self._group))
            for name in session.children(self._layout.offsets(self._group, topic))
        ]
        return sorted(tp for tp in named if tp is not None)

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        with session_of(self._config) as session:
            for p, offset in positions.items():
                write_group_offset(session, self._layout, self._group, p.topic, p.number, offset)
