"""The cluster's registry of topics in ZooKeeper; every change is one atomic step for all brokers."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import ABSENT, ClusterTopic, ClusterView, Ownership, spread
from kafkalog_broker.cluster.registry_reader import NoRegistry, OlderRegistry, Reading, RegistryReader, older
from kafkalog_broker.logs.cluster_data import RegistryNote
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidPartitions,
    InvalidTopic,
    KafkaError,
    ServerError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.zookeeper.cluster_nodes import (
    NOBODY,
    ClusterNodes,
    DeletedTopic,
    RegistryChange,
    RegistryNode,
    TopicNode,
    read_id_block,
    write_config,
    write_deleted,
    write_id_block,
    write_name_07,
    write_registry,
    write_topic,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.session import (
    Creation,
    NodeExists,
    NodeRemoval,
    Replacement,
    ZooKeeperSession,
)

_MOST_READINGS = 20
"""Attempts at a consistent reading while other brokers change the registry; then the last one is used."""

_ATTEMPTS = 200
"""A failed attempt means that another broker's change came first."""

_HAND_OVER_STEP = 1 << 40
"""Least distance between the first offsets of a partition's successive owners: more than one can append."""

_LOST_IDS = 1 << 32
"""Producer ids skipped when ZooKeeper has lost the record of those given out."""

Part = Creation | Replacement | NodeRemoval


class Edit(msgspec.Struct, frozen=True):
    """What a change writes beside the root: ``parts``, and the root's new ``members`` if given."""

    parts: Sequence[Part] = ()
    members: Mapping[int, bool] | None = None


Plan = Callable[[ClusterView], Edit | None]
"""The edit for a change, given the current topics; None if nothing is left to do. May raise `KafkaError`."""


