from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import (
    DamagedRecord,
    IncompleteLoad,
    LoadBusy,
    LoadError,
    LostRace,
    ReceiptMismatch,
)
from pyspark_kafkalog.ledger.commit import NOT_COUNTED, Commit, LoadOutput, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger, clean
from pyspark_kafkalog.ledger.records import encode
from pyspark_kafkalog.ledger.rewind import Rewind
from pyspark_kafkalog.types import TopicPartition
from tests.support.counted_calls import counted
from tests.support.ledger.memory_store import MemoryStore, counting
from tests.support.ledger.plans import (
    MORE,
    P0,
    P1,
    begun,
    facts,
    loaded,
    plan_of,
    position,
    read,
    read_all,
    rows,
)

OUTPUT = LoadOutput("/data/flights", "load=00000001", (OutputFile("part-0.parquet", 1234, 10),))


# ---- the usual way


def test_a_load_is_planned_read_and_committed(ledger: Ledger) -> None:
    assert (ledger.head(), ledger.pending()) == (None, None)
    plan = begun(ledger)
    assert ledger.pending() == plan == ledger.plan(1)
    read_all(ledger, plan)
    commit = ledger.commit(plan, mode="dir", run="run-1", outputs=[OUTPUT], note="by hand")
    assert commit == replace(
        Commit(
            number=1, parent=0, plan_sha256=plan.sha256, created="2023-11-14T22:13:20.000Z", mode="dir",
            run="run-1", positions=(position(P0, 10), position(P1, 4)), records=14, bytes=14 *
            len("clicks-0"), outputs=(OUTPUT,), note="by hand", missing=0,
        ),
        sha256=commit.sha256,
    )  # fmt: skip
    assert ledger.head() == commit == ledger.commit_of(1)
    assert ledger.pending() is None
    assert ledger.verify() == []


def test_a_ledger_is_known_once_it_was_begun(store: MemoryStore) -> None:
    ledger = Ledger(store, "flights")
    assert (ledger.known(), ledger.identity()) == (False, "")
    ledger.identify("cluster-a", {"subscribe": "clicks", "kafka.sasl.jaas.config": "secret"})
    record = json.loads(store.records["flights/load.json"])
    assert ledger.known()
    assert ledger.identity() == record["sha256"]
    assert record["options"] == {"subscribe": "clicks"}
    assert sorted(store.records) == ["flights/load.json"]


