"""The cluster as a broker sees it: topics with their partitions' owners, and the live brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import msgspec

from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.logs.state_topic import partition_for
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, KafkaError, ServerError, StorageError
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.cluster_nodes import NOBODY


class RegisteredElsewhere(KafkaError):
    """A partition (0.8 and later) belongs to another broker, or its owner is not known yet."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


ABSENT = -1
"""Version of a znode that does not exist."""


class ClusterTopic(msgspec.Struct, frozen=True):
    """``stored`` has all partitions, ``owners`` the broker of each, or `NOBODY`. ``pending`` partitions are
    not created yet; they will begin at their offset in ``starts``, or 0.
    """

    stored: StoredTopic
    owners: tuple[int, ...]
    pending: frozenset[int]
    version: int
    config_version: int
    starts: Mapping[int, int] = msgspec.field(default_factory=dict)

    def owned_by(self, broker: int) -> tuple[int, ...]:
        return tuple(number for number, owner in enumerate(self.owners) if owner == broker)


class Deletion(msgspec.Struct, frozen=True):
    """A deleted topic, and the brokers that still have partitions of it."""

    name: str
    brokers: frozenset[int]
    version: int


class Name07(NamedTuple):
    """A topic name that these brokers use for a Kafka 0.7 topic, with its znode's version."""

    brokers: frozenset[int]
    version: int


class ClusterView(msgspec.Struct, frozen=True):
    """Every topic at one ``version`` of a registry. ``vacant`` are names without a topic."""

    version: int
    registry: str
    topics: Mapping[str, ClusterTopic] = msgspec.field(default_factory=dict)
    vacant: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    deletions: Mapping[UUID, Deletion] = msgspec.field(default_factory=dict)
    members: Mapping[int, bool] = msgspec.field(default_factory=dict)
    names_07: Mapping[str, Name07] = msgspec.field(default_factory=dict)

    def has(self, name: str, topic_id: UUID) -> bool:
        topic = self.topics.get(name)
        return topic is not None and topic.stored.topic_id == topic_id

    @property
    def awaited(self) -> list[int]:
        """The members that have not yet registered what they had in an earlier registry."""
        return sorted(broker for broker, arrived in self.members.items() if not arrived)


class LiveBroker(msgspec.Struct, frozen=True):
    """Its address by the name of each listener."""

    id: int
    addresses: Mapping[str, tuple[str, int]]


