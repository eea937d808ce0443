"""The topics of this broker: names, ids, creation and deletion; and what Metadata says of each, in bytes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from broker.config import BrokerConfig
from broker.log.family import LogFamily
from broker.log.generations import SINCE_08, family_of
from broker.offsets.offset_records import INTERNAL_TOPICS
from broker.server.served_logs import LEADER_EPOCH, Ownership
from broker.store.manager import LogManager
from broker.store.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    KafkaError,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.protocol.api.metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
    WrittenTopic,
    written_topic,
)
from pyspark_kafkalog.steps import Job, Steps, run_steps
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from broker.server.registration import Registration

MAX_PARTITIONS = 10_000
"""Partitions of one topic: each is a directory with open files, so a request must not ask for any number."""

GENERATION_PROPERTY = "generation"
"""Given to a new topic among its properties; kept apart from them, as it can never change."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Topics:
    """*Thread-safe.* Names, ids and partition counts, over the log manager that stores them.

    Reading takes no lock: the manager hands out snapshots, and sees to it that two requests cannot make one
    topic twice. ``_changing`` is held while `watch`'s callback runs.

    With a ``registration`` partitions of today's wire are claimed in ZooKeeper before they are made.

    Topics are made in steps. A client that leaves meanwhile leaves the rest of them in ``_left``: what it
    asked for is done all the same, as at other brokers, by `go_on`.
    """

    def __init__(
        self, logs: LogManager, config: BrokerConfig, registration: Registration | None = None
    ) -> None:
        self._logs = logs
        self._registration = registration
        self._config = config
        self._changing = threading.RLock()
        self._changed: Callable[[], object] = lambda: None
        self._left: deque[Steps[Any]] = deque()
        # By id, with the snapshot that they were taken from; replaced as one, so that no lock is needed.
        self._names: tuple[Mapping[str, StoredTopic], dict[UUID, str]] = ({}, {})

    def watch(self, changed: Callable[[], object]) -> None:
        """Have ``changed`` called after a topic was made, widened or deleted, in the thread that did it.

        It must be quick: no other topic can be changed meanwhile.
        """
        self._changed = changed

    def all(self) -> Mapping[str, StoredTopic]:
        """Every topic by name."""
        return self._logs.topics()

    def get(self, name: str) -> StoredTopic:
        """The topic of this name. Raises `UnknownTopicOrPartition`."""
        try:
            return self._logs.topics()[name]
        except KeyError:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist") from None

    def name_of(self, topic_id: UUID) -> str:
        """The name of the topic with this id. Raises `UnknownTopicId`."""
        topics = self._logs.topics()
        known, names = self._names
        if known is not topics:
            names = {topic.topic_id: name for name, topic in topics.items()}
            self._names = topics, names
        try:
            return names[topic_id]
        except KeyError:
            raise UnknownTopicId(f"no topic has the id {topic_id}") from None

    def check_new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> None:
        """All that `create` checks, without making anything.

        Raises:
            InvalidTopic: the name is not allowed, or not next to another's.
            TopicAlreadyExists: there is such a topic.
            InvalidPartitions: not at least one partition.
            ServerError: POLICY_VIOLATION above `MAX_PARTITIONS`.
            InvalidConfig: an override is unknown or has a value it cannot have.
        """
        family, properties = family_and_properties(overrides)
        topics = self._logs.topics()
        family.check_name(name, topics)
        if name in topics:
            raise TopicAlreadyExists(f"topic {name!r} already exists")
        check_partition_count(partition_count)
        self._logs.defaults.overridden(properties)

    def create(
        self, name: str, partition_count: int | None = None, overrides: Mapping[str, str] | None = None
    ) -> StoredTopic:
        """Make a topic with a new random id; ``partition_count`` None means ``num.partitions``.

        Among its properties `GENERATION_PROPERTY` says which messages it will hold, once and for all.
        Raises `RegisteredElsewhere`, also if ZooKeeper cannot be asked.
        """
        return run_steps(self._creating(name, partition_count, overrides or {}))

    def creating(
        self, name: str, partition_count: int | None = None, overrides: Mapping[str, str] | None = None
    ) -> Steps[StoredTopic]:
        """`create` in steps, which `go_on` takes if the caller does not."""
        return self._to_the_end(self._creating(name, partition_count, overrides or {}))

    def _creating(
        self, name: str, partition_count: int | None, overrides: Mapping[str, str]
    ) -> Steps[StoredTopic]:
        count = self._config.num_partitions if partition_count is None else partition_count
        self.check_new(name, count, overrides)
        family, properties = family_and_properties(overrides)
        made = self._logs.creating_topic(name, uuid4(), count, properties, generation=family.generation)
        yield from self._claimed(name, family.generation, range(count), made)
        _log.info("created topic %s of generation %s with %d partitions", name, family.generation, count)
        with self._changing:
            self._changed()
        return self.get(name)

    def get_or_create(self, name: str, generation: str = SINCE_08.generation) -> StoredTopic:
        """The topic, made with the defaults and for this ``generation`` where it does not exist yet.

        Raises as `create`.
        """
        return run_steps(self.getting_or_creating(name, generation))

    def getting_or_creating(self, name: str, generation: str = SINCE_08.generation) -> Steps[StoredTopic]:
        """`get_or_create` in steps, which `go_on` takes if the caller does not."""
        existing = self._logs.topics().get(name)
        if existing is not None:
            return existing
        try:
            return (yield from self.creating(name, overrides={GENERATION_PROPERTY: generation}))
        except TopicAlreadyExists:
            made_by_another = self._logs.topics().get(name)
            if made_by_another is None:  # not whole yet: clients ask again
                raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is being made") from None
            return made_by_another

    def adding_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Steps[None]:
        """Widen the topic to ``total`` partitions, in steps, which `go_on` takes if the caller does not."""
        return self._to_the_end(self._adding_partitions(name, total, validate_only=validate_only))

    def _adding_partitions(self, name: str, total: int, *, validate_only: bool) -> Steps[None]:
        present = len(self.get(name).partitions)
        if total <= present:
            raise InvalidPartitions(
                f"topic {name!r} has {present} partitions already; {total} would not be an increase"
            )
        check_partition_count(total)
        if not validate_only:
            added = range(present, total)
            made = self._logs.adding_partitions(name, total)
            yield from self._claimed(name, self.get(name).generation, added, made)
            _log.info("topic %s now has %d partitions", name, total)
            with self._changing:
                self._changed()

    def _claimed(self, name: str, generation: str, numbers: range, making: Steps[None]) -> Steps[None]:
        """The same steps, which are taken only if no other broker has these partitions."""
        if self._registration is None or generation != SINCE_08.generation or name in INTERNAL_TOPICS:
            yield from making
            return
        claim = self._registration.claim(name, numbers)
        try:
            yield claim.make
            yield from making
        finally:
            claim.release()

    def go_on(self) -> None:
        """Make what clients asked for that have left since."""
        while self._left:
            try:
                run_steps(self._left.popleft())
            except KafkaError as e:
                _log.warning("a topic was not created after its client left: %s", e)

    def _to_the_end(self, steps: Steps[_T]) -> Steps[_T]:
        """The same steps, which go to ``_left`` where they are not taken to their end.

        A job comes before anything is made: who leaves meanwhile leaves nothing.
        """
        began = False
        go_on: Callable[[], Job | None] = partial(next, steps)
        while True:
            try:
                job = go_on()
            except StopIteration as e:
                result: _T = e.value
                return result
            began = began or job is None
            try:
                go_on = partial(steps.send, (yield job))
            except GeneratorExit:
                if began:
                    self._left.append(steps)
                else:
                    steps.close()
                raise
            except Exception as e:
                go_on = partial(steps.throw, e)

    def alter(self, name: str, overrides: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Have the topic set these properties for itself and no others; its logs follow at once.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            InvalidConfig: a property is unknown, has a value it cannot have, or can never change.
        """
        if GENERATION_PROPERTY in overrides:
            raise InvalidConfig(f"{GENERATION_PROPERTY} is given when a topic is created, and is fixed then")
        with self._changing:
            self.get(name)
            if validate_only:
                self._logs.defaults.overridden(overrides)
                return
            self._logs.set_overrides(name, overrides)
            _log.info("topic %s now has the properties %s", name, dict(overrides))

    def deleting(self, name: str, goes_too: Callable[[], Steps[None]]) -> Steps[None]:
        """Delete the topic and its logs, in steps, which `go_on` takes if the caller does not. Once it is not
        visible any more, the steps of ``goes_too`` delete what others have of it.
        Raises `UnknownTopicOrPartition`, or `InvalidTopic` for our own.
        """
        return self._to_the_end(self._deleting(name, goes_too))

    def _deleting(self, name: str, goes_too: Callable[[], Steps[None]]) -> Steps[None]:
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {name!r} is internal and cannot be deleted")
        self.get(name)
        deleting = self._logs.deleting_topic(name)
        next(deleting)
        yield from goes_too()
        yield from deleting
        _log.info("deleted topic %s", name)
        with self._changing:
            self._changed()


def family_and_properties(overrides: Mapping[str, str]) -> tuple[LogFamily, dict[str, str]]:
    """The family that a new topic's properties ask for, and the other ones. Raises `InvalidConfig`."""
    rest = dict(overrides)
    return family_of(rest.pop(GENERATION_PROPERTY, SINCE_08.generation)), rest


def check_partition_count(count: int) -> None:
    """Raises `InvalidPartitions` below 1, and `ServerError` POLICY_VIOLATION above `MAX_PARTITIONS`."""
    if count < 1:
        raise InvalidPartitions(f"a topic needs at least 1 partition, not {count}")
    if count > MAX_PARTITIONS:
        raise ServerError(
            ErrorCode.POLICY_VIOLATION, f"{count} partitions; this broker allows {MAX_PARTITIONS} in a topic"
        )


KEPT_BYTES = 16 << 20
"""A partition takes 20 to 40 bytes in each version that is asked for."""

_ENTRY_BYTES = 200
"""What it costs to keep one at all, about."""


class WrittenTopics:
    """*Thread-safe: ``_lock`` guards it.* Topics as this broker describes them: it leads every partition but
    those of today's wire that another broker has registered.
    """

    def __init__(
        self, node_id: int, ownership: Ownership | None = None, *, max_bytes: int = KEPT_BYTES
    ) -> None:
        self._node_id = node_id
        self._ownership = ownership
        self._max_bytes = max_bytes
        self._size = 0
        self._kept: OrderedDict[tuple[str, int, int], tuple[StoredTopic, object, WrittenTopic]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def of(self, name: str, topic: StoredTopic, version: int, operations: int) -> WrittenTopic:
        """``topic``, called ``name``, in a version of Metadata; ``operations`` are those that are allowed."""
        key = name, version, operations
        owners = None if self._ownership is None else self._ownership.version  # before it is asked
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] is topic and found[1] is owners:
                self._kept.move_to_end(key)
                return found[2]
        written = written_topic(self._described(name, topic, operations), version)
        with self._lock:
            self._forget(key)
            self._kept[key] = topic, owners, written
            self._size += _ENTRY_BYTES + len(written.data)
            while self._size > self._max_bytes and self._kept:
                self._forget(next(iter(self._kept)))
        return written

    def _forget(self, key: tuple[str, int, int]) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._size -= _ENTRY_BYTES + len(found[2].data)

    def _described(self, name: str, topic: StoredTopic, operations: int) -> MetadataResponseTopic:
        ownership = self._ownership
        if topic.generation != SINCE_08.generation or name in INTERNAL_TOPICS:
            ownership = None
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=name,
            topic_id=topic.topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=tuple(
                MetadataResponsePartition(
                    partition_index=partition,
                    leader_id=self._node_id,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=(self._node_id,),
                    isr_nodes=(self._node_id,),
                )
                if ownership is None or ownership.is_ours(TopicPartition(name, partition))
                # Its owner is not among the brokers of this answer.
                else MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=partition, leader_id=-1
                )
                for partition in topic.partitions
            ),
            topic_authorized_operations=operations,
        )
