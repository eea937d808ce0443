"""A cluster at one moment, and its last half hour."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HISTORY = 360
"""Moments that are kept; at five seconds each, half an hour."""

MOST_NAMES = 200
"""Topics and groups whose past is kept: those that grew most, and those that are furthest behind."""


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
    """A topic, or the part of it that was asked about."""

    name: str
    partitions: tuple[PartitionStatus, ...]

    @property
    def end(self) -> int:
        """The sum of the ends that are known."""
        return sum(max(p.end, 0) for p in self.partitions)

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
    """A consumer group. ``lag`` is in offsets; None where an end is not known."""

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
    """A broker and where it is reached."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it. ``problems`` are what could not be asked, in words."""

    at_ms: int
    cluster_id: str
    brokers: tuple[BrokerStatus, ...] = ()
    topics: tuple[TopicStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    loads: tuple[LoadStatus, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Moment:
    at_ms: int
    end: int
    topics: Mapping[str, int]
    groups: Mapping[str, int]


@dataclass(slots=True)
class History:
    """*Not thread-safe.* The last moments of a cluster."""

    _moments: deque[_Moment] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _ends: Mapping[str, int] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        """Note a moment."""
        ends = {topic.name: topic.end for topic in snapshot.topics}
        grown = {name: end - self._ends.get(name, end) for name, end in ends.items()}
        lags = {group.name: group.lag for group in snapshot.groups if group.lag is not None}
        self._moments.append(
            _Moment(
                snapshot.at_ms,
                sum(ends.values()),
                {name: ends[name] for name in _largest(grown)},
                {name: lags[name] for name in _largest(lags)},
            )
        )
        self._ends = ends

    def as_json(self) -> dict[str, Any]:
        """Times, and for each name a value at each of them; null where it has none."""
        moments = self._moments
        topics = {name for moment in moments for name in moment.topics}
        groups = {name for moment in moments for name in moment.groups}
        return {
            "at_ms": [moment.at_ms for moment in moments],
            "end": [moment.end for moment in moments],
            "topics": {name: [m.topics.get(name) for m in moments] for name in sorted(topics)},
            "groups": {name: [m.groups.get(name) for m in moments] for name in sorted(groups)},
        }


def _largest(values: Mapping[str, int]) -> list[str]:
    if len(values) <= MOST_NAMES:
        return list(values)
    return heapq.nlargest(MOST_NAMES, values, key=lambda name: values[name])


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for the page, without the topics' partitions: see `partitions_as_json`."""
    return {
        "at_ms": snapshot.at_ms,
        "cluster_id": snapshot.cluster_id,
        "brokers": [{"id": b.id, "host": b.host, "port": b.port} for b in snapshot.brokers],
        "topics": [
            {
                "name": t.name,
                "partitions": len(t.partitions),
                "offline": sum(p.leader < 0 for p in t.partitions),
                "offsets": t.offset_count,
                "end": t.end,
                "bytes": t.size_bytes,
            }
            for t in snapshot.topics
        ],
        "groups": [
            {
                "name": g.name,
                "state": g.state,
                "members": g.member_count,
                "lag": g.lag,
                "topics": list(g.topics),
            }
            for g in snapshot.groups
        ],
        "loads": [
            {
                "name": one.name,
                "number": one.number,
                "at": one.committed_at,
                "records": one.record_count,
                "pending": one.is_pending,
                "lag": one.lag,
            }
            for one in snapshot.loads
        ],
        "problems": list(snapshot.problems),
    }


def partitions_as_json(snapshot: Snapshot, topic: str) -> list[dict[str, int]] | None:
    """The partitions of one topic; None for an unknown one."""
    for one in snapshot.topics:
        if one.name == topic:
            return [
                {
                    "partition": p.number,
                    "leader": p.leader,
                    "start": p.start,
                    "end": p.end,
                    "bytes": p.size_bytes,
                }
                for p in one.partitions
            ]
    return None
