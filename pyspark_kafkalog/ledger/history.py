"""What earlier loads read: parses options that name a part of the history, and finds its offsets. Every task
of every read imports this module, so it imports nothing else of the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.clock import parse_iso_time, utc_text
from pyspark_kafkalog.errors import InvalidConfig, LoadError, TopicRecreated
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.archive import Archive

START = 0
"""Commit number for before the first load."""

_COMMIT = re.compile(r"commit:0*([1-9][0-9]{0,7})")


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A part of a load's history: the loads after commit ``since``, up to ``until`` or a time."""

    since: int = START
    until: int | None = None
    as_of_ms: int | None = None


def parse_commit(option: str, text: str) -> int:
    word = text.strip().lower()
    found = _COMMIT.fullmatch(word)
    if found is None and word != "start":
        raise InvalidConfig(f"{option} is '{text}'; it must be a commit, as commit:37, or start")
    return START if found is None else int(found[1])


def parse_between(text: str) -> HistoryRange:
    """``commit:30,commit:37`` (loads 31 to 37) or ``start,commit:37``; `InvalidConfig` otherwise."""
    named = [parse_commit("between", part) for part in text.split(",")]
    if len(named) != 2 or named[0] >= named[1]:
        raise InvalidConfig(
            f"between is '{text}'; it must be two commits, the earlier one first: commit:30,commit:37"
        )
    return HistoryRange(named[0], named[1])


def parse_as_of(text: str) -> HistoryRange:
    given = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", given):
        return HistoryRange(as_of_ms=int(given))
    try:
        moment = parse_iso_time(given)
    except ValueError:
        raise InvalidConfig(
            f"asOf is '{text}'; it must be a time: 2026-11-21T18:00:00Z, or milliseconds since the epoch"
        ) from None
    return HistoryRange(as_of_ms=round(moment.timestamp() * 1000))


def last_commit(archive: Archive, part: HistoryRange) -> int:
    newest = archive.head_number()
    if part.as_of_ms is not None:
        moment = utc_text(part.as_of_ms)
        found = [commit.number for commit in archive.history() if commit.created <= moment]
        if not found:
            raise LoadError(f"{archive.location} has no commit from {moment} or earlier")
        return found[-1]
    until = newest if part.until is None else part.until
    if not 0 < until <= newest or part.since > newest:
        raise LoadError(f"{archive.location} has no commit {max(until, part.since)}; the newest is {newest}")
    return until


def ranges_of(archive: Archive, part: HistoryRange) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets of each partition in a part of the history; partitions added later begin at their first
    load. Raises `TopicRecreated`, or `LoadError` without such commits or after a rewind in between.
    """
    until = last_commit(archive, part)
    ends = {p.key: p for p in archive.commit_at(until).positions}
    begun = archive.commit_at(part.since).positions if part.since else ()
    starts = {p.key: (p.next, p.topic_id) for p in begun}
    for number in range(part.since + 1, until + 1):
        if archive.commit_at(number).is_load:
            for p in archive.plan(number).partitions:
                starts.setdefault(p.key, (p.start, p.topic_id))
    found = {}
    for key, end in ends.items():
        start, topic_id = starts.get(key, (end.next, end.topic_id))
        if topic_id != end.topic_id:
            raise TopicRecreated(
                f"{key} was deleted and created again between commits {part.since} and {until}: its old "
                "offsets are not valid any more. Choose commits after that"
            )
        if start > end.next:
            raise LoadError(
                f"{key} was at {start} after commit {part.since} and at {end.next} after {until}: the load "
                "was rewound in between. Choose commits from one side of the rewind"
            )
        found[key] = start, end.next
    return found
