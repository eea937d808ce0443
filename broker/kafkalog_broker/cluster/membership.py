"""Keeps this broker's topics as the cluster's registry says: creates, registers, deletes, sets aside."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from uuid import UUID

from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import ClusterTopic, ClusterView, Ownership
from kafkalog_broker.cluster.registry import TopicRegistry
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.logs.cluster_data import RegistryNote
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    KafkaError,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.cluster_nodes import NOBODY

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Membership:
    """*Thread-safe: ``_lock`` guards the claimed names.* Keeps the log manager's topics as the registry says.

    One thread calls `reconcile`. A request that creates or deletes a topic does the steps itself, within
    `claimed`; `reconcile` skips that topic meanwhile. ``forget`` removes the loaded groups' offsets of a
    deleted topic; ``bring`` moves an internal topic's content to the cluster; ``changed`` schedules
    `reconcile`.
    """

    logs: LogManager
    registry: TopicRegistry
    ownership: Ownership
    _: KW_ONLY
    forget: Callable[[str, UUID], object]
    bring: Callable[[str], object]
    changed: Callable[[], object]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _claimed: Counter[str] = field(default_factory=Counter, init=False)
    # Only `reconcile` uses these, except that requests add to ``_forgotten``.
    _joined: str | None = field(default=None, init=False)
    _notes: Sequence[RegistryNote] | None = field(default=None, init=False)
    _noted_topics: object = field(default=None, init=False)
    _seen: Mapping[str, ClusterTopic] = field(default_factory=dict, init=False)
    _forgotten: set[UUID] = field(default_factory=set, init=False)
    _conflicts: set[UUID] = field(default_factory=set, init=False)

    @property
    def _me(self) -> int:
        return self.ownership.node_id

    @contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Reserves this topic for the caller."""
        with self._lock:
            self._claimed[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._claimed[name] -= 1
                if not self._claimed[name]:
                    del self._claimed[name]
            self.changed()

    def served(self) -> Mapping[str, StoredTopic]:
        """The topics, each with the partitions here that this broker may serve."""
        found = {}
        for name, topic in self.logs.topics.items():
            if not self.ownership.shares(topic):
                if name not in INTERNAL_TOPICS:
                    found[name] = topic
                continue
            is_ours = self.ownership.is_ours
            here = tuple(n for n in topic.partitions if is_ours(TopicPartition(name, n)))
            if here:
                found[name] = replace(topic, partitions=here)
        return found

    def reconcile(self) -> bool:
        """Do everything due; False to try again. Raises `KafkaError`, `OlderRegistry`."""
        if self._notes is None:
            self._notes = self.logs.registry_notes()
        view = self.registry.open(self._notes)
        if view.registry != self._joined or self._me not in view.members:
            self._join(view)
        with self._lock:
            claimed = set(self._claimed)
        mine = self._shared()  # taken before the registry is read, so these were registered
        view = self.registry.sync()
        if view.registry != self._joined:
            return False  # ZooKeeper was emptied meanwhile
        done = self._finish_deletions(view, mine, claimed)
        view = self._offer(view, mine, claimed)
        self._set_aside(view, mine, claimed)
        self._find_offline(view)
        self._follow(view)
        self._forget_others(view)
        for name, topic in view.topics.items():
            if topic.pending and name not in claimed:
                done &= self._make(name, topic)
        self._name_07(view, claimed)
        self._note(view)
        return done

    def make(self, name: str, topic: ClusterTopic) -> None:
        """Create our partitions of a new or widened topic, and report them. Raises as
        `LogManager.create_topic`, and `ServerError` LEADER_NOT_AVAILABLE: another thread creates it, or must
        first remove an older topic.
        """
        wanted = self._wanted(topic)
        if not wanted:
            return
        here, topic_id, count = self.logs.topics.get(name), topic.stored.topic_id, len(topic.owners)
        starts, epochs = topic.starts, topic.stored.epochs
        try:
            if here is None:
                overrides = topic.stored.overrides
                self.logs.create_topic(
                    name, topic_id, count, overrides, numbers=wanted, starts=starts, epochs=epochs
                )
            elif here.topic_id != topic_id:
                raise TopicAlreadyExists(f"an older topic {name!r} is still on this broker")
            elif missing := [number for number in wanted if number not in here.partitions]:
                self.logs.add_partitions(name, count, numbers=missing, starts=starts, epochs=epochs)
        except (TopicAlreadyExists, InvalidPartitions) as e:
            raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, str(e)) from e
        self.registry.report_made(name, topic_id, wanted)

    def delete(self, name: str, topic: ClusterTopic, goes_too: Callable[[], object]) -> None:
        """Delete a topic from the cluster and our disk; ``goes_too`` deletes what others keep of it."""
        topic_id = topic.stored.topic_id
        self._forgotten.add(topic_id)
        self.registry.delete(name, topic_id)
        here = self.logs.topics.get(name)
        if here and here.topic_id == topic_id:
            self.logs.delete_topic(name, goes_too)
        else:
            goes_too()
        self.registry.report_removed(topic_id, self._me)

    def take_name_07(self, name: str) -> None:
        """Reserve the name of a new Kafka 0.7 topic. Raises `TopicAlreadyExists`: the cluster uses it."""
        try:
            view = self.registry.name_07(name, self._me, used=True)
        except InvalidConfig:
            return  # not a legal znode name, so not one of a cluster topic either
        except ServerError as e:
            if e.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
            return
        if name in view.topics:
            raise TopicAlreadyExists(f"topic {name!r} already exists")

    def _wanted(self, topic: ClusterTopic) -> tuple[int, ...]:
        return tuple(number for number in topic.owned_by(self._me) if number in topic.pending)

    def _shared(self) -> dict[str, StoredTopic]:
        return {name: topic for name, topic in self.logs.topics.items() if self.ownership.shares(topic)}

    def _join(self, view: ClusterView) -> None:
        self._finish_deletions(view, self._shared(), ())  # before `_offer` could register them again
        was_here = any(note.registry == view.registry for note in self._notes or ())
        if was_here and self._me not in view.members:
            _log.warning("this broker was given up by kafkalog-broker forget")
            self._set_aside(view, self._shared(), ())
        self._offer(view, self._shared(), ())
        view = self.registry.join(self._me)
        for name in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):  # transactions first: their outcome affects offsets
            own, there = self.logs.topics.get(name), view.topics.get(name)
            if own is None:
                continue
            if there is None:  # from before this broker joined a cluster
                self.registry.offer(name, own, self._me)
            elif there.stored.topic_id != own.topic_id:
                self.bring(name)
        registry, view = view.registry, self.registry.sync()
        if view.registry != registry:
            return  # ZooKeeper was emptied meanwhile
        self._find_offline(view)
        self._write_note(view)
        if self._joined not in (None, registry):
            _log.warning("ZooKeeper was emptied: this broker has registered again what it has")
        self._seen = {}  # else topics that are not registered here yet would count as deleted
        self.ownership.enter(view)
        self._joined = view.registry

    def _find_offline(self, view: ClusterView) -> None:
        here = self._shared()
        newest = self.registry.view or view  # read after ``here``, so without topics deleted by requests
        offline = {
            TopicPartition(name, number)
            for name, topic in view.topics.items()
            if newest.has(name, topic.stored.topic_id)
            for number in topic.owned_by(self._me)
            if number not in topic.pending and (name not in here or number not in here[name].partitions)
        }
        new = sorted(offline - self.ownership.offline)
        if new:
            _log.error(
                "partitions that are offline, as this broker made them and they are in none of log.dirs: "
                "%d: %s", len(new), ", ".join(map(str, new[:20])),
            )  # fmt: skip
        self.ownership.set_offline(offline)

    def _offer(
        self, view: ClusterView, mine: Mapping[str, StoredTopic], claimed: Collection[str]
    ) -> ClusterView:
        """Register our partitions without an owner, which the registry has lost or never had."""
        for name, topic in mine.items():
            registered, deletion = view.topics.get(name), view.deletions.get(topic.topic_id)
            owners = () if registered is None else registered.owners
            if registered is not None and (
                registered.stored.topic_id != topic.topic_id
                or all(n < len(owners) and owners[n] != NOBODY for n in topic.partitions)
            ):
                continue
            if name in claimed or (deletion is not None and self._me in deletion.brokers):
                continue
            here = self.logs.topics.get(name)
            if here is not None and here.topic_id == topic.topic_id:  # not deleted by a request meanwhile
                view = self.registry.offer(name, topic, self._me, self._starts(name, topic))
        return view

    def _starts(self, name: str, topic: StoredTopic) -> dict[int, int]:
        logs = ((number, self.logs.logs.get(TopicPartition(name, number))) for number in topic.partitions)
        return {number: log.start_offset for number, log in logs if log is not None and log.start_offset}

    def _finish_deletions(
        self, view: ClusterView, mine: Mapping[str, StoredTopic], claimed: Collection[str]
    ) -> bool:
        done = True
        for topic_id, deletion in view.deletions.items():
            if self._me not in deletion.brokers or deletion.name in claimed:
                continue
            here = mine.get(deletion.name)
            try:
                if here is not None and here.topic_id == topic_id:
                    with suppress(UnknownTopicOrPartition):  # a request may have deleted it
                        self.logs.delete_topic(deletion.name)
                        _log.info("deleted topic %s", deletion.name)
                self.forget(deletion.name, topic_id)
                self._forgotten.add(topic_id)
                self.registry.report_removed(topic_id, self._me)
            except KafkaError as e:
                _log.warning("deleting topic %s, trying again: %s", deletion.name, e)
                done = False
        return done

    def _forget_others(self, view: ClusterView) -> None:
        before, self._seen = self._seen, view.topics
        for name, topic in before.items():
            topic_id = topic.stored.topic_id
            if view.has(name, topic_id):
                continue
            if topic_id in self._forgotten:
                self._forgotten.discard(topic_id)
            else:
                self.forget(name, topic_id)

    def _set_aside(
        self, view: ClusterView, mine: Mapping[str, StoredTopic], claimed: Collection[str]
    ) -> None:
        for name, topic in mine.items():
            deletion = view.deletions.get(topic.topic_id)
            if name in claimed or (deletion is not None and self._me in deletion.brokers):
                continue
            registered = view.topics.get(name)
            if registered is not None and registered.stored.topic_id == topic.topic_id:
                # One given back to us, to be made empty, may be on our disk as it was before we lost it.
                ours = {
                    number
                    for number in registered.owned_by(self._me)
                    if number not in registered.pending
                    or topic.epoch(number) == registered.stored.epoch(number)
                }
                others = [number for number in topic.partitions if number not in ours]
                why = "other brokers own them, or did meanwhile"
            else:
                others, why = list(topic.partitions), "ZooKeeper has no such topic, or another of its name"
            if not others:
                continue
            try:
                self.logs.set_aside(name, topic.topic_id, others)
            except UnknownTopicOrPartition:
                continue  # it was deleted meanwhile
            _log.error("topic %s: partitions %s are set aside in .aside: %s", name, others, why)

    def _follow(self, view: ClusterView) -> None:
        for name, topic in self._shared().items():
            registered = view.topics.get(name)
            if registered is None or registered.stored.topic_id != topic.topic_id:
                continue
            try:
                if registered.stored.overrides != topic.overrides:
                    self.logs.set_overrides(name, registered.stored.overrides)
                    _log.info("topic %s now has the properties %s", name, dict(registered.stored.overrides))
                if len(registered.owners) > topic.total:
                    self.logs.set_total(name, len(registered.owners))
            except KafkaError as e:
                _log.warning("topic %s is not as ZooKeeper says: %s", name, e)

    def _make(self, name: str, topic: ClusterTopic) -> bool:
        """Create our partitions of a topic that another broker registered; False to try again."""
        here = self.logs.topics.get(name)
        if here is not None and not self.ownership.shares(here) and self._wanted(topic):
            self._report_conflict(name, topic.stored.topic_id)
            return True  # trying again helps only after one of them is deleted
        try:
            self.make(name, topic)
        except KafkaError as e:
            _log.warning("making topic %s, trying again: %s", name, e)
            return False
        return True

    def _name_07(self, view: ClusterView, claimed: set[str]) -> None:
        used = {
            name: topic.topic_id
            for name, topic in self.logs.topics.items()
            if topic.generation != SINCE_08.generation
        }
        registered = {name for name, known in view.names_07.items() if self._me in known.brokers}
        for name in (registered ^ used.keys()) - claimed:
            with suppress(InvalidConfig):  # not a legal znode name, so no conflict is possible
                view = self.registry.name_07(name, self._me, used=name in used)
            if name in used and name in view.topics:
                self._report_conflict(name, used[name])

    def _report_conflict(self, name: str, topic_id: UUID) -> None:
        if topic_id not in self._conflicts:
            self._conflicts.add(topic_id)
            _log.error(
                "two topics are called %s: one of this broker's own, and one of the cluster, of which this "
                "broker cannot have partitions; delete one of them", name,
            )  # fmt: skip

    def _note(self, view: ClusterView) -> None:
        known = {note.brokers for note in self._notes or ()}
        if known != {frozenset(view.members)} or self._noted_topics is not self.logs.topics:
            self._write_note(view)

    def _write_note(self, view: ClusterView) -> None:
        topics = self.logs.topics
        self.logs.note_registry(RegistryNote(view.registry, view.version, frozenset(view.members)))
        self._notes, self._noted_topics = self.logs.registry_notes(), topics
