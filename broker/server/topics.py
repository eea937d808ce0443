"""The topics of this broker: which names are allowed, who has which id, making and deleting them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from uuid import UUID, uuid4

from broker.config import BrokerConfig
from broker.group.offsets import OFFSETS_TOPIC
from broker.log.family import LogFamily
from broker.log.generations import SINCE_08, family_of
from broker.log.manager import LogManager, StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidTopic,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

MAX_PARTITIONS = 10_000
"""Partitions of one topic: each is a directory with open files, so a request must not ask for any number."""

GENERATION_PROPERTY = "generation"
"""Given to a new topic among its properties; kept apart from them, as it can never change."""

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC})

_log = logging.getLogger(__name__)


class Topics:
    """*Thread-safe.* Names, ids and partition counts, over the log manager that stores them.

    ``_changing`` is held while a topic is made, widened or deleted, so that two requests cannot make one
    topic twice; reading takes no lock: the manager hands out snapshots.
    """

    def __init__(self, logs: LogManager, config: BrokerConfig) -> None:
        self._logs = logs
        self._config = config
        self._changing = threading.RLock()
        self._changed: Callable[[], object] = lambda: None

    def watch(self, changed: Callable[[], object]) -> None:
        """Have ``changed`` called after a topic was made, widened or deleted.

        By whoever did it, while no other topic can be changed: it must be quick.
        """
        self._changed = changed

    def all(self) -> Mapping[str, StoredTopic]:
        """Every topic by name."""
        return self._logs.topics()

    def get(self, name: str) -> StoredTopic:
        """The topic of this name.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        try:
            return self._logs.topics()[name]
        except KeyError:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist") from None

    def name_of(self, topic_id: UUID) -> str:
        """The name of the topic with this id.

        Raises:
            UnknownTopicId: no topic has it.
        """
        for name, topic in self._logs.topics().items():
            if topic.topic_id == topic_id:
                return name
        raise UnknownTopicId(f"no topic has the id {topic_id}")

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
        self._config.log_defaults().overridden(properties)

    def create(
        self, name: str, partition_count: int | None = None, overrides: Mapping[str, str] | None = None
    ) -> StoredTopic:
        """Make a topic with a new random id; ``partition_count`` None means ``num.partitions``.

        Among its properties `GENERATION_PROPERTY` says which messages it will hold, once and for all.

        Raises:
            KafkaError: what `check_new` raises, or `StorageError`.
        """
        count = self._config.num_partitions if partition_count is None else partition_count
        overrides = overrides or {}
        with self._changing:
            self.check_new(name, count, overrides)
            family, properties = family_and_properties(overrides)
            self._logs.create_topic(name, uuid4(), count, properties, generation=family.generation)
            _log.info("created topic %s of generation %s with %d partitions", name, family.generation, count)
            self._changed()
            return self.get(name)

    def get_or_create(self, name: str, generation: str = SINCE_08.generation) -> StoredTopic:
        """The topic, made with the defaults and for this ``generation`` where it does not exist yet.

        Raises:
            KafkaError: what `create` raises.
        """
        with self._changing:
            existing = self._logs.topics().get(name)
            if existing is not None:
                return existing
            return self.create(name, overrides={GENERATION_PROPERTY: generation})

    def add_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Widen the topic to ``total`` partitions.

        Raises:
            UnknownTopicOrPartition: no such topic.
            InvalidPartitions: ``total`` is not above the present count.
        """
        with self._changing:
            present = len(self.get(name).partitions)
            if total <= present:
                raise InvalidPartitions(
                    f"topic {name!r} has {present} partitions already; {total} would not be an increase"
                )
            check_partition_count(total)
            if not validate_only:
                self._logs.add_partitions(name, total)
                _log.info("topic %s now has %d partitions", name, total)
                self._changed()

    def delete(self, name: str) -> None:
        """Delete the topic and its logs.

        Raises:
            UnknownTopicOrPartition: no such topic.
            InvalidTopic: the topic is the broker's own.
        """
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {name!r} is internal and cannot be deleted")
        with self._changing:
            self.get(name)
            self._logs.delete_topic(name)
            _log.info("deleted topic %s", name)
            self._changed()


def family_and_properties(overrides: Mapping[str, str]) -> tuple[LogFamily, dict[str, str]]:
    """The family that a new topic's properties ask for, and the other ones. Raises `InvalidConfig`."""
    rest = dict(overrides)
    return family_of(rest.pop(GENERATION_PROPERTY, SINCE_08.generation)), rest


def check_partition_count(count: int) -> None:
    """Refuse a partition count that cannot be had.

    Raises:
        InvalidPartitions: below 1.
        ServerError: POLICY_VIOLATION above `MAX_PARTITIONS`.
    """
    if count < 1:
        raise InvalidPartitions(f"a topic needs at least 1 partition, not {count}")
    if count > MAX_PARTITIONS:
        raise ServerError(
            ErrorCode.POLICY_VIOLATION, f"{count} partitions; this broker allows {MAX_PARTITIONS} in a topic"
        )
