"""Brokers of one cluster in any order of creations, deletions, lost answers, deaths and returns: a partition
never has two owners, and every acknowledged record can be read once everybody is back.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.cluster.membership import Membership
from broker.cluster.ownership import LiveBroker, Ownership
from broker.cluster.registry import TopicRegistry
from broker.config import BrokerConfig
from broker.log.generations import SINCE_08
from broker.server.served_logs import ServedLogs
from broker.server.served_topics import Topics
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.steps import Steps, run_steps
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.session import Session
from tests.support.classic.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.log.logs import batch, crash, open_manager, values

BROKERS = (1, 2, 3)
NAMES = ("a", "b")
MOST_PARTITIONS = 6

brokers, names = st.sampled_from(BROKERS), st.sampled_from(NAMES)
soon = st.integers(0, 8)


def nothing(_: str) -> Steps[None]:
    """No groups have stored anything."""
    yield None


class Running:
    """One broker's process: what it has on its disk, and what it knows of the cluster."""

    def __init__(self, number: int, path: Path, zookeeper: MemoryZooKeeper) -> None:
        self.session = MemorySession(zookeeper)
        self.logs = open_manager(path, node_id=number)
        self.ownership = Ownership(number)
        registry = TopicRegistry(
            cast("Session", self.session), JsonLayout(), self.ownership, f"registry-{number}"
        )
        self.membership = Membership(
            self.logs,
            registry,
            self.ownership,
            forget=nothing,
            bring=lambda _: None,
            changed=lambda: None,
        )
        self.topics = Topics(self.logs, BrokerConfig(node_id=number), self.membership)
        self.served = ServedLogs(self.logs, SINCE_08, ownership=self.ownership)

    def settle(self) -> bool:
        done = self.membership.settle()
        self.ownership.serve()
        self.membership.registry.tidy()
        return done


