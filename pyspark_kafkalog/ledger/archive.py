"""Reads a ledger: its plans, receipts and commits, which of them are in effect, and its hints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pyspark_kafkalog.errors import DamagedRecord, IncompleteLoad, LoadError, ReceiptMismatch
from pyspark_kafkalog.ledger.commit import COMPACT, FILE_FORMATS, Commit, LoadOutput
from pyspark_kafkalog.ledger.plan import Plan, PlannedRange, Position, unsorted
from pyspark_kafkalog.ledger.receipts import Receipt, Summary
from pyspark_kafkalog.ledger.records import (
    COMMITS,
    HEAD,
    LOAD,
    MIRROR,
    OF_BROKERS,
    REMOVALS,
    SEAL,
    START,
    LedgerRecord,
    at_least,
    commit_name,
    decode,
    mark_name,
    mirror_name,
    number_of,
    plan_name,
    receipt_name,
    summary_name,
)
from pyspark_kafkalog.ledger.stores.store import Store, at_once, side_by_side
from pyspark_kafkalog.types import PROTOCOL_08, TopicPartition

logger = logging.getLogger(__name__)

_NAMED_COUNT = 3

_AHEAD = 256
"""Commits read in parallel from a remote store, from the newest one back."""


@dataclass(frozen=True, slots=True)
class LoadRecord(LedgerRecord):
    """``load.json``: a ledger's first cluster and subscription. Its seal is the ledger's identity."""

    kind = "load"

    name: str
    created: str
    cluster_id: str
    options: Mapping[str, str]
    protocol: str = field(default=PROTOCOL_08, metadata=OF_BROKERS)
    sha256: str = field(default="", metadata=SEAL)


@dataclass(frozen=True, slots=True)
class StartRecord(LedgerRecord):
    """``start.json``: where the first load begins, if one before it found nothing to read."""

    kind = "start"

    created: str
    positions: tuple[Position, ...]
    sha256: str = field(default="", metadata=SEAL)

    def flaw(self) -> str | None:
        return unsorted(self.positions)


class Archive:
    """The records of one load. *Thread-safe.* Every method raises `DamagedRecord` if a record it needs is
    torn, edited or missing, `NewerFormat` if a newer release wrote it, and `LoadError` if the store fails.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.location = store.location

    def known(self) -> bool:
        return self.store.exists(LOAD)

    def identity(self) -> str:
        """The seal of ``load.json``, unique to this ledger; "" before it was begun."""
        return begun.sha256 if (begun := self.begun()) else ""

    def begun(self) -> LoadRecord | None:
        data = self.store.read(LOAD)
        return None if data is None else decode(LoadRecord, data, self.where(LOAD))

    def head(self) -> Commit | None:
        """The newest commit. ``HEAD.json`` keeps the cost independent of the number of commits."""
        hinted = read_hint(self.store.read(HEAD)).newest
        newest = later = None
        if hinted:
            newest, later = side_by_side(self.store, self.commit_of, (hinted, hinted + 1))
        if newest is None:
            numbers = self.numbers(COMMITS)
            newest = self.commit_at(numbers[-1]) if numbers else None
            later = self.commit_of(newest.number + 1 if newest else 1)
        while later is not None:
            newest, later = later, self.commit_of(later.number + 1)
        return newest

    def head_number(self) -> int:
        newest = self.head()
        return newest.number if newest else 0

    def stored(self, head: Commit | None) -> dict[TopicPartition, Position] | None:
        """The positions after ``head``, the newest commit; before the first load those of ``start.json``."""
        if head is not None and head.positions:
            return head.stored
        data = self.store.read(START)
        kept = None if data is None else decode(StartRecord, data, self.where(START)).positions
        return None if kept is None else {p.key: p for p in kept}

    def pending(self) -> Plan | None:
        return self.head_and_pending()[1]

    def head_and_pending(self) -> tuple[Commit | None, Plan | None]:
        """`head` and `pending`, in two round trips if ``HEAD.json`` is right."""
        hinted = read_hint(self.store.read(HEAD)).newest
        if hinted:
            names = commit_name(hinted), commit_name(hinted + 1), plan_name(hinted + 1)
            commit, later, plan = side_by_side(self.store, self.store.read, names)
            if commit is not None and later is None:
                return self._commit(hinted, commit), self._plan(hinted + 1, plan)
        newest = self.head()
        number = newest.number + 1 if newest else 1
        return newest, self._plan(number, self.store.read(plan_name(number)))

    def plan(self, number: int) -> Plan:
        plan = self._plan(number, self.store.read(plan_name(number)))
        if plan is None:
            raise DamagedRecord(f"{self.where(plan_name(number))} is missing. {_set_aside(number)}")
        return plan

    def _plan(self, number: int, data: bytes | None) -> Plan | None:
        if data is None:
            return None
        where = self.where(plan_name(number))
        try:
            plan = decode(Plan, data, where)
        except DamagedRecord as e:
            raise DamagedRecord(f"{e}. {_set_aside(number)}") from e
        if plan.number != number or plan.parent != number - 1:
            raise DamagedRecord(
                f"{where} is plan {plan.number} after commit {plan.parent}: a copy of another. "
                f"{_set_aside(number)}"
            )
        return plan

    def commit_of(self, number: int) -> Commit | None:
        return self._commit(number, self.store.read(commit_name(number)))

    def _commit(self, number: int, data: bytes | None) -> Commit | None:
        if data is None:
            return None
        where = self.where(commit_name(number))
        commit = decode(Commit, data, where)
        if commit.number != number:
            raise DamagedRecord(
                f"{where} is commit {commit.number}: a copy. Restore the file from a copy of it"
            )
        return commit

    def commit_at(self, number: int) -> Commit:
        return self._commit_there(number, self.store.read(commit_name(number)))

    def _commit_there(self, number: int, data: bytes | None) -> Commit:
        commit = self._commit(number, data)
        if commit is None:
            raise DamagedRecord(f"{self.where(commit_name(number))} is missing. Restore it from a copy")
        return commit

    def history(self) -> list[Commit]:
        """All commits, oldest first, including those that a rewind undid."""
        return side_by_side(self.store, self.commit_at, range(1, self.head_number() + 1))

    def lineage(self, newest: int | None = None) -> list[Commit]:
        """The commits in effect, oldest first; with ``newest``, as of that commit."""
        chain = []
        at = self.head() if newest is None else self.commit_at(newest)
        ahead: dict[int, bytes | None] = {}
        while at is not None:
            chain.append(at)
            if at.parent and at.parent not in ahead:  # mostly the commit before
                count = _AHEAD if self.store.concurrency > 1 else 1
                numbers = range(max(at.parent - count, 0) + 1, at.parent + 1)
                read = side_by_side(self.store, lambda n: self.store.read(commit_name(n)), numbers)
                ahead = dict(zip(numbers, read, strict=True))
            at = self._commit_there(at.parent, ahead[at.parent]) if at.parent else None
        return chain[::-1]

    def tables(self) -> list[str]:
        """The paths of the files that loads have written, sorted; from ``HEAD.json``, or from all commits."""
        hinted = read_hint(self.store.read(HEAD)).tables
        return list(hinted) if hinted is not None else _tables_of(self.history())

    def first_starts(self, newest: int) -> tuple[Position, ...]:
        """The positions at which the oldest load of commits 1 to ``newest`` began; empty without one."""
        for number in range(1, newest + 1):
            if self.commit_at(number).is_load:
                return tuple(self.plan(number).starts.values())
        return ()

    def receipt(self, plan: Plan, planned: PlannedRange) -> Receipt | None:
        """The receipt of a planned range, or None; `ReceiptMismatch` if it is of another plan or range."""
        name = receipt_name(plan.number, planned.key, planned.start, planned.end)
        data = self.store.read(name)
        if data is None:
            return None
        receipt = decode(Receipt, data, self.where(name))
        theirs = receipt.key, receipt.topic_id, receipt.start, receipt.end
        if (receipt.plan, receipt.plan_sha256) != (plan.number, plan.sha256) or theirs != (
            planned.key, planned.topic_id, planned.start, planned.end
        ):  # fmt: skip
            raise ReceiptMismatch(
                f"{self.where(name)} is not for this range of {self.where(plan_name(plan.number))}: delete "
                "the receipt and load again; the plan stays pending, and nothing is lost"
            )
        return receipt

    def each_receipt(self, plan: Plan) -> list[Receipt | None]:
        return side_by_side(self.store, lambda planned: self.receipt(plan, planned), plan.ranges)

    def receipts(self, plan: Plan, each: Sequence[Receipt | None] | None = None) -> list[Receipt]:
        """The receipts of a plan's ranges, in order. ``each``: the result of `each_receipt`, if known."""
        each = self.each_receipt(plan) if each is None else each
        missing = [planned for planned, receipt in zip(plan.ranges, each, strict=True) if receipt is None]
        if missing:
            raise self._incomplete(plan, missing, "have no receipt")
        return [receipt for receipt in each if receipt is not None]

    def summary(self, number: int) -> Summary | None:
        data = self.store.read(summary_name(number))
        if data is None:
            return None
        where = self.where(summary_name(number))
        summary = decode(Summary, data, where)
        if summary.plan != number or summary.plan_sha256 != self.plan(number).sha256:
            raise DamagedRecord(
                f"{where} is the summary of another plan. Delete it; audits then show less of this load"
            )
        return summary

    def first_unread(self, plan: Plan, run: str, after: int = 0) -> int | None:
        """Index of the first range that ``run`` has not marked as read, from ``after`` on, then from 0."""
        count = len(plan.ranges)
        indexes = ((after + step) % count for step in range(count))
        return next((i for i in indexes if not self.store.exists(mark_name(plan.number, run, i))), None)

    def check_read(self, plan: Plan, run: str, each: Sequence[Receipt | None] | None = None) -> None:
        """Check that ``run`` read all ranges, by receipts, and marks where another run left the receipt."""
        each = self.each_receipt(plan) if each is None else each
        others = [at for at, receipt in enumerate(each) if receipt is None or receipt.run != run]
        names = [mark_name(plan.number, run, index) for index in others]
        marked = side_by_side(self.store, self.store.exists, names)
        unread = [plan.ranges[at] for at, is_read in zip(others, marked, strict=True) if not is_read]
        if unread:
            raise self._incomplete(plan, unread, f"were not read in this run ({run})")

    def _incomplete(self, plan: Plan, missing: Sequence[PlannedRange], what: str) -> IncompleteLoad:
        named = ", ".join(f"{r.key} [{r.start}, {r.end})" for r in missing[:_NAMED_COUNT])
        return IncompleteLoad(
            f"load {plan.number} of {self.location} was not read to its end: {len(missing)} of "
            f"{len(plan.ranges)} ranges {what}, first {named}. The plan stays pending: load again, and it is "
            "replayed"
        )

    def numbers(self, directory: str) -> list[int]:
        return sorted(n for name in self.store.names(directory) if (n := number_of(name)) is not None)

    def where(self, name: str) -> str:
        return f"{self.location}/{name}"


