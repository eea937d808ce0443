"""A receipt: what a task found in its range, so that a second attempt can be compared with it."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.ledger.plan import key_fields
from pyspark_kafkalog.ledger.records import Fields, seal, unseal
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.ledger.plan import Plan, PlannedRange

TALLY_COLUMNS = ("offset", "timestamp", "key", "value")
"""The columns that a `Tally` looks at."""

LISTED_GAPS = 16
"""So many ranges of missing offsets are named; a log that was compacted may have millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in a range of offsets: ``bytes`` are those of keys and values, ``lost`` what retention deleted,
    ``skipped`` what was left out as corrupt, with ``onCorruptBatch=skip``.

    First and last are None where there was no record, or none with a timestamp. ``missing`` counts all other
    offsets without a record: compaction leaves such, and so do transactions. ``gaps`` are the first
    `LISTED_GAPS` ranges of them. It is None where that was not counted, or offsets count bytes.
    """

    records: int
    bytes: int
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    lost: tuple[tuple[int, int], ...]
    skipped: tuple[tuple[int, int], ...] = ()
    missing: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()


def count_offsets(ranges: Iterable[tuple[int, int]]) -> int:
    """How many offsets there are in ranges ``[start, end)``."""
    return sum(end - start for start, end in ranges)


def join_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same ranges, in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        touches = found and found[-1][1] == start
        found.append((found.pop()[0] if touches else start, end))
    return tuple(found)


def read_found(fields: Fields) -> dict[str, Any]:
    """The fields of a `Found` in a record."""
    return {
        "records": fields.number("records"),
        "bytes": fields.number("bytes"),
        "first_offset": fields.optional_number("first_offset"),
        "last_offset": fields.optional_number("last_offset"),
        "first_timestamp_ms": fields.optional_number("first_timestamp_ms"),
        "last_timestamp_ms": fields.optional_number("last_timestamp_ms"),
        "lost": fields.pairs("lost"),
        "skipped": fields.optional_pairs("skipped"),
        "missing": fields.optional_number("missing"),
        "gaps": fields.optional_pairs("gaps"),
    }


def found_fields(found: Found) -> dict[str, object]:
    """A `Found` as the fields of a record. What was added later is left out where there is nothing to say."""
    fields = {name: getattr(found, name) for name in _FOUND}
    added = {name: getattr(found, name) for name in ("skipped", "missing", "gaps")}
    return fields | {name: value for name, value in added.items() if value not in (None, ())}


_FOUND = (
    "records", "bytes", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms", "lost",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Found):
    """Proof that a task read offsets ``[start, end)`` to the end, and what it found there.

    ``next`` is where reading would go on. ``digest`` is three CRC-32s: of the offsets, of the keys' lengths
    and of the values' lengths.
    """

    plan: int
    plan_sha256: str
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    next: int
    digest: str
    attempt: int
    host: str
    duration_ms: int
    broker: int = NO_BROKER

    @property
    def key(self) -> TopicPartition:
        """Which partition it is of."""
        return TopicPartition(self.topic, self.partition, self.broker)


class Tally:
    """What a task has seen so far. *Not thread-safe: belongs to one task.*

    It works on whole columns; the result does not depend on how the rows are cut into batches.
    """

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
        """The offsets of which something is known: from the first to before the next."""
        self._gaps: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch that has `TALLY_COLUMNS`; it follows the one before in offsets."""
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
        """Note that offsets ``[start, end)`` were gone; it follows the range noted before."""
        self._reach(start, end)
        self._lost.append((start, end))

    def skip(self, start: int, end: int) -> None:
        """Note that offsets ``[start, end)`` were left out as corrupt; it follows the range noted before."""
        self._reach(start, end)
        self._skipped.append((start, end))

    def receipt(
        self, plan: Plan, planned: PlannedRange, *, attempt: int, host: str, duration_ms: int
    ) -> Receipt:
        """The receipt for a range that was read to its end."""
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
        """Go on from what is known to ``[start, end)``, perhaps over a gap."""
        if self._began is None:
            self._began = start
        elif start > self._next and len(self._gaps) < LISTED_GAPS:
            self._gaps.append((self._next, start))
        self._next = end

    def _add_lengths(self, column: pa.Array, crc: int) -> int:
        import pyarrow.compute as pc

        lengths = pc.binary_length(column)
        self._bytes += pc.sum(lengths).as_py() or 0
        if lengths.null_count:
            lengths = pc.coalesce(lengths, _minus_ones(len(lengths), lengths.type))
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
    """The gaps between offsets that rise, in order: halves without any are passed over at one glance."""
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
    """The values of a column without nulls, ``width`` bytes each, as they lie in memory (little-endian)."""
    return column.buffers()[1].slice(column.offset * width, len(column) * width)


