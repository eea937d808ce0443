"""Assignors of the new group protocol (KIP-848): deterministic, pure functions.

Source: KIP-848; Kafka's ``UniformAssignor`` and ``RangeAssignor``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import groupby
from types import MappingProxyType
from uuid import UUID

import msgspec

TopicIdPartition = tuple[UUID, int]

TargetAssignment = frozenset[TopicIdPartition]

EMPTY: TargetAssignment = frozenset()

_BALANCE_ROUNDS = 16
"""Limit of rounds over all topics to even out unequal subscriptions; one or two usually suffice."""


class Subscriber(msgspec.Struct, frozen=True):
    """A member's subscription and its previous assignment."""

    instance_id: str | None
    topic_ids: frozenset[UUID]
    previous: TargetAssignment


Subscribers = Mapping[str, Subscriber]
"""By member id."""

PartitionCounts = Mapping[UUID, int]
"""By topic id: the topics that exist and have a subscriber."""

Assignor = Callable[[Subscribers, PartitionCounts], dict[str, TargetAssignment]]
"""Assigns each partition that has a subscriber to exactly one member."""


def by_topic(assignment: TargetAssignment) -> list[tuple[UUID, tuple[int, ...]]]:
    return [
        (topic, tuple(partition for _, partition in found))
        for topic, found in groupby(sorted(assignment), key=lambda where: where[0])
    ]


def uniform(subscribers: Subscribers, topics: PartitionCounts) -> dict[str, TargetAssignment]:
    """Balances partition counts and moves as few partitions as possible. With equal subscriptions, counts
    differ by at most one; otherwise partitions move from the fullest to the emptiest subscriber for a bounded
    number of rounds.
    """
    if not subscribers:
        return {}
    wanted = {s.topic_ids for s in subscribers.values()}
    if len(wanted) == 1:
        (common,) = wanted
        partitions = [(t, p) for t in sorted(common & topics.keys()) for p in range(topics[t])]
        return _uniform_equal(subscribers, partitions)
    return _uniform_unequal(subscribers, topics)


def _uniform_equal(
    subscribers: Subscribers, partitions: list[TopicIdPartition]
) -> dict[str, TargetAssignment]:
    order = sorted(subscribers)
    least, extra = divmod(len(partitions), len(order))
    free = set(partitions)
    kept: dict[str, list[TopicIdPartition]] = {}
    for member in order:
        kept[member] = sorted(free & subscribers[member].previous)
        free.difference_update(kept[member])
    # The extra partitions go first to members that already own one more.
    quota = dict.fromkeys(order, least)
    for member in sorted(order, key=lambda m: len(kept[m]) <= least)[:extra]:
        quota[member] += 1
    for member in order:
        free.update(kept[member][quota[member] :])
        del kept[member][quota[member] :]
    rest = iter([p for p in partitions if p in free])
    for member in order:
        kept[member] += [next(rest) for _ in range(quota[member] - len(kept[member]))]
    return {member: frozenset(found) for member, found in kept.items()}


def _uniform_unequal(subscribers: Subscribers, topics: PartitionCounts) -> dict[str, TargetAssignment]:
    by_topic = {
        topic: [m for m in sorted(subscribers) if topic in subscribers[m].topic_ids]
        for topic in sorted(topics)
    }
    owned: dict[str, dict[UUID, set[int]]] = {m: {} for m in subscribers}
    size = dict.fromkeys(subscribers, 0)
    owners: dict[TopicIdPartition, str] = {}
    for member in sorted(subscribers):
        subscriber = subscribers[member]
        for topic, partition in sorted(subscriber.previous):
            where = topic, partition
            known = partition < topics.get(topic, 0)
            if known and topic in subscriber.topic_ids and where not in owners:
                owners[where] = member
                owned[member].setdefault(topic, set()).add(partition)
                size[member] += 1
    # Topics with few subscribers first: partitions of the others can go to more members.
    for topic in sorted(by_topic, key=lambda t: (len(by_topic[t]), t)):
        heap = [(size[m], m) for m in by_topic[topic]]
        heapq.heapify(heap)
        for partition in range(topics[topic]) if heap else ():
            if (topic, partition) not in owners:
                count, member = heap[0]
                owned[member].setdefault(topic, set()).add(partition)
                size[member] = count + 1
                heapq.heapreplace(heap, (count + 1, member))
    for _ in range(_BALANCE_ROUNDS):
        if not sum(_even_out(topic, members, owned, size) for topic, members in by_topic.items()):
            break
    return {m: frozenset((t, p) for t, found in owned[m].items() for p in found) for m in subscribers}


def _even_out(
    topic: UUID, members: list[str], owned: dict[str, dict[UUID, set[int]]], size: dict[str, int]
) -> int:
    """Moves partitions of ``topic`` from its fullest to its emptiest subscribers; returns how many."""
    moved = 0
    givers = [m for m in members if owned[m].get(topic)]
    takers = [(size[m], m) for m in members]
    heapq.heapify(takers)
    for giver in sorted(givers, key=lambda m: (-size[m], m)):
        here = owned[giver][topic]
        while here:
            count, taker = takers[0]
            if count != size[taker]:  # the taker also gave partitions away, so its heap entry is stale
                heapq.heapreplace(takers, (size[taker], taker))
                continue
            if size[giver] - count <= 1:
                break
            partition = max(here)
            here.remove(partition)
            owned[taker].setdefault(topic, set()).add(partition)
            size[giver] -= 1
            size[taker] += 1
            heapq.heapreplace(takers, (count + 1, taker))
            moved += 1
    return moved


def range_(subscribers: Subscribers, topics: PartitionCounts) -> dict[str, TargetAssignment]:
    """Gives each subscriber a contiguous range of each topic; static members come first, by instance id."""
    found: dict[str, set[TopicIdPartition]] = {m: set() for m in subscribers}
    static = {m: s.instance_id for m, s in subscribers.items() if s.instance_id is not None}
    order = [*sorted(static, key=lambda m: static[m]), *sorted(subscribers.keys() - static)]
    for topic, count in topics.items():
        members = [m for m in order if topic in subscribers[m].topic_ids]
        first = 0
        for i, member in enumerate(members):
            length = count // len(members) + (i < count % len(members))
            found[member].update((topic, p) for p in range(first, first + length))
            first += length
    return {m: frozenset(partitions) for m, partitions in found.items()}


ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({"uniform": uniform, "range": range_})
"""By the name used by clients and ``group.consumer.assignors``."""
