"""What the receipts of a load say of each partition, as one record that outlives them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyspark_kafkalog.loads.plan_record import key_fields
from pyspark_kafkalog.loads.receipts import Receipt
from pyspark_kafkalog.loads.records import Fields, seal, unseal
from pyspark_kafkalog.types import NO_BROKER, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What a load found in a partition; the fields are those of `Receipt`, of all its ranges together."""

    key: TopicPartition
    records: int
    bytes: int
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    lost: tuple[tuple[int, int], ...]


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
    lost: list[tuple[int, int]] = []
    for start, end in (one for r in found for one in r.lost):
        if lost and lost[-1][1] == start:
            start = lost.pop()[0]  # noqa: PLW2901
        lost.append((start, end))
    return PartitionSummary(
        key,
        sum(r.records for r in found),
        sum(r.bytes for r in found),
        min(offsets, default=None),
        max(offsets, default=None),
        min(times, default=None),
        max(times, default=None),
        tuple(lost),
    )


_FOUND = (
    "records", "bytes", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms", "lost",
)  # fmt: skip


def encode_summary(summary: Summary) -> bytes:
    """The sealed record of a summary."""
    return seal(
        "summary",
        {
            "plan": summary.plan,
            "plan_sha256": summary.plan_sha256,
            "partitions": [
                key_fields(p.key) | {name: getattr(p, name) for name in _FOUND} for p in summary.partitions
            ],
        },
        of_brokers=any(p.key.broker != NO_BROKER for p in summary.partitions),
    )


def decode_summary(data: bytes, where: str) -> Summary:
    """The summary in a record.

    Raises:
        DamagedRecord: it is torn or edited, or holds what no summary does.
    """
    fields = Fields(unseal("summary", data, where), where)
    found = Summary(
        fields.number("plan", 1),
        fields.text("plan_sha256"),
        tuple(_decode_partition(one) for one in fields.entries("partitions")),
    )
    keys = [p.key for p in found.partitions]
    if keys != sorted(set(keys)):
        raise fields.refuse("its partitions are not in order, or one is there twice")
    return found


def _decode_partition(fields: Fields) -> PartitionSummary:
    return PartitionSummary(
        TopicPartition(fields.text("topic"), fields.number("partition"), fields.broker()),
        records=fields.number("records"),
        bytes=fields.number("bytes"),
        first_offset=fields.optional_number("first_offset"),
        last_offset=fields.optional_number("last_offset"),
        first_timestamp_ms=fields.optional_number("first_timestamp_ms"),
        last_timestamp_ms=fields.optional_number("last_timestamp_ms"),
        lost=fields.pairs("lost"),
    )
