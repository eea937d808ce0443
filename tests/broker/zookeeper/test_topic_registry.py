"""The registry of a cluster's topics in a real ZooKeeper: one order of changes, whoever makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from broker.cluster.ownership import ClusterView, Ownership, spread
from broker.cluster.registry import TopicRegistry
from broker.store.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidPartitions,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.zookeeper.cluster_nodes import CHANGES_KEPT
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import Session
from tests.support.zookeeper import until

Made = Callable[[int], TopicRegistry]


@pytest.fixture
def made(zookeeper_connect: str) -> Iterator[Made]:
    """Registries of brokers that are there, each with a session of its own."""
    sessions: list[Session] = []

    def make(broker: int) -> TopicRegistry:
        session = Session(zookeeper_connect).start()
        sessions.append(session)
        registry = TopicRegistry(session, JsonLayout(), Ownership(broker), f"registry-{broker}")
        registry.open()
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
    other.made("a", first.stored.topic_id, [1])
    assert one.sync().topics["a"].pending == {0}
    assert other.widen("a", first.stored.topic_id, 3, lambda _, n: (2,) * n).owners == (1, 2, 2)
    assert one.configure("a", lambda now: {**now, "segment.bytes": "1024"}) == {
        "retention.ms": "5", "segment.bytes": "1024",
    }  # fmt: skip
    assert other.sync() == one.sync()
    assert other.sync().topics["a"].pending == {0, 2}
    assert other.sync().registry == "registry-1"


def test_of_many_who_make_one_name_at_once_one_makes_it(made: Made) -> None:
    registries = [made(number) for number in (1, 2, 3)]
    for round_ in range(5):
        done: list[int] = []
        ready = threading.Barrier(3)

        def work(number: int, name: str, done: list[int] = done, ready: Any = ready) -> None:
            ready.wait(30)
            try:
                create(registries[number], name, number)
            except TopicAlreadyExists:
                return
            done.append(number)

        threads = [threading.Thread(target=work, args=(n, f"t-{round_}")) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (winner,) = done
        assert {owners(each.sync())[f"t-{round_}"] for each in registries} == {(winner,)}


def test_changes_of_many_at_once_are_all_made(made: Made) -> None:
    registries = [made(number) for number in (1, 2)]

    def work(number: int) -> None:
        for n in range(20):
            create(registries[number], f"t-{number}-{n}", number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wanted = {f"t-{number}-{n}": (number,) for number in range(2) for n in range(20)}
    assert owners(registries[0].sync()) == owners(registries[1].sync()) == wanted


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
    commit = Session.commit

    def lose_the_answer(self: Session, *changes: Any) -> bool:
        commit(self, *changes)
        return commit(self, *changes)  # as a session does that was told of no answer

    monkeypatch.setattr(Session, "commit", lose_the_answer)
    topic_id = create(registry, "t", 1, 2)
    registry.widen("t", topic_id, 4, lambda _, n: (2,) * n)
    registry.made("t", topic_id, [0])
    assert owners(other.sync()) == {"t": (1, 2, 2, 2)}
    registry.delete("t", topic_id)
    view = other.sync()
    assert (owners(view), view.deletions[topic_id].brokers) == ({}, {1, 2})


def test_a_deleted_topic_is_remembered_until_every_owner_has_removed_it_and_its_name_is_free(
    made: Made,
) -> None:
    one, other = made(1), made(2)
    old = create(one, "t", 1, 2)
    other.sync()
    other.delete("t", old)
    one.sync()
    one.removed(old, 1)
    new = create(one, "t", 2)
    assert other.sync().deletions[old].brokers == {2}
    other.removed(old, 2)
    other.removed(old, 2)
    view = one.sync()
    assert (view.deletions, view.topics["t"].stored.topic_id) == ({}, new)
    for refused in (lambda: one.delete("t", old), lambda: one.widen("t", old, 9, lambda _, n: (1,) * n)):
        with pytest.raises(UnknownTopicOrPartition):
            refused()
    with pytest.raises(InvalidPartitions, match="has 1 partitions already"):
        one.widen("t", new, 1, lambda _, n: (1,) * n)


def test_nothing_stays_of_a_topic_that_is_no_more_and_it_can_be_made_again(
    made: Made, zookeeper_connect: str
) -> None:
    one, other = made(1), made(2)
    one.delete("t", create(one, "t"))
    other.sync()
    with Session(zookeeper_connect) as session:
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
    one.offer("t", mine, 1)
    assert one.sync().topics["t"].owners == (1, -1, -1, 1)
    other.offer("t", StoredTopic(mine.topic_id, (1, 3, 4)), 2)
    other.offer("t", StoredTopic(uuid4(), (2,)), 2)
    seen = one.sync().topics["t"]
    assert (seen.owners, seen.pending) == ((1, 2, -1, 1, 2), frozenset())
    assert seen.stored.overrides == {"retention.ms": "7"}


def test_somebody_elses_changes_of_a_znode_keep_no_topic_from_being_changed(
    made: Made, zookeeper_connect: str
) -> None:
    registry = made(1)
    with Session(zookeeper_connect) as session:
        session.create("/kafka/config/topics/left", b'{"version":1,"config":{"a":"b"}}')
        create(registry, "left")
        topic_id = create(registry, "t")
        session.write("/kafka/config/topics/t", b'{"version":1,"config":{"retention.ms":"1"}}')
        assert registry.configure("t", lambda now: {**now, "x": "y"}) == {"retention.ms": "1", "x": "y"}
        session.write("/kafka/brokers/topics/t", (session.read("/kafka/brokers/topics/t") or None).data)  # type: ignore[union-attr]
        registry.made("t", topic_id, [0])
        session.create("/kafka/brokers/topics/foreign", b"no topic")
    assert registry.sync().topics["t"].pending == frozenset()
    assert registry.sync().topics["left"].stored.overrides == {}
    assert "foreign" not in made(2).sync().topics


def test_while_zookeeper_is_away_nothing_is_changed_and_nobody_waits(own_zookeeper: ZooKeeperServer) -> None:
    with Session(own_zookeeper.connect, connection_timeout_ms=5000) as session:
        registry = TopicRegistry(session, JsonLayout(), Ownership(1), "r")
        registry.open()
        own_zookeeper.kill()
        until(lambda: not session.connected)
        with pytest.raises(ServerError, match="ZooKeeper does not answer") as refused:
            create(registry, "t")
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_no_producer_id_is_in_two_blocks(made: Made) -> None:
    registries = [made(number) for number in (1, 2)]
    taken: list[int] = []

    def work(registry: TopicRegistry) -> None:
        taken.extend(registry.take_ids(0, 1000) for _ in range(20))

    threads = [threading.Thread(target=work, args=(registry,)) for registry in registries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == list(range(0, 40_000, 1000))
    assert registries[0].take_ids(123_456, 1000) == 123_456
    assert registries[1].take_ids(0, 1000) == 124_456


def test_new_partitions_go_to_the_brokers_in_turn_those_with_the_fewest_first(made: Made) -> None:
    registry = made(1)
    create(registry, "a", 1, 1, 1)
    create(registry, "b", 2)
    view = registry.sync()

    def placed(brokers: Sequence[int], count: int) -> tuple[int, ...]:
        return spread(view, brokers, count)

    assert placed((1, 2, 3), 5) == (3, 2, 1, 3, 2)
    assert placed((2,), 2) == (2, 2)