class TopicRegistry:
    """*Thread-safe.* The topics of 0.8 and later of all brokers below one prefix.

    Every change is one multi that also sets the root, ``/brokers/topics``, at the version it was planned
    with, so changes have one order. The methods block on ZooKeeper and pass what they read to ``ownership``.
    ``_known``, the newest reading, is replaced as a whole under ``_reading``.
    """

    def __init__(
        self, session: ZooKeeperSession, layout: JsonLayout, ownership: Ownership, new_id: Callable[[], str]
    ) -> None:
        self._session = session
        self._nodes = ClusterNodes(layout)
        self._ownership = ownership
        self._new_id = new_id
        self._reader = RegistryReader(session, self._nodes)
        self._reading = threading.Lock()
        self._known: Reading | None = None

    @property
    def path(self) -> str:
        return self._nodes.topics

    @property
    def view(self) -> ClusterView | None:
        known = self._known
        return None if known is None else known.view

    def look(self) -> None:
        with suppress(NoRegistry):
            self.sync()

    def open(self, notes: Collection[RegistryNote]) -> ClusterView:
        """Creates it if missing. Raises `OlderRegistry`: our data (``notes``) has seen a newer state."""
        while True:
            try:
                view = self.sync()
                break
            except NoRegistry:
                self._make_root(notes)
        seen = max((note.version for note in notes if note.registry == view.registry), default=0)
        if view.version < seen:
            raise older(self.path, view.version, seen)
        awaited = _members_in(note for note in notes if note.registry != view.registry)
        if not awaited or awaited.keys() & view.members:
            return view
        # Its creator does not know the brokers that shared an earlier registry with us.

        def plan(view: ClusterView) -> Edit | None:
            return None if awaited.keys() & view.members else Edit(members={**awaited, **view.members})

        return self._change(plan, "")

    def _make_root(self, notes: Collection[RegistryNote]) -> None:
        self._make_parents()
        data = write_registry(RegistryNode(self._new_id(), (), _members_in(notes)))
        try:
            self._session.create(self.path, data)
        except NodeExists:
            node = self._session.read(self.path)
            if node is not None and not node.data:  # the parent of a partition that somebody registered
                self._session.replace(self.path, data, node.version)

    def _make_parents(self) -> None:
        for path in (self._nodes.configs, self._nodes.deleted):
            with suppress(NodeExists):
                self._session.create(path, b"")

    def sync(self) -> ClusterView:
        """The current topics. Raises `NoRegistry`, and `OlderRegistry`: older than the state read before."""
        return self._sync().view

    def catch_up(self) -> None:
        """Read what was changed before the call; without ZooKeeper, what is known has to do."""
        if self._session.connected:
            with suppress(KafkaError):
                self._session.catch_up(self.path)
                self.sync()

    def _sync(self, suspect: str | None = None) -> Reading:
        """Also reads the ``suspect``, whose znodes may have changed without the root."""
        with self._reading:
            # Half of a concurrent change would mislead: a topic gone without its deletion looks lost.
            for _ in range(_MOST_READINGS):
                known = self._reader.read(self._known, suspect)
                if known is self._known or self._reader.version() == known.view.version:
                    break
            self._known = known
            self._ownership.see(known.view)
            return known

    def create(
        self,
        name: str,
        topic_id: UUID,
        owners: Callable[[ClusterView], Sequence[int]],
        overrides: Mapping[str, str],
        check: Callable[[Mapping[str, ClusterTopic]], object],
    ) -> ClusterTopic:
        """Register a new topic; ``owners`` returns its partitions' owners, which then create them; ``check``
        may raise. Raises `TopicAlreadyExists`; `InvalidTopic`: a 0.7 topic of another broker; `ServerError`
        REQUEST_TIMED_OUT: not all is known, or it may have been registered.
        """

        def plan(view: ClusterView) -> Edit | None:
            topic = view.topics.get(name)
            if topic is not None:
                if topic.stored.topic_id == topic_id:
                    return None
                raise TopicAlreadyExists(f"topic {name!r} already exists")
            self._check_name_07(view, name)
            check(view.topics)
            chosen = tuple(owners(view))
            node = TopicNode(topic_id, chosen, frozenset(range(len(chosen))))
            return Edit(self._new_topic(view, name, node, overrides))

        return _topic(self._request(plan, name), name, topic_id)

    def _check_name_07(self, view: ClusterView, name: str) -> None:
        """Our own 0.7 topic does not count: a caller that creates another has checked that it is gone."""
        known = view.names_07.get(name)
        others = sorted(known.brokers - {self._ownership.node_id}) if known is not None else []
        if others:
            raise InvalidTopic(
                f"topic name {name!r} is taken: a topic of Kafka 0.7 has it, at broker "
                f"{', '.join(map(str, others))}; delete that one there, or choose another name"
            )

    def offer(
        self, name: str, mine: StoredTopic, broker: int, starts: Mapping[int, int] = MappingProxyType({})
    ) -> ClusterView:
        """Register what a broker had before it joined, with its leader epochs. ``starts`` are first offsets
        above 0.
        """

        def plan(view: ClusterView) -> Edit | None:
            topic = view.topics.get(name)
            if topic is not None and topic.stored.topic_id != mine.topic_id:
                return None
            owners = list(topic.owners if topic is not None else ())
            owners += [NOBODY] * (mine.total - len(owners))
            taken = [number for number in mine.partitions if owners[number] == NOBODY]
            for number in taken:
                owners[number] = broker
            first = dict(topic.starts if topic is not None else {})
            first |= {number: starts[number] for number in taken if number in starts}
            epochs = dict(topic.stored.epochs if topic is not None else {})
            epochs |= {number: mine.epochs[number] for number in taken if number in mine.epochs}
            if topic is None:
                node = TopicNode(mine.topic_id, tuple(owners), starts=first, epochs=epochs)
                return Edit(self._new_topic(view, name, node, mine.overrides))
            if tuple(owners) == topic.owners:
                return None
            changes = {"owners": tuple(owners), "starts": first, "epochs": epochs}
            return Edit([self._replaced(name, topic, **changes)])

        return self._change(plan, name)

    def join(self, broker: int) -> ClusterView:
        def plan(view: ClusterView) -> Edit | None:
            arrived = view.members.get(broker, False)
            return None if arrived else Edit(members={**view.members, broker: True})

        return self._change(plan, "")

    def widen(
        self, name: str, topic_id: UUID, total: int, owners: Callable[[ClusterView, int], Sequence[int]]
    ) -> ClusterTopic:
        """Give a topic ``total`` partitions; ``owners`` returns the owners of the added ones. Raises as
        `create`, `UnknownTopicOrPartition`, `InvalidPartitions`, and `ServerError`
        INVALID_REPLICA_ASSIGNMENT: not as many owners.
        """

        def plan(view: ClusterView) -> Edit:
            topic = _topic(view, name, topic_id)
            present = len(topic.owners)
            if total <= present:
                raise InvalidPartitions(
                    f"topic {name!r} has {present} partitions already; {total} would not be an increase"
                )
            added = owners(view, total - present)
            if len(added) != total - present:
                raise ServerError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"topic {name!r} has {present} partitions: {total - present} new ones need as many "
                    f"assignments, not {len(added)}",
                )
            pending = topic.pending | set(range(present, total))
            return Edit([self._replaced(name, topic, owners=(*topic.owners, *added), pending=pending)])

        return _topic(self._request(plan, name), name, topic_id)

    def configure(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Replace a topic's own properties by ``change`` of them, and return the new ones."""
        after: dict[str, str] = {}

        def plan(view: ClusterView) -> Edit | None:
            topic = _topic(view, name, None)
            after.clear()
            after.update(change(topic.stored.overrides))
            if after == topic.stored.overrides:
                return None
            return Edit([_write(self._nodes.config(name), write_config(after), topic.config_version)])

        self._request(plan, name)
        return after

    def delete(self, name: str, topic_id: UUID) -> None:
        """Delete a topic; whoever has data of it then removes it and calls `report_removed`."""

        def plan(view: ClusterView) -> Edit | None:
            if topic_id in view.deletions:
                return None
            topic = _topic(view, name, topic_id)
            coordinators = view.topics.get(OFFSETS_TOPIC)
            brokers = {*topic.owners, *(() if coordinators is None else coordinators.owners)} - {NOBODY}
            parts: list[Part] = [Replacement(self._nodes.topic(name), write_name_07(()), topic.version)]
            if brokers:
                deleted = write_deleted(DeletedTopic(topic_id, name, frozenset(brokers)))
                parts.append(Creation(self._nodes.deletion(topic_id), deleted))
            if topic.config_version != ABSENT:
                parts.append(NodeRemoval(self._nodes.config(name), topic.config_version))
            return Edit(parts)

        self._request(plan, name)

    def report_made(self, name: str, topic_id: UUID, numbers: Iterable[int]) -> None:
        """Mark partitions as created by their owner: they are served from now on, and never created again."""
        mine = frozenset(numbers)

        def plan(view: ClusterView) -> Edit | None:
            topic = view.topics.get(name)
            if topic is None or topic.stored.topic_id != topic_id or not topic.pending & mine:
                return None
            return Edit([self._replaced(name, topic, pending=topic.pending - mine)])

        self._change(plan, name)

    def report_removed(self, topic_id: UUID, broker: int) -> None:
        def plan(view: ClusterView) -> Edit | None:
            deletion = view.deletions.get(topic_id)
            if deletion is None or broker not in deletion.brokers:
                return None
            path, left = self._nodes.deletion(topic_id), deletion.brokers - {broker}
            if not left:
                return Edit([NodeRemoval(path, deletion.version)])
            deleted = write_deleted(DeletedTopic(topic_id, deletion.name, left))
            return Edit([Replacement(path, deleted, deletion.version)])

        known = self._known
        if known is not None and topic_id in known.view.deletions:
            self._change(plan, known.view.deletions[topic_id].name)

    def name_07(self, name: str, broker: int, *, used: bool) -> ClusterView:
        """Record whether a broker has a Kafka 0.7 topic of this name; does nothing if the cluster has one."""

        def plan(view: ClusterView) -> Edit | None:
            known = view.names_07.get(name)
            before = frozenset[int]() if known is None else known.brokers
            after = before | {broker} if used else before - {broker}
            if after == before or name in view.topics:
                return None
            version, _ = view.vacant.get(name, (ABSENT, ABSENT))
            version = version if known is None else known.version
            return Edit([_write(self._nodes.topic(name), write_name_07(after), version)])

        return self._change(plan, name)

    def forget(self, broker: int, heirs: Collection[int], now_us: int) -> None:
        """Give the partitions of a broker that is gone for good to ``heirs``, which create them empty; also
        partitions without an owner if it was the last broker awaited. Their offsets begin at ``now_us``, the
        time in microseconds, and far above the previous start: no old log got a million records a second
        since 1970. Their leader epochs rise by one. Its pending removals of deleted topics count as done.
        """
        view = self.sync()
        for name, topic in view.topics.items():
            if lost_partitions(view, topic, broker):
                self._change(partial(self._handed_over, name, broker, heirs, now_us), name)
        for topic_id in view.deletions:
            self.report_removed(topic_id, broker)
        for name, known in view.names_07.items():
            if broker in known.brokers:
                self.name_07(name, broker, used=False)
        if broker in view.members:

            def without(view: ClusterView) -> Edit | None:
                left = {each: arrived for each, arrived in view.members.items() if each != broker}
                return Edit(members=left) if broker in view.members else None

            self._change(without, "")

    def _handed_over(
        self, name: str, broker: int, heirs: Collection[int], now_us: int, view: ClusterView
    ) -> Edit | None:
        topic = view.topics.get(name)
        lost = lost_partitions(view, topic, broker) if topic is not None else ()
        if topic is None or not lost:
            return None
        new = dict(zip(lost, spread(view, heirs, len(lost)), strict=True))
        owners = tuple(new.get(number, owner) for number, owner in enumerate(topic.owners))
        starts = {number: max(now_us, topic.starts.get(number, 0) + _HAND_OVER_STEP) for number in lost}
        epochs = {number: topic.stored.epoch(number) + 1 for number in lost}
        changes = {
            "owners": owners,
            "pending": topic.pending | {*lost},
            "starts": {**topic.starts, **starts},
            "epochs": {**topic.stored.epochs, **epochs},
        }
        return Edit([self._replaced(name, topic, **changes)])

    def take_ids(self, at_least: int, count: int) -> int:
        """The first of ``count`` producer ids, reserved, none below ``at_least``. Raises `StorageError`."""
        path, session = self._nodes.id_block, self._session
        if not session.connected:
            raise StorageError("ZooKeeper does not answer: no block of producer ids can be taken")
        try:
            while True:
                node = session.read(path)
                if node is None:
                    # If ZooKeeper was emptied, other brokers may have given out ids above ours.
                    first = at_least + _LOST_IDS if at_least else 0
                else:
                    first = max(at_least, read_id_block(node.data))
                data = write_id_block(self._ownership.node_id, first, count)
                if node is not None:
                    if session.replace(path, data, node.version):
                        return first
                    continue
                with suppress(NodeExists):
                    session.create(path, data)
                    return first
        except KafkaError as e:
            raise StorageError(f"no block of producer ids can be taken: {e}") from e

    def tidy(self) -> None:
        """Remove the leftover znodes of deleted topics once no broker has registered anything below."""
        known = self._known
        gone = set()
        for name, (version, config_version) in known.view.vacant.items() if known is not None else ():
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
            with self._reading:
                if (known := self._known) is not None:
                    view = replace(known.view, vacant=dict(known.view.vacant.items() - gone))
                    self._known = known._replace(view=view)
                    self._ownership.see(view)

    def _request(self, plan: Plan, name: str) -> ClusterView:
        """`_change` for a client: refused until all topics are known."""

        def checked(view: ClusterView) -> Edit | None:
            entered = self._ownership.view
            if entered is not None and entered.registry != view.registry:
                raise _try_later(name, "ZooKeeper was emptied; this broker registers again what it has")
            if view.awaited:
                raise _try_later(
                    name,
                    f"ZooKeeper was emptied, and brokers {view.awaited} have not registered again what they "
                    "have: start them, or give them up with `kafkalog-broker forget`",
                )
            return plan(view)

        return self._change(checked, name)

    def _change(self, plan: Plan, name: str) -> ClusterView:
        if not self._session.connected:
            raise _try_later(name, "ZooKeeper does not answer")
        tag = secrets.token_hex(8)
        try:
            known = self._known or self._sync()
            for attempt in range(_ATTEMPTS):
                if attempt and known.root.has(tag):
                    return known.view  # only the answer was lost
                edit = plan(known.view)
                if edit is None:
                    return known.view
                change = RegistryChange(known.view.version + 1, name, tag)
                data = write_registry(known.root.after(change, edit.members))
                if self._session.commit(Replacement(self.path, data, known.view.version), *edit.parts):
                    return self.sync()
                before, known = known, self._sync(name or None)
                if known.view.version == before.view.version:
                    self._make_parents()  # they may have been removed
        except (ConnectionLost, NoRegistry, OlderRegistry) as e:
            raise _try_later(name, str(e)) from e
        raise _try_later(name, "other brokers change topics all the time")

    def _new_topic(
        self, view: ClusterView, name: str, node: TopicNode, overrides: Mapping[str, str]
    ) -> list[Part]:
        version, config_version = view.vacant.get(name, (ABSENT, ABSENT))
        if name in view.names_07:
            version = view.names_07[name].version
        return [
            _write(self._nodes.topic(name), write_topic(node), version),
            _write(self._nodes.config(name), write_config(overrides), config_version),
        ]

    def _replaced(self, name: str, topic: ClusterTopic, **changes: Any) -> Replacement:
        stored = topic.stored
        node = TopicNode(stored.topic_id, topic.owners, topic.pending, topic.starts, stored.epochs)
        return Replacement(self._nodes.topic(name), write_topic(replace(node, **changes)), topic.version)


def lost_partitions(view: ClusterView, topic: ClusterTopic, broker: int) -> tuple[int, ...]:
    """The partitions lost if ``broker`` is given up: its own, and unowned ones if no other is awaited."""
    nobodys = topic.owned_by(NOBODY) if view.awaited == [broker] else ()
    return tuple(sorted((*topic.owned_by(broker), *nobodys)))


def _members_in(notes: Iterable[RegistryNote]) -> dict[int, bool]:
    return {broker: False for note in notes for broker in note.brokers}


def _topic(view: ClusterView, name: str, topic_id: UUID | None) -> ClusterTopic:
    topic = view.topics.get(name)
    if topic is None or topic_id not in (None, topic.stored.topic_id):
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    return topic


def _write(path: str, data: bytes, version: int) -> Part:
    return Creation(path, data) if version == ABSENT else Replacement(path, data, version)


def _try_later(name: str, why: str) -> ServerError:
    what = f"topic {name!r}" if name else "the registry of topics"
    return ServerError(ErrorCode.REQUEST_TIMED_OUT, f"{what}: {why}; try again later")
