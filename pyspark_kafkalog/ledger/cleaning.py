"""Removes the receipts and marks of committed loads. Plans and commits stay.

A `Summary` of the receipts replaces them first, so that audits and ``verify`` still know each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import NOT_COUNTED
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.receipts import Summary, summarize
from pyspark_kafkalog.ledger.records import RECEIPTS, RUNS, encode, marks_name, receipts_name, summary_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Receipts and marks of load ``number`` that nobody needs; ``kept`` says why they stay, or ""."""

    number: int
    receipts: int
    marks: int
    kept: str = ""


def leftovers(ledger: Ledger, keep: int = 1) -> list[Leftovers]:
    """The loads with receipts or marks, oldest first, without the newest ``keep`` and the pending one."""
    last = ledger.head_number() - keep
    store = ledger.store
    numbered = {name for top in (RECEIPTS, RUNS) for name in store.names(top) if name.isdecimal()}
    found = []
    for number in sorted(map(int, numbered)):
        if number <= last:
            receipts, marks = _files(ledger, receipts_name(number)), _files(ledger, marks_name(number))
            found.append(Leftovers(number, len(receipts), len(marks), _why_kept(ledger, number, receipts)))
    return found


def remove_leftovers(ledger: Ledger, keep: int = 1) -> list[Leftovers]:
    """Remove the `leftovers`, and return them. The caller holds the ledger's lock.

    If interrupted, it can be repeated.
    """
    found = leftovers(ledger, keep)
    for one in found:
        if one.kept:
            logger.warning("the receipts of load %d are kept: %s", one.number, one.kept)
            continue
        _summarize(ledger, one.number)
        for top in (receipts_name(one.number), marks_name(one.number)):
            _remove(ledger, top)
    return found


def _why_kept(ledger: Ledger, number: int, receipts: list[str]) -> str:
    """Why receipts stay: those that contradict their commit are evidence."""
    try:
        commit = ledger.commit_at(number)
        if not receipts or not commit.is_load or commit.records == NOT_COUNTED:
            return ""
        if ledger.summary(number) is not None:
            return ""
        found = ledger.receipts(ledger.plan(number))
    except LoadError as e:
        return str(e)
    count = sum(r.records for r in found)
    return "" if count == commit.records else f"they count {count} records, the commit {commit.records}"


def _summarize(ledger: Ledger, number: int) -> None:
    commit = ledger.commit_at(number)
    if not commit.is_load or commit.records == NOT_COUNTED or ledger.summary(number) is not None:
        return
    plan = ledger.plan(number)
    summary = Summary(number, plan.sha256, summarize(ledger.receipts(plan)))
    ledger.store.create(summary_name(number), encode(summary))


def _files(ledger: Ledger, directory: str) -> list[str]:
    return [name for name, is_file in _walk(ledger, directory) if is_file]


def _remove(ledger: Ledger, directory: str) -> None:
    """Files first, then their directories from the inside out."""
    for name, _ in _walk(ledger, directory):
        ledger.store.remove(name)


_DEPTH = {RECEIPTS: 3, RUNS: 2}
"""Levels below the plan's number: topic, partition, file; run, file."""


def _walk(ledger: Ledger, directory: str) -> Iterator[tuple[str, bool]]:
    """A directory and all below it, content before its directory; and whether it is a file."""

    def walk(name: str, left: int) -> Iterator[tuple[str, bool]]:
        if left:
            for inner in ledger.store.names(name):
                yield from walk(f"{name}/{inner}", left - 1)
        yield name, left == 0

    yield from walk(directory, _DEPTH[directory.partition("/")[0]])
