"""The ledger of a load: a plan, then receipts, then a commit, each a record that is created once."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock, utc_text
from pyspark_kafkalog.errors import (
    DamagedRecord,
    ForeignCluster,
    IncompleteLoad,
    InvalidConfig,
    LoadError,
    LostRace,
    ReceiptMismatch,
)
from pyspark_kafkalog.ledger.archive import (
    Archive,
    LoadRecord,
    StartRecord,
    check_not_removed,
    live_outputs,
    write_hints,
)
from pyspark_kafkalog.ledger.audit import verify
from pyspark_kafkalog.ledger.commit import COMPACT, LOAD_MODES, NOT_COUNTED, Commit, LoadOutput
from pyspark_kafkalog.ledger.plan import Plan, Position
from pyspark_kafkalog.ledger.receipts import Receipt, Summary, count_offsets, disagreement, summarize
from pyspark_kafkalog.ledger.records import (
    LOAD,
    LOCK,
    RECEIPTS,
    RUNS,
    START,
    commit_name,
    decode,
    encode,
    mark_name,
    marks_name,
    plan_name,
    receipt_name,
    receipts_name,
    summary_name,
)
from pyspark_kafkalog.ledger.rewind import Rewind, rewinding_to_commit
from pyspark_kafkalog.ledger.stores.locations import check_store, open_store
from pyspark_kafkalog.ledger.stores.store import CachingStore, Store, SubStore, at_once, side_by_side
from pyspark_kafkalog.types import PROTOCOL_07, PROTOCOL_08

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")

_SUBSCRIPTION = ("assign", "subscribe", "subscribepattern")
"""The options stored in ``load.json``; others may hold secrets."""


class Ledger(Archive):
    """One load's ledger. *Thread-safe: its only state is its location.*

    If drivers race for a step, one wins and the others get `LostRace`; any driver can repeat a step that a
    crash interrupted.
    """

    def __init__(self, store: Store, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """The ledger of load ``name`` in a store of ledgers; nothing is read or written yet."""
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidConfig(
                f"loadName is {name!r}; it must be 1 to 200 of the characters A-Z a-z 0-9 . _ - and not . "
                "or .."
            )
        super().__init__(SubStore(store, name))
        self.name = name
        self.offsets_path = store.location
        self._beside = store
        self._clock = clock

    @classmethod
    def at(cls, location: str | os.PathLike[str], name: str, *, remembers: bool = False) -> Ledger:
        """The ledger of load ``name`` below a path or URL; ``remembers`` caches a remote store's records."""
        store: Store = open_store(location)
        return cls(CachingStore(store) if remembers and store.concurrency > 1 else store, name)

    def identify(self, cluster_id: str, options: Mapping[str, str], *, protocol: str = PROTOCOL_08) -> None:
        """Begin the ledger, after testing the store, or check that it belongs to this cluster.

        ``cluster_id`` is "" if the brokers have none; of ``options`` the subscription is stored. ``protocol``
        is `PROTOCOL_07` if partitions belong to brokers and offsets are byte positions. Raises
        `ForeignCluster` if the ledger belongs to another cluster, or holds the other kind of offsets, and
        `UnsafeStore` if the store cannot keep a ledger.
        """
        subscription = {
            name.lower(): options[name] for name in sorted(options) if name.lower() in _SUBSCRIPTION
        }
        begun = self.begun()
        if begun is None:
            check_store(self.store)
            record = LoadRecord(self.name, self._now(), cluster_id, subscription, protocol)
            if self.store.create(LOAD, encode(record)):
                return
            begun = self.begun() or record
        if begun.protocol != protocol:
            raise ForeignCluster(
                f"{self.location} was begun with protocol={begun.protocol} and is now read with "
                f"protocol={protocol}, whose offsets mean something else. Use another loadName"
            )
        theirs = begun.cluster_id
        if theirs and cluster_id and theirs != cluster_id:
            where = "zookeeper.connect" if protocol == PROTOCOL_07 else "kafka.bootstrap.servers"
            raise ForeignCluster(
                f"{self.location} holds the offsets of cluster {theirs}, but the brokers are of "
                f"{cluster_id}: check {where}, or use another loadName for this cluster"
            )
        if begun.options != subscription:
            logger.warning(
                "%s was begun with %s and is now read with %s: new partitions begin at their "
                "earliest offset, omitted ones keep their position",
                self.location, begun.options, subscription,
            )  # fmt: skip

    def known_beside(self) -> list[str]:
        return [name for name in self._beside.names("") if self._beside.exists(f"{name}/{LOAD}")]

    def hold(self, what: str = "a load") -> AbstractContextManager[None]:
        """Lock the load until the context or process ends; others get `LoadBusy` with ``what`` and holder."""
        who = f"process {os.getpid()} on {socket.gethostname()} since {self._now()}"
        return self.store.hold(LOCK, f"{what}, {who}")

    def verify(self) -> list[str]:
        """Problems of the ledger, in words; empty if there are none. Reads every record, writes nothing."""
        return verify(self)

    def write_plan(self, plan: Plan) -> Plan:
        """Store the plan of the next load; returns it as read back, with its ``sha256``."""
        if plan.number != plan.parent + 1:
            raise ValueError(f"plan {plan.number} cannot follow commit {plan.parent}")
        self._needs_parent(plan)
        path, data = plan_name(plan.number), encode(plan)
        written = decode(Plan, data, self.where(path))
        created, committed = at_once(
            self.store,
            partial(self.store.create, path, data),
            partial(self.store.exists, commit_name(plan.number)),
        )
        if not created or committed:
            raise LostRace(
                f"another driver began load {plan.number} of {self.location} first, and its plan is in effect"
            )
        return written

    def keep_start(self, start: Iterable[Position]) -> None:
        """Store where the first load begins, which found nothing; another driver's stays if it was faster."""
        self.store.create(START, encode(StartRecord(self._now(), tuple(start))))

    def leave_receipt(self, receipt: Receipt, index: int) -> None:
        """Store the receipt of range ``index``, or compare it with an earlier attempt's, which stays.

        If that is of another run, a mark says that the receipt's run read the range as well. Raises
        `ReceiptMismatch` if the earlier attempt read other records.
        """
        path = receipt_name(receipt.plan, receipt.key, receipt.start, receipt.end)
        if self.store.create(path, encode(receipt)):
            return
        there = decode(Receipt, self.store.read(path) or b"", self.where(path))
        differ = disagreement(receipt, there)
        if differ is not None:
            raise ReceiptMismatch(
                f"{self.where(path)}: an earlier attempt read other records ({differ}). The log changed "
                "between the two, for example by compaction or retention. Check the topic; to take what "
                f"is there now, delete the directory {self.where(receipts_name(receipt.plan))} and load "
                "again"
            )
        if receipt.run not in ("", there.run):
            self.mark_read(receipt.plan, index, receipt.run)

    def mark_read(self, plan: int, index: int, run: str) -> None:
        """Record that ``run`` (part of a path) read range ``index``. A lost mark only prevents a commit."""
        self.store.replace(mark_name(plan, run, index), b"")

    def commit(
        self,
        plan: Plan,
        *,
        mode: str,
        run: str,
        outputs: Sequence[LoadOutput] = (),
        receipts: bool = True,
        read_by_run: bool = False,
        note: str = "",
    ) -> Commit:
        """Publish a load. A second call with the same ``run`` returns the same commit.

        Without ``receipts`` nothing proves that everything was read; the commit counts the rows of the
        outputs, or has `NOT_COUNTED` without outputs. With ``read_by_run`` receipts of other runs are not
        enough: see `check_read`. Raises `LostRace` if another run committed the load, `IncompleteLoad` if
        ranges have no receipt or were not read by the run, and `DamagedRecord` if the plan was replaced.
        """
        if mode not in LOAD_MODES:
            raise ValueError(f"mode {mode!r} publishes no plan; {', '.join(LOAD_MODES)} do")
        self._needs_parent(plan)
        each_receipt = partial(self.each_receipt, plan) if receipts else list
        stored, each = at_once(self.store, partial(self.plan, plan.number), each_receipt)
        try:
            if read_by_run:
                self.check_read(plan, run, each)
            found = self.receipts(plan, each) if receipts else []
        except IncompleteLoad:
            made = self.commit_of(plan.number)  # then `gc` may have removed the receipts
            if made is None:
                raise
            return self._same(made, mode, run)
        if stored.sha256 != plan.sha256:
            raise DamagedRecord(
                f"{self.where(plan_name(plan.number))} is not the plan that was read: it was replaced "
                "since. Nothing was committed; load again to replay the stored plan"
            )
        records = size = NOT_COUNTED
        if receipts:
            records, size = sum(r.records for r in found), sum(r.bytes for r in found)
        elif outputs:
            records = sum(file.rows for one in outputs for file in one.files)
        missing = [r.missing for r in found if r.missing is not None]
        return self._publish(
            plan.number, plan.parent, mode, run, tuple(plan.positions.values()),
            plan_sha256=plan.sha256, records=records, bytes=size, outputs=tuple(outputs), note=note,
            skipped=sum(count_offsets(r.skipped) for r in found),
            missing=sum(missing) if receipts and len(missing) == len(found) else None,
        )  # fmt: skip

    def discard(self, plan: Plan, run: str) -> Commit:
        """Abandon a pending plan, by a commit of its number that keeps the positions."""
        self._needs_parent(plan)
        parent = self.commit_of(plan.parent) if plan.parent else None
        positions = parent.positions if parent else ()
        return self._publish(plan.number, plan.parent, "discard", run, positions, plan_sha256=plan.sha256)

    def rewind(self, target: int, run: str) -> Commit:
        """Return to the end of commit ``target`` (0: before the first) by a new commit; see `rewind_to`."""
        return self.rewind_to(rewinding_to_commit(self, target), run)

    def rewind_to(self, found: Rewind, run: str, note: str = "") -> Commit:
        """Return to the positions of a `Rewind`, by a new commit.

        Nothing is removed; a pending plan, even an unreadable one, is superseded. ``note`` says what was
        asked for; positions within a load need one. Raises `LoadError` if `gc` removed files that would be in
        effect again, and `LostRace` if another driver committed meanwhile.
        """
        live = live_outputs(self.lineage(found.parent)) if found.parent else []
        check_not_removed(self, live)
        commit = self._publish(found.newest + 1, found.parent, "rewind", run, found.positions, note=note)
        try:
            # Again: `gc` may have recorded a removal meanwhile and missed this commit.
            check_not_removed(self, live)
        except LoadError:
            before, why = self.commit_at(found.newest), "the rewind came too late"
            self._publish(commit.number + 1, before.number, "rewind", run, before.positions, note=why)
            raise
        return commit

    def compact(self, head: Commit, outputs: Sequence[LoadOutput], run: str) -> Commit:
        """Publish files that replace those of earlier commits, by a commit after ``head``, the newest one.

        Raises `LostRace` if another driver committed meanwhile, `LoadError` if a plan is pending.
        """
        if self.store.exists(plan_name(head.number + 1)):
            raise LoadError(f"load {head.number + 1} of {self.location} is pending: load first, then compact")
        number, replacing = head.number + 1, tuple(outputs)
        return self._publish(number, head.number, COMPACT, run, head.positions, outputs=replacing)

    def _publish(
        self, number: int, parent: int, mode: str, run: str, positions: tuple[Position, ...], **facts: Any
    ) -> Commit:
        """Create commit ``number`` with these ``facts``, by default without a plan and without records."""
        facts = {"plan_sha256": None, "records": 0, "bytes": 0, **facts}
        commit = Commit(
            number=number,
            parent=parent,
            created=self._now(),
            mode=mode,
            run=run,
            positions=positions,
            **facts,
        )
        name, data = commit_name(number), encode(commit)
        published = decode(Commit, data, self.where(name))  # never store a record that cannot be read
        if not self.store.create(name, data):
            return self._same(self.commit_at(number), mode, run)
        write_hints(self, commit)
        return published

    def _same(self, made: Commit, mode: str, run: str) -> Commit:
        if (made.mode, made.run) != (mode, run):
            raise LostRace(
                f"another driver made commit {made.number} of {self.location} ({made.mode}, {made.created}) "
                "while this one ran: discard this output, and load again for what came since"
            )
        return made

    def _needs_parent(self, plan: Plan) -> None:
        if plan.parent and not self.store.exists(commit_name(plan.parent)):
            raise DamagedRecord(
                f"{self.where(commit_name(plan.parent))} is missing, and plan {plan.number} follows it: "
                "restore it from a copy"
            )

    def _now(self) -> str:
        return utc_text(self._clock.time_ms())


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Receipts and marks of load ``number`` that nobody needs; ``kept`` says why they stay, or ""."""

    number: int
    receipts: int
    marks: int
    kept: str = ""


def clean(ledger: Ledger, keep: int = 1, *, dry_run: bool = False) -> list[Leftovers]:
    """Remove receipts and marks of all loads but the newest ``keep`` and the pending one; first a `Summary`
    replaces the receipts. Returns what was removed. The caller holds the ledger's lock; may be repeated.
    """
    last = ledger.head_number() - keep
    receipts, marks = _counted(ledger, RECEIPTS), _counted(ledger, RUNS)
    numbers = sorted(number for number in receipts.keys() | marks.keys() if number <= last)

    def of_load(number: int) -> Leftovers:
        leftovers = Leftovers(number, receipts[number], marks[number])
        return _clean_load(ledger, leftovers, dry_run=dry_run)

    return side_by_side(ledger.store, of_load, numbers)


def _counted(ledger: Ledger, top: str) -> Counter[int]:
    directories = (file.name.split("/")[1] for file in ledger.store.files(top))
    return Counter(int(number) for number in directories if number.isdecimal())


def _clean_load(ledger: Ledger, leftovers: Leftovers, *, dry_run: bool) -> Leftovers:
    number = leftovers.number
    try:
        summary = _summary(ledger, number) if leftovers.receipts else None
    except LoadError as e:
        logger.warning("the receipts of load %d are kept: %s", number, e)
        return replace(leftovers, kept=str(e))
    if not dry_run:
        if summary is not None:
            ledger.store.create(summary_name(number), encode(summary))
        for top in (receipts_name(number), marks_name(number)):
            ledger.store.remove_directory(top)
    return leftovers


def _summary(ledger: Ledger, number: int) -> Summary | None:
    """The summary that a load's receipts lack, if any; `LoadError` if they contradict the commit."""
    commit = ledger.commit_at(number)
    if not commit.is_load or commit.records == NOT_COUNTED or ledger.summary(number) is not None:
        return None
    plan = ledger.plan(number)
    receipts = ledger.receipts(plan)
    count = sum(receipt.records for receipt in receipts)
    if count != commit.records:
        raise LoadError(f"they count {count} records, the commit {commit.records}")
    return Summary(number, plan.sha256, summarize(receipts))
