"""Receipts of what tasks read, to compare with a second attempt, and summaries. Only `Tally` uses Arrow."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.ledger.plan import OfPartition, Plan, PlannedRange, unsorted
from pyspark_kafkalog.ledger.records import OPTIONAL, LedgerRecord, at_least
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

TALLY_COLUMNS = ("offset", "timestamp", "key", "value")

LISTED_GAPS = 16
"""Limit of listed ranges of missing offsets; a compacted log may have millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFacts(OfPartition):
    """Counts, timestamps and offset bounds of a range, or of all a load's ranges of a partition. First and
    last are None without a record, or without a timestamp. ``missing`` counts offsets without a record that
    are neither ``lost`` nor ``skipped``, None if not counted; ``gaps`` are their first `LISTED_GAPS` ranges.
    """

    records: int
    bytes: int
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    lost: tuple[tuple[int, int], ...]
    skipped: tuple[tuple[int, int], ...] = field(default=(), metadata=OPTIONAL)
    missing: int | None = field(default=None, metadata=OPTIONAL)
    gaps: tuple[tuple[int, int], ...] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(RangeFacts):
    """Proof that a task read offsets ``[start, end)`` to the end. ``digest`` is three CRC-32s: of the
    offsets, of the keys' lengths and of the values' lengths. ``run`` is the run whose task wrote it, if the
    task had only to read the range; else "", and a mark says that the run finished.
    """

    kind = "receipt"
    json_order = (
        "plan plan_sha256 topic partition broker topic_id start end next records bytes first_offset "
        "last_offset first_timestamp_ms last_timestamp_ms digest"
    )

    plan: int = field(metadata=at_least(1))
    plan_sha256: str
    topic_id: str
    start: int
    end: int
    next: int
    digest: str
    attempt: int
    host: str
    duration_ms: int
    run: str = field(default="", metadata=OPTIONAL)

    def flaw(self) -> str | None:
        if self.next == self.end and self.start < self.end:
            return None
        return f"next {self.next} is not the end of [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Summary(LedgerRecord):
    """What a load read, by partition, in order; ``plan_sha256`` is the seal of its plan."""

    kind = "summary"

    plan: int = field(metadata=at_least(1))
    plan_sha256: str
    partitions: tuple[RangeFacts, ...]

    def flaw(self) -> str | None:
        return unsorted(self.partitions)


def summarize(receipts: Iterable[Receipt]) -> tuple[RangeFacts, ...]:
    return tuple(_together(key, list(found)) for key, found in groupby(receipts, key=lambda r: r.key))


def _together(key: TopicPartition, found: Sequence[Receipt]) -> RangeFacts:
    offsets = [at for r in found for at in (r.first_offset, r.last_offset) if at is not None]
    times = [at for r in found for at in (r.first_timestamp_ms, r.last_timestamp_ms) if at is not None]
    missing = [r.missing for r in found if r.missing is not None]
    return RangeFacts(
        topic=key.topic,
        partition=key.partition,
        broker=key.broker,
        records=sum(r.records for r in found),
        bytes=sum(r.bytes for r in found),
        first_offset=min(offsets, default=None),
        last_offset=max(offsets, default=None),
        first_timestamp_ms=min(times, default=None),
        last_timestamp_ms=max(times, default=None),
        lost=join_ranges(one for r in found for one in r.lost),
        skipped=join_ranges(one for r in found for one in r.skipped),
        missing=sum(missing) if len(missing) == len(found) else None,
        gaps=join_ranges(one for r in found for one in r.gaps)[:LISTED_GAPS],
    )


def count_offsets(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in ranges)


def join_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        touches = found and found[-1][1] == start
        found.append((found.pop()[0] if touches else start, end))
    return tuple(found)


