"""Which offsets loads read formerly, up to a commit or between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_kafkalog.loads.commit import LOAD_MODES
from pyspark_kafkalog.loads.errors import LoadError, TopicRecreated
from pyspark_kafkalog.loads.former import Former
from pyspark_kafkalog.loads.records import utc_text
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.loads.archive import Archive


def last_of(archive: Archive, former: Former) -> int:
    """The number of the commit that ``former`` ends with.

    Raises:
        LoadError: there is no such commit, or none at that time.
    """
    newest = archive.head_number()
    if former.as_of_ms is not None:
        moment = utc_text(former.as_of_ms)
        found = [commit.number for commit in archive.history() if commit.created <= moment]
        if not found:
            raise LoadError(f"{archive.location} has no commit of {moment} or before")
        return found[-1]
    until = newest if former.until is None else former.until
    if not 0 < until <= newest or former.since > newest:
        raise LoadError(
            f"{archive.location} has no commit {max(until, former.since)}; the newest is {newest}"
        )
    return until


def positions_after(archive: Archive, number: int) -> dict[TopicPartition, int]:
    """The next offset of each partition after a commit.

    Raises:
        LoadError: there is no such commit.
    """
    last_of(archive, Former(until=number))
    return {p.key: p.next for p in archive.commit_at(number).positions}


def ranges_of(archive: Archive, former: Former) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets ``[start, end)`` of each partition that a part of the history covers.

    A partition that came later begins where its first load did.

    Raises:
        TopicRecreated: a topic is another one at the end than at the beginning.
        LoadError: there are no such commits, or the ledger was rewound behind the first of them.
    """
    until = last_of(archive, former)
    ends = {p.key: p for p in archive.commit_at(until).positions}
    begun = archive.commit_at(former.since).positions if former.since else ()
    starts = {p.key: (p.next, p.topic_id) for p in begun}
    for number in range(former.since + 1, until + 1):
        if archive.commit_at(number).mode in LOAD_MODES:
            for p in archive.plan(number).partitions:
                starts.setdefault(p.key, (p.start, p.topic_id))
    found = {}
    for key, end in ends.items():
        start, topic_id = starts.get(key, (end.next, end.topic_id))
        if topic_id != end.topic_id:
            raise TopicRecreated(
                f"{key} was made anew between commits {former.since} and {until}: the offsets of the one "
                "before mean nothing in it. Name commits after that"
            )
        if start > end.next:
            raise LoadError(
                f"{key} stood at {start} after commit {former.since} and at {end.next} after {until}: the "
                "load was rewound between. Name commits of one side"
            )
        found[key] = start, end.next
    return found
