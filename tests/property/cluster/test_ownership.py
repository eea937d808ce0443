"""Brokers of one cluster in any order of creations, deletions, lost answers, ended sessions, stops, deaths
and returns, with a ZooKeeper that may be emptied: a partition never has two owners, and every acknowledged
record can be read once everybody is back.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafkalog_broker.cluster.membership import Membership
from kafkalog_broker.cluster.ownership import ClusterView, Ownership
from kafkalog_broker.cluster.registry import TopicRegistry
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.config.endpoint import PLAINTEXT
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.server.log_access import LogAccess
from kafkalog_broker.server.registration import Registration
from kafkalog_broker.server.topics import Topics
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import TopicPartition, decode_id
from pyspark_kafkalog.zookeeper.cluster_nodes import NOBODY
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.classic.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.examples import examples
from tests.support.log.logs import batch, crash, open_manager, read_all
from tests.support.manual_clock import ManualClock

BROKERS = (1, 2, 3)
NAMES = ("a", "b")
MOST_PARTITIONS = 6
PAUSE_SECONDS = 60.0
STEPS = 50

Key = tuple[UUID, int]

brokers, names = st.sampled_from(BROKERS), st.sampled_from(NAMES)
soon = st.integers(0, 8)
acts = st.sampled_from(["create", "widen", "delete", "register"])
assignments = st.none() | st.lists(brokers, min_size=1, max_size=3).map(tuple)


def nothing(*_: object) -> None:
    """No groups have stored anything."""


class Process:
    """One broker's process: what it has on its disk, and what it knows of the cluster."""

    def __init__(self, number: int, path: Path, zookeeper: MemoryZooKeeper) -> None:
        self.number = number
        self.session = MemorySession(zookeeper)
        self.clock = ManualClock()
        self.logs = open_manager(path, node_id=number)
        config = BrokerConfig(node_id=number, zookeeper_connect="memory:1")
        session = cast("ZooKeeperSession", self.session)
        self.registration = Registration(config, [PLAINTEXT], self.clock, session)
        registry, ownership = self.registration.registry, self.registration.ownership
        assert registry is not None
        assert ownership is not None
        self.registry, self.ownership = registry, ownership
        self.membership = Membership(
            self.logs,
            registry,
            ownership,
            forget=nothing,
            bring=lambda _: None,
            changed=lambda: None,
        )
        addresses = {PLAINTEXT: ("host", 9000 + number)}
        self.registration.prepare(addresses, self.membership.served, (), self.membership)
        self.topics = Topics(self.logs, config, self.membership)
        self.served = LogAccess(self.logs, SINCE_08, ownership=ownership)
        self.paused = False

    def end(self) -> None:
        """As a kill does; ZooKeeper has seen it."""
        self.session.expire()
        crash(self.logs)


class Record(NamedTuple):
    """One that was acknowledged."""

    offset: int
    value: bytes


