"""A cluster at one moment, rates between two moments, and their history over half an hour."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from pyspark_kafkalog.types import TopicPartition


class PartitionStatus(msgspec.Struct, frozen=True):
    """``leader`` is a broker id, -1 if offline; offsets and bytes are -1 if unknown."""

    number: int
    leader: int
    start: int = -1
    end: int = -1
    size_bytes: int = -1


class TopicStatus(msgspec.Struct, frozen=True):
    """A topic. ``partition_count`` is the total if ``partitions`` are only one broker's."""

    name: str
    partitions: tuple[PartitionStatus, ...]
    partition_count: int | None = None

    @property
    def offline_count(self) -> int:
        return sum(p.leader < 0 for p in self.partitions)

    @property
    def offset_count(self) -> int:
        return sum(max(p.end - p.start, 0) for p in self.partitions)

    @property
    def size_bytes(self) -> int:
        """-1 if no size is known."""
        known = [p.size_bytes for p in self.partitions if p.size_bytes >= 0]
        return sum(known) if known else -1


class GroupStatus(msgspec.Struct, frozen=True):
    name: str
    state: str
    member_count: int
    lag: int | None
    topics: tuple[str, ...] = ()


class LoadStatus(msgspec.Struct, frozen=True):
    """A load at its newest commit. ``lag`` is in offsets; None if its topics are in another cluster."""

    name: str
    number: int
    committed_at: str
    record_count: int | None
    is_pending: bool
    lag: int | None


class BrokerStatus(msgspec.Struct, frozen=True):
    """A broker. One that is not live still owns partitions, now offline; its address is "" and -1."""

    id: int
    host: str
    port: int
    partition_count: int = 0
    is_live: bool = True


class Snapshot(msgspec.Struct, frozen=True):
    """State of a cluster, or of one ``broker``'s part of it. ``problems`` are faults and failed requests."""

    at_ms: int
    cluster_id: str
    brokers: tuple[BrokerStatus, ...] = ()
    topics: tuple[TopicStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    loads: tuple[LoadStatus, ...] = ()
    problems: tuple[str, ...] = ()
    broker: int | None = None


def offsets_behind(position: int | None, first: int, last: int) -> int:
    """Offsets left to read from ``position``, or from the first if None; deleted ones do not count."""
    return max(last - max(first if position is None else position, first), 0)


def by_partition(topics: Iterable[TopicStatus]) -> dict[TopicPartition, PartitionStatus]:
    return {TopicPartition(topic.name, p.number): p for topic in topics for p in topic.partitions}


def lag_of(
    positions: Mapping[TopicPartition, int], known: Mapping[TopicPartition, PartitionStatus]
) -> int | None:
    """Offsets left to read from positions of a group or load; None without any, or if an end is unknown."""
    lag = 0
    for partition, position in positions.items():
        status = known.get(partition)
        if status is None or status.end < 0:
            return None
        lag += offsets_behind(position, status.start, status.end)
    return lag if positions else None


class Rates(msgspec.Struct, frozen=True):
    partitions: Mapping[str, Mapping[int, float]] = msgspec.field(default_factory=dict)
    topics: Mapping[str, float] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> float | None:
        return sum(self.topics.values()) if self.topics else None


def rates_between(before: Snapshot | None, now: Snapshot) -> Rates:
    """Growth of each partition whose end is known in both, unless it was recreated in between. Only existing
    offsets count: if a new owner's log begins above the old end, the gap is not growth.
    """
    if before is None or now.at_ms <= before.at_ms:
        return Rates()
    seconds = (now.at_ms - before.at_ms) / 1000
    former = {one.name: {p.number: p.end for p in one.partitions if p.end >= 0} for one in before.topics}
    partitions = {}
    for topic in now.topics:
        ends = former.get(topic.name, {})
        grown = {
            p.number: max(p.end - max(ends[p.number], p.start), 0) / seconds
            for p in topic.partitions
            if p.number in ends and p.end >= ends[p.number]
        }
        if grown:
            partitions[topic.name] = grown
    return Rates(partitions, {name: sum(of.values()) for name, of in partitions.items()})


def magnitude(value: float | None) -> int:
    """Sort key: large values first, unknown last. Similar values are equal, so that rows stay in place."""
    return 1 if value is None else -int(value).bit_length()


MOMENTS = 360  # number of moments kept; every five seconds for half an hour
MOST_NAMES = 200  # topics and groups kept per moment: the fastest growing, and those with the largest lag
_SHORT_VALUES = 60  # values of a sparkline, or one more
_LATELY = 12  # moments averaged in `History.lately`


class Moment(msgspec.Struct, frozen=True):
    at_ms: int
    rate: float | None = None
    lag: int | None = None
    topics: Mapping[str, float] = msgspec.field(default_factory=dict)
    groups: Mapping[str, float] = msgspec.field(default_factory=dict)


class History:
    def __init__(self) -> None:
        self.moments: deque[Moment] = deque(maxlen=MOMENTS)
        self._count = 0
        self.lately: Mapping[str, float] = {}
        """New offsets per second of the busiest topics, over the last minute."""

    def add(self, snapshot: Snapshot, rates: Rates) -> None:
        lags = {group.name: group.lag for group in snapshot.groups if group.lag is not None}
        lag = sum(lags.values()) if lags else None
        self._append(Moment(snapshot.at_ms, rates.total, lag, _largest(rates.topics), _largest(lags)))

    def skip(self, at_ms: int) -> None:
        self._append(Moment(at_ms))

    def _append(self, moment: Moment) -> None:
        self.moments.append(moment)
        self._count += 1
        lately = list(self.moments)[-_LATELY:]
        grown: dict[str, float] = {}
        for one in lately:
            for name, rate in one.topics.items():
                grown[name] = grown.get(name, 0.0) + rate / len(lately)
        self.lately = grown

    def topic(self, name: str) -> list[float | None]:
        """Sparkline of a topic's rates; each value is the largest of several moments, None if unknown."""
        return self._short(lambda moment: moment.topics.get(name))

    def group(self, name: str) -> list[float | None]:
        return self._short(lambda moment: moment.groups.get(name))

    def _short(self, value: Callable[[Moment], float | None]) -> list[float | None]:
        # Numbered from the very first moment, so that values do not change while the line moves.
        first, each = self._count - len(self.moments), -(-len(self.moments) // _SHORT_VALUES)
        found: list[float | None] = []
        for number, moment in enumerate(self.moments, first):
            if not found or number % each == 0:
                found.append(None)
            found[-1] = _larger(found[-1], value(moment))
        return found


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one


def _largest(values: Mapping[str, float]) -> Mapping[str, float]:
    if len(values) <= MOST_NAMES:
        return values
    names = heapq.nlargest(MOST_NAMES, values, key=lambda name: values[name])
    return {name: values[name] for name in names}