def _set_aside(number: int) -> str:
    return (
        f"If there is no copy of it, and load {number} is not committed, `kafkalog rewind` to commit "
        f"{number - 1} sets the plan aside; the next load makes a new one from the same positions"
    )


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
    return _replaced(before, compaction)


def _replaced(outputs: Live, compaction: Commit) -> Live:
    return [
        (commit, out)
        for commit, out in outputs
        if any(_is_replaced(commit.number, out.path, new) for new in compaction.outputs)
    ]


def check_not_removed(archive: Archive, live: Live) -> None:
    for number in archive.numbers(REMOVALS):
        compaction = archive.commit_at(number)
        for commit, out in _replaced(live, compaction) if compaction.mode == COMPACT else ():
            raise LoadError(
                f"{out.path}: commit {number} compacted the files of load {commit.number}, and "
                f"`kafkalog gc` removed them: the oldest state left is that of commit {number}"
            )


def _is_replaced(number: int, path: str, new: LoadOutput) -> bool:
    return new.path == path and any(start <= number < end for start, end in new.replaces)


# ---- hints: they may be stale or missing

_PREFIX = "part-"
_NUMBER_MAX = (1 << 63) - 1


class Hint(NamedTuple):
    """``HEAD.json``: the newest commit's number, 0 if unknown, and the paths of files, None if unknown."""

    newest: int
    tables: tuple[str, ...] | None


