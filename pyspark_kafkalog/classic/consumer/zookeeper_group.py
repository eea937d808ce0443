"""One consumer's side of a group coordinated in ZooKeeper: assignment, membership, lease. No threads.

The design papers' algorithm: after each change every consumer computes the same assignment, releases what
it should not own, and claims the rest, if necessary until the former owner has released it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import ConsumerSubscription, PartitionKey, PartitionNode, RegistryLayout
from pyspark_kafkalog.zookeeper.session import Watch, ZooKeeperSession

P = TypeVar("P")


def range_assign(
    partitions: Iterable[P], threads: Iterable[str], *, order: Callable[[P], Any] | None = None
) -> dict[str, list[P]]:
    """``P // C`` of the sorted partitions to each sorted thread, in ranges; the first ``P % C`` get one more.
    Names of 0.7 sort as strings, ``10-0`` before ``2-0``, which keeps a broker's partitions together.
    """
    in_order = sorted(set(partitions), key=order)  # type: ignore[type-var,arg-type]
    takers = sorted(set(threads))
    if not takers:
        return {}
    each, more = divmod(len(in_order), len(takers))
    assigned = {}
    for place, thread in enumerate(takers):
        start = place * each + min(place, more)
        assigned[thread] = in_order[start : start + each + (place < more)]
    return assigned


def thread_id(consumer: str, stream: int) -> str:
    return f"{consumer}-{stream}"


def threads_by_topic(
    subscriptions: Mapping[str, ConsumerSubscription], topics: Collection[str]
) -> dict[str, list[str]]:
    """The group's sorted threads by subscribed topic. `InvalidConfig` for an invalid filter."""
    by_topic: dict[str, list[str]] = {}
    for consumer, subscription in subscriptions.items():
        for topic, count in subscription.chosen(topics).items():
            by_topic.setdefault(topic, []).extend(thread_id(consumer, stream) for stream in range(count))
    return {topic: sorted(threads) for topic, threads in sorted(by_topic.items())}


class RebalanceListener(Protocol):
    def release(self, partitions: Collection[PartitionKey]) -> None:
        """Stops reading and commits, so that the next owner starts there. Must not raise."""

    def take(self, claimed: Mapping[PartitionKey, Claim]) -> None:
        """Raises `KafkaError` if offsets cannot be read; retried later."""

    def abandon(self, partitions: Collection[PartitionKey]) -> None:
        """Must not raise; no commit, as others may own them."""


class Claim(msgspec.Struct, frozen=True):
    stream: int
    broker: int


class GroupSnapshot(msgspec.Struct, frozen=True):
    subscriptions: Mapping[str, ConsumerSubscription]
    partitions: Mapping[str, Collection[PartitionNode]]

    def threads(self) -> dict[str, dict[PartitionKey, str]]:
        found: dict[str, dict[PartitionKey, str]] = {}
        by_broker = all(one.by_broker for one in self.subscriptions.values())
        for topic, threads in threads_by_topic(self.subscriptions, list(self.partitions)).items():
            # The layout has sorted them, in the same order for all members.
            nodes = self.partitions.get(topic, ())
            in_order = sorted(nodes, key=lambda node: node.broker) if by_broker else nodes
            places = {node: place for place, node in enumerate(in_order)}
            assigned = range_assign(places, threads, order=places.__getitem__)
            found[topic] = {
                PartitionKey(topic, node.name, node.number): thread
                for thread, nodes in assigned.items()
                for node in nodes
            }
        return found

    def wanted(self, consumer: str) -> dict[PartitionKey, Claim]:
        subscription = self.subscriptions.get(consumer)
        if subscription is None:
            return {}
        chosen = subscription.chosen(list(self.partitions))
        ours = {thread_id(consumer, number): number for count in chosen.values() for number in range(count)}
        leaders = {
            (topic, node.name): node.broker for topic, nodes in self.partitions.items() for node in nodes
        }
        return {
            key: Claim(ours[thread], leaders[key.topic, key.name])
            for assigned in self.threads().values()
            for key, thread in assigned.items()
            if thread in ours
        }


def read_group(session: ZooKeeperSession, layout: RegistryLayout, group: str) -> GroupSnapshot:
    subscriptions = registries.consumers(session, layout, group)
    topics = registries.topics(session, layout)
    read = {topic for one in subscriptions.values() for topic in one.chosen(topics)}
    return GroupSnapshot(
        subscriptions, {topic: registries.partitions(session, layout, topic) for topic in sorted(read)}
    )


