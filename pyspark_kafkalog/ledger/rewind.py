"""Computes a rewind: the commit it returns to, and the positions where the next load begins. Pure. Outputs
are in effect as a whole or not at all, so offsets within a load that published some rewind to its start.
Modes ``job`` and ``stage`` publish none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.archive import Archive
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.plan import Position
from pyspark_kafkalog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rewind, valid while ``newest`` is the newest commit. The loads of ``parent`` (0: none) stay in
    effect, ``undone`` ones do not. The next load begins at ``positions``; ``is_exact``: as requested.
    """

    newest: int
    parent: int
    positions: tuple[Position, ...]
    undone: tuple[int, ...]
    is_exact: bool


def rewinding_to_commit(archive: Archive, target: int) -> Rewind:
    """The rewind to the end of commit ``target`` (0: before the first); `LoadError` if it does not exist."""
    newest = archive.head_number()
    if not 0 <= target <= newest:
        raise LoadError(f"{archive.location} has no commit {target}; a rewind goes to one of 0 to {newest}")
    positions = archive.commit_at(target).positions if target else archive.first_starts(newest)
    return Rewind(newest, target, positions, (), True)


def rewinding(archive: Archive, wanted: Mapping[TopicPartition, int]) -> Rewind:
    """The rewind to these offsets; other partitions keep their positions if possible. `LoadError`: an offset
    after the partition's position, or in a partition never loaded or recreated since.
    """
    lineage = archive.lineage()
    if not lineage:
        raise LoadError(f"{archive.location}: nothing was committed yet, so there is nothing to rewind")
    head = lineage[-1]
    _check(head, wanted)
    asked = tuple(replace(p, next=wanted.get(p.key, p.next)) for p in head.positions)
    parent = next((commit for commit in reversed(lineage) if _is_before(commit, asked)), None)
    undone = [commit for commit in lineage if parent is None or commit.number > parent.number]
    if not any(commit.outputs for commit in undone):
        exact, positions = True, asked
    else:
        positions = parent.positions if parent else archive.first_starts(head.number)
        if parent is None:  # the earlier of the first load's start and the requested offset
            most = {p.key: p.next for p in asked}
            positions = tuple(replace(p, next=min(p.next, most.get(p.key, p.next))) for p in positions)
        exact = {p.key: p.next for p in positions} == {p.key: p.next for p in asked}
    loads = tuple(commit.number for commit in undone if commit.is_load)
    return Rewind(head.number, parent.number if parent else 0, positions, loads, exact)


def deleted_since(archive: Archive, found: Rewind) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets after a rewind's positions that retention had deleted when the newest load was planned."""
    newest = next((commit for commit in reversed(archive.lineage()) if commit.is_load), None)
    if newest is None:
        return {}
    earliest = {p.key: p.earliest for p in archive.plan(newest.number).partitions}
    return {p.key: (p.next, earliest[p.key]) for p in found.positions if p.next < earliest.get(p.key, p.next)}


def _check(head: Commit, wanted: Mapping[TopicPartition, int]) -> None:
    stored = head.stored
    unknown = sorted(str(key) for key in wanted.keys() - stored.keys())
    if unknown:
        raise LoadError(f"{', '.join(unknown)}: never loaded, so there is no position to rewind")
    beyond = [
        f"{key}: {offset} is after {stored[key].next}"
        for key, offset in sorted(wanted.items())
        if offset > stored[key].next
    ]
    if beyond:
        raise LoadError(
            f"a rewind goes back, and would skip records here: {'; '.join(beyond)}. Give offsets up to the "
            "present positions"
        )


def _is_before(commit: Commit, asked: Sequence[Position]) -> bool:
    stored = commit.stored
    for to in asked:
        then = stored.get(to.key)
        if then is None:
            continue
        if then.topic_id != to.topic_id:
            raise LoadError(
                f"{to.key} was deleted and created again after commit {commit.number}, so its offsets do not "
                "say how far to go back: rewind to a commit"
            )
        if then.next > to.next:
            return False
    return True
