"""Topics: names, ids, creation, changes and deletion, for this broker and for a cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from kafkalog_broker.cluster.ownership import ClusterView, spread
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.log.family import LogFamily
from kafkalog_broker.log.generations import SINCE_08, family_of
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from kafkalog_broker.cluster.membership import Membership

MAX_PARTITIONS = 10_000
"""Of one topic. Each partition is a directory with open files, so requests need a limit."""

GENERATION_PROPERTY = "generation"
"""Given among a new topic's properties, but kept apart from them, as it can never change."""

_log = logging.getLogger(__name__)

ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Maps a resource's own properties to the new ones. May raise `KafkaError`."""


class Topics:
    """*Thread-safe.* Names, ids and partition counts, over the log manager that stores them. Readers take no
    lock; ``_changing`` is held while `watch`'s callback runs. With a ``membership``, set before the start,
    the topics of 0.8 and later are the cluster's, and changes are registered in ZooKeeper first.
    """

    def __init__(self, logs: LogManager, config: BrokerConfig, membership: Membership | None = None) -> None:
        self._logs = logs
        self.membership = membership
        self._config = config
        self._changing = threading.RLock()
        self._changed: Callable[[], object] = lambda: None
        # By id, with the snapshot they come from; replaced together, so that no lock is needed.
        self._names: tuple[Mapping[str, StoredTopic], dict[UUID, str]] = ({}, {})
        self._merged: tuple[object, object, Mapping[str, StoredTopic]] = (None, None, {})

    def watch(self, changed: Callable[[], object]) -> None:
        """Call ``changed`` after each creation, widening or deletion of a topic; it must be quick."""
        self._changed = changed

    def all(self) -> Mapping[str, StoredTopic]:
        here = self._logs.topics
        member = self.membership
        view = None if member is None else member.ownership.view
        if member is None or view is None:
            return here
        registered = member.ownership.known
        known, seen, merged = self._merged
        if known is not here or seen != (view, registered):
            of_all = {name: topic.stored for name, topic in view.topics.items()}
            own = {name: topic for name, topic in here.items() if not member.ownership.shares(topic)}
            # Before this broker is registered, it still has topics that it is about to register.
            merged = {**of_all, **own} if registered else {**here, **of_all, **own}
            self._merged = here, (view, registered), merged
        return merged

    def newest(self) -> Mapping[str, StoredTopic]:
        """`all`, with what other brokers have changed before the call if ZooKeeper answers."""
        if self.membership is not None:
            self.membership.registry.catch_up()
        return self.all()

    def get(self, name: str) -> StoredTopic:
        try:
            return self.all()[name]
        except KeyError:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist") from None

    def name_of(self, topic_id: UUID) -> str:
        topics = self.all()
        known, names = self._names
        if known is not topics:
            names = {topic.topic_id: name for name, topic in topics.items()}
            self._names = topics, names
        try:
            return names[topic_id]
        except KeyError:
            raise UnknownTopicId(f"no topic has the id {topic_id}") from None

    def check_new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> None:
        family, properties = family_and_properties(overrides)
        topics = self.all()
        family.check_name(name, topics)
        if name in topics:
            raise TopicAlreadyExists(f"topic {name!r} already exists")
        check_partition_count(partition_count)
        self._logs.defaults.overridden(properties)

    def create(
        self,
        name: str,
        partition_count: int | None = None,
        overrides: Mapping[str, str] | None = None,
        owners: Sequence[int] | None = None,
    ) -> StoredTopic:
        """Create a topic with a random id; ``owners`` of its partitions are by default the live brokers."""
        overrides = overrides or {}
        count = self._config.num_partitions if partition_count is None else partition_count
        self.check_new(name, count, overrides)
        family, properties = family_and_properties(overrides)
        member = self.membership
        if member is None:
            made = self._create_here(name, count, properties, family)
        else:
            with member.claimed(name):
                if family is SINCE_08:
                    made = self._create_shared(member, name, count, properties, owners)
                else:
                    member.take_name_07(name)
                    made = self._create_here(name, count, properties, family)
        _log.info("created topic %s of generation %s with %d partitions", name, family.generation, count)
        with self._changing:
            self._changed()
        return made if made is not None else self.get(name)

    def _create_here(
        self, name: str, count: int, properties: Mapping[str, str], family: LogFamily
    ) -> StoredTopic | None:
        self._logs.create_topic(name, uuid4(), count, properties, generation=family.generation)
        return self._logs.topics.get(name)

    def _create_shared(
        self,
        member: Membership,
        name: str,
        count: int,
        properties: Mapping[str, str],
        owners: Sequence[int] | None,
    ) -> StoredTopic:
        member.ownership.check_known()
        topic = member.registry.create(
            name,
            uuid4(),
            lambda view: owners or spread(view, member.ownership.live_ids, count),
            properties,
            lambda topics: SINCE_08.check_name(name, topics),
        )
        member.make(name, topic)
        stored: StoredTopic = topic.stored
        return stored

    def get_or_create(
        self, name: str, generation: str = SINCE_08.generation, wait_seconds: float = 0
    ) -> StoredTopic:
        """The topic, created with defaults for this ``generation`` if it is missing. Where another request is
        creating or deleting it, waits so long, then raises `ServerError` LEADER_NOT_AVAILABLE. Else raises as
        `create`.
        """
        existing = self.all().get(name)
        if existing is not None:
            return existing
        try:
            return self.create(name, overrides={GENERATION_PROPERTY: generation})
        except TopicAlreadyExists:
            self._logs.wait_until_settled(name, wait_seconds)
            existing = self.all().get(name)
            if existing is None and wait_seconds:  # the other failed, or deleted it
                return self.get_or_create(name, generation)
            if existing is None:
                raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is being made") from None
            return existing
        except ServerError as e:
            if e.code is ErrorCode.REQUEST_TIMED_OUT:  # Metadata clients retry LEADER_NOT_AVAILABLE
                raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, str(e)) from e
            raise

    def add_partitions(
        self, name: str, total: int, owners: Sequence[int] | None = None, *, validate_only: bool = False
    ) -> None:
        """Widen the topic to ``total`` partitions; ``owners`` of the new ones as in `create`."""
        topic = self.get(name)
        present = len(topic.partitions)
        if total <= present:
            raise InvalidPartitions(
                f"topic {name!r} has {present} partitions already; {total} would not be an increase"
            )
        check_partition_count(total)
        if validate_only:
            return
        member = self.membership
        if member is None or not member.ownership.shares(topic):
            self._logs.add_partitions(name, total)
        else:
            member.ownership.check_known()

            def chosen(view: ClusterView, added: int) -> Sequence[int]:
                return owners or spread(view, member.ownership.live_ids, added)

            with member.claimed(name):
                member.make(name, member.registry.widen(name, topic.topic_id, total, chosen))
        _log.info("topic %s now has %d partitions", name, total)
        with self._changing:
            self._changed()

    def alter(self, name: str, change: ConfigChange, *, validate_only: bool) -> None:
        """Replace the topic's own properties by ``change`` of them. Raises `KafkaError`."""
        topic = self.get(name)
        checked = partial(self._changed_overrides, change, topic.generation)
        overrides = checked(topic.overrides)
        if validate_only:
            return
        member = self.membership
        if member is not None and member.ownership.shares(topic):
            member.ownership.check_known()
            overrides = member.registry.configure(name, checked)
        if name in self._logs.topics:
            with self._changing:
                self._logs.set_overrides(name, overrides)
        _log.info("topic %s now has the properties %s", name, dict(overrides))

    def _changed_overrides(
        self, change: ConfigChange, generation: str, overrides: Mapping[str, str]
    ) -> Mapping[str, str]:
        after = dict(change(overrides))
        given = after.pop(GENERATION_PROPERTY, generation)
        if given != generation:
            raise InvalidConfig(
                f"topic: {GENERATION_PROPERTY}={given[:100]} is not allowed; allowed: only {generation},"
                " as it is fixed when a topic is created"
            )
        self._logs.defaults.overridden(after)
        return after

    def delete(self, name: str, goes_too: Callable[[], object]) -> None:
        """``goes_too`` deletes what others keep of it, after it is hidden."""
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {name!r} is internal and cannot be deleted")
        topic, member = self.get(name), self.membership
        if member is None or not member.ownership.shares(topic):
            self._logs.delete_topic(name, goes_too)
        else:
            # An unregistered broker would delete only its own part.
            member.ownership.check_known()
            shared = member.ownership.topic(name)
            if shared is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            with member.claimed(name):
                member.delete(name, shared, goes_too)
        _log.info("deleted topic %s", name)
        with self._changing:
            self._changed()


def family_and_properties(overrides: Mapping[str, str]) -> tuple[LogFamily, dict[str, str]]:
    """A new topic's family, and its properties without `GENERATION_PROPERTY`. Raises `InvalidConfig`."""
    rest = dict(overrides)
    return family_of(rest.pop(GENERATION_PROPERTY, SINCE_08.generation)), rest


def check_partition_count(count: int) -> None:
    if count < 1:
        raise InvalidPartitions(f"a topic needs at least 1 partition, not {count}")
    if count > MAX_PARTITIONS:
        raise ServerError(
            ErrorCode.POLICY_VIOLATION, f"{count} partitions; this broker allows {MAX_PARTITIONS} in a topic"
        )