class Cluster(RuleBasedStateMachine):
    """What clients were told, beside what the brokers have."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="kafkalog-ownership-"))
        self.zookeeper = MemoryZooKeeper()
        self.running: dict[int, Running] = {}
        self.owners: dict[tuple[UUID, int], int] = {}
        self.acknowledged: dict[tuple[UUID, int], list[bytes]] = {}
        self.made: dict[UUID, tuple[str, int]] = {}
        self.forgotten: set[tuple[UUID, int]] = set()
        self.given_up: set[int] = set()
        self.count = 0
        for number in BROKERS:
            self._start(number)

    def teardown(self) -> None:
        try:
            self._everybody_returns()
        finally:
            for each in self.running.values():
                crash(each.logs)
            shutil.rmtree(self.path)

    @rule(number=brokers, name=names, count=st.integers(1, 4))
    def create(self, number: int, name: str, count: int) -> None:
        def act(broker: Running) -> None:
            topic = broker.topics.create(name, count)
            self.made[topic.topic_id] = name, count

        self._do(number, act)

    @rule(number=brokers, name=names, more=st.integers(1, 2))
    def widen(self, number: int, name: str, more: int) -> None:
        def act(broker: Running) -> None:
            topic = broker.topics.get(name)
            total = len(topic.partitions) + more
            if total > MOST_PARTITIONS:
                return
            run_steps(broker.topics.adding_partitions(name, total))
            if topic.topic_id in self.made:
                self.made[topic.topic_id] = name, max(total, self.made[topic.topic_id][1])

        self._do(number, act)

    @rule(number=brokers, name=names)
    def delete(self, number: int, name: str) -> None:
        def act(broker: Running) -> None:
            # Whether it is done or not, nobody may count on it any more.
            self.made.pop(broker.topics.get(name).topic_id, None)
            run_steps(broker.topics.deleting(name, partial(nothing, name)))

        self._do(number, act)

    @rule(number=brokers, name=names, partition=st.integers(0, MOST_PARTITIONS - 1))
    def produce(self, number: int, name: str, partition: int) -> None:
        def act(broker: Running) -> None:
            log = broker.served.log(TopicPartition(name, partition))
            key = broker.logs.topics()[name].topic_id, partition
            self.count += 1
            value = b"%d" % self.count
            log.append(batch(value))
            self.acknowledged.setdefault(key, []).append(value)

        self._do(number, act)

    @rule(number=brokers)
    def settle(self, number: int) -> None:
        self._do(number, lambda broker: broker.settle())

    @rule(number=brokers, after=soon)
    def lose_an_answer(self, number: int, after: int) -> None:
        if number in self.running:
            self.running[number].session.fail_after = after

    @rule(
        number=brokers,
        other=brokers,
        name=names,
        after=soon,
        what=st.sampled_from(["create", "delete", "settle"]),
    )
    def let_another_come_between(self, number: int, other: int, name: str, after: int, what: str) -> None:
        """Before one of the next steps of a broker another one does something."""
        if number == other or number not in self.running:
            return
        acts: dict[str, Callable[[], None]] = {
            "create": lambda: self.create(other, name, 2),
            "delete": lambda: self.delete(other, name),
            "settle": lambda: self.settle(other),
        }

        def act() -> None:
            if other in self.running:
                self.running[other].session.between = None
            acts[what]()

        self.running[number].session.between = after, act

    @rule(number=brokers)
    def lose_zookeeper(self, number: int) -> None:
        if number in self.running:
            self.running[number].session.connected ^= True

    @rule(number=brokers, clean=st.booleans())
    def stop(self, number: int, clean: bool) -> None:
        if number not in self.running:
            return
        gone = self.running.pop(number)
        if clean:
            gone.logs.close()
        crash(gone.logs)
        self._meet()

    @rule(number=brokers)
    def start(self, number: int) -> None:
        if number not in self.running:
            self._start(number)

    @rule(number=brokers, by=brokers)
    def forget(self, number: int, by: int) -> None:
        """A broker that does not run is given up: what it had is lost, and set aside when it returns."""
        if number in self.running or by not in self.running:
            return
        for key, owner in list(self.owners.items()):
            if owner == number:
                del self.owners[key]
                self.forgotten.add(key)
        self.given_up.add(number)
        self._do(by, lambda broker: broker.membership.registry.forget(number, list(self.running), 1000))

    @invariant()
    def a_partition_has_one_owner_for_good(self) -> None:
        for number, broker in self.running.items():
            for name, topic in broker.logs.topics().items():
                for partition in topic.partitions:
                    if broker.ownership.is_ours(TopicPartition(name, partition)):
                        view = broker.ownership.topic(name)
                        assert view is not None
                        if view.stored.topic_id == topic.topic_id:
                            key = topic.topic_id, partition
                            # Half of a broker that is being given up may still be its own when it returns.
                            assert self.owners.setdefault(key, number) == number or key in self.forgotten

    def _do(self, number: int, act: Callable[[Running], object]) -> None:
        broker = self.running.get(number)
        if broker is None:
            return
        try:
            act(broker)
        except KafkaError:
            pass  # the client is told, and nothing is promised

    def _start(self, number: int) -> None:
        self.running[number] = Running(number, self.path / str(number), self.zookeeper)
        self._meet()
        self._do(number, lambda broker: broker.settle())

    def _meet(self) -> None:
        there = [LiveBroker(number, {}) for number in self.running]
        for broker in self.running.values():
            broker.ownership.see_brokers(there)

    def _everybody_returns(self) -> None:
        for number in BROKERS:
            self.start(number)
        for broker in self.running.values():
            broker.session.between = broker.session.fail_after = None
            broker.session.connected = True
        for _ in range(4):
            done = [broker.settle() for broker in self.running.values()]
        assert all(done)
        self.a_partition_has_one_owner_for_good()
        views = [view for broker in self.running.values() if (view := broker.ownership.view) is not None]
        assert views[0].topics == views[1].topics == views[2].topics
        assert [view.deletions for view in views] == [{}, {}, {}]
        registered = {topic.stored.topic_id: (name, topic) for name, topic in views[0].topics.items()}
        for topic_id, (name, count) in self.made.items():
            assert registered[topic_id][0] == name, "a topic was acknowledged, and is not there"
            assert len(registered[topic_id][1].owners) >= count
        for topic_id, (name, topic) in registered.items():
            assert not topic.pending
            for partition, owner in enumerate(topic.owners):
                found = values(self.running[owner].served.log(TopicPartition(name, partition)))
                wanted = self.acknowledged.get((topic_id, partition), [])
                assert found == wanted or (topic_id, partition) in self.forgotten
        for number, broker in self.running.items():
            aside = (self.path / str(number) / ".aside").exists()
            assert not aside or number in self.given_up, "a partition was set aside"
            here = {(topic.topic_id, n) for topic in broker.logs.topics().values() for n in topic.partitions}
            mine = {(i, n) for i, (_, topic) in registered.items() for n in topic.owned_by(number)}
            assert here == mine


Cluster.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
test_ownership = Cluster.TestCase
