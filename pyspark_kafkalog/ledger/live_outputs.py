"""Outputs in effect after compactions, and whether `gc` removed the replaced ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.archive import Archive
from pyspark_kafkalog.ledger.commit import COMPACT, FILE_FORMATS, Commit, LoadOutput
from pyspark_kafkalog.ledger.records import REMOVALS, LedgerRecord, at_least

Live = list[tuple[Commit, LoadOutput]]
"""Outputs in effect with their commits, oldest first."""


@dataclass(frozen=True, slots=True)
class FileRemoval(LedgerRecord):
    """The files that commit ``compaction`` replaced may be gone: a rewind to before it is impossible."""

    kind = "removal"

    compaction: int = field(metadata=at_least(1))
    created: str


def live_outputs(lineage: Iterable[Commit], path: str | None = None) -> Live:
    """The files in effect after these commits, oldest first; with ``path`` only those there."""
    live: dict[tuple[int, str], tuple[Commit, LoadOutput]] = {}
    for commit in lineage:
        for out in commit.outputs:
            if out.format not in FILE_FORMATS or path not in (None, out.path):
                continue
            if out.replaces:
                live = {key: one for key, one in live.items() if not _is_replaced(*key, out)}
            live[commit.number, out.path] = commit, out
    return list(live.values())


def replaced_outputs(lineage: Iterable[Commit], compaction: Commit) -> Live:
    before = live_outputs(commit for commit in lineage if commit.number < compaction.number)
    return [
        (commit, out)
        for commit, out in before
        if any(_is_replaced(commit.number, out.path, new) for new in compaction.outputs)
    ]


def check_not_removed(archive: Archive, live: Live) -> None:
    """Check that `gc` removed none of these files, which a later compaction replaced; else `LoadError`."""
    for number in archive.numbers(REMOVALS):
        compaction = archive.commit_at(number)
        for commit, out in live:
            if compaction.mode == COMPACT and any(
                _is_replaced(commit.number, out.path, new) for new in compaction.outputs
            ):
                raise LoadError(
                    f"{out.path}: commit {number} compacted the files of load {commit.number}, and "
                    f"`kafkalog gc` removed them: the oldest state left is that of commit {number}"
                )


def _is_replaced(number: int, path: str, new: LoadOutput) -> bool:
    return new.path == path and any(start <= number < end for start, end in new.replaces)
