"""What the receipts of a load say of each partition, as one record that outlives them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyspark_kafkalog.loads.plan_record import key_fields
from pyspark_kafkalog.loads.receipts import (
    LISTED_GAPS,
    Found,
    Receipt,
    found_fields,
    join_ranges,
    read_found,
)
from pyspark_kafkalog.loads.records import Fields, seal, unseal
from pyspark_kafkalog.types import NO_BROKER, TopicPartition


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
        tuple(_decode_partition(one) for one in record.entries("partitions")),
    )
    keys = [p.key for p in found.partitions]
    if keys != sorted(set(keys)):
        raise record.refuse("its partitions are not in order, or one is there twice")
    return found


def _decode_partition(record: Fields) -> PartitionSummary:
    key = TopicPartition(record.text("topic"), record.number("partition"), record.broker())
    return PartitionSummary(key=key, **read_found(record))