class Cluster(RuleBasedStateMachine):
    """What clients were told, beside what the brokers have.

    Some of it does not count any more: ``lost`` went with a process that took another's id. ``unsure`` was
    given up, and may have come back: once ZooKeeper was emptied it does not know that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="kafkalog-ownership-"))
        self.zookeeper = MemoryZooKeeper()
        self.running: dict[int, Process] = {}
        self.rivals: dict[int, Process] = {}
        self.acknowledged: dict[Key, list[Record]] = defaultdict(list)
        self.made: dict[UUID, tuple[str, int]] = {}
        self.given_up: set[int] = set()
        self.forgotten: dict[Key, int] = {}
        self.epochs: dict[Key, int] = defaultdict(int)
        self.lost: set[Key] = set()
        self.unsure: set[Key] = set()
        self.emptied = False
        self.count = 0
        self.time_us = 1_700_000_000_000_000
        for number in BROKERS:
            self._start(number)
        self.settle_down(1)

    def teardown(self) -> None:
        try:
            self._everybody_returns()
        finally:
            for each in (*self.running.values(), *self.rivals.values()):
                crash(each.logs)
            shutil.rmtree(self.path)

    # What clients do.

    @rule(number=brokers, name=names, count=st.integers(1, 4), owners=assignments)
    def create(self, number: int, name: str, count: int, owners: Sequence[int] | None) -> None:
        def act(broker: Process) -> None:
            topic = broker.topics.create(name, len(owners) if owners else count, owners=owners)
            self.made[topic.topic_id] = name, len(topic.partitions)

        self._do(number, act)

    @rule(number=brokers, name=names, more=st.integers(1, 2), owners=assignments)
    def widen(self, number: int, name: str, more: int, owners: Sequence[int] | None) -> None:
        def act(broker: Process) -> None:
            topic = broker.topics.get(name)
            total = len(topic.partitions) + more
            if total > MOST_PARTITIONS:
                return
            # The owners that are given are those of the partitions that the client has seen missing.
            given = None if owners is None else tuple(owners[n % len(owners)] for n in range(more))
            broker.topics.add_partitions(name, total, given)
            if topic.topic_id in self.made:
                self.made[topic.topic_id] = name, max(total, self.made[topic.topic_id][1])

        self._do(number, act)

    @rule(number=brokers, name=names)
    def delete(self, number: int, name: str) -> None:
        def act(broker: Process) -> None:
            # Whether it is done or not, nobody may count on it any more.
            topic_id = broker.topics.get(name).topic_id
            self.made.pop(topic_id, None)
            if self.emptied and self.given_up:
                # A broker that was given up before it came to the new registry may bring its part back.
                self.unsure |= {(topic_id, number) for number in range(MOST_PARTITIONS)}
            broker.topics.delete(name, partial(nothing, name))

        self._do(number, act)

    @rule(number=brokers, name=names)
    def produce(self, number: int, name: str) -> None:
        """To each partition that the broker serves."""
        for partition in range(MOST_PARTITIONS):
            self._do(number, partial(self._produce, name, partition))

    def _produce(self, name: str, partition: int, broker: Process) -> None:
        log = broker.served.log(TopicPartition(name, partition))
        key = broker.logs.topics[name].topic_id, partition
        self.count += 1
        record = Record(log.append(batch(b"%d" % self.count)).base_offset, b"%d" % self.count)
        registered = broker.ownership.topic(name)
        assert registered is not None
        if key not in self.unsure:
            assert record.offset > self.forgotten.get(key, -1), "an offset of records that were given up"
            assert log.leader_epoch == registered.stored.epoch(partition)
            assert log.leader_epoch >= self.epochs[key], (
                "requests of an earlier owner's clients are not fenced"
            )
        self.acknowledged[key].append(record)

    # What happens to brokers.

    @rule(number=brokers)
    def register(self, number: int) -> None:
        self._do(number, lambda broker: broker.registration.register())

    @rule(number=brokers, after=soon, asked_again=st.booleans())
    def lose_an_answer(self, number: int, after: int, asked_again: bool) -> None:
        broker = self.running.get(number)
        if broker is not None and asked_again:
            broker.session.repeat_after = after
        elif broker is not None:
            broker.session.fail_after = after

    @rule(number=brokers, other=brokers, name=names, after=st.integers(0, 3), one=acts, another=acts)
    def do_two_things_at_once(
        self, number: int, other: int, name: str, after: int, one: str, another: str
    ) -> None:
        """Before one of the next steps of a broker another one does something."""
        if number == other or number not in self.running:
            return
        self.create(number, name, 2, None)

        def act(what: str, at: int) -> None:
            if what == "create":
                self.create(at, name, 2, None)
            elif what == "widen":
                self.widen(at, name, 1 + (at == number), (at,))
            elif what == "delete":
                self.delete(at, name)
            else:
                self.register(at)

        def between() -> None:
            if other in self.running:
                self.running[other].session.between = None
            act(another, other)

        self.running[number].session.between = after, between
        act(one, number)

    @rule(number=brokers)
    def lose_zookeeper(self, number: int) -> None:
        if number in self.running:
            self.running[number].session.connected = False

    @rule(number=brokers)
    def settle_down(self, number: int) -> None:
        """Everybody who runs finds ZooKeeper, learns of what the others have done, and is written to."""
        for broker in self.running.values():
            broker.session.connected = True
        for number in BROKERS * 2:
            self.register(number)
        for name in NAMES:
            self.create(number, name, len(BROKERS), None)
        for number in BROKERS:
            self.register(number)
        for number in BROKERS:
            for name in NAMES:
                self.produce(number, name)

    @rule(number=brokers, after=soon)
    def end_a_session(self, number: int, after: int) -> None:
        """The broker finds out when it asks next; ``after`` so many answers."""
        if number in self.running:
            self.running[number].session.expire_after = after

    @rule(number=brokers)
    def stop_a_process(self, number: int) -> None:
        """SIGSTOP, for longer than its session lasts."""
        broker = self.running.get(number)
        if broker is not None and not broker.paused:
            broker.paused = True
            broker.session.expire()

    @rule(number=brokers)
    def let_a_process_go_on(self, number: int) -> None:
        """SIGCONT; what lies in its sockets comes first."""
        broker = self.running.get(number)
        if broker is not None and broker.paused:
            broker.clock.advance(PAUSE_SECONDS)
            broker.paused = False
            for name in NAMES:
                self.produce(number, name)

    @rule(number=brokers, clean=st.booleans())
    def stop(self, number: int, clean: bool) -> None:
        if number not in self.running:
            return
        gone = self.running.pop(number)
        if clean:
            gone.logs.close()
        gone.end()

    @rule(number=brokers)
    def start(self, number: int) -> None:
        if number not in self.running:
            self._start(number)

    @rule(number=brokers)
    def start_a_rival(self, number: int) -> None:
        """A process with the id of a broker that is away, and an empty directory."""
        view = self._truth()
        if (
            self._is_registered(number)
            or view is None
            or not all(view.members.get(each, False) for each in BROKERS)
            or number in self.rivals
        ):
            return
        rival = Process(number, self.path / f"rival-of-{number}", self.zookeeper)
        self.rivals[number] = rival
        self._attempt(rival, lambda rival: rival.registration.register())

    @rule(number=brokers, name=names)
    def produce_at_a_rival(self, number: int, name: str) -> None:
        for partition in range(MOST_PARTITIONS) if number in self.rivals else ():
            self._attempt(self.rivals[number], partial(self._produce, name, partition))

    @rule(number=brokers)
    def stop_a_rival(self, number: int) -> None:
        rival = self.rivals.pop(number, None)
        if rival is not None:
            self.lost |= self._here(rival)  # what it was given it takes with it
            rival.end()
            shutil.rmtree(self.path / f"rival-of-{number}")

    @rule(number=brokers, goes_on=st.booleans())
    def forget(self, number: int, goes_on: bool) -> None:
        """A broker is given up that has ended, or was only stopped: what it had is lost, and set aside if it
        returns.
        """
        self.stop_a_process(number)
        broker, before = self.running.get(number), self._truth()
        if (broker is not None and not broker.paused) or before is None or self._is_registered(number):
            return
        heirs = [each for each in BROKERS if self._is_registered(each)]
        if number in self.rivals or not heirs:
            return
        self.given_up.add(number)
        registry = self._administrator()
        registry.sync()
        self.time_us += 1_000_000
        registry.forget(number, heirs, self.time_us)
        after = self._truth()
        assert after is not None
        for name, topic in before.topics.items():
            for partition, owner in enumerate(topic.owners):
                if owner != after.topics[name].owners[partition]:
                    key = topic.stored.topic_id, partition
                    last = max((record.offset for record in self.acknowledged.pop(key, ())), default=-1)
                    last = max(last, self.forgotten.get(key, -1))
                    # Once ZooKeeper was emptied, nobody knows of a start that was ahead of the clock.
                    self.forgotten[key] = min(last, self.time_us - 1) if owner == NOBODY else last
                    self.lost.discard(key)  # its new owner has it, empty
                    self.epochs[key] = topic.stored.epoch(partition) + 1
        if goes_on:
            self.let_a_process_go_on(number)
        for heir in heirs:
            self.register(heir)
            for name in NAMES:
                self.produce(heir, name)

    @rule(whole=st.booleans(), first=brokers)
    def empty_zookeeper(self, whole: bool, first: int) -> None:
        """All of it, with the sessions; or the topics alone. The first to see it is asked for every topic."""
        if self.emptied:
            return
        for number in BROKERS:
            self.stop_a_rival(number)
        view = self._truth()
        for number in self.given_up - (view.members.keys() if view is not None else set()):
            # After this nothing says that its data does not count.
            self.stop(number, clean=False)
            shutil.rmtree(self.path / str(number))
        deleted = {each.name for each in view.deletions.values()} if view is not None else set()
        for topic_id, (name, _) in list(self.made.items()):
            topic = None if view is None else view.topics.get(name)
            # Nobody has it on a disk yet, or a broker that does not know of its deletion an older one.
            if topic is None or topic.pending == set(range(len(topic.owners))) or name in deleted:
                del self.made[topic_id]
                self.unsure |= {(topic_id, number) for number in range(MOST_PARTITIONS)}
            else:
                self.made[topic_id] = name, 1
        self.emptied = True
        if whole:
            self.zookeeper.nodes = {}
            for broker in self.running.values():
                broker.session.expire()
        else:
            for path in ("/kafka/config", "/kafka/admin", "/kafka/brokers/topics"):
                self.zookeeper.remove(path)
        self.register(first)
        for name in NAMES:
            self.create(first, name, 1, None)

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owners: dict[Key, Process] = {}
        for broker in (*self.running.values(), *self.rivals.values()):
            for key in self._here(broker) if not broker.paused else ():
                name = next(n for n, topic in broker.logs.topics.items() if topic.topic_id == key[0])
                partition = TopicPartition(name, key[1])
                view = broker.ownership.topic(name)
                if (
                    broker.ownership.is_ours(partition)
                    and view is not None
                    and view.stored.topic_id == key[0]
                ):
                    assert key in self.unsure or owners.setdefault(key, broker) is broker

    # Within.

    def _here(self, broker: Process) -> set[Key]:
        topics = broker.logs.topics.values()
        return {(topic.topic_id, number) for topic in topics for number in topic.partitions}

    def _aside(self, number: int) -> set[Key]:
        """``.aside/<topic id>/a_0`` and, of a second one, ``a_0~1``."""
        paths = (self.path / str(number)).glob(".aside/*/*_*")
        numbers = ((path.parent.name, path.name.rpartition("_")[2]) for path in paths)
        return {(decode_id(topic_id), int(text.partition("~")[0])) for topic_id, text in numbers}

    def _do(self, number: int, act: Callable[[Process], object]) -> None:
        broker = self.running.get(number)
        if broker is not None and not broker.paused:
            self._attempt(broker, act)

    def _attempt(self, broker: Process, act: Callable[[Process], object]) -> None:
        try:
            act(broker)
        except KafkaError:
            pass  # the client is told, and nothing is promised

    def _start(self, number: int) -> None:
        self.running[number] = Process(number, self.path / str(number), self.zookeeper)
        self.register(number)

    def _is_registered(self, number: int) -> bool:
        return f"/kafka/brokers/ids/{number}" in self.zookeeper.nodes

    def _administrator(self) -> TopicRegistry:
        """As a command has the registry: a session of its own, and no part in the cluster."""
        session = cast("ZooKeeperSession", MemorySession(self.zookeeper))
        return TopicRegistry(session, JsonLayout(), Ownership(99), lambda: "none")

    def _truth(self) -> ClusterView | None:
        """What the registry says now; None while there is none."""
        registry = self._administrator()
        registry.look()
        return registry.view

    def _everybody_returns(self) -> None:
        for number in BROKERS:
            self.stop_a_rival(number)
            self.start(number)
        for broker in self.running.values():
            session = broker.session
            session.between = session.fail_after = session.expire_after = session.repeat_after = None
            session.connected = True
            if broker.paused:
                broker.clock.advance(PAUSE_SECONDS)
                broker.paused = False
        for _ in range(6):
            for number in BROKERS:
                self.register(number)
        done = [broker.registration.register() for broker in self.running.values()]
        assert all(done)
        self.a_partition_has_one_owner()
        view = self._truth()
        assert view is not None
        assert view.members == dict.fromkeys(BROKERS, True)
        for broker in self.running.values():
            own = broker.ownership.view
            assert own is not None
            assert (own.registry, own.topics, own.deletions) == (view.registry, view.topics, {})
        registered = {topic.stored.topic_id: name for name, topic in view.topics.items()}
        for topic_id, (name, count) in self.made.items():
            assert registered.get(topic_id) == name, "a topic was acknowledged, and is not there"
            assert len(view.topics[name].owners) >= count
        for name, topic in view.topics.items():
            assert not topic.pending
            for number, owner in enumerate(topic.owners):
                self._check_partition(name, topic.stored.topic_id, number, owner)
        for number, broker in self.running.items():
            aside = self._aside(number) - self.unsure
            assert number in self.given_up or not {i for i, _ in aside} & self.made.keys(), "set aside"
            mine = {(t.stored.topic_id, n) for t in view.topics.values() for n in t.owned_by(number)}
            assert mine - self.lost <= self._here(broker) <= mine

    def _check_partition(self, name: str, topic_id: UUID, number: int, owner: int) -> None:
        key = topic_id, number
        if key in self.lost | self.unsure:
            return
        if owner == NOBODY:
            # A topic that was being deleted may come back in part: if ZooKeeper was emptied, or another
            # process has said for the broker that it has nothing of it.
            assert topic_id not in self.made or (self.emptied and not self.acknowledged.get(key))
            return
        found = read_all(self.running[owner].served.log(TopicPartition(name, number)))
        wanted = self.acknowledged.get(key, [])
        assert [Record(record.offset, record.value or b"") for record in found] == wanted


def test_a_broker_whose_id_was_taken_deletes_nothing() -> None:
    """What it had of the topic is there when everybody is back: `Cluster.teardown` reads it."""
    cluster = Cluster()
    cluster.stop(number=3, clean=False)
    cluster.start_a_rival(number=3)
    cluster.start(number=3)
    cluster.delete(number=3, name="a")
    cluster.teardown()


def test_a_partition_that_a_broker_gets_back_begins_empty_on_its_disk_too() -> None:
    """It starts with what it had before it was given up, and is given that back before it has looked."""
    cluster = Cluster()
    view = cluster._truth()
    assert view is not None
    number = view.topics["a"].owned_by(3)[0]
    cluster.stop(number=3, clean=True)
    cluster.forget(number=3, goes_on=False)
    view = cluster._truth()
    assert view is not None
    heir = view.topics["a"].owners[number]
    cluster.stop(number=heir, clean=True)
    registry = cluster._administrator()
    registry.sync()
    registry.forget(heir, [3], cluster.time_us + 1_000_000)
    registered = registry.sync().topics["a"]
    assert (registered.owners[number], registered.stored.epoch(number)) == (3, 2)
    cluster.start(number=3)
    log = cluster.running[3].served.log(TopicPartition("a", number))
    assert (log.start_offset, log.leader_epoch) == (registered.starts[number], 2)
    assert (registered.stored.topic_id, number) in cluster._aside(3)
    for broker in cluster.running.values():
        crash(broker.logs)
    shutil.rmtree(cluster.path)


Cluster.TestCase.settings = examples(50, stateful_step_count=STEPS)
test_ownership = Cluster.TestCase
