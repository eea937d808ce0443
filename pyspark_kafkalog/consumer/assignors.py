"""How the leader of a classic group shares partitions among the members. Pure.

Source: Kafka's RangeAssignor, RoundRobinAssignor; KIP-54 (sticky), KIP-429 (cooperative).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from pyspark_kafkalog.config.group_consumer import COOPERATIVE, RANGE, ROUNDROBIN, STICKY
from pyspark_kafkalog.types import TopicPartition

Counts = Mapping[str, int]
"""The number of partitions of each topic that exists."""

Shares = dict[str, list[TopicPartition]]
"""Partitions by member id; each member is there."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as the leader sees it. ``owned`` is what it had in ``generation``."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1

    @property
    def place(self) -> tuple[bool, str]:
        """Static members first, by instance, so that a restart does not change their order."""
        return (self.instance_id is None, self.instance_id or self.member_id)


def range_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """Of each topic neighbouring partitions, n/k each; the first n%k members get one more."""
    ordered = sorted(members, key=lambda m: m.place)
    shares: Shares = {m.member_id: [] for m in ordered}
    for topic, count in sorted(counts.items()):
        takers = [m.member_id for m in ordered if topic in m.topics]
        start = 0
        for index, taker in enumerate(takers):
            size = count // len(takers) + (index < count % len(takers))
            shares[taker] += [TopicPartition(topic, n) for n in range(start, start + size)]
            start += size
    return shares


def roundrobin_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """All partitions, one after the other, to the members in turn, past those that do not subscribe."""
    ordered = sorted(members, key=lambda m: m.place)
    shares: Shares = {m.member_id: [] for m in ordered}
    turns = cycle(ordered)
    for tp in _partitions(counts):
        if any(tp.topic in m.topics for m in ordered):
            taker = next(m for m in turns if tp.topic in m.topics)
            shares[taker.member_id].append(tp)
    return shares


def sticky_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """Evenly, and what a member owned stays with it unless that is in the way.

    Evenly: no partition's holder has two more than another subscriber of its topic. With equal subscriptions
    all members are within one.
    """
    ordered = sorted(members, key=lambda m: m.place)
    shares: Shares = {m.member_id: [] for m in ordered}
    takers = {t: [m.member_id for m in ordered if t in m.topics] for t in counts}
    owners = _owners(ordered, counts)
    free = []
    for tp in _partitions(counts):
        if tp in owners:
            shares[owners[tp]].append(tp)
        elif takers[tp.topic]:
            free.append(tp)
    # Those that few members may have come first: the others even it out.
    for tp in sorted(free, key=lambda tp: len(takers[tp.topic])):
        shares[min(takers[tp.topic], key=lambda m: len(shares[m]))].append(tp)
    _even_out(shares, takers)
    return {member: sorted(held) for member, held in shares.items()}


def cooperative_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """As `sticky_assign`, less the partitions that another member has to give up first.

    Their owners revoke them and join again, and the next round gives them away: nobody else stops.
    """
    members = list(members)
    owners = _owners(members, counts)
    return {
        member: [tp for tp in held if owners.get(tp, member) == member]
        for member, held in sticky_assign(members, counts).items()
    }


ASSIGNORS: dict[str, Callable[[Iterable[Subscriber], Counts], Shares]] = {
    RANGE: range_assign,
    ROUNDROBIN: roundrobin_assign,
    STICKY: sticky_assign,
    COOPERATIVE: cooperative_assign,
}
"""By the name that the members agree on."""


def _partitions(counts: Counts) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic, count in sorted(counts.items()) for n in range(count)]


def _owners(members: Sequence[Subscriber], counts: Counts) -> dict[TopicPartition, str]:
    """Who owned each partition that still exists and is subscribed to; nobody if two say so.

    A member of an older generation missed a rebalance: others may have had its partitions since.
    """
    latest = max((m.generation for m in members), default=-1)
    claims: dict[TopicPartition, list[str]] = defaultdict(list)
    for member in members:
        if member.generation == latest:
            for tp in set(member.owned):
                if tp.topic in member.topics and tp.partition < counts.get(tp.topic, 0):
                    claims[tp].append(member.member_id)
    return {tp: claimants[0] for tp, claimants in claims.items() if len(claimants) == 1}


def _even_out(shares: Shares, takers: Mapping[str, Sequence[str]]) -> None:
    """Move partitions from members with more to subscribers with at least two fewer, until there are none.

    It ends: each move makes the sum of the squares of the sizes smaller.
    """
    while _move_one(shares, takers):
        pass


def _move_one(shares: Shares, takers: Mapping[str, Sequence[str]]) -> bool:
    """One partition at a time, from the fullest member: several could leave it below its even part."""
    for giver in sorted(shares, key=lambda m: -len(shares[m])):
        fewest: dict[str, str] = {}
        for tp in reversed(shares[giver]):
            if tp.topic not in fewest:
                fewest[tp.topic] = min(takers[tp.topic], key=lambda m: len(shares[m]))
            taker = fewest[tp.topic]
            if len(shares[taker]) + 1 < len(shares[giver]):
                shares[giver].remove(tp)
                shares[taker].append(tp)
                return True
    return False
