"""A cluster at one moment, and what lies between two moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_kafkalog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """``leader`` is a broker's id, -1 where none serves it; offsets and bytes are -1 where unknown."""

    number: int
    leader: int
    start: int = -1
    end: int = -1
    size_bytes: int = -1


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic. If ``partitions`` are those of one broker, ``partition_count`` is the number of all."""

    name: str
    partitions: tuple[PartitionStatus, ...]
    partition_count: int | None = None

    @property
    def offline_count(self) -> int:
        """How many of the partitions no broker serves."""
        return sum(p.leader < 0 for p in self.partitions)

    @property
    def offset_count(self) -> int:
        """Offsets between the starts and the ends."""
        return sum(max(p.end - p.start, 0) for p in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes that are known; -1 if none is."""
        known = [p.size_bytes for p in self.partitions if p.size_bytes >= 0]
        return sum(known) if known else -1


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group. ``lag`` is as `lag_of` has it."""

    name: str
    state: str
    member_count: int
    lag: int | None
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A load, by its newest commit. ``lag`` is in offsets; None for topics that are not of this cluster."""

    name: str
    number: int
    committed_at: str
    record_count: int | None
    is_pending: bool
    lag: int | None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker, where it is reached, and how many partitions it serves. One that is not live is away: it owns
    partitions, which nobody serves until it returns; its address is "" and -1.
    """

    id: int
    host: str
    port: int
    partition_count: int = 0
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it. ``problems`` are what is wrong or could not be asked, in words. ``broker`` is the id of the
    broker whose part of its cluster this is; None for a whole cluster.
    """

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
    """The partitions of all topics."""
    return {TopicPartition(topic.name, p.number): p for topic in topics for p in topic.partitions}


def lag_of(
    positions: Mapping[TopicPartition, int], known: Mapping[TopicPartition, PartitionStatus]
) -> int | None:
    """Offsets left to read from the positions of a group or a load.

    None without positions, or where the end of a partition is not known.
    """
    lag = 0
    for partition, position in positions.items():
        status = known.get(partition)
        if status is None or status.end < 0:
            return None
        lag += offsets_behind(position, status.start, status.end)
    return lag if positions else None


@dataclass(frozen=True, slots=True)
class Rates:
    """New offsets a second, of the partitions of which they are known, by topic and number."""

    partitions: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    topics: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float | None:
        """Of all topics; None where nothing is known."""
        return sum(self.topics.values()) if self.topics else None


def rates_between(before: Snapshot | None, now: Snapshot) -> Rates:
    """How fast each partition grew whose end is known in both, unless it was made new in between.

    Only offsets that are there count: a log that begins above its former end, because its partition has a
    new owner, did not grow by what lies between the two.
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
    """A key that sorts large values first, and unknown ones last. Those of about the same size have the same,
    so that rows keep their places while their values move a little.
    """
    return 1 if value is None else -int(value).bit_length()