class GroupMember:
    """*Not thread-safe.* `owned` are its claims in ZooKeeper, including uncertain ones after a lost
    connection; those in `taken` are being read.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        layout: RegistryLayout,
        group: str,
        consumer: str,
        subscription: ConsumerSubscription,
        holder: RebalanceListener,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.consumer, self.subscription = consumer, subscription
        self.owned: dict[PartitionKey, Claim] = {}
        self.taken: set[PartitionKey] = set()
        self.contested: list[str] = []  # znodes of other owners that prevented claims in the last `rebalance`
        self._session, self._layout, self._group = session, layout, group
        self._holder = holder
        # One time for all registrations, so that repeating one writes the same value.
        self._since_ms = clock.time_ms()

    def register(self) -> None:
        """Joins, or rejoins in a new session, dropping partitions of the old one. Raises `ConsumerIdInUse`,
        also until the old session expires. After `ConnectionLost` call it again.
        """
        self._holder.abandon(list(self.taken))
        self.taken.clear()
        # A claim may have been written in the new session before we noticed it.
        self._release(list(self.owned))
        registries.register_consumer(
            self._session, self._layout, self._group, self.consumer, self.subscription, self._since_ms
        )

    def rebalance(self) -> bool:
        """Releases and claims once; False if a partition still has another owner. Retry a `KafkaError`."""
        wanted = read_group(self._session, self._layout, self._group).wanted(self.consumer)
        self._release([key for key, claim in self.owned.items() if wanted.get(key) != claim])
        self.contested = []
        claimed = {}
        for key, claim in wanted.items():
            if key in self.taken:
                continue
            self.owned[key] = claim
            thread = thread_id(self.consumer, claim.stream)
            if registries.claim(self._session, self._layout, self._group, key.topic, key.name, thread):
                claimed[key] = claim
            else:
                del self.owned[key]
                self.contested.append(self._layout.owner(self._group, key.topic, key.name))
        if claimed:
            self._holder.take(claimed)
            self.taken.update(claimed)
        return not self.contested

    def leave(self) -> None:
        self._release(list(self.owned))
        registries.unregister_consumer(self._session, self._layout, self._group, self.consumer)

    def registered(self) -> bool:
        """Thread-safe."""
        node = self._session.read(self._layout.consumer(self._group, self.consumer))
        return node is not None and node.owner == self._session.credentials[0]

    def _release(self, keys: Collection[PartitionKey]) -> None:
        read = self.taken.intersection(keys)
        if read:
            self._holder.release(sorted(read))
            self.taken -= read
        for key in keys:
            thread = thread_id(self.consumer, self.owned[key].stream)
            registries.release(self._session, self._layout, self._group, key.topic, key.name, thread)
            del self.owned[key]


class GroupWatch:
    """*Not thread-safe: on its session's thread, except `start` and `cancel`.* Reports group changes."""

    def __init__(
        self,
        session: ZooKeeperSession,
        layout: RegistryLayout,
        group: str,
        subscription: ConsumerSubscription,
        changed: Callable[[], object],
    ) -> None:
        self._session, self._layout, self._group = session, layout, group
        self._subscription, self._changed = subscription, changed
        self._watches: list[registries.RegistryWatch | Watch] = []
        self._lock = threading.Lock()  # guards the topics: `cancel` is called from another thread
        self._topics: dict[str, registries.RegistryWatch] = {}
        self._cancelled = False

    def start(self) -> None:
        session, layout = self._session, self._layout
        self._watches = [
            registries.watch_consumers(session, layout, self._group, self._changed),
            registries.watch_brokers(session, layout, self._changed),
            session.watch_children(layout.topics, self._found),
        ]

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            for topic_watch in self._topics.values():
                topic_watch.cancel()
        for watch in self._watches:
            watch.cancel()

    def _found(self, topics: list[str]) -> None:
        with self._lock:
            for topic in self._subscription.chosen(topics):
                if topic not in self._topics and not self._cancelled:
                    self._topics[topic] = registries.watch_topic(
                        self._session, self._layout, topic, self._changed
                    )
        self._changed()


class SessionLease:
    """*Thread-safe.* How long our znodes certainly exist: a session timeout after ZooKeeper's last answer. By
    its own clock, a process that was stopped notices the end before any notification.
    """

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._until = 0.0
        self.ends = 0  # number of times it ended: if unchanged, it was held all the time in between

    def held(self) -> bool:
        return self._clock.monotonic() < self._until

    def asking(self) -> tuple[int, float]:
        """Call before a request to ZooKeeper; pass the result to `confirm`."""
        with self._lock:
            return self.ends, self._clock.monotonic()

    def confirm(self, asked: tuple[int, float]) -> None:
        """ZooKeeper answered in our session; ignored if `end` was called since `asking`."""
        number, began = asked
        with self._lock:
            if number == self.ends:
                self._until = began + self._seconds

    def end(self) -> None:
        with self._lock:
            self.ends += 1
            self._until = 0.0