def read_hint(data: bytes | None) -> Hint:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Hint(0, None)
    newest, tables = found.get("newest"), found.get("tables")
    if type(newest) is not int or not 0 < newest <= _NUMBER_MAX:  # a larger one is in no file's name
        newest = 0
    if not isinstance(tables, list) or not all(isinstance(path, str) for path in tables):
        return Hint(newest, None)
    return Hint(newest, tuple(tables))


def _tables_of(commits: Iterable[Commit]) -> list[str]:
    return sorted({out.path for commit in commits for out in commit.outputs if out.format in FILE_FORMATS})


def write_hints(archive: Archive, commit: Commit) -> None:
    """Write the hints after a commit. A failure is only logged: readers work without them."""
    try:
        newest: Commit | None = commit
        while newest is not None:
            newest = _write_hints(archive, newest)
    except LoadError as e:
        logger.warning("commit %d was made, but its hints could not be written: %s", commit.number, e)


def _write_hints(archive: Archive, commit: Commit) -> Commit | None:
    """Returns the next commit if another driver has made it: its hints may have been overwritten."""
    store = archive.store
    lines = {mirror_name(p.leader, p.topic, p.partition): mirror_line(p) for p in commit.positions}
    tables = sorted({*archive.tables(), *_tables_of([commit])})
    hint = json.dumps({"newest": commit.number, "tables": tables}, ensure_ascii=False)
    hints = {HEAD: hint.encode() + b"\n", **lines}
    later: Commit | None
    there, later, *_ = at_once(
        store,
        partial(store.names, MIRROR),
        partial(archive.commit_of, commit.number + 1),
        *(partial(store.replace, name, data) for name, data in hints.items()),
    )
    for name in there:  # of partitions whose leader changed
        if name.startswith(_PREFIX) and f"{MIRROR}/{name}" not in lines:
            store.remove(f"{MIRROR}/{name}")
    return later


def mirror_line(position: Position) -> bytes:
    """Broker, topic, partition and next offset, separated by tabs, as Kafka's Hadoop loaders write them."""
    return f"tcp://{position.address}\t{position.topic}\t{position.partition}\t{position.next}\n".encode()
