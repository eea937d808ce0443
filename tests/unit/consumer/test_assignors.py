"""Who gets which partition: small cases that can be worked out by hand."""

from __future__ import annotations

from pyspark_kafkalog.consumer.assignors import (
    Subscriber,
    cooperative_assign,
    range_assign,
    roundrobin_assign,
)
from pyspark_kafkalog.types import TopicPartition


def parts(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def member(name: str, topics: str = "a", *, owned: tuple[int, ...] = (), generation: int = 1) -> Subscriber:
    return Subscriber(name, frozenset(topics), None, tuple(parts("a", *owned)), generation)


def test_range_gives_neighbours_and_the_first_members_one_more() -> None:
    found = range_assign([member("m2", "ab"), member("m1", "ab"), member("m3", "a")], {"a": 5, "b": 3})
    assert found == {
        "m1": parts("a", 0, 1) + parts("b", 0, 1),
        "m2": parts("a", 2, 3) + parts("b", 2),
        "m3": parts("a", 4),
    }


def test_static_members_come_first_by_their_instance_so_that_a_restart_changes_nothing() -> None:
    first = [Subscriber("z", frozenset("a"), "i1"), Subscriber("b", frozenset("a"), "i2"), member("a")]
    again = [Subscriber("new", frozenset("a"), "i1"), *first[1:]]
    assert range_assign(first, {"a": 3}) == {"z": parts("a", 0), "b": parts("a", 1), "a": parts("a", 2)}
    assert range_assign(again, {"a": 3})["new"] == parts("a", 0)


def test_roundrobin_continues_from_topic_to_topic_past_those_that_do_not_subscribe() -> None:
    found = roundrobin_assign([member("m1", "ab"), member("m2", "b")], {"a": 2, "b": 3})
    assert found == {"m1": parts("a", 0, 1) + parts("b", 1), "m2": parts("b", 0, 2)}


def test_a_partition_claimed_twice_belongs_to_the_later_generation_or_to_nobody() -> None:
    older, newer = member("m1", owned=(0, 1), generation=3), member("m2", owned=(0, 1), generation=4)
    assert cooperative_assign([older, newer], {"a": 4}) == {"m1": parts("a", 2, 3), "m2": parts("a", 0, 1)}
    same = member("m1", owned=(0, 1), generation=4)
    assert sum(len(held) for held in cooperative_assign([same, newer], {"a": 4}).values()) == 4
