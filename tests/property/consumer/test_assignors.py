"""Any members, topics and earlier assignments: each partition has one taker, evenly, and stays if it can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.consumer.assignors import (
    ASSIGNORS,
    Shares,
    Subscriber,
    cooperative_assign,
    sticky_assign,
)
from pyspark_kafkalog.types import TopicPartition

TOPICS = "abc"
counts = st.fixed_dictionaries({}, optional={topic: st.integers(1, 7) for topic in TOPICS})
topics_of = st.frozensets(st.sampled_from(TOPICS))
claims = st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8)), max_size=8)


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False) -> list[Subscriber]:
    """Up to six members with any subscriptions, or with the same, that claim anything."""
    names = draw(st.lists(st.sampled_from("mnopqr"), min_size=1, unique=True))
    same = draw(topics_of)
    return [
        Subscriber(
            name,
            same if alike else draw(topics_of),
            draw(st.none() | st.just(f"i-{name}")),
            tuple(draw(claims)),
            draw(st.integers(-1, 2)),
        )
        for name in names
    ]


def holders(shares: Shares) -> dict[TopicPartition, str]:
    found: dict[TopicPartition, str] = {}
    for name, held in shares.items():
        for tp in held:
            assert tp not in found
            found[tp] = name
    return found


def in_generation(members: list[Subscriber], shares: Shares) -> list[Subscriber]:
    """The same members, after these shares."""
    return [Subscriber(m.member_id, m.topics, m.instance_id, tuple(shares[m.member_id]), 9) for m in members]


@given(groups(), counts, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_has_one_subscriber_that_gets_it(
    members: list[Subscriber], counts: dict[str, int], name: str
) -> None:
    shares = ASSIGNORS[name](members, counts)
    topics = {m.member_id: m.topics for m in members}
    assert shares.keys() == topics.keys()
    given_to = holders(shares)
    assert all(tp.topic in topics[holder] for tp, holder in given_to.items())
    wanted = {TopicPartition(t, n) for t, count in counts.items() for n in range(count)}
    wanted = {tp for tp in wanted if any(tp.topic in m.topics for m in members)}
    if name == "cooperative-sticky":
        # What is left out is somebody else's for now, and has a taker in the next round.
        left = wanted - given_to.keys()
        assert left <= {tp for m in members for tp in m.owned}
        given_to = holders(cooperative_assign(in_generation(members, shares), counts))
    assert given_to.keys() == wanted


@given(groups(), counts)
def test_sticky_is_even(members: list[Subscriber], counts: dict[str, int]) -> None:
    shares = sticky_assign(members, counts)
    for holder, held in shares.items():
        for tp in held:
            fewest = min(len(shares[m.member_id]) for m in members if tp.topic in m.topics)
            assert len(shares[holder]) <= fewest + 1


@given(groups(), counts)
def test_sticky_keeps_what_is_even_already(members: list[Subscriber], counts: dict[str, int]) -> None:
    shares = sticky_assign(members, counts)
    assert sticky_assign(in_generation(members, shares), counts) == shares


@given(groups(alike=True), counts, st.data())
def test_sticky_moves_no_more_than_evenness_needs(
    members: list[Subscriber], counts: dict[str, int], data: st.DataObject
) -> None:
    """After one member joins or leaves, each of the others keeps all it had, up to its even part."""
    before = in_generation(members, sticky_assign(members, counts))
    if data.draw(st.booleans(), "joins") or len(before) == 1:
        after = [*before, Subscriber("s", before[0].topics)]
    else:
        after = before[1:]
    shares = sticky_assign(after, counts)
    total = sum(len(held) for held in shares.values())
    for one in after:
        kept = set(one.owned) & set(shares[one.member_id])
        assert len(kept) >= min(len(one.owned), total // len(after))


@given(groups(), counts)
def test_cooperative_never_gives_away_what_its_owner_still_has(
    members: list[Subscriber], counts: dict[str, int]
) -> None:
    owned = in_generation(members, sticky_assign(members, counts))
    now = [*owned[1:], Subscriber("s", frozenset(TOPICS), generation=9)]
    given_to = holders(cooperative_assign(now, counts))
    for one in now:
        assert all(given_to.get(tp, one.member_id) == one.member_id for tp in one.owned)