class Tally:
    """Counts a task's rows, however they are cut into batches. *Not thread-safe: belongs to one task.*"""

    def __init__(self) -> None:
        self._records = 0
        self._bytes = 0
        self._offsets_crc = 0
        self._keys_crc = 0
        self._values_crc = 0
        self._first_offset: int | None = None
        self._last_offset: int | None = None
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._lost: list[tuple[int, int]] = []
        self._skipped: list[tuple[int, int]] = []
        self._began: int | None = None
        self._next = 0
        """Offsets from ``_began`` to before ``_next`` are covered."""
        self._gaps: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch with `TALLY_COLUMNS`; its offsets follow those counted before."""
        if batch.num_rows == 0:
            return
        offsets = batch.column("offset")
        self._records += batch.num_rows
        self._offsets_crc = zlib.crc32(_content(offsets, 8), self._offsets_crc)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if self._first_offset is None:
            self._first_offset = first
        self._last_offset = last
        self._reach(first, last + 1)
        if last - first >= batch.num_rows:
            room = LISTED_GAPS - len(self._gaps)
            self._gaps += islice(_gaps(memoryview(_content(offsets, 8)).cast("q")), max(0, room))
        self._keys_crc = self._add_lengths(batch.column("key"), self._keys_crc)
        self._values_crc = self._add_lengths(batch.column("value"), self._values_crc)
        self._add_times(batch.column("timestamp"))

    def lose(self, start: int, end: int) -> None:
        """Record that retention deleted offsets ``[start, end)``, the next ones."""
        self._reach(start, end)
        self._lost.append((start, end))

    def skip(self, start: int, end: int) -> None:
        """Record that offsets ``[start, end)``, the next ones, were omitted as corrupt."""
        self._reach(start, end)
        self._skipped.append((start, end))

    def receipt(
        self, plan: Plan, planned: PlannedRange, *, attempt: int, host: str, duration_ms: int, run: str = ""
    ) -> Receipt:
        return Receipt(
            plan=plan.number,
            plan_sha256=plan.sha256,
            topic=planned.topic,
            partition=planned.partition,
            topic_id=planned.topic_id,
            start=planned.start,
            end=planned.end,
            next=planned.end,
            records=self._records,
            bytes=self._bytes,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            first_timestamp_ms=None if self._first_us is None else self._first_us // 1000,
            last_timestamp_ms=None if self._last_us is None else self._last_us // 1000,
            digest=f"{self._offsets_crc:08x}-{self._keys_crc:08x}-{self._values_crc:08x}",
            lost=join_ranges(self._lost),
            skipped=join_ranges(self._skipped),
            **self._missing(planned),
            attempt=attempt,
            host=host,
            duration_ms=duration_ms,
            run=run,
            broker=planned.broker,
        )

    def _missing(self, planned: PlannedRange) -> dict[str, Any]:
        if planned.broker != NO_BROKER:
            return {}  # offsets count bytes there
        gone = count_offsets(self._lost) + count_offsets(self._skipped)
        began, after = (planned.end, planned.end) if self._began is None else (self._began, self._next)
        edges = [(planned.start, began), *self._gaps, (after, planned.end)]
        return {
            "missing": planned.end - planned.start - self._records - gone,
            "gaps": join_ranges(gap for gap in edges if gap[0] < gap[1])[:LISTED_GAPS],
        }

    def _reach(self, start: int, end: int) -> None:
        if self._began is None:
            self._began = start
        elif start > self._next and len(self._gaps) < LISTED_GAPS:
            self._gaps.append((self._next, start))
        self._next = end

    def _add_lengths(self, column: pa.Array, crc: int) -> int:
        import pyarrow.compute as pc

        from pyspark_kafkalog.columnar.arrow_columns import numbers

        lengths = pc.binary_length(column)
        self._bytes += pc.sum(lengths).as_py() or 0
        if lengths.null_count:
            minus_ones = numbers(lengths.type, array("i", [-1]) * len(lengths))
            lengths = pc.coalesce(lengths, minus_ones)
        return zlib.crc32(_content(lengths, 4), crc)

    def _add_times(self, column: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        span = pc.min_max(column.view(pa.int64()))  # microseconds
        first, last = span["min"].as_py(), span["max"].as_py()
        if first is None:
            return
        self._first_us = first if self._first_us is None else min(self._first_us, first)
        self._last_us = last if self._last_us is None else max(self._last_us, last)


def _gaps(offsets: memoryview) -> Iterator[tuple[int, int]]:
    """The gaps between rising offsets, in order, by bisection: a half without gaps costs one comparison."""
    left = [(0, len(offsets) - 1)]
    while left:
        first, last = left.pop()
        if offsets[last] - offsets[first] == last - first:
            continue
        if last - first == 1:
            yield offsets[first] + 1, offsets[last]
        else:
            middle = (first + last) // 2
            left += [(middle, last), (first, middle)]


def _content(column: pa.Array, width: int) -> pa.Buffer:
    return column.buffers()[1].slice(column.offset * width, len(column) * width)


_COMPARED = (
    "plan", "plan_sha256", "topic", "partition", "broker", "topic_id", "start", "end", "next", "records",
    "bytes", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms", "digest", "lost",
    "skipped",
)  # fmt: skip
"""Without ``missing``: the digest covers the offsets."""


def disagreement(ours: Receipt, stored: Receipt) -> str | None:
    """The fields in which two receipts differ, in words; None if they read the same records."""
    differ = [name for name in _COMPARED if getattr(ours, name) != getattr(stored, name)]
    return (
        "; ".join(f"{name}: {getattr(stored, name)} then, {getattr(ours, name)} now" for name in differ)
        or None
    )
