"""A plan: the ranges of a load, decided once and written down before anything is read. Pure.

`make_plan` has the rules: where each partition goes on, and what is refused rather than lost in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_kafkalog.ledger.load_errors import LoadError, OffsetsAgedOut, TopicRecreated
from pyspark_kafkalog.ledger.records import Fields, seal, unseal
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

logger = logging.getLogger(__name__)

Range = tuple[TopicPartition, int, int]
"""Offsets ``[start, end)`` of a partition."""

Split = Callable[[Sequence[Range]], Sequence[Range]]
"""Cuts ranges, none of them empty, into those of the tasks: each partition's in order, tiling it."""

UNKNOWN = -1
"""Earliest, latest or leader epoch of a partition that nobody asked about; leader where none is."""

_NEARLY_GONE = 0.05
"""A position in the first part of the log of this size may soon be deleted."""

_TOLD_COUNT = 5
"""How many partitions a message names."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What the cluster says of a partition at planning; ``topic_id`` is "" where the broker tells none.

    ``is_other_log`` is what was found out where there are no ids: the stored position is of another log.
    """

    topic_id: str
    leader: int
    address: str
    leader_epoch: int
    earliest: int
    latest: int
    is_other_log: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where the next load of a partition begins; leader and ``address`` (host:port) are those at planning."""

    topic: str
    partition: int
    topic_id: str
    next: int
    leader: int
    address: str
    broker: int = NO_BROKER

    @property
    def key(self) -> TopicPartition:
        """Which partition it is of."""
        return TopicPartition(self.topic, self.partition, self.broker)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What one task reads: offsets ``[start, end)``."""

    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    broker: int = NO_BROKER

    @property
    def key(self) -> TopicPartition:
        """Which partition it is of."""
        return TopicPartition(self.topic, self.partition, self.broker)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition in a plan: what is read of it, and why where that is not plain.

    ``ranges`` tile ``[start, end)``; there is none where nothing is read. ``earliest`` and ``latest`` are
    what the log held at planning, `UNKNOWN` where nobody asked.
    """

    topic: str
    partition: int
    topic_id: str
    leader: int
    address: str
    leader_epoch: int
    start: int
    end: int
    earliest: int
    latest: int
    reason: str
    ranges: tuple[tuple[int, int], ...]
    broker: int = NO_BROKER

    @property
    def key(self) -> TopicPartition:
        """Which partition it is."""
        return TopicPartition(self.topic, self.partition, self.broker)


@dataclass(frozen=True, slots=True)
class Plan:
    """The load of this number; every partition that was ever loaded or is subscribed to is in it."""

    number: int
    parent: int
    created: str
    cluster_id: str
    isolation_level: str
    partitions: tuple[PlannedPartition, ...]
    sha256: str = ""

    @property
    def ranges(self) -> tuple[PlannedRange, ...]:
        """The tasks' ranges, in order: a task's index is its place here. Made anew each time."""
        return tuple(
            PlannedRange(p.topic, p.partition, p.topic_id, start, end, p.broker)
            for p in self.partitions
            for start, end in p.ranges
        )

    @property
    def starts(self) -> dict[TopicPartition, Position]:
        """Where this load begins: the positions while it is not committed. Made anew each time."""
        starts = {p.key: p.start for p in self.partitions}
        return {key: replace(at, next=starts[key]) for key, at in self.positions.items()}

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """Where the next load begins once this one is committed. Made anew each time."""
        return {
            p.key: Position(p.topic, p.partition, p.topic_id, p.end, p.leader, p.address, p.broker)
            for p in self.partitions
        }


def make_plan(
    *,
    number: int,
    parent: int,
    created: str,
    cluster_id: str,
    isolation_level: str,
    stored: Mapping[TopicPartition, Position],
    facts: Mapping[TopicPartition, PartitionFacts],
    first_starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    fail_on_data_loss: bool,
    on_topic_recreated: str,
    split: Split,
) -> Plan | None:
    """The plan of the next load; None where there is no offset to read in any partition.

    ``stored`` are the positions of the newest commit, empty before the first; ``facts`` and ``ends`` are of
    the partitions subscribed to. ``first_starts`` are used only while nothing is stored.

    Raises:
        TopicRecreated: a topic has another id, or ends before its position; see ``on_topic_recreated``.
        OffsetsAgedOut: offsets after a position are deleted, and ``fail_on_data_loss`` is set.
    """
    _refuse_recreated(stored, facts, on_topic_recreated)
    _refuse_aged_out(stored, facts, fail_on_data_loss)
    planned = []
    for key in sorted(stored.keys() | facts.keys()):
        was, now = stored.get(key), facts.get(key)
        if now is not None:
            start = first_starts[key] if not stored else now.earliest
            planned.append(_planned(key, was, now, start, ends[key], on_topic_recreated, first=not stored))
        elif was is not None:
            planned.append(_carried(was))
    _warn_of_age(planned, stored)
    partitions = _with_ranges(planned, split)
    if not any(p.ranges for p in partitions):
        return None
    return Plan(number, parent, created, cluster_id, isolation_level, partitions)


def _planned(
    key: TopicPartition,
    was: Position | None,
    now: PartitionFacts,
    fresh: int,
    end: int,
    policy: str,
    *,
    first: bool,
) -> PlannedPartition:
    """One partition subscribed to; ``fresh`` is where it begins if it is not stored."""
    topic_id, start = now.topic_id, fresh
    if was is None:
        reason = "first load" if first else "new partition"
    elif _is_recreated(was, now) and policy == "skip":
        # The old id stays, so that the next load sees again that the topic is another one.
        topic_id, start, end, reason = was.topic_id, was.next, was.next, "topic recreated: skipped"
    elif _is_recreated(was, now):
        start, reason = now.earliest, f"topic recreated: position {was.next} given up"
    elif was.next < now.earliest:
        start, reason = now.earliest, f"{now.earliest - was.next} offsets aged out"
    else:
        start, reason = was.next, ""
    if end < start:
        end, reason = start, "; ".join(filter(None, [reason, f"asked to end at {end}"]))
    return PlannedPartition(
        key.topic, key.partition, topic_id, now.leader, now.address, now.leader_epoch,
        start, end, now.earliest, now.latest, reason, (), key.broker,
    )  # fmt: skip


def _carried(was: Position) -> PlannedPartition:
    """A partition that is not there, or not subscribed to now: its position is kept for when it is again."""
    reason = "not subscribed" if was.broker == NO_BROKER else "not subscribed, or its broker is away"
    return PlannedPartition(
        was.topic, was.partition, was.topic_id, was.leader, was.address, UNKNOWN,
        was.next, was.next, UNKNOWN, UNKNOWN, reason, (), was.broker,
    )  # fmt: skip


def _is_recreated(was: Position, now: PartitionFacts) -> bool:
    other_id = bool(was.topic_id and now.topic_id) and was.topic_id != now.topic_id
    return other_id or now.is_other_log or was.next > now.latest


def _refuse_recreated(
    stored: Mapping[TopicPartition, Position], facts: Mapping[TopicPartition, PartitionFacts], policy: str
) -> None:
    told = []
    for key in stored.keys() & facts.keys():
        was, now = stored[key], facts[key]
        if not _is_recreated(was, now):
            continue
        if was.next > now.latest and was.topic_id == now.topic_id:
            told.append(f"{key}: position {was.next} is beyond the end of the log, {now.latest}")
        elif now.is_other_log:
            told.append(f"{key}: no message begins at position {was.next}")
        else:
            told.append(f"{key}: topic id {was.topic_id or 'unknown'} is now {now.topic_id or 'unknown'}")
    if told and policy == "fail":
        raise TopicRecreated(
            f"not the topic that was loaded before: {_some(told)}. onTopicRecreated=earliest reads the new "
            "one from its beginning, onTopicRecreated=skip leaves it out; or use another loadName"
        )


def _refuse_aged_out(
    stored: Mapping[TopicPartition, Position], facts: Mapping[TopicPartition, PartitionFacts], fail: bool
) -> None:
    told, lost = [], 0
    for key in stored.keys() & facts.keys():
        was, now = stored[key], facts[key]
        if not _is_recreated(was, now) and was.next < now.earliest:
            told.append(f"{key}: {now.earliest - was.next} offsets, [{was.next}, {now.earliest})")
            lost += now.earliest - was.next
    if told and fail:
        raise OffsetsAgedOut(
            f"{lost} offsets were deleted before they were loaded: {_some(told)}. failOnDataLoss=false "
            "goes on at what is left and notes the loss in the plan; load more often, or let the topic "
            "keep more"
        )
    if told:
        logger.warning("%d offsets were deleted before they were loaded: %s", lost, _some(told))


def _warn_of_age(planned: Sequence[PlannedPartition], stored: Mapping[TopicPartition, Position]) -> None:
    told = [
        f"{p.key}: position {p.start}, the log begins at {p.earliest}"
        for p in planned
        if p.key in stored
        and 0 < p.earliest <= p.start
        and p.start - p.earliest < _NEARLY_GONE * (p.latest - p.earliest)
        and not p.reason
    ]
    if told:
        logger.warning("close to being aged out, load more often: %s", _some(told))


def _with_ranges(planned: Sequence[PlannedPartition], split: Split) -> tuple[PlannedPartition, ...]:
    """The partitions with their tasks' ranges; a split that does not tile them is a mistake of ours."""
    ranges: dict[TopicPartition, list[tuple[int, int]]] = {p.key: [] for p in planned}
    for key, start, end in split([(p.key, p.start, p.end) for p in planned if p.start < p.end]):
        ranges[key].append((start, end))
    whole = tuple(replace(p, ranges=tuple(ranges[p.key])) for p in planned)
    for p in whole:
        if not tiles(p.ranges, p.start, p.end):
            raise LoadError(f"{p.key}: the tasks' ranges {p.ranges} do not tile [{p.start}, {p.end})")
    return whole


