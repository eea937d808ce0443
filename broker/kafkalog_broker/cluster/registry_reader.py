"""Reads the registry of a cluster's topics from ZooKeeper, in full or only the changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import ABSENT, ClusterTopic, ClusterView, Deletion, Name07
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.zookeeper.cluster_nodes import (
    ClusterNodes,
    RegistryNode,
    read_config,
    read_deleted,
    read_name_07,
    read_registry,
    read_topic,
)
from pyspark_kafkalog.zookeeper.paths import MalformedNode
from pyspark_kafkalog.zookeeper.session import Node, ZooKeeperError, ZooKeeperSession

_log = logging.getLogger(__name__)


class NoRegistry(ZooKeeperError):
    """ZooKeeper has no registry of topics."""


class OlderRegistry(ZooKeeperError):
    """The registry's state is older than one that this broker has seen."""


class Reading(NamedTuple):
    """The root's value, and the topics at its version."""

    root: RegistryNode
    view: ClusterView


class RegistryReader:
    """*Not thread-safe: under its owner's lock.* Reads the znodes of one cluster's topics."""

    def __init__(self, session: ZooKeeperSession, nodes: ClusterNodes) -> None:
        self._session = session
        self._nodes = nodes

    def version(self) -> int | None:
        root = self._session.read(self._nodes.topics)
        return None if root is None else root.version

    def read(self, known: Reading | None, suspect: str | None) -> Reading:
        """``known``, updated with what changed, and the ``suspect``. Raises `NoRegistry`, `OlderRegistry`."""
        path = self._nodes.topics
        node = self._session.read(path)
        root = None if node is None else read_registry(node.data)
        if node is None or root is None:
            raise NoRegistry(f"there is no registry of topics at {path} in ZooKeeper")
        if known is None or known.view.registry != root.registry:
            return self._all(root, node.version)
        if known.view.version > node.version:
            raise older(path, node.version, known.view.version)
        if known.view.version == node.version and suspect is None:
            return known
        names = root.since(known.view.version, node.version)
        if names is None:
            return self._all(root, node.version)
        return self._topics(root, node.version, known.view, names if suspect is None else names | {suspect})

    def _all(self, root: RegistryNode, version: int) -> Reading:
        nothing = ClusterView(version, root.registry)
        return self._topics(root, version, nothing, self._session.children(self._nodes.topics))

    def _topics(self, root: RegistryNode, version: int, before: ClusterView, names: Iterable[str]) -> Reading:
        topics, vacant, names_07 = dict(before.topics), dict(before.vacant), dict(before.names_07)
        names = sorted(names)
        found = self._session.read_all(
            [path for name in names for path in (self._nodes.topic(name), self._nodes.config(name))]
        )
        for name in names:
            for known in (topics, vacant, names_07):
                known.pop(name, None)
            node, config = found.get(self._nodes.topic(name)), found.get(self._nodes.config(name))
            try:
                topic = self._topic(name, node, config)
                brokers_07 = read_name_07(name, node.data) if node is not None and topic is None else None
            except KafkaError as e:
                _log.error("%s is not served: %s", self._nodes.topic(name), e)
                continue
            if topic is not None:
                topics[name] = topic
            elif node is not None and brokers_07:
                names_07[name] = Name07(brokers_07, node.version)
            elif node is not None or config is not None:
                vacant[name] = (_version(node), _version(config))
        view = replace(
            before, version=version, topics=topics, vacant=vacant, deletions=self._deletions(),
            members=root.members, names_07=names_07,
        )  # fmt: skip
        return Reading(root, view)

    def _topic(self, name: str, node: Node | None, config: Node | None) -> ClusterTopic | None:
        topic = None if node is None else read_topic(name, node.data)
        overrides = {} if config is None else read_config(name, config.data)
        if topic is None:
            return None
        every = tuple(range(len(topic.owners)))
        stored = StoredTopic(topic.topic_id, every, overrides, epochs=topic.epochs)
        return ClusterTopic(
            stored, topic.owners, topic.pending, _version(node), _version(config), topic.starts
        )

    def _deletions(self) -> dict[UUID, Deletion]:
        children = self._session.children(self._nodes.deleted)
        if not children:
            return {}
        paths = {f"{self._nodes.deleted}/{child}": child for child in children}
        found = {}
        for path, node in self._session.read_all(paths).items():
            try:
                deleted = read_deleted(paths[path], node.data)
            except MalformedNode as e:
                _log.warning("%s is skipped: %s", path, e)
                continue
            found[deleted.topic_id] = Deletion(deleted.name, deleted.brokers, node.version)
        return found


def older(path: str, version: int, seen: int) -> OlderRegistry:
    return OlderRegistry(
        f"{path} in ZooKeeper has version {version}, but this broker has seen version {seen} of it: an old "
        "state of ZooKeeper has come back. Nothing is changed. Bring back a state that is not older, or "
        f"remove {path} with all that is below it: the brokers then register again what they have"
    )


def _version(node: Node | None) -> int:
    return ABSENT if node is None else node.version
