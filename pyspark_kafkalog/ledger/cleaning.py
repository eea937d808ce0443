"""Removes the receipts and marks of committed loads. Plans and commits stay.

A `Summary` replaces the receipts first, so that audits and ``verify`` still know each partition.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import NOT_COUNTED
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.receipts import Receipt, Summary, summarize
from pyspark_kafkalog.ledger.records import RECEIPTS, RUNS, encode, marks_name, receipts_name, summary_name
from pyspark_kafkalog.ledger.stores.store import side_by_side

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Receipts and marks of load ``number`` that nobody needs; ``kept`` says why they stay, or ""."""

    number: int
    receipts: int
    marks: int
    kept: str = ""


def clean(ledger: Ledger, keep: int = 1, *, dry_run: bool = False) -> list[Leftovers]:
    """Remove receipts and marks of all loads but the newest ``keep`` and the pending one.

    The caller holds the ledger's lock. Returns what was removed, oldest load first. Can be repeated after an
    interruption. With ``dry_run`` nothing is removed.
    """
    last = ledger.head_number() - keep
    receipts, marks = _counted(ledger, RECEIPTS), _counted(ledger, RUNS)
    numbers = sorted(number for number in receipts.keys() | marks.keys() if number <= last)

    def of_load(number: int) -> Leftovers:
        found = Leftovers(number, receipts[number], marks[number])
        return _clean_load(ledger, found, dry_run=dry_run)

    return side_by_side(ledger.store, of_load, numbers)


def _counted(ledger: Ledger, top: str) -> Counter[int]:
    directories = (file.name.split("/")[1] for file in ledger.store.files(top))
    return Counter(int(number) for number in directories if number.isdecimal())


def _clean_load(ledger: Ledger, found: Leftovers, *, dry_run: bool) -> Leftovers:
    number = found.number
    try:
        proved = _proved(ledger, number) if found.receipts else None
    except LoadError as e:
        logger.warning("the receipts of load %d are kept: %s", number, e)
        return Leftovers(number, found.receipts, found.marks, str(e))
    if not dry_run:
        if proved is not None:
            plan, receipts = proved
            summary = Summary(number, plan.sha256, summarize(receipts))
            ledger.store.create(summary_name(number), encode(summary))
        for top in (receipts_name(number), marks_name(number)):
            ledger.store.remove_directory(top)
    return found


def _proved(ledger: Ledger, number: int) -> tuple[Plan, list[Receipt]] | None:
    """A load's plan and receipts to summarize; None if there is a summary, or nothing was counted.

    Raises `LoadError` if they contradict the commit, and so are evidence, or some are missing.
    """
    commit = ledger.commit_at(number)
    if not commit.is_load or commit.records == NOT_COUNTED or ledger.summary(number) is not None:
        return None
    plan = ledger.plan(number)
    receipts = ledger.receipts(plan)
    count = sum(receipt.records for receipt in receipts)
    if count != commit.records:
        raise LoadError(f"they count {count} records, the commit {commit.records}")
    return plan, receipts
