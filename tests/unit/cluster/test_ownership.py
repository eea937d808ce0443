"""What a broker may serve: which view counts, and what a stop of the process means."""

from __future__ import annotations

from uuid import UUID

import pytest

from kafkalog_broker.cluster.ownership import (
    ClusterTopic,
    ClusterView,
    Ownership,
    Pulse,
    RegisteredElsewhere,
    spread,
)
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import StorageError
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.cluster_nodes import NOBODY
from tests.support.manual_clock import ManualClock

ID = UUID(int=5)


def view(version: int, *owners: int, registry: str = "r", pending: tuple[int, ...] = ()) -> ClusterView:
    stored = StoredTopic(ID, tuple(range(len(owners))))
    return ClusterView(version, registry, {"t": ClusterTopic(stored, owners, frozenset(pending), 0, 0)})


def part(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def test_an_older_view_or_another_registrys_does_not_count_until_it_is_entered() -> None:
    ownership = Ownership(1)
    ownership.serve()
    ownership.see(view(5, 1))
    ownership.see(view(4, 2))
    ownership.see(view(9, 2, registry="emptied since"))
    assert ownership.is_ours(part(0))
    ownership.enter(view(0, 2, registry="emptied since"))
    assert not ownership.is_ours(part(0))
    ownership.see(view(6, 1))
    assert not ownership.is_ours(part(0))


def test_a_refusal_says_why() -> None:
    ownership = Ownership(1)
    ownership.see(view(1, 1, 2, NOBODY, 1, 1, pending=(3,)))
    ownership.set_offline([part(4)])
    with pytest.raises(RegisteredElsewhere, match="not registered in ZooKeeper yet"):
        ownership.check(part(0))
    ownership.serve()
    ownership.check(part(0))
    for number, why in ((1, "broker 2 owns it"), (2, "no broker has brought it"), (3, "not made yet")):
        with pytest.raises(RegisteredElsewhere, match=why):
            ownership.check(part(number))
    with pytest.raises(StorageError, match=r"in none of log\.dirs"):
        ownership.check(part(4))
    assert [ownership.owner_of(part(n)) for n in range(6)] == [1, 2, NOBODY, NOBODY, 1, NOBODY]


def test_after_a_stop_of_the_process_nothing_is_served_until_the_registry_was_read_again() -> None:
    clock = ManualClock()
    ownership = Ownership(1, pulse := Pulse(3.0, clock))
    ownership.see(view(1, 1))
    ownership.serve()
    for _ in range(10):  # it runs: ZooKeeper may be away for as long as it likes
        clock.advance(1)
        pulse.beat()
        assert ownership.is_ours(part(0))
    clock.advance(3.5)
    # At once, before its timer has run.
    with pytest.raises(RegisteredElsewhere, match="was stopped for a while"):
        ownership.check(part(0))
    before = pulse.beat() - 1
    assert not ownership.is_ours(part(0))
    pulse.caught_up(before)  # by a reading that began before it was stopped
    assert not ownership.is_ours(part(0))
    pulse.caught_up(before + 1)
    assert ownership.is_ours(part(0))


def test_new_partitions_go_to_those_with_the_fewest_first() -> None:
    seen = view(1, 1, 1, 2)
    assert spread(seen, (1, 2, 3), 5) == (3, 2, 1, 3, 2)
    assert spread(seen, (2,), 2) == (2, 2)