def tiles(ranges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Whether ranges, in this order, cover ``[start, end)`` without gap, overlap or an empty one."""
    at = start
    for first, last in ranges:
        if first != at or last <= first:
            return False
        at = last
    return at == end


def _some(told: Sequence[str]) -> str:
    named = sorted(told)[:_TOLD_COUNT]
    return "; ".join(named) + (f"; and {len(told) - len(named)} more" if len(told) > len(named) else "")


_PARTITION_FIELDS = (
    "topic_id", "leader", "address", "leader_epoch",
    "start", "end", "earliest", "latest", "reason", "ranges",
)  # fmt: skip


def encode_plan(plan: Plan) -> bytes:
    """The sealed record of a plan."""
    return seal(
        "plan",
        {
            "number": plan.number,
            "parent": plan.parent,
            "created": plan.created,
            "cluster_id": plan.cluster_id,
            "isolation_level": plan.isolation_level,
            "partitions": [
                key_fields(p.key) | {name: getattr(p, name) for name in _PARTITION_FIELDS}
                for p in plan.partitions
            ],
        },
        of_brokers=of_brokers(plan.partitions),
    )


def key_fields(key: TopicPartition) -> dict[str, object]:
    """The fields of a record that say of which partition it, or an entry of it, is."""
    fields: dict[str, object] = {"topic": key.topic, "partition": key.partition}
    return fields if key.broker == NO_BROKER else {**fields, "broker": key.broker}


def of_brokers(entries: Iterable[PlannedPartition | Position]) -> bool:
    """Whether partitions belong to brokers, as in 0.7."""
    return any(one.broker != NO_BROKER for one in entries)


def decode_plan(data: bytes, where: str) -> Plan:
    """The plan in a record.

    Raises:
        DamagedRecord: it is torn or edited, or holds what no plan does.
    """
    values = unseal("plan", data, where)
    fields = Fields(values, where)
    partitions = tuple(_decode_planned(one) for one in fields.entries("partitions"))
    keys = [p.key for p in partitions]
    if keys != sorted(set(keys)):
        raise fields.refuse("its partitions are not in order, or one is there twice")
    return Plan(
        number=fields.number("number", 1),
        parent=fields.number("parent"),
        created=fields.text("created"),
        cluster_id=fields.text("cluster_id"),
        isolation_level=fields.text("isolation_level"),
        partitions=partitions,
        sha256=fields.text("sha256"),
    )


def _decode_planned(fields: Fields) -> PlannedPartition:
    p = PlannedPartition(
        topic=fields.text("topic"),
        partition=fields.number("partition"),
        topic_id=fields.text("topic_id"),
        leader=fields.number("leader", UNKNOWN),
        address=fields.text("address"),
        leader_epoch=fields.number("leader_epoch", UNKNOWN),
        start=fields.number("start"),
        end=fields.number("end"),
        earliest=fields.number("earliest", UNKNOWN),
        latest=fields.number("latest", UNKNOWN),
        reason=fields.text("reason"),
        ranges=fields.pairs("ranges"),
        broker=fields.broker(),
    )
    if not tiles(p.ranges, p.start, p.end):
        raise fields.refuse(f"the ranges {list(p.ranges)} do not tile [{p.start}, {p.end})")
    return p


def encode_position(position: Position) -> dict[str, object]:
    """A position as an entry of a commit record."""
    return key_fields(position.key) | {
        name: getattr(position, name) for name in ("topic_id", "next", "leader", "address")
    }


def decode_position(fields: Fields) -> Position:
    """The position in an entry of a commit record."""
    return Position(
        topic=fields.text("topic"),
        partition=fields.number("partition"),
        topic_id=fields.text("topic_id"),
        next=fields.number("next"),
        leader=fields.number("leader", UNKNOWN),
        address=fields.text("address"),
        broker=fields.broker(),
    )