class Pulse:
    """*Thread-safe: ``_lock`` guards the beats.* Detects that this process was stopped (SIGSTOP, a sleeping
    machine), so that its ZooKeeper session may have ended: if `beat` is not called for ``longest_seconds``
    the process is `late` until it has read the registry again.
    """

    def __init__(self, longest_seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._longest = longest_seconds
        self._clock = clock
        self._last = clock.monotonic()
        self._missed = self._seen = 0
        self._lock = threading.Lock()

    def beat(self) -> int:
        """Note that the process is running; returns how often it has been stopped so far."""
        with self._lock:
            now = self._clock.monotonic()
            self._missed += now - self._last > self._longest
            self._last = now
            return self._missed

    def caught_up(self, missed: int) -> None:
        with self._lock:
            self._seen = max(self._seen, missed)

    @property
    def late(self) -> bool:
        return self._seen != self._missed or self._clock.monotonic() - self._last > self._longest


_NOBODY_ELSE: Mapping[int, LiveBroker] = MappingProxyType({})
_STARTING = "this broker is not registered in ZooKeeper yet"
_LATE = "this broker was stopped for a while and has not yet seen again what it owns"


class Ownership:
    """*Thread-safe: each part is replaced as a whole; ``_lock`` orders the updates.* Who owns the partitions
    of topics of 0.8 and later, and which brokers are live. Nothing is served before the first `see`, nor
    after a stop of the process until the registry was read again.
    """

    def __init__(self, node_id: int, pulse: Pulse | None = None) -> None:
        self.node_id = node_id
        self.pulse = pulse
        self.view: ClusterView | None = None
        self._others: Mapping[int, LiveBroker] = _NOBODY_ELSE
        self.offline: frozenset[TopicPartition] = frozenset()
        self._unregistered: str | None = _STARTING
        self._lock = threading.Lock()

    def shares(self, topic: StoredTopic) -> bool:
        """Whether the topic is the cluster's: each broker has 0.7 topics of its own."""
        return topic.generation == SINCE_08.generation

    def owner_of(self, partition: TopicPartition) -> int:
        topic = self.topic(partition.topic)
        if topic is None or partition.partition >= len(topic.owners):
            return NOBODY
        return NOBODY if partition.partition in topic.pending else topic.owners[partition.partition]

    @property
    def known(self) -> bool:
        return self._unregistered is None

    @property
    def serves(self) -> bool:
        return self.refusal is None

    @property
    def refusal(self) -> str | None:
        """Why this broker serves nothing: it is not `known`, or paused since it last read the registry."""
        if self._unregistered is None and self.pulse is not None and self.pulse.late:
            return _LATE
        return self._unregistered

    def see(self, view: ClusterView) -> None:
        with self._lock:
            known = self.view
            if known is None or (known.registry == view.registry and known.version <= view.version):
                self.view = view

    def enter(self, view: ClusterView) -> None:
        """Switch to another registry, in which this broker has registered what it has."""
        with self._lock:
            self.view = view

    def see_brokers(self, brokers: Iterable[LiveBroker]) -> None:
        others = {each.id: each for each in brokers if each.id != self.node_id}
        with self._lock:
            if others != self._others:
                self._others = others

    def set_offline(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self.offline = frozenset(partitions)

    def serve(self) -> None:
        self._unregistered = None

    def refuse(self, why: str) -> None:
        self._unregistered = why

    def live(self, listener: str) -> dict[int, tuple[str, int]]:
        return {
            number: each.addresses[listener]
            for number, each in sorted(self._others.items())
            if listener in each.addresses
        }

    @property
    def live_ids(self) -> frozenset[int]:
        return frozenset((self.node_id, *self._others))

    def topic(self, name: str) -> ClusterTopic | None:
        view = self.view
        return None if view is None else view.topics.get(name)

    def coordinator_of(self, topic: str, key: str) -> int:
        found = self.topic(topic)
        if found is None:
            return NOBODY
        return self.owner_of(TopicPartition(topic, partition_for(key, len(found.owners))))

    def check_known(self) -> None:
        """Raises `ServerError` LEADER_NOT_AVAILABLE at startup, `RegisteredElsewhere` if our id is used."""
        refusal = self._unregistered
        if refusal == _STARTING:
            raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, refusal)
        if refusal is not None:
            raise RegisteredElsewhere(refusal)

    def is_ours(self, partition: TopicPartition) -> bool:
        topic = self.topic(partition.topic)
        return (
            self.serves
            and topic is not None
            and partition.partition < len(topic.owners)
            and topic.owners[partition.partition] == self.node_id
            and partition.partition not in topic.pending
            and partition not in self.offline
        )

    def check(self, partition: TopicPartition) -> None:
        """Raises `RegisteredElsewhere`, or `StorageError` if the partition is ours but offline."""
        if self.is_ours(partition):
            return
        if (refusal := self.refusal) is not None:
            raise RegisteredElsewhere(f"{partition}: {refusal}")
        topic = self.topic(partition.topic)
        if topic is None or partition.partition >= len(topic.owners):
            raise RegisteredElsewhere(f"{partition} is not registered in ZooKeeper")
        owner = topic.owners[partition.partition]
        if owner == NOBODY:
            raise RegisteredElsewhere(f"{partition}: no broker has brought it since ZooKeeper was emptied")
        if owner != self.node_id:
            raise RegisteredElsewhere(f"{partition} is not served here: broker {owner} owns it")
        if partition in self.offline:
            raise StorageError(
                f"{partition} is offline: ZooKeeper says that this broker made it, but it is in none of "
                "log.dirs; start the broker with the directories it had"
            )
        raise RegisteredElsewhere(f"{partition}: it is not made yet")


@dataclass(eq=False)
class CoordinatorPartitions:
    """*Thread-safe: it has no state.* A `Placement`: a partition's owner coordinates its keys."""

    ownership: Ownership
    topic: str

    def count(self) -> int | None:
        if self.ownership.view is None:
            return None
        topic = self.ownership.topic(self.topic)
        return 0 if topic is None else len(topic.owners)

    def refusal(self, number: int) -> KafkaError | None:
        """See `Placement.refusal`. NOT_COORDINATOR for all partitions if another broker has our id."""
        ownership, partition = self.ownership, TopicPartition(self.topic, number)
        if ownership.is_ours(partition):
            return None
        try:
            ownership.check_known()
        except RegisteredElsewhere as e:
            return ServerError(ErrorCode.NOT_COORDINATOR, str(e))
        except KafkaError as e:
            return CoordinatorLoading(str(e))
        topic = ownership.topic(self.topic)
        is_ours = topic is not None and number in topic.owned_by(ownership.node_id)
        try:
            ownership.check(partition)
        except StorageError as e:
            return ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e))
        except KafkaError as e:
            return CoordinatorLoading(str(e)) if is_ours else ServerError(ErrorCode.NOT_COORDINATOR, str(e))
        return None


def spread(view: ClusterView, brokers: Iterable[int], count: int) -> tuple[int, ...]:
    """Owners for ``count`` new partitions: round robin, brokers with the fewest partitions first."""
    load = dict.fromkeys(brokers, 0)
    for topic in view.topics.values():
        for owner in topic.owners:
            if owner in load:
                load[owner] += 1
    order = sorted(load, key=lambda broker: (load[broker], broker))
    return tuple(order[number % len(order)] for number in range(count))
