"""The topics of a cluster in ZooKeeper: one record each, changed in one step for all brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from broker.cluster.ownership import ABSENT, ClusterTopic, ClusterView, Deletion, Ownership, spread
from broker.store.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidPartitions,
    KafkaError,
    ServerError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.zookeeper.cluster_nodes import (
    NOBODY,
    ChangesNode,
    ClusterNodes,
    DeletedTopic,
    TopicNode,
    read_changes,
    read_config,
    read_deleted,
    read_id_block,
    read_topic,
    write_changes,
    write_config,
    write_deleted,
    write_id_block,
    write_topic,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode
from pyspark_kafkalog.zookeeper.session import (
    Creation,
    NodeExists,
    Removal,
    Replacement,
    Session,
    ZooKeeperError,
)

_SYNCS = 20
"""Readings of a registry that others change meanwhile, before one is taken as it is."""

_ATTEMPTS = 200
"""Each failed one means that another broker's change came first."""

_EMPTIED_NODE = b'{"version":3,"partitions":{},"adding_replicas":{},"removing_replicas":{}}'

_log = logging.getLogger(__name__)

Part = Creation | Replacement | Removal
Plan = Callable[[ClusterView], Sequence[Part] | None]
"""What is to be written for a change, given the topics as they are; None where there is nothing to do any
more. Raises `KafkaError`: it cannot be done.
"""


