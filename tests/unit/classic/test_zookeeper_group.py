"""The lease's arithmetic, and who gets what by the papers' formula."""

from __future__ import annotations

from pyspark_kafkalog.classic.consumer.stream import Whitelist
from pyspark_kafkalog.classic.consumer.zookeeper_group import Claim, GroupSnapshot, SessionLease
from pyspark_kafkalog.zookeeper.paths import ConsumerSubscription, PartitionNode
from tests.support.manual_clock import ManualClock

NODES = [PartitionNode(f"{broker}-{n}", broker, n) for broker in (1, 2) for n in range(3)]


def test_a_lease_counts_from_the_question_and_not_from_the_answer() -> None:
    clock = ManualClock()
    lease = SessionLease(4.0, clock)
    assert not lease.held()
    asked = lease.asking()
    clock.advance(3)
    lease.confirm(asked)
    assert lease.held()
    clock.advance(1)
    assert not lease.held()


def test_an_answer_to_a_question_of_before_the_end_is_worth_nothing() -> None:
    lease = SessionLease(4.0, ManualClock())
    asked = lease.asking()
    lease.end()
    lease.confirm(asked)
    assert not lease.held()
    lease.confirm(lease.asking())
    assert lease.held()


def test_ranges_of_partitions_go_to_the_sorted_threads_and_the_first_get_one_more() -> None:
    seen = GroupSnapshot(
        {"b": ConsumerSubscription({"t": 1}), "a": ConsumerSubscription({"t": 3})}, {"t": NODES}
    )
    found = {key.name: claim for key, claim in seen.wanted("a").items()}
    assert found == {
        "1-0": Claim(0, 1), "1-1": Claim(0, 1), "1-2": Claim(1, 1), "2-0": Claim(1, 2), "2-1": Claim(2, 2),
    }  # fmt: skip
    assert [key.name for key in seen.wanted("b")] == ["2-2"]


def test_a_brokers_partitions_stay_together_once_all_consumers_ask_for_it() -> None:
    nodes = [PartitionNode(str(n), 1 + n % 2, n) for n in range(4)]
    ours, other = ConsumerSubscription({"t": 1}, by_broker=True), ConsumerSubscription({"t": 1})

    def names(consumers: dict[str, ConsumerSubscription]) -> list[list[str]]:
        seen = GroupSnapshot(consumers, {"t": nodes})
        return [[key.name for key in seen.wanted(one)] for one in sorted(consumers)]

    assert names({"a": ours, "b": ours}) == [["0", "2"], ["1", "3"]]
    assert names({"a": ours, "b": other}) == [["0", "1"], ["2", "3"]]


def test_who_is_not_registered_wants_nothing() -> None:
    assert GroupSnapshot({"a": ConsumerSubscription({"t": 1})}, {"t": NODES}).wanted("gone") == {}


def test_topics_are_shared_by_those_alone_who_read_them() -> None:
    seen = GroupSnapshot(
        {"a": ConsumerSubscription({"t": 1}), "b": Whitelist("t|u").subscription(1)},
        {"t": NODES, "u": NODES[:1]},
    )
    assert [(key.topic, key.name) for key in seen.wanted("a")] == [("t", "1-0"), ("t", "1-1"), ("t", "1-2")]
    assert ("u", "1-0") in [(key.topic, key.name) for key in seen.wanted("b")]
