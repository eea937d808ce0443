"""Who gets which partition: small cases that can be worked out by hand."""

from __future__ import annotations

from pyspark_kafkalog.consumer.assignors import (
    Subscriber,
    cooperative_assign,
    range_assign,
    roundrobin_assign,
    sticky_assign,
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


def test_roundrobin_goes_on_from_topic_to_topic_past_those_that_do_not_subscribe() -> None:
    found = roundrobin_assign([member("m1", "ab"), member("m2", "b")], {"a": 2, "b": 3})
    assert found == {"m1": parts("a", 0, 1) + parts("b", 1), "m2": parts("b", 0, 2)}


def test_a_topic_that_does_not_exist_is_nobodys() -> None:
    for assign in (range_assign, roundrobin_assign, sticky_assign, cooperative_assign):
        assert assign([member("m1", "ax")], {"a": 1}) == {"m1": parts("a", 0)}
        assert assign([member("m1", "x")], {"a": 1}) == {"m1": []}


def test_sticky_moves_only_what_a_new_member_must_get() -> None:
    found = sticky_assign([member("m1", owned=(0, 1, 2, 3)), member("m2")], {"a": 4})
    assert set(found["m1"]) < set(parts("a", 0, 1, 2, 3))
    assert [len(found[name]) for name in ("m1", "m2")] == [2, 2]


def test_sticky_takes_one_from_each_rather_than_two_from_one() -> None:
    full = [member(f"m{n}", owned=tuple(range(4 * n, 4 * n + 4))) for n in range(3)]
    found = sticky_assign([*full, member("new")], {"a": 12})
    assert [len(set(found[m.member_id]) & set(m.owned)) for m in full] == [3, 3, 3]
    assert len(found["new"]) == 3


def test_sticky_hands_out_only_what_a_gone_member_had() -> None:
    found = sticky_assign([member("m1", owned=(0, 3)), member("m2", owned=(1, 4))], {"a": 6})
    assert set(found["m1"]) > set(parts("a", 0, 3))
    assert set(found["m2"]) > set(parts("a", 1, 4))


def test_what_two_members_claim_belongs_to_the_one_of_the_later_generation_or_to_nobody() -> None:
    older, newer = member("m1", owned=(0, 1), generation=3), member("m2", owned=(0, 1), generation=4)
    assert cooperative_assign([older, newer], {"a": 4}) == {"m1": parts("a", 2, 3), "m2": parts("a", 0, 1)}
    same = member("m1", owned=(0, 1), generation=4)
    assert sum(len(held) for held in cooperative_assign([same, newer], {"a": 4}).values()) == 4


def test_cooperative_needs_two_rounds_to_move_a_partition() -> None:
    before = [member("m1", owned=(0, 1, 2, 3)), member("m2")]
    first = cooperative_assign(before, {"a": 4})
    assert (len(first["m1"]), first["m2"]) == (2, [])
    kept = tuple(tp.partition for tp in first["m1"])
    second = cooperative_assign(
        [member("m1", owned=kept, generation=2), member("m2", generation=2)], {"a": 4}
    )
    assert second["m1"] == first["m1"]
    assert sorted(second["m1"] + second["m2"]) == parts("a", 0, 1, 2, 3)