def _minus_ones(count: int, kind: pa.DataType) -> pa.Array:
    """What `pyarrow.array` would make, which imports pandas for it (see ``columnar.arrays``)."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(array("i", [-1]) * count)], 0)


_COMPARED = (
    "plan", "plan_sha256", "topic", "partition", "broker", "topic_id", "start", "end", "next", "records",
    "bytes", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms", "digest", "lost",
    "skipped",
)  # fmt: skip
"""What is missing follows from the offsets, which the digest compares; older receipts do not say it."""


def disagreement(ours: Receipt, stored: Receipt) -> str | None:
    """In which facts two receipts differ, in words; None where they tell of the same records."""
    differ = [name for name in _COMPARED if getattr(ours, name) != getattr(stored, name)]
    return (
        "; ".join(f"{name}: {getattr(stored, name)} then, {getattr(ours, name)} now" for name in differ)
        or None
    )


def encode_receipt(receipt: Receipt) -> bytes:
    """The sealed record of a receipt."""
    fields: dict[str, object] = {"plan": receipt.plan, "plan_sha256": receipt.plan_sha256}
    fields |= key_fields(receipt.key)
    fields |= {name: getattr(receipt, name) for name in ("topic_id", "start", "end", "next")}
    # Where the digest stands among what was found is for people who know older receipts.
    found = found_fields(receipt)
    lost = found.pop("lost")
    added = {name: found.pop(name) for name in ("skipped", "missing", "gaps") if name in found}
    fields |= found | {"digest": receipt.digest, "lost": lost} | added
    fields |= {name: getattr(receipt, name) for name in ("attempt", "host", "duration_ms")}
    return seal("receipt", fields, of_brokers=receipt.broker != NO_BROKER)


def decode_receipt(data: bytes, where: str) -> Receipt:
    """The receipt in a record.

    Raises:
        DamagedRecord: it is torn or edited, or holds what no receipt does.
    """
    fields = Fields(unseal("receipt", data, where), where)
    receipt = Receipt(
        plan=fields.number("plan", 1),
        plan_sha256=fields.text("plan_sha256"),
        topic=fields.text("topic"),
        partition=fields.number("partition"),
        topic_id=fields.text("topic_id"),
        start=fields.number("start"),
        end=fields.number("end"),
        next=fields.number("next"),
        digest=fields.text("digest"),
        attempt=fields.number("attempt"),
        host=fields.text("host"),
        duration_ms=fields.number("duration_ms"),
        broker=fields.broker(),
        **read_found(fields),
    )
    if receipt.next != receipt.end or receipt.start >= receipt.end:
        raise fields.refuse(f"next {receipt.next} is not the end of [{receipt.start}, {receipt.end})")
    return receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary(Found):
    """What a load found in a partition, in all its ranges together."""

    key: TopicPartition


@dataclass(frozen=True, slots=True)
class Summary:
    """What a load found, by partition, in order; ``plan_sha256`` is the seal of the plan it read."""

    plan: int
    plan_sha256: str
    partitions: tuple[PartitionSummary, ...]


def summarize(receipts: Iterable[Receipt]) -> tuple[PartitionSummary, ...]:
    """Receipts in the order of their plan, put together by partition."""
    return tuple(_together(key, list(found)) for key, found in groupby(receipts, key=lambda r: r.key))


def _together(key: TopicPartition, found: Sequence[Receipt]) -> PartitionSummary:
    offsets = [at for r in found for at in (r.first_offset, r.last_offset) if at is not None]
    times = [at for r in found for at in (r.first_timestamp_ms, r.last_timestamp_ms) if at is not None]
    missing = [r.missing for r in found if r.missing is not None]
    return PartitionSummary(
        key=key,
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


def encode_summary(summary: Summary) -> bytes:
    """The sealed record of a summary."""
    return seal(
        "summary",
        {
            "plan": summary.plan,
            "plan_sha256": summary.plan_sha256,
            "partitions": [key_fields(p.key) | found_fields(p) for p in summary.partitions],
        },
        of_brokers=any(p.key.broker != NO_BROKER for p in summary.partitions),
    )


def decode_summary(data: bytes, where: str) -> Summary:
    """The summary in a record.

    Raises:
        DamagedRecord: it is torn or edited, or holds what no summary does.
    """
    record = Fields(unseal("summary", data, where), where)
    found = Summary(
        record.number("plan", 1),
        record.text("plan_sha256"),
        tuple(_decode_summed(one) for one in record.entries("partitions")),
    )
    keys = [p.key for p in found.partitions]
    if keys != sorted(set(keys)):
        raise record.refuse("its partitions are not in order, or one is there twice")
    return found


def _decode_summed(record: Fields) -> PartitionSummary:
    key = TopicPartition(record.text("topic"), record.number("partition"), record.broker())
    return PartitionSummary(key=key, **read_found(record))
