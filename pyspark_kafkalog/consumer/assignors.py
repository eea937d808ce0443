"""Partition assignment strategies, applied by the leader of a classic group. Pure.

Source: Kafka's RangeAssignor, RoundRobinAssignor; KIP-54 (sticky), KIP-429 (cooperative).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle

import msgspec

from pyspark_kafkalog.config.client_config import COOPERATIVE, RANGE, ROUNDROBIN, STICKY
from pyspark_kafkalog.types import TopicPartition

Counts = Mapping[str, int]  # partition counts of the existing topics

Shares = dict[str, list[TopicPartition]]  # partitions by member id; includes members without any


class Subscriber(msgspec.Struct, frozen=True):
    """A member as the leader sees it. ``owned`` is its assignment in ``generation``."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1

    @property
    def place(self) -> tuple[bool, str]:
        """Sort key: static members first, by instance, so that a restart does not change the order."""
        return (self.instance_id is None, self.instance_id or self.member_id)


def range_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """Contiguous ranges of n/k partitions per topic; the first n%k members get one more."""
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
    ordered = sorted(members, key=lambda m: m.place)
    shares: Shares = {m.member_id: [] for m in ordered}
    turns = cycle(ordered)
    for tp in _partitions(counts):
        if any(tp.topic in m.topics for m in ordered):
            taker = next(m for m in turns if tp.topic in m.topics)
            shares[taker.member_id].append(tp)
    return shares


def sticky_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """No member has two partitions more than another subscriber of one of its topics."""
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
    # Topics with few subscribers first; the others can even it out.
    for tp in sorted(free, key=lambda tp: len(takers[tp.topic])):
        shares[min(takers[tp.topic], key=lambda m: len(shares[m]))].append(tp)
    while _move_one(shares, takers):
        pass  # ends because each move lowers the sum of squared sizes
    return {member: sorted(held) for member, held in shares.items()}


def cooperative_assign(members: Iterable[Subscriber], counts: Counts) -> Shares:
    """`sticky_assign` without partitions that others must give up first; the next round assigns them."""
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


def _partitions(counts: Counts) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic, count in sorted(counts.items()) for n in range(count)]


def _owners(members: Sequence[Subscriber], counts: Counts) -> dict[TopicPartition, str]:
    """Except where two claim one. Members of an older generation do not count: others may own theirs."""
    latest = max((m.generation for m in members), default=-1)
    claims: dict[TopicPartition, list[str]] = defaultdict(list)
    for member in members:
        if member.generation == latest:
            for tp in set(member.owned):
                if tp.topic in member.topics and tp.partition < counts.get(tp.topic, 0):
                    claims[tp].append(member.member_id)
    return {tp: claimants[0] for tp, claimants in claims.items() if len(claimants) == 1}


def _move_one(shares: Shares, takers: Mapping[str, Sequence[str]]) -> bool:
    """Moves one partition from the fullest member possible; several could leave it below its even share."""
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
