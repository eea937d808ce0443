"""A plan: the ranges of a load, decided once and written before anything is read. Pure. `make_plan` decides
where each partition continues, and raises rather than lose records silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_kafkalog.errors import LoadError, OffsetsAgedOut, TopicRecreated
from pyspark_kafkalog.ledger.records import OF_BROKERS, SEAL, LedgerRecord, at_least
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

logger = logging.getLogger(__name__)

Range = tuple[TopicPartition, int, int]

Split = Callable[[Sequence[Range]], Sequence[Range]]
"""Cuts non-empty ranges into the tasks' ranges: in order, tiling each partition."""

Cap = Callable[[Sequence[Range]], Sequence[Range]]
"""Shortens ranges at their ends to the limit of one load; in order, perhaps to nothing."""

UNKNOWN = -1
"""Earliest, latest, leader or leader epoch of a partition if unknown."""

_NEARLY_GONE = 0.05
"""Warn if a position is in this first share of the log: retention may soon delete it."""

_NAMED_COUNT = 5


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition at planning. Without topic ids (``topic_id`` "") ``is_other_log`` marks a recreated log."""

    topic_id: str
    leader: int
    address: str
    leader_epoch: int
    earliest: int
    latest: int
    is_other_log: bool = False


@dataclass(frozen=True, slots=True)
class OfPartition(LedgerRecord):
    topic: str
    partition: int
    broker: int = field(default=NO_BROKER, kw_only=True, metadata=OF_BROKERS)

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition, self.broker)


@dataclass(frozen=True, slots=True)
class Position(OfPartition):
    """Where the next load of a partition begins; leader and ``address`` (host:port) are those at planning."""

    topic_id: str
    next: int
    leader: int = field(metadata=at_least(UNKNOWN))
    address: str


@dataclass(frozen=True, slots=True)
class PlannedRange(OfPartition):
    topic_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlannedPartition(OfPartition):
    """A partition in a plan. ``ranges`` tile ``[start, end)``; ``earliest`` and ``latest`` are the log's."""

    topic_id: str
    leader: int = field(metadata=at_least(UNKNOWN))
    address: str
    leader_epoch: int = field(metadata=at_least(UNKNOWN))
    start: int
    end: int
    earliest: int = field(metadata=at_least(UNKNOWN))
    latest: int = field(metadata=at_least(UNKNOWN))
    reason: str
    ranges: tuple[tuple[int, int], ...]

    def flaw(self) -> str | None:
        if tiles(self.ranges, self.start, self.end):
            return None
        return f"the ranges {list(self.ranges)} do not tile [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Plan(LedgerRecord):
    """The plan of load ``number``, with every partition that was ever loaded or is subscribed to."""

    kind = "plan"

    number: int = field(metadata=at_least(1))
    parent: int
    created: str
    cluster_id: str
    isolation_level: str
    partitions: tuple[PlannedPartition, ...]
    sha256: str = field(default="", metadata=SEAL)

    @property
    def ranges(self) -> tuple[PlannedRange, ...]:
        """The tasks' ranges, in order; a task's index is its place here. Computed at each call."""
        return tuple(
            PlannedRange(p.topic, p.partition, p.topic_id, start, end, broker=p.broker)
            for p in self.partitions
            for start, end in p.ranges
        )

    @property
    def left(self) -> int:
        """Offsets that the logs have and the plan leaves for later loads, as far as their ends are known."""
        return sum(max(0, p.latest - p.end) for p in self.partitions if p.latest != UNKNOWN)

    @property
    def starts(self) -> dict[TopicPartition, Position]:
        starts = {p.key: p.start for p in self.partitions}
        return {key: replace(at, next=starts[key]) for key, at in self.positions.items()}

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The positions at which the next load begins once this one is committed. Computed at each call."""
        return {
            p.key: Position(p.topic, p.partition, p.topic_id, p.end, p.leader, p.address, broker=p.broker)
            for p in self.partitions
        }

    def flaw(self) -> str | None:
        return unsorted(self.partitions)


def unsorted(entries: Sequence[OfPartition]) -> str | None:
    keys = [one.key for one in entries]
    return None if keys == sorted(set(keys)) else "its partitions are not in order, or one appears twice"


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
    cap: Cap = list,
) -> Plan:
    """The plan of the next load, without ranges if there is nothing to read. Partitions begin at their
    ``stored`` position, while none is stored at ``first_starts``, and else at their earliest offset. Raises
    `TopicRecreated` if a topic has another id, or ends before its position, and `OffsetsAgedOut` if offsets
    after a position are deleted.
    """
    _refuse_recreated(stored, facts, on_topic_recreated)
    _refuse_aged_out(stored, facts, fail_on_data_loss)
    planned = []
    for key in sorted(stored.keys() | facts.keys()):
        was, now = stored.get(key), facts.get(key)
        if now is not None:
            start = now.earliest if stored else first_starts.get(key, now.earliest)
            planned.append(_planned(key, was, now, start, ends[key], on_topic_recreated, first=not stored))
        elif was is not None:
            planned.append(_carried(was))
    _warn_of_age(planned, stored)
    capped = {key: end for key, _, end in cap([(p.key, p.start, p.end) for p in planned if p.start < p.end])}
    planned = [replace(p, end=min(p.end, capped.get(p.key, p.end))) for p in planned]
    partitions = _with_ranges(planned, split)
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
    topic_id, start = now.topic_id, fresh
    if was is None:
        reason = "first load" if first else "new partition"
    elif _is_recreated(was, now) and policy == "skip":
        # The old id stays, so that the next load notices the recreated topic as well.
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
        start, end, now.earliest, now.latest, reason, (), broker=key.broker,
    )  # fmt: skip


def _carried(was: Position) -> PlannedPartition:
    reason = "not subscribed" if was.broker == NO_BROKER else "not subscribed, or its broker is away"
    return PlannedPartition(
        was.topic, was.partition, was.topic_id, was.leader, was.address, UNKNOWN,
        was.next, was.next, UNKNOWN, UNKNOWN, reason, (), broker=was.broker,
    )  # fmt: skip


def _is_recreated(was: Position, now: PartitionFacts) -> bool:
    other_id = bool(was.topic_id and now.topic_id) and was.topic_id != now.topic_id
    return other_id or now.is_other_log or was.next > now.latest


def _refuse_recreated(
    stored: Mapping[TopicPartition, Position], facts: Mapping[TopicPartition, PartitionFacts], policy: str
) -> None:
    changed = []
    for key in stored.keys() & facts.keys():
        was, now = stored[key], facts[key]
        if not _is_recreated(was, now):
            continue
        if was.next > now.latest and was.topic_id == now.topic_id:
            changed.append(f"{key}: position {was.next} is beyond the end of the log, {now.latest}")
        elif now.is_other_log:
            changed.append(f"{key}: no message begins at position {was.next}")
        else:
            changed.append(f"{key}: topic id {was.topic_id or 'unknown'} is now {now.topic_id or 'unknown'}")
    if changed and policy == "fail":
        raise TopicRecreated(
            f"not the topic that was loaded before: {_some(changed)}. onTopicRecreated=earliest reads the "
            "new one from its beginning, onTopicRecreated=skip omits it; or use another loadName"
        )


def _refuse_aged_out(
    stored: Mapping[TopicPartition, Position], facts: Mapping[TopicPartition, PartitionFacts], fail: bool
) -> None:
    gone, lost = [], 0
    for key in stored.keys() & facts.keys():
        was, now = stored[key], facts[key]
        if not _is_recreated(was, now) and was.next < now.earliest:
            gone.append(f"{key}: {now.earliest - was.next} offsets, [{was.next}, {now.earliest})")
            lost += now.earliest - was.next
    if gone and fail:
        raise OffsetsAgedOut(
            f"{lost} offsets were deleted before they were loaded: {_some(gone)}. failOnDataLoss=false "
            "continues with what is left and notes the loss in the plan; load more often, or raise the "
            "topic's retention"
        )
    if gone:
        logger.warning("%d offsets were deleted before they were loaded: %s", lost, _some(gone))


def _warn_of_age(planned: Sequence[PlannedPartition], stored: Mapping[TopicPartition, Position]) -> None:
    aging = [
        f"{p.key}: position {p.start}, the log begins at {p.earliest}"
        for p in planned
        if p.key in stored
        and 0 < p.earliest <= p.start
        and p.start - p.earliest < _NEARLY_GONE * (p.latest - p.earliest)
        and not p.reason
    ]
    if aging:
        logger.warning("retention will soon delete unread offsets, load more often: %s", _some(aging))


def _with_ranges(planned: Sequence[PlannedPartition], split: Split) -> tuple[PlannedPartition, ...]:
    ranges: dict[TopicPartition, list[tuple[int, int]]] = {p.key: [] for p in planned}
    for key, start, end in split([(p.key, p.start, p.end) for p in planned if p.start < p.end]):
        ranges[key].append((start, end))
    whole = tuple(replace(p, ranges=tuple(ranges[p.key])) for p in planned)
    for p in whole:
        if (flaw := p.flaw()) is not None:
            raise LoadError(f"{p.key}: {flaw}")
    return whole


def tiles(ranges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = start
    for first, last in ranges:
        if first != at or last <= first:
            return False
        at = last
    return at == end


def _some(facts: Sequence[str]) -> str:
    named = sorted(facts)[:_NAMED_COUNT]
    return "; ".join(named) + (f"; and {len(facts) - len(named)} more" if len(facts) > len(named) else "")
