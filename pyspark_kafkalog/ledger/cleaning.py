"""What of a ledger may go once a load is committed: its receipts and marks. Plans and commits stay.

A record of what the receipts said, a `Summary`, takes their place before they are removed, so that
audits and ``verify`` know as much as before of each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_kafkalog.ledger.commit import LOAD_MODES, NOT_COUNTED
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.load_errors import LoadError
from pyspark_kafkalog.ledger.receipts import Summary, summarize
from pyspark_kafkalog.ledger.records import RECEIPTS, RUNS, encode, marks_name, receipts_name, summary_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of load ``number`` that nobody needs; ``kept`` says why it stays all the same, or ""."""

    number: int
    receipts: int
    marks: int
    kept: str = ""


def leftovers(ledger: Ledger, keep: int = 1) -> list[Leftovers]:
    """The loads with receipts or marks, oldest first, without the newest ``keep`` and what is pending.

    Raises:
        LoadError: the ledger cannot be read.
    """
    last = ledger.head_number() - keep
    store = ledger.store
    numbered = {name for top in (RECEIPTS, RUNS) for name in store.names(top) if name.isdecimal()}
    found = []
    for number in sorted(map(int, numbered)):
        if number <= last:
            receipts, marks = _files(ledger, receipts_name(number)), _files(ledger, marks_name(number))
            found.append(Leftovers(number, len(receipts), len(marks), _why_kept(ledger, number, receipts)))
    return found


def sweep(ledger: Ledger, keep: int = 1) -> list[Leftovers]:
    """Remove the `leftovers`, and return them. The caller holds the ledger's lock.

    Interrupted at any point it can be done again.

    Raises:
        LoadError: the store fails.
    """
    found = leftovers(ledger, keep)
    for one in found:
        if one.kept:
            logger.warning("the receipts of load %d stay: %s", one.number, one.kept)
            continue
        _summarize(ledger, one.number)
        for top in (receipts_name(one.number), marks_name(one.number)):
            _remove(ledger, top)
    return found


def _why_kept(ledger: Ledger, number: int, receipts: list[str]) -> str:
    """Receipts that do not tell what the commit tells are evidence of something: they are not removed."""
    try:
        commit = ledger.commit_at(number)
        if not receipts or commit.mode not in LOAD_MODES or commit.records == NOT_COUNTED:
            return ""
        if ledger.summary(number) is not None:
            return ""
        found = ledger.receipts(ledger.plan(number))
    except LoadError as e:
        return str(e)
    told = sum(r.records for r in found)
    return "" if told == commit.records else f"they tell of {told} records, the commit of {commit.records}"


def _summarize(ledger: Ledger, number: int) -> None:
    commit = ledger.commit_at(number)
    if commit.mode not in LOAD_MODES or commit.records == NOT_COUNTED or ledger.summary(number) is not None:
        return
    plan = ledger.plan(number)
    summary = Summary(number, plan.sha256, summarize(ledger.receipts(plan)))
    ledger.store.create(summary_name(number), encode(summary))


def _files(ledger: Ledger, directory: str) -> list[str]:
    return [name for name, is_file in _walk(ledger, directory) if is_file]


def _remove(ledger: Ledger, directory: str) -> None:
    """Files first, then the directories that held them, the inner ones before the outer."""
    for name, _ in _walk(ledger, directory):
        ledger.store.remove(name)


_DEPTH = {RECEIPTS: 3, RUNS: 2}
"""Directories above a file, counted from the number: topic, partition, file; run, file."""


def _walk(ledger: Ledger, directory: str) -> Iterator[tuple[str, bool]]:
    """A directory and all below it, what is inside before what holds it; and whether it is a file."""

    def walk(name: str, left: int) -> Iterator[tuple[str, bool]]:
        if left:
            for inner in ledger.store.names(name):
                yield from walk(f"{name}/{inner}", left - 1)
        yield name, left == 0

    yield from walk(directory, _DEPTH[directory.partition("/")[0]])
