"""The registry of a cluster's topics in a real ZooKeeper: one order of changes, whoever makes them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import ClusterView, Ownership
from kafkalog_broker.cluster.registry import TopicRegistry
from kafkalog_broker.cluster.registry_reader import OlderRegistry
from kafkalog_broker.logs.cluster_data import RegistryNote
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidTopic,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.zookeeper.cluster_nodes import CHANGES_KEPT
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.two_brokers import empty
from tests.support.until import until
from tests.support.zookeeper import patient_session

Made = Callable[[int], TopicRegistry]


@pytest.fixture
def made(zookeeper_connect: str) -> Iterator[Made]:
    """Registries of brokers that are there, each with a session of its own."""
    sessions: list[ZooKeeperSession] = []

    def make(broker: int) -> TopicRegistry:
        session = patient_session(zookeeper_connect).start()
        sessions.append(session)
        ids = (f"registry-{broker}-{number}" for number in itertools.count())
        registry = TopicRegistry(session, JsonLayout(), Ownership(broker), ids.__next__)
        registry.open(())
        return registry

    yield make
    for session in sessions:
        session.close()


def anything(_: object) -> None:
    """No topic keeps another from being made."""


def create(registry: TopicRegistry, name: str, *owners: int, topic_id: UUID | None = None) -> UUID:
    topic_id = topic_id or uuid4()
    registry.create(name, topic_id, lambda _: owners or (1,), {}, anything)
    return topic_id


def owners(view: ClusterView) -> dict[str, tuple[int, ...]]:
    return {name: topic.owners for name, topic in view.topics.items()}


def test_what_one_broker_changes_the_other_sees_and_both_have_one_registry(made: Made) -> None:
    one, other = made(1), made(2)
    first = one.create("a", uuid4(), lambda _: (1, 2), {"retention.ms": "5"}, anything)
    assert (first.owners, first.pending) == ((1, 2), {0, 1})
    seen = other.sync().topics["a"]
    assert seen == first
    other.report_made("a", first.stored.topic_id, [1])
    assert one.sync().topics["a"].pending == {0}
    assert other.widen("a", first.stored.topic_id, 3, lambda _, n: (2,) * n).owners == (1, 2, 2)
    assert one.configure("a", lambda now: {**now, "segment.bytes": "1024"}) == {
        "retention.ms": "5", "segment.bytes": "1024",
    }  # fmt: skip
    assert other.sync() == one.sync()
    assert other.sync().topics["a"].pending == {0, 2}
    assert other.sync().registry == "registry-1-0"


def test_of_many_who_make_one_name_at_once_one_makes_it(made: Made) -> None:
    registries = [made(number) for number in (1, 2, 3)]
    for round_ in range(5):
        done: list[int] = []
        ready = threading.Barrier(3)

        def work(number: int, name: str, done: list[int] = done, ready: Any = ready) -> None:
            ready.wait(120)
            try:
                create(registries[number], name, number)
            except TopicAlreadyExists:
                return
            done.append(number)

        threads = [threading.Thread(target=work, args=(n, f"t-{round_}")) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        (winner,) = done
        assert {owners(each.sync())[f"t-{round_}"] for each in registries} == {(winner,)}


@pytest.mark.long("ZooKeeper, stopped and started")
def test_who_has_missed_more_changes_than_are_kept_reads_everything(made: Made) -> None:
    one, late = made(1), made(2)
    for n in range(CHANGES_KEPT // 2 + 5):
        topic_id = create(one, f"t-{n}")
        if n % 2:
            one.delete(f"t-{n}", topic_id)
    assert late.sync() == one.sync()
    assert made(3).sync() == one.sync()


def test_a_change_that_was_made_though_its_answer_was_lost_is_not_made_twice(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, other = made(1), made(2)
    commit = ZooKeeperSession.commit

    def lose_the_answer(self: ZooKeeperSession, *changes: Any) -> bool:
        commit(self, *changes)
        return commit(self, *changes)  # as a session does that was told of no answer

    monkeypatch.setattr(ZooKeeperSession, "commit", lose_the_answer)
    topic_id = create(registry, "t", 1, 2)
    registry.widen("t", topic_id, 4, lambda _, n: (2,) * n)
    registry.report_made("t", topic_id, [0])
    assert owners(other.sync()) == {"t": (1, 2, 2, 2)}
    registry.delete("t", topic_id)
    view = other.sync()
    assert (owners(view), view.deletions[topic_id].brokers) == ({}, {1, 2})


def test_two_brokers_adding_partitions_at_once_with_given_owners_one_is_refused(made: Made) -> None:
    one, other = made(1), made(2)
    topic_id = create(one, "t", 1, 2)
    other.sync()
    one.widen("t", topic_id, 3, lambda _, n: (1,) * n)
    # It was asked to be given two more, of which one is there by now.
    with pytest.raises(ServerError, match="1 new ones need as many assignments, not 2") as refused:
        other.widen("t", topic_id, 4, lambda _view, _n: (1, 2))
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    topic = one.sync().topics["t"]
    assert (topic.owners, topic.pending) == ((1, 2, 1), {0, 1, 2})


def test_anothers_change_does_not_pass_for_the_own_one_whose_answer_was_lost(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = made(1), made(2)
    topic_id = create(one, "t", 1)
    other.sync()
    commit, sent = ZooKeeperSession.commit, list[Any]()

    def come_second(self: ZooKeeperSession, *changes: Any) -> bool:
        if not sent:
            sent.append(changes)
            one.widen("t", topic_id, 2, lambda _, n: (2,) * n)
        return commit(self, *changes)

    monkeypatch.setattr(ZooKeeperSession, "commit", come_second)
    with pytest.raises(InvalidPartitions, match="has 2 partitions already"):
        other.widen("t", topic_id, 2, lambda _, n: (2,) * n)


def test_a_registry_that_was_removed_is_made_again_with_another_id_and_its_brokers_are_waited_for(
    made: Made, zookeeper_connect: str
) -> None:
    one, other = made(1), made(2)
    old = one.join(1)
    other.join(2)
    note = RegistryNote(old.registry, old.version, frozenset({1, 2}))
    mine = StoredTopic(create(one, "t", 1, 2), (0,), total=2)
    with patient_session(zookeeper_connect) as session:
        empty(session, "/kafka/brokers/topics")
        with pytest.raises(ServerError, match="there is no registry of topics"):
            create(one, "u")
        # What a partition's ephemeral node needs as a parent is no registry yet.
        session.create("/kafka/brokers/topics", b"")
    view = one.open([note])
    assert (view.registry != old.registry, view.members) == (True, {1: False, 2: False})
    with pytest.raises(ServerError, match="this broker registers again what it has"):
        create(one, "u")
    one._ownership.enter(one.offer("t", mine, 1))
    one.join(1)
    with pytest.raises(ServerError, match=r"brokers \[2\] have not registered again") as waits:
        create(one, "u")
    assert waits.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert other.open([note]).topics["t"].owners == (1, -1)
    other.offer("t", StoredTopic(mine.topic_id, (1,), total=2), 2)
    other.join(2)
    one.sync()
    create(one, "u")
    assert owners(one.sync()) == {"t": (1, 2), "u": (1,)}


def test_a_broker_that_others_did_not_know_makes_them_wait_for_those_that_it_knows(made: Made) -> None:
    stranger, one = made(4), made(1)
    stranger.join(4)
    create(stranger, "early", 4)
    known = RegistryNote("another", 7, frozenset({1, 2}))
    assert one.open([known]).members == {1: False, 2: False, 4: True}
    one.join(1)
    # Who comes later with the same knowledge changes nothing: broker 2 may have been given up meanwhile.
    one.forget(2, [1], 5)
    assert made(3).open([known]).members == {1: True, 4: True}


def test_an_older_state_of_a_registry_is_refused(made: Made, zookeeper_connect: str) -> None:
    registry = made(1)
    create(registry, "t")
    view = registry.sync()
    with pytest.raises(OlderRegistry, match="has version 1, but this broker has seen version 2"):
        made(2).open([RegistryNote(view.registry, view.version + 1, frozenset())])
    with patient_session(zookeeper_connect) as session:
        node = session.read("/kafka/brokers/topics")
        assert node is not None
        session.delete("/kafka/brokers/topics/t")
        session.delete("/kafka/brokers/topics")
        session.create("/kafka/brokers/topics", node.data)  # of version 0
    with pytest.raises(OlderRegistry, match="has version 0, but this broker has seen version 1"):
        registry.sync()
    with pytest.raises(ServerError, match="an old state of ZooKeeper has come back"):
        create(registry, "u")


def test_partitions_that_were_given_up_begin_far_above_all_that_were_given_out(made: Made) -> None:
    registry = made(1)
    create(registry, "t", 1, 2)
    registry.report_made("t", registry.sync().topics["t"].stored.topic_id, [0, 1])
    registry.forget(2, [1], 1_700_000_000_000_000)
    topic = registry.sync().topics["t"]
    assert (topic.owners, topic.pending, topic.starts) == ((1, 1), {1}, {1: 1_700_000_000_000_000})
    # Whatever the clock says: a partition cannot have had so many records meanwhile.
    registry.forget(1, [3], 5)
    starts = registry.sync().topics["t"].starts
    assert starts[1] == 1_700_000_000_000_000 + (1 << 40)
    assert starts[0] == 1 << 40


def test_a_partitions_leader_epoch_is_how_many_owners_it_had_before(made: Made) -> None:
    registry = made(1)
    old = create(registry, "t", 1, 2)
    assert registry.sync().topics["t"].stored.epochs == {}
    registry.report_made("t", old, [0, 1])
    registry.forget(2, [1], 9)
    assert registry.sync().topics["t"].stored.epochs == {1: 1}
    registry.forget(1, [3], 9)
    registry.report_made("t", old, [0, 1])
    registry.widen("t", old, 3, lambda _, n: (1,) * n)
    assert made(2).sync().topics["t"].stored.epochs == {0: 1, 1: 2}
    registry.delete("t", old)
    create(registry, "t", 1, 1)
    assert registry.sync().topics["t"].stored.epochs == {}


def test_partitions_that_nobody_brought_are_given_up_with_the_last_broker_that_could_have_them(
    made: Made,
) -> None:
    registry = made(1)
    registry.open([RegistryNote("another", 7, frozenset({1, 2, 3}))])
    registry.offer("t", StoredTopic(uuid4(), (0,), total=3), 1)
    registry.join(1)
    registry.forget(3, [1], 9)
    assert registry.sync().topics["t"].owners == (1, -1, -1), "broker 2 may have them"
    registry.forget(2, [1], 9)
    view = registry.sync()
    assert (view.topics["t"].owners, view.topics["t"].pending, view.members) == ((1, 1, 1), {1, 2}, {1: True})


def test_a_name_of_07_is_taken_until_the_last_broker_has_no_such_topic(made: Made) -> None:
    one, other = made(1), made(2)
    one.name_07("x", 1, used=True)
    other.name_07("x", 2, used=True)
    one.sync()
    with pytest.raises(InvalidTopic, match=r"a topic of Kafka 0\.7 has it, at broker 2"):
        create(one, "x")
    other.name_07("x", 2, used=False)
    one.sync()
    create(one, "x")  # its own one is gone, or it would not ask
    assert "x" in one.name_07("x", 1, used=True).topics
    assert (one.sync().names_07, owners(one.sync())) == ({}, {"x": (1,)})
    one.name_07("y", 1, used=True)
    one.forget(1, [2], 9)
    create(other, "y")


def test_producer_ids_continue_far_above_if_zookeeper_has_lost_them(
    made: Made, zookeeper_connect: str
) -> None:
    one, other = made(1), made(2)
    assert [one.take_ids(0, 1000), other.take_ids(0, 1000)] == [0, 1000]
    with patient_session(zookeeper_connect) as session:
        session.delete("/kafka/latest_producer_id_block")
    # Broker 1 does not know of the block that broker 2 took.
    assert one.take_ids(1000, 1000) > 1 << 30


def test_a_deleted_topic_is_remembered_until_every_owner_has_removed_it_and_its_name_is_free(
    made: Made,
) -> None:
    one, other = made(1), made(2)
    old = create(one, "t", 1, 2)
    other.sync()
    other.delete("t", old)
    one.sync()
    one.report_removed(old, 1)
    new = create(one, "t", 2)
    assert other.sync().deletions[old].brokers == {2}
    other.report_removed(old, 2)
    other.report_removed(old, 2)
    view = one.sync()
    assert (view.deletions, view.topics["t"].stored.topic_id) == ({}, new)
    for refused in (lambda: one.delete("t", old), lambda: one.widen("t", old, 9, lambda _, n: (1,) * n)):
        with pytest.raises(UnknownTopicOrPartition):
            refused()
    with pytest.raises(InvalidPartitions, match="has 1 partitions already"):
        one.widen("t", new, 1, lambda _, n: (1,) * n)


def test_a_broker_that_catches_up_sees_what_others_have_changed_before_its_watch_tells(made: Made) -> None:
    one, other = made(1), made(2)
    old = create(one, "t", 1)
    other.catch_up()
    one.delete("t", old)
    new = create(one, "t", 1)
    assert other.view is not None
    assert other.view.topics["t"].stored.topic_id == old
    other.catch_up()
    assert other.view.topics["t"].stored.topic_id == new


def test_a_deleted_topic_leaves_nothing_and_can_be_created_again(made: Made, zookeeper_connect: str) -> None:
    one, other = made(1), made(2)
    one.delete("t", create(one, "t"))
    other.sync()
    with patient_session(zookeeper_connect) as session:
        session.create("/kafka/brokers/topics/t/partitions/0/state", b"{}", ephemeral=True)
        one.tidy()
        assert session.children("/kafka/brokers/topics") == ["t"]
        session.delete("/kafka/brokers/topics/t/partitions/0/state")
        one.tidy()
        assert session.children("/kafka/brokers/topics") == session.children("/kafka/config/topics") == []
    # Its view still has the znode that was removed.
    create(other, "t", 2)
    assert owners(one.sync()) == {"t": (2,)}


def test_what_brokers_bring_is_added_to_what_others_have_brought(made: Made) -> None:
    one, other = made(1), made(2)
    mine = StoredTopic(uuid4(), (0, 3), {"retention.ms": "7"})
    one.offer("t", replace(mine, epochs={3: 2}), 1, {3: 70})
    assert one.sync().topics["t"].owners == (1, -1, -1, 1)
    other.offer("t", StoredTopic(mine.topic_id, (1, 3, 4), epochs={1: 4, 3: 1}), 2, {1: 50, 3: 60})
    other.offer("t", StoredTopic(uuid4(), (2,)), 2)
    seen = one.sync().topics["t"]
    assert (seen.owners, seen.pending, seen.starts) == ((1, 2, -1, 1, 2), frozenset(), {1: 50, 3: 70})
    assert (seen.stored.overrides, seen.stored.epochs) == ({"retention.ms": "7"}, {1: 4, 3: 2})


def test_another_clients_changes_of_a_znode_keep_no_topic_from_being_changed(
    made: Made, zookeeper_connect: str
) -> None:
    registry = made(1)
    with patient_session(zookeeper_connect) as session:
        session.create("/kafka/config/topics/left", b'{"version":1,"config":{"a":"b"}}')
        create(registry, "left")
        topic_id = create(registry, "t")
        session.write("/kafka/config/topics/t", b'{"version":1,"config":{"retention.ms":"1"}}')
        assert registry.configure("t", lambda now: {**now, "x": "y"}) == {"retention.ms": "1", "x": "y"}
        session.write("/kafka/brokers/topics/t", (session.read("/kafka/brokers/topics/t") or None).data)  # type: ignore[union-attr]
        registry.report_made("t", topic_id, [0])
        session.create("/kafka/brokers/topics/foreign", b"no topic")
    assert registry.sync().topics["t"].pending == frozenset()
    assert registry.sync().topics["left"].stored.overrides == {}
    assert "foreign" not in made(2).sync().topics


@pytest.mark.long("ZooKeeper, stopped and started")
def test_while_zookeeper_is_away_nothing_is_changed_and_nobody_waits(own_zookeeper: ZooKeeperServer) -> None:
    with patient_session(own_zookeeper.connect) as session:
        registry = TopicRegistry(session, JsonLayout(), Ownership(1), lambda: "r")
        registry.open(())
        session._connect_ms = 500  # from now on: before that it is to wait for its answers
        own_zookeeper.kill()
        until(lambda: not session.connected)
        with pytest.raises(ServerError, match="ZooKeeper does not answer") as refused:
            create(registry, "t")
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        registry.catch_up()


def test_a_deletion_is_remembered_for_those_who_coordinate_groups_as_well(made: Made) -> None:
    registry = made(1)
    create(registry, "__consumer_offsets", 2, 3)
    topic_id = create(registry, "t", 1)
    registry.delete("t", topic_id)
    assert registry.sync().deletions[topic_id].brokers == {1, 2, 3}


def test_no_producer_id_is_in_two_blocks(made: Made) -> None:
    registries = [made(number) for number in (1, 2)]
    taken: list[int] = []

    def work(registry: TopicRegistry) -> None:
        taken.extend(registry.take_ids(0, 1000) for _ in range(20))

    threads = [threading.Thread(target=work, args=(registry,)) for registry in registries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert sorted(taken) == list(range(0, 40_000, 1000))
    assert registries[0].take_ids(123_456, 1000) == 123_456
    assert registries[1].take_ids(0, 1000) == 124_456
