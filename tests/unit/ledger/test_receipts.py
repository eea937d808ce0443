from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from pyspark_kafkalog.errors import DamagedRecord
from pyspark_kafkalog.ledger.receipts import (
    LISTED_GAPS,
    Receipt,
    Tally,
    disagreement,
)
from pyspark_kafkalog.ledger.records import decode, encode
from tests.support.ledger.plans import P0, TOPIC_ID, Row, batch, facts, plan_of, read

ROWS: list[Row] = [
    (3, 5_999, b"key", b"four"),
    (4, None, None, b""),
    (7, 2_000, b"", None),
    (9, 3_001, None, b"\0" * 300),
]


def receipt(content: list[Row]) -> Receipt:
    plan = plan_of({P0: facts(0, 20)})
    return read(plan, plan.ranges[0], content=content)


def test_a_receipt_tells_what_the_task_saw() -> None:
    found = receipt(ROWS)
    assert (found.records, found.bytes) == (4, 307)
    assert (found.first_offset, found.last_offset) == (3, 9)
    assert (found.first_timestamp_ms, found.last_timestamp_ms) == (2, 5)
    assert (found.topic, found.partition, found.topic_id) == ("clicks", 0, TOPIC_ID)
    assert (found.start, found.end, found.next, found.lost) == (0, 10, 10, ())


def test_offsets_without_a_record_are_counted_and_named() -> None:
    found = receipt(ROWS)
    assert (found.missing, found.gaps) == (6, ((0, 3), (5, 7), (8, 9)))
    assert (receipt([]).missing, receipt([]).gaps) == (10, ((0, 10),))
    dense = receipt([(offset, None, None, b"") for offset in range(10)])
    assert (dense.missing, dense.gaps) == (0, ())


def test_what_was_lost_or_skipped_is_not_missing_as_well() -> None:
    plan = plan_of({P0: facts(0, 20)})
    tally = Tally()
    tally.lose(0, 2)
    tally.add(batch([(3, None, None, b"")]))
    tally.skip(4, 6)
    tally.skip(6, 7)
    tally.add(batch([(8, None, None, b"")]))
    found = tally.receipt(plan, plan.ranges[0], attempt=0, host="", duration_ms=0)
    assert (found.lost, found.skipped) == (((0, 2),), ((4, 7),))
    assert (found.missing, found.gaps) == (3, ((2, 3), (7, 8), (9, 10)))
    assert decode(Receipt, encode(found), "here") == found


def test_of_many_gaps_the_first_are_named() -> None:
    plan = plan_of({P0: facts(0, 200_000)})
    rows: list[Row] = [(offset, None, None, b"") for offset in range(0, 100_000, 2)]
    found = read(plan, plan.ranges[0], content=rows)
    assert (found.end, found.missing) == (100_000, 50_000)
    assert found.gaps == tuple((offset, offset + 1) for offset in range(1, 2 * LISTED_GAPS, 2))


def test_attempts_that_lost_or_skipped_other_offsets_disagree() -> None:
    one = receipt(ROWS)
    assert disagreement(replace(one, lost=((0, 3),)), one) == "lost: () then, ((0, 3),) now"
    assert disagreement(replace(one, skipped=((0, 3),)), one) == "skipped: () then, ((0, 3),) now"
    assert disagreement(replace(one, missing=None, gaps=()), one) is None, "the digest covers the offsets"


def test_lost_ranges_that_touch_are_one() -> None:
    tally = Tally()
    for start, end in [(2, 4), (4, 9), (11, 12)]:
        tally.lose(start, end)
    plan = plan_of({P0: facts(0, 20)})
    assert tally.receipt(plan, plan.ranges[0], attempt=0, host="", duration_ms=0).lost == ((2, 9), (11, 12))


def test_a_tally_counts_a_batch_of_64k_rows_without_looking_at_each() -> None:
    rows: list[Row] = [(at, at, b"k", b"value") for at in range(1 << 16)]
    one, calls = batch(rows), []
    tally = Tally()

    def trace(frame: object, event: str, what: object) -> None:
        calls.append(event)

    tally.add(batch(ROWS))  # imports
    sys.setprofile(trace)
    try:
        tally.add(one)
    finally:
        sys.setprofile(None)
    assert len(calls) < 500


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (ROWS[:-1], "records: 4 then, 3 now; bytes: 307 then, 7 now; last_offset: 9 then, 7 now"),
        ([*ROWS[:-1], (9, 3_001, None, b"\0" * 301)], "bytes: 307 then, 308 now; digest:"),
        ([ROWS[0], (5, None, None, b""), *ROWS[2:]], "digest:"),
        ([ROWS[0], (4, None, b"", b""), *ROWS[2:]], "digest:"),
    ],
)
def test_attempts_that_saw_other_records_disagree(content: list[Row], told: str) -> None:
    found = disagreement(receipt(content), receipt(ROWS))
    assert found is not None
    assert found.startswith(told)


def test_a_receipt_that_ends_elsewhere_is_damaged_though_it_is_sealed() -> None:
    with pytest.raises(DamagedRecord, match=r"here: next 8 is not the end of \[0, 10\)"):
        decode(Receipt, encode(replace(receipt(ROWS), next=8)), "here")
