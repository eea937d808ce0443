"""Who reads which partition: the range rule of the design papers. Pure; ZooKeeper is the caller's matter.

Every consumer of a group computes it by itself, so what it gets must depend on nothing but its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.zookeeper import brokers as registry
from pyspark_kafkalog.zookeeper import groups
from pyspark_kafkalog.zookeeper.paths import Layout
from pyspark_kafkalog.zookeeper.session import RegistryWatch, Session, Watch
from pyspark_kafkalog.zookeeper.values import PartitionKey, PartitionNode, Subscription

P = TypeVar("P")


def range_assign(
    partitions: Iterable[P], threads: Iterable[str], *, order: Callable[[P], Any] | None = None
) -> dict[str, list[P]]:
    """Contiguous ranges of the sorted partitions to the sorted threads; every thread has its entry.

    With P partitions and C threads each gets ``P // C``; the first ``P % C`` get one more, so that none is
    left unowned; with fewer partitions than threads the last ones get nothing. ``order`` is the key to sort
    partitions by: their own order without it. Names of 0.7 are sorted as strings, ``10-0`` before ``2-0``,
    which keeps a broker's partitions together.
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
    """A consumer's thread for one of its streams, as owners' znodes name it."""
    return f"{consumer}-{stream}"


def threads_by_topic(
    subscriptions: Mapping[str, Subscription], topics: Collection[str]
) -> dict[str, list[str]]:
    """The group's threads for each topic that anybody reads, sorted; ``subscriptions`` are by consumer id.

    ``topics`` are those that exist: filters choose among them.

    Raises:
        InvalidConfig: a filter is not a regular expression.
    """
    found: dict[str, list[str]] = {}
    for consumer, subscription in subscriptions.items():
        for topic, count in subscription.chosen(topics).items():
            found.setdefault(topic, []).extend(thread_id(consumer, stream) for stream in range(count))
    return {topic: sorted(threads) for topic, threads in sorted(found.items())}


class Holder(Protocol):
    """Who reads the partitions that a member owns; called by the thread that rebalances."""

    def release(self, partitions: Collection[PartitionKey]) -> None:
        """Stop reading them, and commit: somebody else begins where that says. Must not raise."""
        ...

    def take(self, claimed: Mapping[PartitionKey, Claim]) -> None:
        """Read them from now on. Raises `KafkaError` when it cannot be told from where: tried again later."""
        ...

    def abandon(self, partitions: Collection[PartitionKey]) -> None:
        """Stop reading them at once, and commit nothing: they may be somebody else's. Must not raise."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """Which of a consumer's threads reads a partition, and from which broker."""

    stream: int
    broker: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What ZooKeeper said of a group at one time: all that an assignment depends on."""

    subscriptions: Mapping[str, Subscription]
    partitions: Mapping[str, Collection[PartitionNode]]

    def threads(self) -> dict[str, dict[PartitionKey, str]]:
        """Every partition of every topic that anybody reads, with the thread that is to read it. Pure.

        Raises:
            InvalidConfig: a filter is not a regular expression.
        """
        found: dict[str, dict[PartitionKey, str]] = {}
        for topic, threads in threads_by_topic(self.subscriptions, list(self.partitions)).items():
            # Sorted by the layout already, as all members of the group sort them.
            places = {node: place for place, node in enumerate(self.partitions.get(topic, ()))}
            assigned = range_assign(places, threads, order=places.__getitem__)
            found[topic] = {
                PartitionKey(topic, node.name, node.number): thread
                for thread, nodes in assigned.items()
                for node in nodes
            }
        return found

    def wanted(self, consumer: str) -> dict[PartitionKey, Claim]:
        """What ``consumer`` is to read. Pure. Raises as `threads`."""
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


def look(session: Session, layout: Layout, group: str) -> Snapshot:
    """The group as it is now, with the topics that any of its members reads. Raises `ConnectionLost`."""
    subscriptions = groups.consumers(session, layout, group)
    topics = registry.topics(session, layout)
    read = {topic for one in subscriptions.values() for topic in one.chosen(topics)}
    return Snapshot(
        subscriptions, {topic: registry.partitions(session, layout, topic) for topic in sorted(read)}
    )


class GroupMember:
    """*Not thread-safe: one thread at a time.* A consumer in its group.

    Owns `owned`, its claims: what stands in ZooKeeper, or may stand there after a lost connection. What of
    these is `taken` is being read.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        group: str,
        consumer: str,
        subscription: Subscription,
        holder: Holder,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.consumer, self.subscription = consumer, subscription
        self.owned: dict[PartitionKey, Claim] = {}
        self.taken: set[PartitionKey] = set()
        self.contested: list[str] = []
        """The owners' znodes that stood in the way of the last `rebalance`."""
        self._session, self._layout, self._group = session, layout, group
        self._holder = holder
        # One time for all registrations: the same node made twice must be the same.
        self._since_ms = clock.time_ms()

    def register(self) -> None:
        """Join, or join again in a new session: what was read in the old one is not ours any more.

        Raises:
            ConsumerIdInUse: there is such a consumer, or the old session's has not been missed yet.
            ConnectionLost: it may be registered or not; registering again is harmless.
        """
        self._holder.abandon(list(self.taken))
        self.taken.clear()
        # A claim may have been made in the new session before its owner knew of it.
        self._let_go(list(self.owned))
        groups.register_consumer(
            self._session, self._layout, self._group, self.consumer, self.subscription, self._since_ms
        )

    def rebalance(self) -> bool:
        """Let go and claim, once. False when there is something to claim yet: another one still has it.

        Raises:
            KafkaError: it was not done, or in part; do it again.
        """
        wanted = look(self._session, self._layout, self._group).wanted(self.consumer)
        self._let_go([key for key, claim in self.owned.items() if wanted.get(key) != claim])
        self.contested = []
        claimed = {}
        for key, claim in wanted.items():
            if key in self.taken:
                continue
            self.owned[key] = claim
            if self._claim(key, claim):
                claimed[key] = claim
            else:
                del self.owned[key]
                self.contested.append(self._layout.owner(self._group, key.topic, key.name))
        if claimed:
            self._holder.take(claimed)
            self.taken.update(claimed)
        return not self.contested

    def leave(self) -> None:
        """Let go of everything and leave the group. Raises `ConnectionLost`: it may be done in part."""
        self._let_go(list(self.owned))
        groups.unregister_consumer(self._session, self._layout, self._group, self.consumer)

    def registered(self) -> bool:
        """Whether the group knows us in the session that we have now. Raises `ConnectionLost`.

        Any thread may ask.
        """
        node = self._session.read(self._layout.consumer(self._group, self.consumer))
        return node is not None and node.owner == self._session.credentials[0]

    def _claim(self, key: PartitionKey, claim: Claim) -> bool:
        thread = thread_id(self.consumer, claim.stream)
        return groups.claim(self._session, self._layout, self._group, key.topic, key.name, thread)

    def _let_go(self, keys: Collection[PartitionKey]) -> None:
        """First nobody reads them, and what was read is committed; then they are free."""
        read = self.taken.intersection(keys)
        if read:
            self._holder.release(sorted(read))
            self.taken -= read
        for key in keys:
            thread = thread_id(self.consumer, self.owned[key].stream)
            groups.release(self._session, self._layout, self._group, key.topic, key.name, thread)
            del self.owned[key]


