"""Short ways to plans, receipts and rows for the tests of loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.columnar.arrow_columns import BINARY, INT64, TIMESTAMP
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import (
    UNKNOWN,
    PartitionFacts,
    Plan,
    PlannedRange,
    Position,
    Range,
    make_plan,
)
from pyspark_kafkalog.ledger.receipts import Receipt, Tally
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
B1, B2 = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
"""Two partitions of 0.7: both are their broker's number 0."""

TOPIC_ID = "q2M8Zx5nQbCXh0uVdYt1Lw"

Row = tuple[int, int | None, bytes | None, bytes | None]
"""Offset, timestamp in microseconds, key, value."""


def facts(earliest: int, latest: int, *, topic_id: str = TOPIC_ID, leader: int = 1) -> PartitionFacts:
    return PartitionFacts(topic_id, leader, f"broker-{leader}:9092", 3, earliest, latest)


MORE = {P0: facts(0, 15), P1: facts(0, 4)}
"""What the partitions hold when a second load comes; see `begun` for the first."""


def position(key: TopicPartition, next_offset: int, *, topic_id: str = TOPIC_ID) -> Position:
    leader = 1 if key.broker == NO_BROKER else key.broker
    return Position(
        key.topic, key.partition, topic_id, next_offset, leader, f"broker-{leader}:9092", broker=key.broker
    )


def halves(ranges: Sequence[Range]) -> list[Range]:
    """Each range in two tasks, where it has two offsets."""
    parts = [
        part
        for key, start, end in ranges
        for part in ((key, start, (start + end) // 2), (key, (start + end) // 2, end))
    ]
    return [part for part in parts if part[1] < part[2]]


def plan_of(
    known: Mapping[TopicPartition, PartitionFacts], head: Commit | None = None, **changes: Any
) -> Plan:
    """The plan after a commit, of all that the log holds, in two tasks for each partition."""
    number = head.number if head else 0
    arguments: dict[str, Any] = {
        "number": number + 1,
        "parent": number,
        "created": "2026-11-21T18:00:00.123Z",
        "cluster_id": "cluster-a",
        "isolation_level": "read_uncommitted",
        "stored": head.stored if head else {},
        "facts": known,
        "first_starts": {key: one.earliest for key, one in known.items()},
        "ends": {key: one.latest for key, one in known.items()},
        "fail_on_data_loss": True,
        "on_topic_recreated": "fail",
        "split": halves,
    }
    return make_plan(**{**arguments, **changes})


def facts07(end: int, broker: int) -> PartitionFacts:
    return PartitionFacts("", broker, f"broker-{broker}:9092", UNKNOWN, 0, end)


def begun(
    ledger: Ledger, known: Mapping[TopicPartition, PartitionFacts] | None = None, **changes: Any
) -> Plan:
    """The next plan, written down; without ``known`` the first, of two partitions with 10 and 4 offsets."""
    return ledger.write_plan(plan_of(known or {P0: facts(0, 10), P1: facts(0, 4)}, ledger.head(), **changes))


def rows(planned: PlannedRange) -> list[Row]:
    """One row for each offset, which says what it is."""
    return [
        (at, at * 1000, None, f"{planned.topic}-{at}".encode()) for at in range(planned.start, planned.end)
    ]


def batch(some: Sequence[Row]) -> pa.RecordBatch:
    """Rows as Spark's source yields them, with the columns of a tally in another order and one more."""
    offsets, times, keys, values = zip(*some, strict=True) if some else ((), (), (), ())
    columns = {
        "value": pa.array(values, BINARY),
        "partition": pa.array([0] * len(some), pa.int32()),
        "offset": pa.array(offsets, INT64),
        "timestamp": pa.array(times, TIMESTAMP),
        "key": pa.array(keys, BINARY),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def read(
    plan: Plan,
    planned: PlannedRange,
    *,
    attempt: int = 0,
    content: Sequence[Row] | None = None,
    run: str = "",
) -> Receipt:
    """What a task that read a range to its end leaves."""
    tally = Tally()
    tally.add(batch(rows(planned) if content is None else content))
    return tally.receipt(plan, planned, attempt=attempt, host="executor-1", duration_ms=25, run=run)


def read_all(ledger: Ledger, plan: Plan, run: str = "") -> None:
    for index, planned in enumerate(plan.ranges):
        ledger.leave_receipt(read(plan, planned, run=run), index)


def loaded(
    ledger: Ledger,
    known: Mapping[TopicPartition, PartitionFacts] | None = None,
    run: str = "run",
    **changes: Any,
) -> Commit:
    """A whole load: planned, read and committed."""
    plan = begun(ledger, known, **changes)
    read_all(ledger, plan)
    return ledger.commit(plan, mode="job", run=run)
