"""What each load read from each partition, by plans, receipts and summaries; whether a ledger is sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark_kafkalog.errors import IncompleteLoad, LoadError
from pyspark_kafkalog.ledger.archive import Archive, read_hint
from pyspark_kafkalog.ledger.commit import COMPACT, NOT_COUNTED, Commit
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.receipts import RangeFacts, count_offsets, summarize
from pyspark_kafkalog.ledger.records import COMMITS, HEAD, LOAD, PLANS, plan_name, receipts_name
from pyspark_kafkalog.ledger.stores.store import side_by_side
from pyspark_kafkalog.types import NO_BROKER, TopicPartition


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Offsets ``[start, end)`` of a partition in load ``load``; times are ISO 8601 and milliseconds. Numbers
    are None without receipts: ``lost`` counts offsets deleted by retention, ``skipped`` corrupt ones,
    ``missing`` all others without a record. ``in_effect`` is False after a rewind.
    """

    load: int
    mode: str
    at: str
    in_effect: bool
    topic: str
    broker: int | None
    partition: int
    start: int
    end: int
    offsets: int
    records: int | None
    bytes: int | None
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    lost: int | None
    skipped: int | None
    missing: int | None


def audit_rows(archive: Archive) -> list[AuditRow]:
    """A row for each partition from which a committed load read, oldest load first."""
    in_effect = {commit.number for commit in archive.lineage()}
    loads = (commit for commit in archive.history() if commit.is_load)
    return [row for commit in loads for row in _rows(archive, commit, commit.number in in_effect)]


_COUNTS = (
    "records", "bytes", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms", "missing",
)  # fmt: skip


def _rows(archive: Archive, commit: Commit, in_effect: bool) -> list[AuditRow]:
    seen = facts_of(archive, commit)
    return [
        AuditRow(
            load=commit.number,
            mode=commit.mode,
            at=commit.created,
            in_effect=in_effect,
            topic=p.topic,
            broker=None if p.broker == NO_BROKER else p.broker,
            partition=p.partition,
            start=p.start,
            end=p.end,
            offsets=p.end - p.start,
            **{name: getattr(seen.get(p.key), name, None) for name in _COUNTS},
            lost=count_offsets(seen[p.key].lost) if p.key in seen else None,
            skipped=count_offsets(seen[p.key].skipped) if p.key in seen else None,
        )
        for p in archive.plan(commit.number).partitions
        if p.start != p.end
    ]


def facts_of(archive: Archive, commit: Commit) -> dict[TopicPartition, RangeFacts]:
    """What a load read from each partition; empty without receipts."""
    if commit.records == NOT_COUNTED:
        return {}
    summary = archive.summary(commit.number)
    if summary is not None:
        return {p.key: p for p in summary.partitions}
    try:
        return {p.key: p for p in summarize(archive.receipts(archive.plan(commit.number)))}
    except IncompleteLoad:
        return {}


def verify(archive: Archive) -> list[str]:
    """Problems in words; empty if there are none. All receipts of a committed load may be missing."""
    newest = max(archive.numbers(COMMITS), default=0)  # from the directory, not the hint
    numbers = range(1, newest + 1)
    commits: dict[int, Commit] = {}

    def findings(check: Callable[[_Check, int], None], number: int = 0) -> list[str]:
        one = _Check(archive, newest, commits, [])
        with one.noted():
            check(one, number)
        return one.findings

    def read(_: _Check, number: int) -> None:
        commits[number] = archive.commit_at(number)

    unreadable = side_by_side(archive.store, partial(findings, read), numbers)
    unsound = side_by_side(archive.store, partial(findings, _Check.commit), numbers)
    of_commits = [one for pair in zip(unreadable, unsound, strict=True) for some in pair for one in some]
    return [*findings(_Check.head), *of_commits, *findings(_Check.pending)]


