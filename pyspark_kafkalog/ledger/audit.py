"""What each load read from each partition, according to plans, receipts and their summaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import IncompleteLoad
from pyspark_kafkalog.ledger.commit import NOT_COUNTED, Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.receipts import RangeFacts, count_offsets, summarize
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Offsets ``[start, end)`` of a partition in load ``load``; times are ISO 8601 and milliseconds.

    ``in_effect`` is False after a rewind. ``broker`` is set in 0.7 only, where partitions belong to brokers.
    Numbers from receipts are None if the load left none; ``lost`` counts offsets deleted by retention,
    ``skipped`` those omitted as corrupt, ``missing`` all others without a record.
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


def audit_rows(ledger: Ledger) -> list[AuditRow]:
    """A row for each partition from which a committed load read, oldest load first."""
    in_effect = {commit.number for commit in ledger.lineage()}
    return [
        row
        for commit in ledger.history()
        if commit.is_load
        for row in _rows(ledger, commit, commit.number in in_effect)
    ]


_COUNTS = (
    "records", "bytes", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms", "missing",
)  # fmt: skip


def _rows(ledger: Ledger, commit: Commit, in_effect: bool) -> list[AuditRow]:
    plan, found = ledger.plan(commit.number), _found(ledger, commit)
    rows = []
    for p in plan.partitions:
        if p.start == p.end:
            continue
        seen = found.get(p.key)
        rows.append(
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
                **{name: getattr(seen, name, None) for name in _COUNTS},
                lost=None if seen is None else count_offsets(seen.lost),
                skipped=None if seen is None else count_offsets(seen.skipped),
            )
        )
    return rows


def _found(ledger: Ledger, commit: Commit) -> dict[TopicPartition, RangeFacts]:
    if commit.records == NOT_COUNTED:
        return {}
    summary = ledger.summary(commit.number)
    if summary is not None:
        return {p.key: p for p in summary.partitions}
    try:
        return {p.key: p for p in summarize(ledger.receipts(ledger.plan(commit.number)))}
    except IncompleteLoad:
        return {}
