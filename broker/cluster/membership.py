"""What this broker has of the cluster's topics: made, brought, removed and set aside as the registry says."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from uuid import UUID

from broker.cluster.ownership import ClusterTopic, ClusterView, Ownership
from broker.cluster.registry import TopicRegistry
from broker.offsets.offset_records import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from broker.store.manager import LogManager
from broker.store.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidPartitions,
    KafkaError,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.steps import Steps, run_steps
from pyspark_kafkalog.types import TopicPartition

_log = logging.getLogger(__name__)


class Membership:
    """*Thread-safe.* Keeps the log manager's topics as the registry says.

    `settle` does what is to be done, in one thread. A request that makes a topic may take its steps itself,
    between `hold` and `release`: `settle` leaves that topic alone meanwhile; ``_lock`` guards those names.
    """

    def __init__(
        self,
        logs: LogManager,
        registry: TopicRegistry,
        ownership: Ownership,
        *,
        forget: Callable[[str], Steps[None]],
        bring: Callable[[str], object],
        changed: Callable[[], object],
    ) -> None:
        """``forget`` removes what others keep of a deleted topic; ``bring`` brings to the cluster what is in
        a topic of this broker's own use, which is set aside then; ``changed`` has `settle` called.
        """
        self.registry = registry
        self.ownership = ownership
        self._logs = logs
        self._forget = forget
        self._bring = bring
        self._changed = changed
        self._arrived = False
        self._lost: dict[TopicPartition, UUID] = {}
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._seen: Mapping[str, ClusterTopic] = {}
        self._deleted: set[UUID] = set()

    @property
    def _me(self) -> int:
        return self.ownership.node_id

    def hold(self, name: str) -> None:
        """The caller makes its part of this topic itself, until it calls `release`."""
        with self._lock:
            self._held[name] += 1

    def release(self, name: str) -> None:
        """What the caller has not made of it is made by `settle`."""
        with self._lock:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
        self._changed()

    def served(self) -> Mapping[str, StoredTopic]:
        """The topics with those of their partitions here that this broker may serve."""
        found = {}
        for name, topic in self._logs.topics().items():
            if not self.ownership.shares(topic):
                if name not in INTERNAL_TOPICS:
                    found[name] = topic
                continue
            is_ours = self.ownership.is_ours
            here = tuple(n for n in topic.partitions if is_ours(TopicPartition(name, n)))
            if here:
                found[name] = StoredTopic(topic.topic_id, here, topic.overrides, topic.generation)
        return found

    def settle(self) -> bool:
        """Do what is to be done; False if some of it has to be tried again."""
        if not self._arrived:
            self._arrive()
        with self._lock:
            held = set(self._held)
        mine = self._shared()  # before the registry is read: what is there was registered
        view = self.registry.sync()
        settled = self._finish_deletions(view, mine, held)
        self._set_aside(view, mine)
        self._follow(view)
        self._forget_others(view)
        for name, topic in view.topics.items():
            if topic.pending and name not in held:
                settled &= self._make(name, topic)
        return settled

    def making(self, name: str, topic: ClusterTopic) -> Steps[None]:
        """Make what is ours of a new topic, or of its new partitions, and have it served.

        Raises:
            ServerError: LEADER_NOT_AVAILABLE: another thread is at it, or has to remove an older one first.
            KafkaError: as `LogManager.creating_topic`, and as `TopicRegistry.made`.
        """
        wanted = tuple(number for number in topic.owned_by(self._me) if number in topic.pending)
        if not wanted:
            return
        here, topic_id = self._logs.topics().get(name), topic.stored.topic_id
        try:
            if here is None:
                yield from self._logs.creating_topic(
                    name,
                    topic_id,
                    len(topic.owners),
                    topic.stored.overrides,
                    numbers=wanted,
                    starts=topic.starts,
                )
            elif here.topic_id != topic_id:
                raise TopicAlreadyExists(f"topic {name!r} of before is still here")
            elif missing := [number for number in wanted if number not in here.partitions]:
                yield from self._logs.adding_partitions(
                    name, len(topic.owners), numbers=missing, starts=topic.starts
                )
        except (TopicAlreadyExists, InvalidPartitions) as e:
            raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, str(e)) from e
        yield partial(self.registry.made, name, topic_id, wanted)

    def deleting(self, name: str, topic: ClusterTopic, goes_too: Callable[[], Steps[None]]) -> Steps[None]:
        """Delete a topic of the cluster, and what we have of it; ``goes_too`` is what others keep of it."""
        topic_id = topic.stored.topic_id
        self._deleted.add(topic_id)
        yield partial(self.registry.delete, name, topic_id)
        here = self._logs.topics().get(name)
        removing = self._logs.deleting_topic(name) if here and here.topic_id == topic_id else None
        if removing is not None:
            next(removing)
        yield from goes_too()
        if removing is not None:
            yield from removing
        yield partial(self.registry.removed, topic_id, self._me)

    def _shared(self) -> dict[str, StoredTopic]:
        return {name: topic for name, topic in self._logs.topics().items() if self.ownership.shares(topic)}

    def _arrive(self) -> None:
        """The first time: bring what this data had before there was this registry; see what is lost of what
        it had in it.
        """
        view = self.registry.open()
        if not self._logs.has_joined(view.registry):
            for name, topic in self._shared().items():
                self.registry.offer(name, topic, self._me)
            self._logs.join(view.registry)
            view = self.ownership.view or view
        for name in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):  # what the first decides counts for the second
            own, there = self._logs.topics().get(name), view.topics.get(name)
            if own is None:
                continue
            if there is None:  # of a release that kept it to itself
                self.registry.offer(name, own, self._me)
            elif there.stored.topic_id != own.topic_id:
                self._bring(name)
        view = self.ownership.view or view
        self._finish_deletions(view, self._shared(), set())
        here = self._shared()
        for name, registered in view.topics.items():
            stored = here.get(name)
            for number in registered.owned_by(self._me):
                made = number not in registered.pending
                if made and (stored is None or number not in stored.partitions):
                    self._lost[TopicPartition(name, number)] = registered.stored.topic_id
        if self._lost:
            names = ", ".join(map(str, sorted(self._lost)[:20]))
            _log.error(
                "partitions that are offline, as this broker made them and they are in none of log.dirs: "
                "%d: %s", len(self._lost), names,
            )  # fmt: skip
        self.ownership.lose(self._lost)
        self._arrived = True

    def _finish_deletions(
        self, view: ClusterView, mine: Mapping[str, StoredTopic], held: Collection[str]
    ) -> bool:
        settled = True
        for topic_id, deletion in view.deletions.items():
            if self._me not in deletion.brokers or deletion.name in held:
                continue
            here = mine.get(deletion.name)
            try:
                if here is not None and here.topic_id == topic_id:
                    self._remove(deletion.name)
                self.registry.removed(topic_id, self._me)
            except KafkaError as e:
                _log.warning("deleting topic %s, trying again: %s", deletion.name, e)
                settled = False
        gone = {p for p, topic_id in self._lost.items() if not _has(view, p.topic, topic_id)}
        if gone:
            self._lost = {p: topic_id for p, topic_id in self._lost.items() if p not in gone}
            self.ownership.lose(self._lost)
        return settled

    def _forget_others(self, view: ClusterView) -> None:
        """Forget what groups stored for topics that other brokers have deleted."""
        before, self._seen = self._seen, view.topics
        for name, topic in before.items():
            topic_id = topic.stored.topic_id
            if not _has(view, name, topic_id) and topic_id not in self._deleted:
                run_steps(self._forget(name))
        self._deleted.clear()

    def _remove(self, name: str) -> None:
        try:
            deleting = self._logs.deleting_topic(name)
            next(deleting)
        except UnknownTopicOrPartition:
            return  # a request has done it
        run_steps(self._forget(name))
        run_steps(deleting)
        _log.info("deleted topic %s", name)

    def _set_aside(self, view: ClusterView, mine: Mapping[str, StoredTopic]) -> None:
        for name, topic in mine.items():
            there = view.topics.get(name)
            if there is not None and there.stored.topic_id == topic.topic_id:
                ours = set(there.owned_by(self._me))
                others = [number for number in topic.partitions if number not in ours]
                why = "other brokers own them"
            else:
                others, why = list(topic.partitions), "ZooKeeper has no such topic, or another of its name"
            if not others:
                continue
            try:
                self._logs.set_aside(name, topic.topic_id, others)
            except UnknownTopicOrPartition:
                continue  # it was deleted meanwhile
            _log.error("topic %s: partitions %s are set aside in .aside: %s", name, others, why)

    def _follow(self, view: ClusterView) -> None:
        """Give our logs the properties that their topics have in the registry."""
        for name, topic in self._shared().items():
            there = view.topics.get(name)
            if there is None or there.stored.overrides == topic.overrides:
                continue
            try:
                self._logs.set_overrides(name, there.stored.overrides)
                _log.info("topic %s now has the properties %s", name, dict(there.stored.overrides))
            except KafkaError as e:
                _log.warning("topic %s keeps its properties: %s", name, e)

    def _make(self, name: str, topic: ClusterTopic) -> bool:
        """Make what another broker's request has given us; False if it could not be done."""
        try:
            run_steps(self.making(name, topic))
        except KafkaError as e:
            _log.warning("making topic %s, trying again: %s", name, e)
            return False
        return True


def _has(view: ClusterView, name: str, topic_id: UUID) -> bool:
    there = view.topics.get(name)
    return there is not None and there.stored.topic_id == topic_id
