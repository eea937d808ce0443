"""What may go of a committed load, and what is known of it afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.errors import DamagedRecord
from pyspark_kafkalog.ledger.audit import audit_rows
from pyspark_kafkalog.ledger.ledger import Ledger, clean
from pyspark_kafkalog.ledger.receipts import (
    RangeFacts,
    Summary,
    summarize,
)
from pyspark_kafkalog.ledger.records import decode, encode
from pyspark_kafkalog.types import TopicPartition
from tests.support.ledger.memory_store import Crash, MemoryStore, WatchedStore
from tests.support.ledger.plans import B1, B2, P0, P1, begun, facts, facts07, loaded, plan_of, read, read_all

Pairs = tuple[tuple[int, int], ...]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Three loads of two partitions, four ranges the first and two the others, with marks."""
    made = Ledger.at(tmp_path, "flights")
    made.identify("cluster-a", {"subscribe": "clicks"})
    for end in (10, 12, 14):
        loaded(made, {P0: facts(0, end), P1: facts(0, 4)})
        number = made.head_number()
        made.mark_read(number, 0, "run")
    return made


def files(ledger: Ledger, top: str) -> list[str]:
    root = Path(ledger.location, top)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_receipts_and_marks_of_all_but_the_newest_loads_go_with_their_directories(ledger: Ledger) -> None:
    assert [(one.number, one.receipts, one.marks) for one in clean(ledger, dry_run=True)] == [
        (1, 4, 1),
        (2, 2, 1),
    ]
    assert [one.number for one in clean(ledger, keep=2, dry_run=True)] == [1]
    assert len(files(ledger, "receipts/00000001")) == 7
    assert [one.number for one in clean(ledger)] == [1, 2]
    assert files(ledger, "receipts")[0] == "00000003"
    assert files(ledger, "runs") == ["00000003", "00000003/run", "00000003/run/0"]
    assert [len(files(ledger, top)) for top in ("plans", "commits", "summaries")] == [3, 3, 2]
    assert clean(ledger, dry_run=True) == []
    assert ledger.verify() == []


def test_an_audit_says_the_same_before_and_after(ledger: Ledger) -> None:
    before = audit_rows(ledger)
    assert [(row.load, row.partition, row.start, row.end, row.offsets, row.records) for row in before] == [
        (1, 0, 0, 10, 10, 10), (1, 1, 0, 4, 4, 4), (2, 0, 10, 12, 2, 2), (3, 0, 12, 14, 2, 2),
    ]  # fmt: skip
    first = before[0]
    assert (first.first_offset, first.last_offset, first.first_timestamp_ms, first.last_timestamp_ms) == (
        0, 9, 0, 9,
    )  # fmt: skip
    clean(ledger)
    assert audit_rows(ledger) == before


def test_an_audit_without_receipts_knows_the_offsets_only() -> None:
    ledger = Ledger(MemoryStore(), "flights")
    ledger.identify("cluster-a", {})
    ledger.commit(begun(ledger), mode="job", run="run", receipts=False)
    assert [(row.start, row.end, row.records, row.lost) for row in audit_rows(ledger)] == [
        (0, 10, None, None), (0, 4, None, None),
    ]  # fmt: skip


def test_an_audit_says_which_loads_were_rewound_over(ledger: Ledger) -> None:
    ledger.rewind(1, "run")
    assert [(row.load, row.in_effect) for row in audit_rows(ledger)] == [
        (1, True), (1, True), (2, False), (3, False),
    ]  # fmt: skip


def test_receipts_of_a_pending_plan_stay(ledger: Ledger) -> None:
    read_all(ledger, begun(ledger, {P0: facts(0, 20), P1: facts(0, 4)}))
    clean(ledger)
    assert {name[:8] for name in files(ledger, "receipts")} == {"00000003", "00000004"}


def test_receipts_of_a_discarded_plan_go_without_a_summary(ledger: Ledger) -> None:
    plan = begun(ledger, {P0: facts(0, 20), P1: facts(0, 4)})
    ledger.leave_receipt(read(plan, plan.ranges[0]), 0)
    ledger.discard(plan, "run")
    loaded(ledger, {P0: facts(0, 20), P1: facts(0, 4)})
    assert [one.number for one in clean(ledger)] == [1, 2, 3, 4]
    assert "00000004.json" not in files(ledger, "summaries")
    assert ledger.verify() == []


def test_receipts_that_do_not_tell_what_the_commit_does_stay(ledger: Ledger) -> None:
    missing = next(Path(ledger.location, "receipts", "00000001", "clicks", "0").iterdir())
    missing.unlink()
    (first, _) = clean(ledger)
    assert "1 of 4 ranges have no receipt" in first.kept
    assert len(files(ledger, "receipts/00000001")) == 6


def test_a_sweep_that_was_cut_off_is_ended_by_the_next() -> None:
    store = MemoryStore()
    whole = Ledger(store, "flights")
    whole.identify("cluster-a", {})
    for end in (10, 12):
        loaded(whole, {P0: facts(0, end), P1: facts(0, 4)})
    before, removed = audit_rows(whole), 0

    def stop(operation: str, name: str) -> None:
        nonlocal removed
        removed += operation == "remove"
        if removed == 2:
            raise Crash

    with pytest.raises(Crash):
        clean(Ledger(WatchedStore(store, before=stop), "flights"))
    assert audit_rows(whole) == before
    assert whole.verify() == []
    clean(whole)
    assert whole.store.names("receipts/00000001") == []
    assert audit_rows(whole) == before


def test_a_summary_of_another_plan_is_refused(ledger: Ledger) -> None:
    clean(ledger)
    summaries = Path(ledger.location, "summaries")
    (summaries / "00000002.json").write_bytes((summaries / "00000001.json").read_bytes())
    with pytest.raises(DamagedRecord, match=r"00000002\.json is the summary of another plan"):
        audit_rows(ledger)
    assert any("is the summary of another plan" in finding for finding in ledger.verify())


def test_a_summary_is_read_as_it_was_written() -> None:
    def summary_of(key: TopicPartition, count: int, *found: int | None, lost: Pairs = ()) -> RangeFacts:
        first, last, *times = found
        return RangeFacts(
            topic=key.topic, partition=key.partition, broker=key.broker, records=count, bytes=4 * count,
            first_offset=first, last_offset=last, lost=lost,
            first_timestamp_ms=times[0], last_timestamp_ms=times[1],
        )  # fmt: skip

    p = summary_of(P0, 3, 1, 9, None, 7, lost=((2, 4), (6, 7)))
    of_brokers = Summary(2, "seal", (summary_of(B1, 0, None, None, None, None),))
    for summary in (Summary(1, "seal", (p,)), of_brokers):
        assert decode(Summary, encode(summary), "") == summary
    with pytest.raises(DamagedRecord, match="not in order"):
        decode(Summary, encode(Summary(1, "seal", (p, p))), "")


def test_two_brokers_partitions_of_one_number_are_two_rows() -> None:
    plan = plan_of({B1: facts07(10, 1), B2: facts07(6, 2)})
    found = summarize([read(plan, planned) for planned in plan.ranges])
    assert [(p.key, p.records, p.first_offset, p.last_offset) for p in found] == [
        (B1, 10, 0, 9), (B2, 6, 0, 5),
    ]  # fmt: skip