class GroupWatch:
    """*Not thread-safe: lives on its session's thread, but for `start` and `cancel`.* Tells of any change.

    Watches the group's consumers, the brokers, the topics where they are chosen by a filter, and who has
    partitions of each topic that is read.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        group: str,
        subscription: Subscription,
        changed: Callable[[], object],
    ) -> None:
        self._session, self._layout, self._group = session, layout, group
        self._subscription, self._changed = subscription, changed
        self._watches: list[RegistryWatch | Watch] = []
        self._lock = threading.Lock()  # guards the topics: `cancel` comes from another thread
        self._topics: dict[str, RegistryWatch] = {}
        self._cancelled = False

    def start(self) -> None:
        """``changed`` is called from now on, on the session's thread."""
        session, layout = self._session, self._layout
        self._watches = [
            groups.watch_consumers(session, layout, self._group, self._changed),
            registry.watch_brokers(session, layout, self._changed),
            registry.watch_topics(session, layout, self._found),
        ]

    def cancel(self) -> None:
        """Call back no more."""
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
                    self._topics[topic] = registry.watch_topic(
                        self._session, self._layout, topic, self._changed
                    )
        self._changed()


class Lease:
    """*Thread-safe.* For how long we may take our znodes for there: others may take over once they are gone.

    ZooKeeper has answered in this session at some time, and keeps the session for its timeout after that. A
    process that was stopped meanwhile finds that the time is over, before it has heard anything.
    """

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """``seconds`` is how long an answer is good for: less than the session's timeout."""
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._until = 0.0
        self._round = 0

    def held(self) -> bool:
        """Whether what we own is ours."""
        return self._clock.monotonic() < self._until

    @property
    def ends(self) -> int:
        """How often it was ended: where that is the same, it was not in between."""
        return self._round

    def asking(self) -> tuple[int, float]:
        """Before ZooKeeper is asked; for `confirm`."""
        with self._lock:
            return self._round, self._clock.monotonic()

    def confirm(self, asked: tuple[int, float]) -> None:
        """ZooKeeper answered that our session lives. Without effect after an `end` since `asking`."""
        number, began = asked
        with self._lock:
            if number == self._round:
                self._until = began + self._seconds

    def end(self) -> None:
        """Nothing is known any more."""
        with self._lock:
            self._round += 1
            self._until = 0.0
