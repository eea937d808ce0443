"""The registry of brokers and topics: live brokers, and which partitions each one has."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.zookeeper.paths import Layout
from pyspark_kafkalog.zookeeper.session import NodeExists, RegistryWatch, Session, Watch
from pyspark_kafkalog.zookeeper.values import (
    NUMBER,
    BrokerNode,
    MalformedNode,
    PartitionNode,
    read_cluster_id,
    write_cluster_id,
)

_log = logging.getLogger(__name__)


class BrokerIdInUse(KafkaError):
    """Another broker is registered under this id."""

    def __init__(self, ours: BrokerNode, other: BrokerNode | None, path: str) -> None:
        holder = f"by {other.host}:{other.port}" if other is not None else "by a znode that is not a broker's"
        super().__init__(
            f"broker id {ours.id} is in use {holder} ({path} in ZooKeeper): give the broker at "
            f"{ours.host}:{ours.port} another node.id, or stop the other one"
        )
        self.other = other


def brokers(session: Session, layout: Layout) -> dict[int, BrokerNode]:
    """The live brokers by id."""
    ids = sorted(int(name) for name in session.children(layout.brokers) if NUMBER.fullmatch(name))
    found = ((number, broker_at(session, layout, number)) for number in ids)
    return {number: broker for number, broker in found if broker is not None}


def broker_at(session: Session, layout: Layout, broker: int) -> BrokerNode | None:
    """The live broker with this id; None if there is none."""
    node = session.read(layout.broker(broker))
    if node is None:
        return None
    try:
        return layout.read_broker(broker, node.data)
    except MalformedNode as e:
        _log.warning("%s is skipped: %s", layout.broker(broker), e)
        return None


def topics(session: Session, layout: Layout) -> list[str]:
    """Every topic that some broker has or had, sorted."""
    return session.children(layout.topics)


def partitions(session: Session, layout: Layout, topic: str) -> list[PartitionNode]:
    """The partitions of live brokers, in the order in which they are assigned to consumers."""
    found: list[PartitionNode] = []
    for child in session.children(layout.topic(topic)):
        node = session.read(layout.topic_child(topic, child))
        if node is None:
            continue
        try:
            found += layout.read_partitions(child, node.data)
        except MalformedNode as e:
            _log.warning("%s is skipped: %s", layout.topic_child(topic, child), e)
    return sorted(found, key=lambda partition: layout.partition_order(partition.name))


def watch_brokers(session: Session, layout: Layout, changed: Callable[[], object]) -> RegistryWatch:
    """Call ``changed`` on the session's thread soon, and when a broker comes, goes or changes its address."""
    return RegistryWatch(session, layout.brokers, lambda name: f"{layout.brokers}/{name}", changed)


def watch_topics(session: Session, layout: Layout, tell: Callable[[list[str]], object]) -> Watch:
    """Call ``tell`` on the session's thread with the topics' names, soon and when there is a new one."""
    return session.watch_children(layout.topics, tell)


def watch_topic(session: Session, layout: Layout, topic: str, changed: Callable[[], object]) -> RegistryWatch:
    """Call ``changed`` on the session's thread when `partitions` of the topic may have changed."""
    return RegistryWatch(session, layout.topic(topic), lambda name: layout.topic_child(topic, name), changed)


def cluster_id(session: Session, layout: Layout) -> str | None:
    """The id of this ZooKeeper's cluster; None if it has none, as in 0.7 itself."""
    node = session.read(layout.cluster_id)
    return None if node is None else read_cluster_id(node.data)


def agree_on_cluster(session: Session, layout: Layout, known: str | None, fresh: str) -> str:
    """The id of this ZooKeeper's cluster, written by its first broker; `InvalidConfig` if our data has
    another.

    ``known`` is the id in our data directory, None in a new one; ``fresh`` is for the first broker of all.
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