def test_hints_follow_the_commit_and_those_of_former_leaders_go(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    loaded(ledger, {P0: facts(0, 15, leader=2), P1: facts(0, 4)})
    hints = {name: data for name, data in store.records.items() if "/offsets/" in name}
    assert hints == {
        "flights/offsets/part-2-clicks-0": b"tcp://broker-2:9092\tclicks\t0\t15\n",
        "flights/offsets/part-1-clicks-1": b"tcp://broker-1:9092\tclicks\t1\t4\n",
    }
    assert store.records["flights/HEAD.json"] == b'{"newest": 2, "tables": []}\n'
    plan = begun(ledger, {P0: facts(0, 20, leader=2), P1: facts(0, 4)})
    ledger.commit(plan, mode="dir", run="run", outputs=[OUTPUT], receipts=False)
    ledger.rewind(2, "run")
    assert store.records["flights/HEAD.json"] == b'{"newest": 4, "tables": ["/data/flights"]}\n'
    del store.records["flights/HEAD.json"]
    assert ledger.tables() == ["/data/flights"]


@pytest.mark.parametrize(
    "hint", [None, b"", b"\0\0", b"[]", b'{"newest": "2"}', b'{"newest": 1}', b'{"newest": 9}']
)
def test_the_newest_commit_is_found_whatever_the_hint_says(
    ledger: Ledger, store: MemoryStore, hint: bytes | None
) -> None:
    loaded(ledger)
    commit = loaded(ledger, MORE)
    del store.records["flights/HEAD.json"]
    if hint is not None:
        store.records["flights/HEAD.json"] = hint
    assert ledger.head() == commit


def test_a_hint_too_long_for_a_file_name_is_left_out(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path, "flights")
    commit = loaded(ledger)
    (tmp_path / "flights" / "HEAD.json").write_bytes(b'{"newest": %d}' % 10**300)
    assert ledger.head() == commit


def test_hints_that_cannot_be_written_do_not_fail_the_load(
    ledger: Ledger, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(name: str, data: bytes) -> None:
        raise LoadError("cannot write HEAD.json: No space left on device")

    monkeypatch.setattr(store, "replace", full)
    commit = loaded(ledger)
    assert ledger.head() == commit
    assert "commit 1 was made, but its hints could not be written: cannot write HEAD.json" in caplog.text


def test_without_receipts_the_commit_counts_the_rows_of_its_outputs_or_nothing(ledger: Ledger) -> None:
    plan = begun(ledger)
    commit = ledger.commit(plan, mode="dir", run="r", receipts=False, outputs=[OUTPUT])
    assert (commit.records, commit.bytes) == (10, NOT_COUNTED)
    commit = ledger.commit(begun(ledger, MORE), mode="job", run="r", receipts=False)
    assert (commit.records, commit.bytes) == (NOT_COUNTED, NOT_COUNTED)
    assert ledger.verify() == []


def test_a_run_has_marks_of_its_own(ledger: Ledger) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    assert ledger.first_unread(plan, "run-2", 3) == 3
    for index in (3, 0, 1):
        ledger.mark_read(plan.number, index, "run-2")
    assert ledger.first_unread(plan, "run-2", 3) == 2
    ledger.mark_read(plan.number, 2, "run-2")
    assert ledger.first_unread(plan, "run-2", 3) is None
    assert ledger.first_unread(plan, "run-1") == 0
    ledger.commit(plan, mode="stage", run="run-2")
    assert ledger.verify() == []


def test_a_run_has_read_what_its_receipts_or_its_marks_say(ledger: Ledger) -> None:
    plan = begun(ledger)
    with pytest.raises(IncompleteLoad, match=r"4 of 4 ranges were not read in this run \(run-1\)"):
        ledger.check_read(plan, "run-1")
    for index in (0, 1):  # of a run that died
        ledger.leave_receipt(read(plan, plan.ranges[index], run="run-1"), index)
    for index in (1, 2, 3):
        ledger.leave_receipt(read(plan, plan.ranges[index], run="run-2"), index)
    assert ledger.store.names("runs/00000001/run-2") == ["1"], "the receipts of the others name the run"
    with pytest.raises(IncompleteLoad, match=r"1 of 4 ranges were not read in this run .*clicks-0 \[0, 5\)"):
        ledger.check_read(plan, "run-2")
    ledger.leave_receipt(read(plan, plan.ranges[0], run="run-2"), 0)
    ledger.check_read(plan, "run-2")


def test_a_receipt_without_a_run_proves_nothing_of_a_run(ledger: Ledger) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    with pytest.raises(IncompleteLoad, match="4 of 4 ranges were not read in this run"):
        ledger.check_read(plan, "run-1")
    for index in range(4):
        ledger.mark_read(plan.number, index, "run-1")
    ledger.check_read(plan, "run-1")


def test_a_commit_is_found_when_gc_has_removed_its_receipts(ledger: Ledger) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    commit = ledger.commit(plan, mode="job", run="run-1")
    loaded(ledger, MORE)
    clean(ledger)
    assert ledger.commit(plan, mode="job", run="run-1") == commit
    with pytest.raises(LostRace):
        ledger.commit(plan, mode="job", run="run-2")


def test_an_unreadable_commit_is_not_stored(ledger: Ledger) -> None:
    loaded(ledger)
    with pytest.raises(DamagedRecord, match=r"commits/00000002.json.*'next' is -2, expected a whole number"):
        ledger.rewind_to(Rewind(1, 0, (position(P0, -2),), (), True), "run")
    assert [commit.number for commit in ledger.history()] == [1]


# ---- races and second attempts


def test_the_second_driver_to_plan_gets_an_error(ledger: Ledger) -> None:
    plan = begun(ledger)
    with pytest.raises(
        LostRace, match=r"another driver began load 1 of memory/flights first, and its plan is in effect"
    ):
        ledger.write_plan(replace(plan, created="later"))
    assert ledger.pending() == plan


def test_a_plan_that_comes_after_the_commit_of_its_number_is_refused(ledger: Ledger) -> None:
    loaded(ledger)
    late = plan_of(MORE, ledger.head())
    ledger.rewind(0, "rewind")
    with pytest.raises(LostRace):
        ledger.write_plan(late)


def test_a_run_that_commits_again_gets_its_own_commit_and_another_run_an_error(ledger: Ledger) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    commit = ledger.commit(plan, mode="stage", run="run-1")
    assert ledger.commit(plan, mode="stage", run="run-1") == commit
    with pytest.raises(LostRace, match=r"another driver made commit 1 .*discard this output, and load again"):
        ledger.commit(plan, mode="stage", run="run-2")
    with pytest.raises(LostRace):
        ledger.discard(plan, "run-2")


def test_a_second_attempt_at_a_range_keeps_the_first_receipt(ledger: Ledger) -> None:
    plan = begun(ledger)
    first = read(plan, plan.ranges[0])
    ledger.leave_receipt(first, 0)
    ledger.leave_receipt(replace(first, attempt=1, host="executor-2", duration_ms=1), 0)
    assert ledger.receipt(plan, plan.ranges[0]) == first


def test_a_second_attempt_that_saw_other_records_is_an_error(ledger: Ledger) -> None:
    plan = begun(ledger)
    planned = plan.ranges[0]
    ledger.leave_receipt(read(plan, planned), 0)
    told = r"0-5.json: an earlier attempt read other records \(records: 5 then, 4 now; .*delete the directory"
    with pytest.raises(ReceiptMismatch, match=told):
        ledger.leave_receipt(read(plan, planned, attempt=1, content=rows(planned)[:-1]), 0)
    assert ledger.receipt(plan, planned) == read(plan, planned)


def test_one_driver_holds_a_load(tmp_path: Path) -> None:
    with (
        Ledger.at(tmp_path, "flights").hold("driver 1"),
        pytest.raises(LoadBusy, match=r"flights/.lock is held by driver 1"),
        Ledger.at(tmp_path, "flights").hold("driver 2"),
    ):
        pass


# ---- discard, rewind


def test_a_discarded_plan_leaves_the_positions_and_takes_a_number(ledger: Ledger) -> None:
    loaded(ledger)
    plan = begun(ledger, MORE)
    discarded = ledger.discard(plan, "run")
    assert (discarded.number, discarded.mode, discarded.parent) == (2, "discard", 1)
    assert discarded.positions == (position(P0, 10), position(P1, 4))
    assert begun(ledger, MORE).number == 3
    with pytest.raises(LostRace):
        ledger.commit(plan, mode="job", run="late")
    assert ledger.verify() == []


def test_after_the_first_plan_is_discarded_the_first_load_starts_over(ledger: Ledger) -> None:
    assert ledger.discard(begun(ledger), "run").positions == ()
    plan = plan_of(MORE, ledger.head(), first_starts={P0: 6, P1: 0})
    assert plan.partitions[0].start == 6


def test_a_rewind_is_a_new_commit_and_the_lineage_leaves_out_what_was_gone_over(ledger: Ledger) -> None:
    loaded(ledger)
    loaded(ledger, MORE)
    rewound = ledger.rewind(1, "rewind")
    assert (rewound.number, rewound.parent, rewound.plan_sha256) == (3, 1, None)
    assert rewound.positions == (position(P0, 10), position(P1, 4))
    again = loaded(ledger, MORE)
    assert again.positions[0] == position(P0, 15)
    assert [commit.number for commit in ledger.lineage()] == [1, 3, 4]
    assert [commit.number for commit in ledger.history()] == [1, 2, 3, 4]
    assert ledger.verify() == []


def test_a_rewind_to_zero_goes_to_where_the_first_load_began(ledger: Ledger) -> None:
    loaded(ledger, first_starts={P0: 7, P1: 0})
    assert ledger.rewind(0, "rewind").positions == (position(P0, 7), position(P1, 0))
    assert [commit.number for commit in ledger.lineage()] == [2]
    assert ledger.verify() == []


def test_a_rewind_sets_a_plan_aside_that_can_no_longer_be_read(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    begun(ledger, MORE)
    store.records["flights/plans/00000002.json"] = b"{"
    told = r"plans/00000002.json is torn .*`kafkalog rewind` to commit 1 sets the plan aside"
    with pytest.raises(DamagedRecord, match=told):
        ledger.pending()
    ledger.rewind(1, "rewind")
    assert ledger.pending() is None
    assert loaded(ledger, MORE).number == 3
    assert ledger.verify() == []


def test_a_first_plan_that_cannot_be_read_is_set_aside_too(ledger: Ledger, store: MemoryStore) -> None:
    begun(ledger)
    store.records["flights/plans/00000001.json"] = b""
    assert ledger.rewind(0, "rewind").positions == ()
    assert loaded(ledger).number == 2


@pytest.mark.parametrize("target", [-1, 2])
def test_a_rewind_to_a_commit_that_is_not_there_is_refused(ledger: Ledger, target: int) -> None:
    loaded(ledger)
    with pytest.raises(LoadError, match=rf"has no commit {target}; a rewind goes to one of 0 to 1"):
        ledger.rewind(target, "rewind")


# ---- how much it costs


def with_commits(count: int) -> MemoryStore:
    store = MemoryStore()
    ledger = Ledger(store, "flights")
    ledger.identify("cluster-a", {})
    commit = loaded(ledger)
    for number in range(2, count + 1):
        next_one = replace(commit, number=number, parent=number - 1)
        store.records[f"flights/commits/{number:08d}.json"] = encode(next_one)
    store.records["flights/HEAD.json"] = b'{"newest": %d, "tables": []}\n' % count
    return store


@pytest.mark.long("thousands of ledger operations")
def test_ten_thousand_commits_plan_and_commit_with_the_operations_of_ten() -> None:
    costs = []
    for count in (10, 10_000):
        store, operations = counting(with_commits(count))
        ledger = Ledger(store, "flights")
        assert ledger.pending() is None
        assert loaded(ledger, MORE).number == count + 1
        costs.append(operations)
    assert costs[0] == costs[1]
    # of names, only that of the text mirror's few files
    assert costs[0]["names"] == 1


@pytest.mark.long("thousands of ledger operations")
def test_a_thousand_partitions_are_planned_read_and_committed_in_linear_time() -> None:
    keys = [TopicPartition("clicks", i) for i in range(1000)]
    costs = []
    for count in (250, 1000):
        store, operations = counting(MemoryStore())
        ledger = Ledger(store, "flights")
        ledger.identify("cluster-a", {})
        operations.clear()
        plan, planning = counted(partial(begun, ledger, {key: facts(0, 9) for key in keys[:count]}))
        assert len(plan.ranges) == 2 * count
        read_all(ledger, plan)
        _, committing = counted(partial(ledger.commit, plan, mode="job", run="run"))
        costs.append((planning, committing))
    assert operations["create"] == 2002
    assert operations.total() < 6100  # a receipt written and read, a hint for each partition, and some
    for few, many in zip(*costs, strict=True):
        assert many < 5 * few
