"""JSON for the page: only what it shows, however many topics and groups there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_kafkalog.status.snapshot import GroupStatus, History, Rates, Snapshot, TopicStatus, magnitude

MOST_ROWS = 100  # rows per table
_MOST_PROBLEMS = 20
_MOST_NAMED = 10  # topics listed per group


def status_data(
    now: Snapshot, rates: Rates, history: History, *, topics_with: str = "", groups_with: str = ""
) -> dict[str, Any]:
    """The newest snapshot, its history, and the busiest rows with these texts; ``past`` is a sparkline."""
    return {
        "at_ms": now.at_ms,
        "cluster_id": now.cluster_id,
        "broker": now.broker,
        "figures": _figures(now, rates),
        "history": {
            "at_ms": [moment.at_ms for moment in history.moments],
            "rate": [_short(moment.rate) for moment in history.moments],
            "lag": [moment.lag for moment in history.moments],
        },
        "brokers": [
            {"id": b.id, "host": b.host, "port": b.port, "partitions": b.partition_count, "live": b.is_live}
            for b in now.brokers
        ],
        "topics": _topics(now, rates, history, topics_with.lower()),
        "groups": _groups(now, history, groups_with.lower()),
        "loads": {
            "count": len(now.loads),
            "rows": [
                {
                    "name": one.name,
                    "number": one.number,
                    "at": one.committed_at,
                    "records": one.record_count,
                    "pending": one.is_pending,
                    "lag": one.lag,
                }
                for one in now.loads[:MOST_ROWS]
            ],
        },
        "problems": problems_of(now),
    }


def partitions_data(now: Snapshot, rates: Rates, name: str) -> dict[str, Any] | None:
    """Partitions of one topic, offline ones first; None if unknown."""
    topic = next((one for one in now.topics if one.name == name), None)
    if topic is None:
        return None
    grown = rates.partitions.get(name, {})
    shown = sorted(topic.partitions, key=lambda p: (p.leader >= 0, p.number))[:MOST_ROWS]
    return {
        "count": len(topic.partitions),
        "of": topic.partition_count,
        "rows": [
            {
                "partition": p.number,
                "leader": p.leader,
                "start": p.start,
                "end": p.end,
                "bytes": p.size_bytes,
                "rate": _short(grown.get(p.number)),
            }
            for p in shown
        ],
    }


def problems_of(now: Snapshot) -> list[str]:
    more = len(now.problems) - _MOST_PROBLEMS
    return [*now.problems[:_MOST_PROBLEMS], *([f"and {more:,} more"] if more > 0 else [])]


def busiest(topics: tuple[TopicStatus, ...], rates: Mapping[str, float]) -> list[TopicStatus]:
    return sorted(topics, key=lambda topic: (magnitude(rates.get(topic.name)), topic.name))


def furthest_behind(groups: tuple[GroupStatus, ...]) -> list[GroupStatus]:
    return sorted(groups, key=lambda group: (magnitude(group.lag), group.name))


def _figures(now: Snapshot, rates: Rates) -> dict[str, Any]:
    sizes = [topic.size_bytes for topic in now.topics if topic.size_bytes >= 0]
    lags = [group.lag for group in now.groups if group.lag is not None]
    return {
        "brokers": sum(broker.is_live for broker in now.brokers),
        "away": sum(not broker.is_live for broker in now.brokers),
        "topics": len(now.topics),
        "partitions": sum(len(topic.partitions) for topic in now.topics),
        "offline": sum(topic.offline_count for topic in now.topics),
        "bytes": sum(sizes) if sizes else None,
        "groups": len(now.groups),
        "rate": _short(rates.total),
        "lag": sum(lags) if lags else None,
        "unknown_lags": len(now.groups) - len(lags),
    }


def _topics(now: Snapshot, rates: Rates, history: History, text: str) -> dict[str, Any]:
    found = busiest(tuple(topic for topic in now.topics if text in topic.name.lower()), history.lately)
    return {
        "count": len(found),
        "rows": [
            {
                "name": topic.name,
                "partitions": len(topic.partitions),
                "of": topic.partition_count,
                "offline": topic.offline_count,
                "offsets": topic.offset_count,
                "bytes": topic.size_bytes,
                "rate": _short(rates.topics.get(topic.name)),
                "past": [_short(rate) for rate in history.topic(topic.name)],
            }
            for topic in found[:MOST_ROWS]
        ],
    }


def _groups(now: Snapshot, history: History, text: str) -> dict[str, Any]:
    found = furthest_behind(tuple(group for group in now.groups if text in group.name.lower()))
    return {
        "count": len(found),
        "rows": [
            {
                "name": group.name,
                "state": group.state,
                "members": group.member_count,
                "lag": group.lag,
                "behind": _seconds_behind(group, history.lately),
                "topics": list(group.topics[:_MOST_NAMED]),
                "more_topics": len(group.topics[_MOST_NAMED:]),
                "past": history.group(group.name),
            }
            for group in found[:MOST_ROWS]
        ],
    }


def _seconds_behind(group: GroupStatus, rates: Mapping[str, float]) -> float | None:
    """For how long producers have written what the group has not read, at the rate of the last minute."""
    rate = sum(rates.get(topic, 0.0) for topic in group.topics)
    if group.lag is None or (group.lag and not rate):
        return None
    return round(group.lag / rate, 1) if group.lag else 0


def _short(rate: float | None) -> float | None:
    if rate is None:
        return None
    return round(rate) if rate >= 100 else round(rate, 1)