@dataclass(slots=True)
class _Check:
    """One verification, with the readable ``commits`` up to the newest. *Not thread-safe.*"""

    archive: Archive
    newest: int
    commits: Mapping[int, Commit]
    findings: list[str]

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except LoadError as e:
            self._find(str(e))

    def head(self, _: int) -> None:
        with self.noted():
            if self.archive.begun() is None:
                self._find(f"{self.archive.where(LOAD)} is missing")
        with self.noted():
            self.archive.stored(None)
        hinted = read_hint(self.archive.store.read(HEAD)).newest
        if hinted > self.newest:
            self._find(f"{HEAD} names commit {hinted}, but the newest is {self.newest}: commits are lost")

    def commit(self, number: int) -> None:
        commit = self.commits.get(number)
        if commit is None:
            return  # reported already
        if commit.mode != "rewind" and commit.parent != number - 1:
            self._find(f"commit {number} ({commit.mode}) follows {commit.parent}, not {number - 1}")
        if commit.mode in ("discard", COMPACT):
            self._same_positions(commit)
        elif commit.mode == "rewind":
            self._rewind(commit)
        if commit.is_load or commit.mode == "discard":
            self._plan(commit)

    def pending(self, _: int) -> None:
        for number in self.archive.numbers(PLANS):
            if number > self.newest + 1:
                self._find(f"plan {number} has no commit {number - 1} before it; the newest is {self.newest}")
            elif number == self.newest + 1:
                with self.noted():
                    self._starts(self.archive.plan(number))

    def _rewind(self, commit: Commit) -> None:
        if commit.note:
            self._rewind_to_offsets(commit)
            return
        if commit.parent:
            self._same_positions(commit)
            return
        try:
            expected = self.archive.first_starts(commit.number - 1)
        except LoadError as e:
            self._find(f"commit {commit.number} goes back to before the first load: {e}")
            return
        if commit.positions != expected:
            self._find(
                f"commit {commit.number} (rewind) does not have the positions at which the first load began"
            )

    def _rewind_to_offsets(self, commit: Commit) -> None:
        """Its positions lie between those of its parent and those it went back from."""
        if not {commit.parent, commit.number - 1} - {0} <= self.commits.keys():
            return  # reported already
        least = self.commits[commit.parent].stored if commit.parent else {}
        most = self.commits[commit.number - 1].stored
        for p in commit.positions:
            low, high = least.get(p.key), most.get(p.key)
            if high is None or not (low.next if low else 0) <= p.next <= high.next:
                self._find(
                    f"commit {commit.number} (rewind) has {p.key} at {p.next}, which is not further back"
                )

    def _same_positions(self, commit: Commit) -> None:
        if commit.parent and commit.parent not in self.commits:
            return  # reported already
        if commit.positions != (self.commits[commit.parent].positions if commit.parent else ()):
            what = f"commit {commit.number} ({commit.mode})"
            self._find(f"{what} does not have the positions of commit {commit.parent}")

    def _plan(self, commit: Commit) -> None:
        plan = self.archive.plan(commit.number)
        if plan.sha256 != commit.plan_sha256:
            where = self.archive.where(plan_name(plan.number))
            self._find(f"commit {commit.number} was made from another plan than {where}")
            return
        self._starts(plan)
        if commit.is_load:
            if commit.positions != tuple(plan.positions.values()):
                self._find(f"commit {commit.number} does not have the positions at which its plan ends")
            self._receipts(commit, plan)

    def _starts(self, plan: Plan) -> None:
        """A load begins where its parent ended, or gives a reason."""
        if plan.parent and plan.parent not in self.commits:
            return  # reported already
        before = self.commits[plan.parent].stored if plan.parent else {}
        planned = {p.key: p for p in plan.partitions}
        for key in sorted(before.keys() - planned.keys()):
            self._find(f"plan {plan.number} lacks {key}, which has a position in commit {plan.parent}")
        for key in sorted(before.keys() & planned.keys()):
            start, end = planned[key].start, before[key].next
            explained = planned[key].reason and start == planned[key].earliest
            if start != end and not explained:
                self._find(f"plan {plan.number} begins {key} at {start}; commit {plan.parent} ended at {end}")

    def _receipts(self, commit: Commit, plan: Plan) -> None:
        if commit.records == NOT_COUNTED:
            return
        summary = self.archive.summary(plan.number)
        if summary is None and not self.archive.store.names(receipts_name(plan.number)):
            return
        found = summarize(self.archive.receipts(plan)) if summary is None else summary.partitions
        total = sum(p.records for p in found), sum(p.bytes for p in found)
        if total != (commit.records, commit.bytes):
            counts = f"{commit.records} records and {commit.bytes} bytes"
            self._find(f"commit {commit.number} counts {counts}, its receipts {total[0]} and {total[1]}")

    def _find(self, finding: str) -> None:
        self.findings.append(finding)
