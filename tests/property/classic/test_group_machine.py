"""A group in any order of events: members, brokers, sessions and stores come and go, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_kafkalog.classic.consumer.consumer_connector import OwnedPartitions
from pyspark_kafkalog.classic.consumer.offset_store import DualOffsets, OffsetStore, ZooKeeperOffsets
from pyspark_kafkalog.classic.consumer.stream import ConsumerTimeout, MessageSet, MessageStream, V07Sets
from pyspark_kafkalog.classic.consumer.zookeeper_group import (
    GroupMember,
    SessionLease,
    range_assign,
    thread_id,
)
from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.errors import ConnectionLost, KafkaError
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import WHITE_LIST, ConsumerSubscription, PartitionKey, V07Layout
from pyspark_kafkalog.zookeeper.session import SessionEvent
from tests.support.classic.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock

LAYOUT, GROUP, TOPIC = V07Layout(), "g", "t"
TIMEOUT_SECONDS, LEASE_SECONDS = 6.0, 4.8
ENTRY_BYTES = len(encode_set([b"0000"]))
PARTITIONS_OF_A_BROKER = 2
CONFIG = ConnectorConfig(zookeeper_connect="memory:1", group_id=GROUP)


class MemoryOffsets:
    """Kafka's side: a mapping that never fails."""

    def __init__(self) -> None:
        self.stored: dict[PartitionKey, int] = {}

    def load(self, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        return {key: self.stored[key] for key in partitions if key in self.stored}

    def save(self, offsets: Mapping[PartitionKey, int]) -> None:
        self.stored.update(offsets)

    def close(self) -> None:
        pass


class Witness:
    """Any store, which offsets were stored for certain, and that only a partition's owner stores them."""

    def __init__(
        self, store: OffsetStore, acknowledged: dict[PartitionKey, int], owns: Callable[[PartitionKey], bool]
    ) -> None:
        self._store, self._acknowledged, self._owns = store, acknowledged, owns
        self.close = store.close

    def load(self, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        found = self._store.load(partitions)
        for key in partitions:
            assert found.get(key, 0) >= self._acknowledged.get(key, 0), "a position was lost"
        return found

    def save(self, offsets: Mapping[PartitionKey, int]) -> None:
        assert all(map(self._owns, offsets)), "a commit comes before its partition is let go of"
        self._store.save(offsets)
        for key, offset in offsets.items():
            assert offset >= self._acknowledged.get(key, 0), "somebody else's commit was undone"
        self._acknowledged.update(offsets)


class Consumer:
    """What `ConsumerConnector` is without its threads: each step is taken when the machine says so."""

    def __init__(
        self,
        server: MemoryZooKeeper,
        kafka: MemoryOffsets,
        acknowledged: dict[PartitionKey, int],
        storage: str,
        name: str,
        subscription: ConsumerSubscription,
    ) -> None:
        self.clock, self.storage, self.name = ManualClock(), storage, name
        self.session: Any = MemorySession(server)
        self.session.listen(self._event)
        zookeeper = ZooKeeperOffsets(self.session, LAYOUT, GROUP)
        stores: dict[str, OffsetStore] = {
            "zookeeper": zookeeper, "dual": DualOffsets(kafka, zookeeper), "kafka": kafka,
        }  # fmt: skip
        self.lease = SessionLease(LEASE_SECONDS, self.clock)
        ((_, count),) = subscription.streams.items()
        self.streams = [
            MessageStream(n, timeout_ms=0, may_give=self.lease.held, clock=self.clock) for n in range(count)
        ]
        store = Witness(
            stores[storage], acknowledged, lambda key: owner_of(server, key) in map(self.thread, self.streams)
        )
        self.owned = OwnedPartitions(
            CONFIG, store, self.lease, lambda _, n: self.streams[n], clock=self.clock
        )
        self.member = GroupMember(
            self.session, LAYOUT, GROUP, name, subscription, self.owned, clock=self.clock
        )
        self.expiries, self.joined = 0, -1

    def thread(self, stream: MessageStream) -> str:
        """The group's name for the reader of one of our streams."""
        return thread_id(self.name, stream.number)

    def _event(self, event: SessionEvent) -> None:
        self.lease.end()
        self.expiries += 1

    def rebalance(self) -> bool:
        number = self.expiries
        if number != self.joined:
            self.member.register()
            self.joined = number
            self.heartbeat()
        return self.member.rebalance()

    def heartbeat(self) -> None:
        asked = self.lease.asking()
        if self.member.registered():
            self.lease.confirm(asked)

    def fetch(self, logs: Mapping[PartitionKey, bytearray]) -> None:
        """Put what there is into the streams, as the fetchers do."""
        for one in self.owned.partitions():
            if one.fetch_offset is None:
                # Nothing is stored: a group begins at the smallest offset, 0.
                one.fetch_offset = 0
                one.stream.put(one, 0)
            data = bytes(logs[one.key][one.fetch_offset :])
            if data:
                tp = TopicPartition(one.key.topic, one.key.number)
                found = MessageSet(tp, one.fetch_offset, memoryview(data), V07Sets(), max_bytes=1 << 20)
                one.fetch_offset += len(data)
                one.stream.put(one, found)

    def commit(self) -> None:
        self.owned.commit(self.owned.partitions())


def owner_of(server: MemoryZooKeeper, key: PartitionKey) -> str | None:
    node = server.nodes.get(LAYOUT.owner(GROUP, TOPIC, key.name))
    return None if node is None else node.data.decode()


class GroupMachine(RuleBasedStateMachine):
    @initialize(filtered=st.booleans())
    def begin(self, filtered: bool) -> None:
        self.server, self.kafka = MemoryZooKeeper(), MemoryOffsets()
        self.acknowledged: dict[PartitionKey, int] = {}
        self.brokers_session: Any = MemorySession(self.server)
        self.subscriptions = {
            n: ConsumerSubscription({"t.*": n}, WHITE_LIST) if filtered else ConsumerSubscription({TOPIC: n})
            for n in (1, 2)
        }
        self.consumers: list[Consumer] = []
        self.names = iter(f"c{n}" for n in range(10_000))
        self.logs: dict[PartitionKey, bytearray] = {}
        self.done: dict[PartitionKey, int] = {}
        """Up to where, without a gap, messages of each partition were dealt with by anybody."""
        self.silent: list[MemorySession] = []
        """Sessions of consumers that died: they end by and by."""
        self.ways = iter(["dual", "kafka", "dual", "zookeeper"] * 100)
        self.storage = "zookeeper"
        self.payload = 0
        for broker in (0, 1):
            self.add_broker(broker)
        self.start(1)
        self.start(2)

    # The cluster.

    @rule(broker=st.integers(0, 2))
    def add_broker(self, broker: int) -> None:
        for path, data in LAYOUT.topic_nodes(TOPIC, broker, PARTITIONS_OF_A_BROKER).items():
            self.brokers_session.create(path, data, ephemeral=True)
        for number in range(PARTITIONS_OF_A_BROKER):
            self.logs.setdefault(PartitionKey(TOPIC, f"{broker}-{number}", number), bytearray())

    @rule(broker=st.integers(0, 2))
    def lose_broker(self, broker: int) -> None:
        for path in LAYOUT.topic_nodes(TOPIC, broker, PARTITIONS_OF_A_BROKER):
            self.brokers_session.delete(path)

    @rule(data=st.data())
    def produce(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.logs)))
        for _ in range(data.draw(st.integers(1, 4))):
            self.payload += 1
            self.logs[key] += encode_set([b"%04d" % (self.payload % 10_000)])

    # The group.

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(streams=st.sampled_from([1, 2]))
    def start(self, streams: int) -> None:
        made = Consumer(
            self.server, self.kafka, self.acknowledged, self.storage, next(self.names),
            self.subscriptions[streams],
        )  # fmt: skip
        self.consumers.append(made)
        with contextlib.suppress(ConnectionLost):
            made.rebalance()

    @rule(which=st.integers(0, 3), trouble=st.sampled_from(["leave", "kill", "expire_at_once", "stop"]))
    def trouble(self, which: int, trouble: str) -> None:
        getattr(self, trouble)(which % max(1, len(self.consumers)))

    def leave(self, which: int) -> None:
        for consumer in self.consumers[which : which + 1]:
            with contextlib.suppress(ConnectionLost):
                consumer.member.leave()
            consumer.session.expire()
            self.consumers.remove(consumer)

    def kill(self, which: int) -> None:
        for consumer in self.consumers[which : which + 1]:
            self.silent.append(consumer.session)
            self.consumers.remove(consumer)

    @rule()
    def dead_are_missed(self) -> None:
        for session in self.silent:
            session.expire()
        self.silent.clear()

    def expire_at_once(self, which: int) -> None:
        for consumer in self.consumers[which : which + 1]:
            consumer.session.expire()
            consumer.session.notice()

    def stop(self, which: int) -> None:
        """For longer than the session: when it goes on it has heard nothing yet of what became of it."""
        for consumer in self.consumers[which : which + 1]:
            consumer.clock.advance(TIMEOUT_SECONDS)
            consumer.session.expire()

    @rule(which=st.integers(0, 3), operations=st.integers(0, 12))
    def lose_an_answer_soon(self, which: int, operations: int) -> None:
        for consumer in self.consumers[which : which + 1]:
            consumer.session.fail_after = operations

    @rule(which=st.integers(0, 3), operations=st.integers(0, 12))
    def expire_soon(self, which: int, operations: int) -> None:
        """Between two operations of whatever comes next: of a rebalance, say."""
        for consumer in self.consumers[which : which + 1]:
            consumer.session.expire_after = operations

    @rule(mask=st.integers(1, 15))
    def rebalance(self, mask: int) -> None:
        for consumer in self.chosen(mask):
            in_peace = consumer.lease.held() and not consumer.session.in_for_trouble
            before = {one.key: one.done or 0 for one in consumer.owned.partitions()}
            with contextlib.suppress(KafkaError):
                consumer.rebalance()
            given_up = before.keys() - {one.key for one in consumer.owned.partitions()}
            for key in given_up if in_peace else ():
                assert self.acknowledged.get(key, 0) >= before[key], "handed over with what was dealt with"

    @rule(mask=st.integers(1, 15))
    def heartbeat(self, mask: int) -> None:
        for consumer in self.chosen(mask):
            with contextlib.suppress(ConnectionLost):
                consumer.heartbeat()

    @rule(mask=st.integers(1, 15), count=st.integers(1, 5))
    def read(self, mask: int, count: int) -> None:
        for consumer in self.chosen(mask):
            consumer.fetch(self.logs)
            for stream in consumer.streams:
                for _ in range(count):
                    self.take(consumer, stream)

    @rule(mask=st.integers(1, 15))
    def commit(self, mask: int) -> None:
        for consumer in self.chosen(mask):
            with contextlib.suppress(ConnectionLost):
                consumer.commit()

    @precondition(lambda self: all(consumer.storage == self.storage for consumer in self.consumers))
    @rule(mask=st.integers(0, 15))
    def change_the_store(self, mask: int) -> None:
        """One step of the way between the stores, when all consumers have taken the last, and all is well.

        Some take it at once, the others when they are restarted.
        """
        self.settle()
        self.storage = next(self.ways)
        self.restart(mask)

    @rule(mask=st.integers(1, 15))
    def restart(self, mask: int) -> None:
        """With the settings of the day."""
        for consumer in self.chosen(mask):
            if consumer.storage != self.storage:
                self.leave(self.consumers.index(consumer))
                self.start(1)

    def chosen(self, mask: int) -> list[Consumer]:
        return [consumer for place, consumer in enumerate(self.consumers) if mask & 1 << place]

    def take(self, consumer: Consumer, stream: MessageStream) -> bool:
        hand = stream._in_hand
        key, given = (hand.key, hand.given) if hand is not None else (None, None)
        try:
            _, metadata = next(stream)
        except ConsumerTimeout:
            metadata = None
        if key is not None and given is not None:
            # Asking for the next one says that the last one was dealt with.
            self.done[key] = max(self.done.get(key, 0), given)
        if metadata is None:
            return False
        name = f"{metadata.broker}-{metadata.partition}"
        key = PartitionKey(TOPIC, name, metadata.partition)
        assert owner_of(self.server, key) == consumer.thread(stream), "the owner alone gives messages out"
        assert metadata.offset <= self.done.get(key, 0), "no gap"
        return True

    @invariant()
    def no_commit_is_ahead_of_what_was_dealt_with(self) -> None:
        for key in getattr(self, "logs", ()):
            node = self.server.nodes.get(LAYOUT.offset(GROUP, TOPIC, key.name))
            ahead = max(int(node.data) if node is not None else 0, self.kafka.stored.get(key, 0))
            assert ahead <= self.done.get(key, 0)

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        self.settle()
        self.check_assignment()
        for consumer in self.consumers:
            consumer.heartbeat()
            consumer.fetch(self.logs)
            for stream in consumer.streams:
                while self.take(consumer, stream):
                    pass
        assert {key: self.done.get(key, 0) for key in self.logs} == {k: len(v) for k, v in self.logs.items()}

    def settle(self) -> None:
        """No more trouble, until everybody has what is theirs."""
        self.dead_are_missed()
        if not self.consumers:
            self.start(1)
        for broker in {int(key.name.partition("-")[0]) for key in self.logs}:
            self.add_broker(broker)
        for consumer in self.consumers:
            consumer.session.fail_after = consumer.session.expire_after = None
            consumer.session.notice()
        for _ in range(3):
            settled = [consumer.rebalance() for consumer in self.consumers]
        assert all(settled), "everything that is to be claimed is free by then"

    def check_assignment(self) -> None:
        threads = [one.thread(stream) for one in self.consumers for stream in one.streams]
        formula = range_assign([key.name for key in self.logs], threads)
        session: Any = MemorySession(self.server)
        assert registries.owners(session, LAYOUT, GROUP, TOPIC) == {
            name: thread for thread, names in formula.items() for name in names
        }
        for one in self.consumers:
            names = {n for stream in one.streams for n in formula[one.thread(stream)]}
            ours = {key for key in self.logs if key.name in names}
            assert {partition.key for partition in one.owned.partitions()} == ours


GroupMachine.TestCase.settings = examples(100, stateful_step_count=50)
# Hypothesis may look for a shorter example for five minutes.
TestGroup = pytest.mark.timeout(400)(GroupMachine.TestCase)


def test_a_stopped_consumer_gives_out_nothing_more_and_undoes_no_commit() -> None:
    machine = GroupMachine()
    machine.begin(filtered=False)
    stopped, other = machine.consumers
    assert stopped.rebalance()
    (held, *_) = stopped.owned.partitions()
    machine.logs[held.key] += encode_set([b"%04d" % n for n in range(5)])
    machine.read(1, 3)
    assert held.done == 2 * ENTRY_BYTES
    machine.stop(0)
    assert other.rebalance()
    machine.read(2, 10)
    other.commit()
    with pytest.raises(ConsumerTimeout):
        next(held.stream)
    with pytest.raises(ConnectionLost, match="ZooKeeper does not answer"):
        stopped.commit()
    assert machine.acknowledged[held.key] == 5 * ENTRY_BYTES
    machine.teardown()