class TopicRegistry:
    """*Thread-safe.* The topics of today's wire of all brokers below one prefix.

    Every change is one multi, which also sets ``/brokers/topics`` at the version that the change was planned
    with: so there is one order of all changes, and none is made with an old view. Any thread may call the
    methods, and waits for ZooKeeper. What they learn goes to ``ownership``; ``_lock`` lets one thread at a
    time read what has changed.
    """

    def __init__(self, session: Session, layout: JsonLayout, ownership: Ownership, fresh_id: str) -> None:
        """``fresh_id`` is the registry's id if this broker is its first."""
        self._session = session
        self._nodes = ClusterNodes(layout)
        self._ownership = ownership
        self._fresh = ChangesNode(fresh_id)
        self._lock = threading.Lock()
        self._changes: ChangesNode | None = None

    def open(self) -> ClusterView:
        """Make what is not there yet, and read everything."""
        for path in (self._nodes.topics, self._nodes.configs, self._nodes.deleted):
            try:
                self._session.create(path, b"")
            except NodeExists:
                continue
        return self.sync()

    def sync(self, suspect: str | None = None) -> ClusterView:
        """The topics as they are now: reads those that have changed since the last time, and a ``suspect``,
        of which somebody may have changed a znode without telling.

        If another change comes while they are read, they are read again: half of it, such as a topic that is
        gone without its deletion, would look like a registry that never had it.
        """
        with self._lock:
            for _ in range(_SYNCS):
                view, changes = self._synced(suspect)
                if changes is None:
                    return view
                root = self._session.read(self._nodes.topics)
                if root is None or root.version == view.version:
                    break
            self._changes = changes
            return self._ownership.see(view)

    def _synced(self, suspect: str | None) -> tuple[ClusterView, ChangesNode | None]:
        """What one reading finds; without changes if nothing has changed."""
        while True:
            root = self._session.read(self._nodes.topics)
            if root is None:
                raise ZooKeeperError(f"{self._nodes.topics} was removed from ZooKeeper")
            changes = read_changes(root.data)
            if changes is None:
                self._session.replace(self._nodes.topics, write_changes(self._fresh), root.version)
                continue
            break
        before, names = self._ownership.view, None
        if before is not None and before.registry == changes.registry:
            if before.version == root.version and suspect is None:
                return before, None
            names = changes.since(before.version, root.version)
            if names is not None and suspect is not None:
                names.add(suspect)
        if names is None:
            before, names = None, set(self._session.children(self._nodes.topics))
        return self._read(before, names, ClusterView(root.version, changes.registry)), changes

    def create(
        self,
        name: str,
        topic_id: UUID,
        owners: Callable[[ClusterView], Sequence[int]],
        overrides: Mapping[str, str],
        check: Callable[[Mapping[str, ClusterTopic]], object],
    ) -> ClusterTopic:
        """Register a new topic; ``owners`` gives those of its partitions, which they then have to make.

        ``check`` gets the topics that there are, and raises what keeps this one from being made.

        Raises:
            TopicAlreadyExists: there is one of this name.
            ServerError: REQUEST_TIMED_OUT: ZooKeeper does not answer. It may have been made all the same.
        """

        def plan(view: ClusterView) -> Sequence[Part] | None:
            there = view.topics.get(name)
            if there is not None:
                if there.stored.topic_id == topic_id:
                    return None
                raise TopicAlreadyExists(f"topic {name!r} already exists")
            check(view.topics)
            chosen = tuple(owners(view))
            node = TopicNode(topic_id, chosen, frozenset(range(len(chosen))))
            return self._made(view, name, node, overrides)

        return self._change(plan, name).topics[name]

    def offer(self, name: str, mine: StoredTopic, broker: int) -> None:
        """Bring partitions that a broker had before it came to this registry; of a topic with the same id
        those that nobody else has. What is refused stays as it is in the registry.
        """

        def plan(view: ClusterView) -> Sequence[Part] | None:
            there = view.topics.get(name)
            if there is not None and there.stored.topic_id != mine.topic_id:
                return None
            count = max(mine.partitions) + 1
            owners = list(there.owners if there is not None else ())
            owners += [NOBODY] * (count - len(owners))
            for number in mine.partitions:
                if owners[number] == NOBODY:
                    owners[number] = broker
            if there is None:
                return self._made(view, name, TopicNode(mine.topic_id, tuple(owners)), mine.overrides)
            if tuple(owners) == there.owners:
                return None
            return [self._replaced(name, there, owners=tuple(owners))]

        self._change(plan, name)

    def widen(
        self, name: str, topic_id: UUID, total: int, owners: Callable[[ClusterView, int], Sequence[int]]
    ) -> ClusterTopic:
        """Give a topic ``total`` partitions; ``owners`` gives those of so many more.
        Raises as `create`, `UnknownTopicOrPartition`, and `InvalidPartitions` where it has as many.
        """
        done: list[int] = []

        def plan(view: ClusterView) -> Sequence[Part] | None:
            there = self._get(view, name, topic_id)
            present = len(there.owners)
            if done and present >= total:
                return None  # an answer was lost
            if total <= present:
                raise InvalidPartitions(
                    f"topic {name!r} has {present} partitions already; {total} would not be an increase"
                )
            done[:] = owners(view, total - present)
            pending = there.pending | set(range(present, total))
            return [self._replaced(name, there, owners=(*there.owners, *done), pending=pending)]

        return self._change(plan, name).topics[name]

    def configure(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Replace a topic's own properties by what ``change`` makes of them, and return them."""
        after: dict[str, str] = {}

        def plan(view: ClusterView) -> Sequence[Part] | None:
            there = self._get(view, name, None)
            after.clear()
            after.update(change(there.stored.overrides))
            if after == there.stored.overrides:
                return None
            return [self._written(self._nodes.config(name), write_config(after), there.config_version)]

        self._change(plan, name)
        return after

    def delete(self, name: str, topic_id: UUID) -> None:
        """Delete a topic; each owner has yet to remove its partitions, and to call `removed` then.
        Raises as `create`, and `UnknownTopicOrPartition`.
        """

        def plan(view: ClusterView) -> Sequence[Part] | None:
            if topic_id in view.deletions:
                return None
            there = self._get(view, name, topic_id)
            brokers = frozenset(there.owners) - {NOBODY}
            deleted = write_deleted(DeletedTopic(topic_id, name, brokers))
            parts: list[Part] = [
                Replacement(self._nodes.topic(name), _EMPTIED_NODE, there.version),
                Creation(self._nodes.deletion(topic_id), deleted),
            ]
            if there.config_version != ABSENT:
                parts.append(Removal(self._nodes.config(name), there.config_version))
            return parts

        self._change(plan, name)

    def made(self, name: str, topic_id: UUID, numbers: Iterable[int]) -> None:
        """Their owner has made these partitions: from now on they are served, and never made again."""
        mine = frozenset(numbers)

        def plan(view: ClusterView) -> Sequence[Part] | None:
            there = view.topics.get(name)
            if there is None or there.stored.topic_id != topic_id or not there.pending & mine:
                return None
            return [self._replaced(name, there, pending=there.pending - mine)]

        self._change(plan, name)

    def removed(self, topic_id: UUID, broker: int) -> None:
        """A broker has nothing any more of a topic that was deleted."""

        def plan(view: ClusterView) -> Sequence[Part] | None:
            there = view.deletions.get(topic_id)
            if there is None or broker not in there.brokers:
                return None
            path, left = self._nodes.deletion(topic_id), there.brokers - {broker}
            if not left:
                return [Removal(path, there.version)]
            return [Replacement(path, write_deleted(DeletedTopic(topic_id, there.name, left)), there.version)]

        view = self._ownership.view
        if view is not None and topic_id in view.deletions:
            self._change(plan, view.deletions[topic_id].name)

    def forget(self, broker: int, brokers: Collection[int], start: int) -> None:
        """Have ``brokers`` make what a broker owned that is gone for good, anew and empty: the offsets there
        begin at ``start``. What it had yet to remove of deleted topics is as good as removed.
        """
        view = self.sync()
        for name, topic in view.topics.items():
            if broker in topic.owners:
                self._change(partial(self._forgotten, name, broker, brokers, start), name)
        for topic_id in view.deletions:
            self.removed(topic_id, broker)

    def _forgotten(
        self, name: str, broker: int, brokers: Collection[int], start: int, view: ClusterView
    ) -> Sequence[Part] | None:
        there = view.topics.get(name)
        gone = there.owned_by(broker) if there is not None else ()
        if there is None or not gone:
            return None
        heirs = dict(zip(gone, spread(view, brokers, len(gone)), strict=True))
        owners = tuple(heirs.get(number, owner) for number, owner in enumerate(there.owners))
        starts = {**there.starts, **dict.fromkeys(gone, start)}
        return [self._replaced(name, there, owners=owners, pending=there.pending | {*gone}, starts=starts)]

    def take_ids(self, at_least: int, count: int) -> int:
        """The first of ``count`` producer ids that no other broker gets, none below ``at_least``.
        Raises `StorageError`: ZooKeeper does not answer, or has no such number.
        """
        path, session = self._nodes.id_block, self._session
        if not session.connected:
            raise StorageError("ZooKeeper does not answer: no block of producer ids can be taken")
        try:
            while True:
                there = session.read(path)
                first = max(at_least, 0 if there is None else read_id_block(there.data))
                data = write_id_block(self._ownership.node_id, first, count)
                if there is not None:
                    if session.replace(path, data, there.version):
                        return first
                    continue
                try:
                    session.create(path, data)
                    return first
                except NodeExists:
                    continue
        except KafkaError as e:
            raise StorageError(f"no block of producer ids can be taken: {e}") from e

    def tidy(self) -> None:
        """Remove what is left of topics that are no more, once no broker has registered anything below."""
        view, gone = self._ownership.view, set()
        for name, (version, config_version) in view.vacant.items() if view is not None else ():
            path = self._nodes.topic(name)
            if version != ABSENT and self._session.read(path) is not None:
                for child in self._session.children(path):
                    for number in self._session.children(f"{path}/{child}"):
                        self._session.delete(f"{path}/{child}/{number}")
                    self._session.delete(f"{path}/{child}")
                if not self._session.delete(path, version):
                    continue
            if config_version == ABSENT:
                gone.add((name, (version, config_version)))
        if gone:
            with self._lock:
                if (now := self._ownership.view) is not None:
                    left = dict(now.vacant.items() - gone)
                    self._ownership.see(replace(now, vacant=left))

    def _change(self, plan: Plan, name: str) -> ClusterView:
        """Write what a plan says of the newest view; again if another change came first."""
        if not self._session.connected:
            raise ServerError(
                ErrorCode.REQUEST_TIMED_OUT, f"topic {name!r}: ZooKeeper does not answer; try again later"
            )
        try:
            view = self._ownership.view or self.sync()
            for _ in range(_ATTEMPTS):
                parts = plan(view)
                changes = self._changes
                if parts is None:
                    return view
                if changes is not None and view is self._ownership.view:
                    root = write_changes(changes.after(view.version + 1, name))
                    made = self._session.commit(Replacement(self._nodes.topics, root, view.version), *parts)
                    view = self.sync(None if made else name)
                else:
                    view = self.sync()
        except ConnectionLost as e:
            raise ServerError(ErrorCode.REQUEST_TIMED_OUT, f"topic {name!r}: {e}") from e
        raise ServerError(
            ErrorCode.REQUEST_TIMED_OUT, f"topic {name!r}: other brokers change topics all the time"
        )

    def _get(self, view: ClusterView, name: str, topic_id: UUID | None) -> ClusterTopic:
        there = view.topics.get(name)
        if there is None or topic_id not in (None, there.stored.topic_id):
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        return there

    def _made(
        self, view: ClusterView, name: str, node: TopicNode, overrides: Mapping[str, str]
    ) -> list[Part]:
        """The nodes of a new topic."""
        version, config_version = view.vacant.get(name, (ABSENT, ABSENT))
        return [
            self._written(self._nodes.topic(name), write_topic(node), version),
            self._written(self._nodes.config(name), write_config(overrides), config_version),
        ]

    def _written(self, path: str, data: bytes, version: int) -> Part:
        """A node's new value, if it still has this version, or is still `ABSENT`."""
        return Creation(path, data) if version == ABSENT else Replacement(path, data, version)

    def _replaced(
        self,
        name: str,
        there: ClusterTopic,
        *,
        owners: tuple[int, ...] | None = None,
        pending: frozenset[int] | None = None,
        starts: Mapping[int, int] | None = None,
    ) -> Replacement:
        node = TopicNode(
            there.stored.topic_id,
            there.owners if owners is None else owners,
            there.pending if pending is None else pending,
            there.starts if starts is None else starts,
        )
        return Replacement(self._nodes.topic(name), write_topic(node), there.version)

    def _read(self, before: ClusterView | None, names: Iterable[str], empty: ClusterView) -> ClusterView:
        """What is known ``before``, with these topics as they are now."""
        topics = {} if before is None else dict(before.topics)
        vacant = {} if before is None else dict(before.vacant)
        names = sorted(names)
        found = self._session.read_all(
            [path for name in names for path in (self._nodes.topic(name), self._nodes.config(name))]
        )
        for name in names:
            topics.pop(name, None)
            vacant.pop(name, None)
            node, config = found.get(self._nodes.topic(name)), found.get(self._nodes.config(name))
            versions = (
                ABSENT if node is None else node.version,
                ABSENT if config is None else config.version,
            )
            try:
                topic = None if node is None else read_topic(name, node.data)
                overrides = {} if config is None else read_config(name, config.data)
            except KafkaError as e:
                _log.error("%s is not served: %s", self._nodes.topic(name), e)
                continue
            if topic is None:
                if versions != (ABSENT, ABSENT):
                    vacant[name] = versions
                continue
            stored = StoredTopic(topic.topic_id, tuple(range(len(topic.owners))), overrides)
            topics[name] = ClusterTopic(stored, topic.owners, topic.pending, *versions, topic.starts)
        return replace(empty, topics=topics, vacant=vacant, deletions=self._read_deletions())

    def _read_deletions(self) -> dict[UUID, Deletion]:
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
