from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.commit import NOT_COUNTED, Commit, Output, OutputFile, encode_commit
from pyspark_kafkalog.loads.errors import (
    DamagedRecord,
    ForeignCluster,
    IncompleteLoad,
    LoadBusy,
    LoadError,
    LostRace,
    NewerFormat,
    ReceiptMismatch,
    UnsafeStore,
)
from pyspark_kafkalog.loads.ledger import Ledger
from pyspark_kafkalog.loads.plan_record import encode_plan
from pyspark_kafkalog.loads.receipts import encode_receipt
from pyspark_kafkalog.types import TopicPartition
from tests.support.loads import P0, P1, begun, facts, loaded, plan_of, position, read, read_all, rows
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import ForgetfulStore, MemoryStore, counting

MORE = {P0: facts(0, 15), P1: facts(0, 4)}
PLAN_1 = "memory/flights/plans/00000001.json"
OUTPUT = Output("/data/flights", "load=00000001", (OutputFile("part-0.parquet", 1234, 10),))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store: MemoryStore) -> Ledger:
    ledger = Ledger(store, "flights", ManualClock())
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    return ledger


def change(store: MemoryStore, name: str, old: bytes, new: bytes) -> None:
    data = store.files[f"flights/{name}"]
    assert old in data
    store.files[f"flights/{name}"] = data.replace(old, new, 1)


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
            len("clicks-0"), outputs=(OUTPUT,), note="by hand",
        ),
        sha256=commit.sha256,
    )  # fmt: skip
    assert ledger.head() == commit == ledger.commit_of(1)
    assert ledger.pending() is None
    assert ledger.verify() == []


def test_the_next_load_begins_where_the_commit_ended(ledger: Ledger) -> None:
    loaded(ledger)
    plan = begun(ledger, MORE)
    assert [(r.partition, r.start, r.end) for r in plan.ranges] == [(0, 10, 12), (0, 12, 15)]


def test_a_ledger_is_known_once_it_was_begun(store: MemoryStore) -> None:
    ledger = Ledger(store, "flights")
    assert (ledger.known(), ledger.identity()) == (False, "")
    ledger.identify("cluster-a", {"subscribe": "clicks", "kafka.sasl.jaas.config": "secret"})
    record = json.loads(store.files["flights/load.json"])
    assert ledger.known()
    assert ledger.identity() == record["sha256"]
    assert record["options"] == {"subscribe": "clicks"}
    assert sorted(store.files) == ["flights/load.json"]


def test_hints_follow_the_commit_and_those_of_former_leaders_go(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    loaded(ledger, {P0: facts(0, 15, leader=2), P1: facts(0, 4)})
    hints = {name: data for name, data in store.files.items() if "/offsets/" in name}
    assert hints == {
        "flights/offsets/part-2-clicks-0": b"tcp://broker-2:9092\tclicks\t0\t15\n",
        "flights/offsets/part-1-clicks-1": b"tcp://broker-1:9092\tclicks\t1\t4\n",
    }
    assert store.files["flights/HEAD.json"] == b'{"newest": 2}\n'


@pytest.mark.parametrize(
    "hint", [None, b"", b"\0\0", b"[]", b'{"newest": "2"}', b'{"newest": 1}', b'{"newest": 9}']
)
def test_the_newest_commit_is_found_whatever_the_hint_says(
    ledger: Ledger, store: MemoryStore, hint: bytes | None
) -> None:
    loaded(ledger)
    commit = loaded(ledger, MORE)
    del store.files["flights/HEAD.json"]
    if hint is not None:
        store.files["flights/HEAD.json"] = hint
    assert ledger.head() == commit


def test_a_hint_too_long_for_the_name_of_a_file_is_none(tmp_path: Path) -> None:
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
    assert "commit 1 is made, but not the hints that go with it: cannot write HEAD.json" in caplog.text


def test_without_receipts_the_commit_counts_the_rows_of_its_outputs_or_nothing(ledger: Ledger) -> None:
    plan = begun(ledger)
    commit = ledger.commit(plan, mode="dir", run="r", receipts=False, outputs=[OUTPUT])
    assert (commit.records, commit.bytes) == (10, NOT_COUNTED)
    commit = ledger.commit(begun(ledger, MORE), mode="job", run="r", receipts=False)
    assert (commit.records, commit.bytes) == (NOT_COUNTED, NOT_COUNTED)
    assert ledger.verify() == []


def test_the_first_missing_range_is_looked_for_from_a_task_on_and_round(ledger: Ledger) -> None:
    plan = begun(ledger)
    ranges = plan.ranges
    assert len(ranges) == 4
    assert ledger.first_missing(plan, 2) == ranges[2]
    for at, expected in [(2, ranges[3]), (3, ranges[0]), (0, ranges[1])]:
        ledger.leave_receipt(read(plan, ranges[at]))
        assert ledger.first_missing(plan, 2) == expected
    ledger.leave_receipt(read(plan, ranges[1]))
    assert ledger.first_missing(plan, 2) is None


def test_a_run_has_marks_of_its_own(ledger: Ledger) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    assert ledger.first_unread(plan, "run-2", 3) == 3
    for index in (3, 0, 1):
        ledger.mark_read(plan, index, "run-2")
    assert ledger.first_unread(plan, "run-2", 3) == 2
    ledger.mark_read(plan, 2, "run-2")
    assert ledger.first_unread(plan, "run-2", 3) is None
    assert ledger.first_unread(plan, "run-1") == 0
    ledger.commit(plan, mode="stage", run="run-2")
    assert ledger.verify() == []


# ---- races and second attempts


def test_the_second_driver_to_plan_is_told(ledger: Ledger) -> None:
    plan = begun(ledger)
    with pytest.raises(
        LostRace, match=r"another driver began load 1 of memory/flights first; its plan counts"
    ):
        ledger.write_plan(replace(plan, created="later"))
    assert ledger.pending() == plan


def test_a_plan_that_comes_after_the_commit_of_its_number_is_refused(ledger: Ledger) -> None:
    loaded(ledger)
    late = plan_of(MORE, ledger.head())
    assert late is not None
    ledger.rewind(0, "rewind")
    with pytest.raises(LostRace):
        ledger.write_plan(late)


def test_a_run_that_commits_again_gets_its_own_commit_and_another_run_is_told(ledger: Ledger) -> None:
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
    ledger.leave_receipt(first)
    ledger.leave_receipt(replace(first, attempt=1, host="executor-2", duration_ms=1))
    assert ledger.receipt(plan, plan.ranges[0]) == first


def test_a_second_attempt_that_saw_other_records_is_an_error(ledger: Ledger) -> None:
    plan = begun(ledger)
    planned = plan.ranges[0]
    ledger.leave_receipt(read(plan, planned))
    told = r"0-5.json: an earlier attempt read other records \(records: 5 then, 4 now; .*delete the directory"
    with pytest.raises(ReceiptMismatch, match=told):
        ledger.leave_receipt(read(plan, planned, attempt=1, content=rows(planned)[:-1]))
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


def test_after_the_first_plan_is_discarded_the_first_load_begins_anew(ledger: Ledger) -> None:
    assert ledger.discard(begun(ledger), "run").positions == ()
    plan = plan_of(MORE, ledger.head(), first_starts={P0: 6, P1: 0})
    assert plan is not None
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
    plan = plan_of({P0: facts(0, 10), P1: facts(0, 4)}, first_starts={P0: 7, P1: 0})
    assert plan is not None
    plan = ledger.write_plan(plan)
    read_all(ledger, plan)
    ledger.commit(plan, mode="job", run="run")
    assert ledger.rewind(0, "rewind").positions == (position(P0, 7), position(P1, 0))
    assert [commit.number for commit in ledger.lineage()] == [2]
    assert ledger.verify() == []


def test_a_rewind_sets_a_plan_aside_that_can_no_longer_be_read(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    begun(ledger, MORE)
    store.files["flights/plans/00000002.json"] = b"{"
    told = r"plans/00000002.json is torn .*`kafkalog rewind` to commit 1 sets the plan aside"
    with pytest.raises(DamagedRecord, match=told):
        ledger.pending()
    ledger.rewind(1, "rewind")
    assert ledger.pending() is None
    assert loaded(ledger, MORE).number == 3
    assert ledger.verify() == []


def test_a_first_plan_that_cannot_be_read_is_set_aside_too(ledger: Ledger, store: MemoryStore) -> None:
    begun(ledger)
    store.files["flights/plans/00000001.json"] = b""
    assert ledger.rewind(0, "rewind").positions == ()
    assert loaded(ledger).number == 2


@pytest.mark.parametrize("target", [-1, 2])
def test_a_rewind_to_a_commit_that_is_not_there_is_refused(ledger: Ledger, target: int) -> None:
    loaded(ledger)
    with pytest.raises(LoadError, match=rf"has no commit {target}; a rewind goes to one of 0 to 1"):
        ledger.rewind(target, "rewind")


# ---- bad input


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 201])
def test_a_load_name_that_is_no_directory_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"loadName is .*1 to 200 of the characters"):
        Ledger(MemoryStore(), name)


def test_the_ledger_of_another_cluster_is_refused(ledger: Ledger) -> None:
    with pytest.raises(
        ForeignCluster, match=r"of cluster cluster-a, but the brokers are of cluster-b: check kafka"
    ):
        ledger.identify("cluster-b", {"subscribe": "clicks"})
    ledger.identify("", {"subscribe": "clicks"})


def test_another_subscription_is_warned_about(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    ledger.identify("cluster-a", {"SUBSCRIBE": "clicks"})
    assert caplog.text == ""
    ledger.identify("cluster-a", {"subscribe": "clicks,views"})
    assert (
        "was begun with {'subscribe': 'clicks'} and is now read with {'subscribe': 'clicks,views'}"
        in caplog.text
    )


def test_a_store_whose_create_overwrites_gets_no_ledger() -> None:
    store = ForgetfulStore()
    with pytest.raises(UnsafeStore):
        Ledger(store, "flights").identify("cluster-a", {})
    assert store.files == {}


def test_a_path_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LoadError, match=r"cannot read .*/file/flights/load.json: Not a directory"):
        Ledger.at(tmp_path / "file", "flights").identify("cluster-a", {})


def test_an_edited_plan_is_refused_and_nothing_is_committed(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    change(store, "plans/00000001.json", b'"end": 10', b'"end": 11')
    with pytest.raises(DamagedRecord, match=r"plans/00000001.json was changed after it was written.*rewind"):
        ledger.pending()
    with pytest.raises(DamagedRecord, match="was changed after it was written"):
        ledger.commit(plan, mode="job", run="run")
    assert ledger.head() is None
    assert any("was changed after it was written" in finding for finding in ledger.verify())


def test_a_plan_exchanged_for_another_good_one_is_refused(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    store.files["flights/plans/00000001.json"] = encode_plan(replace(plan, created="another"))
    with pytest.raises(DamagedRecord, match="is not the plan that was read: it was exchanged"):
        ledger.commit(plan, mode="job", run="run")


def test_a_missing_plan_is_refused_and_found(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    data = store.files.pop("flights/plans/00000001.json")
    with pytest.raises(DamagedRecord, match=r"plans/00000001.json is missing"):
        ledger.commit(plan, mode="job", run="run")
    store.files["flights/plans/00000001.json"] = data
    ledger.commit(plan, mode="job", run="run")
    del store.files["flights/plans/00000001.json"]
    assert any("plans/00000001.json is missing" in finding for finding in ledger.verify())


def test_a_plan_copied_to_another_number_is_refused(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    store.files["flights/plans/00000002.json"] = store.files["flights/plans/00000001.json"]
    with pytest.raises(DamagedRecord, match=r"00000002.json is plan 1 after commit 0: a copy of another"):
        ledger.pending()


def test_a_torn_commit_stops_the_load_rather_than_being_skipped(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    loaded(ledger, MORE)
    store.files["flights/commits/00000002.json"] = store.files["flights/commits/00000002.json"][:100]
    for read_head in (ledger.head, ledger.pending, ledger.history, ledger.lineage):
        with pytest.raises(DamagedRecord, match=r"commits/00000002.json is torn"):
            read_head()
    assert any("commits/00000002.json is torn" in finding for finding in ledger.verify())


def test_a_commit_that_is_gone_is_found(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    loaded(ledger, MORE)
    gone = store.files.pop("flights/commits/00000001.json")
    assert any("commits/00000001.json is missing" in finding for finding in ledger.verify())
    with pytest.raises(DamagedRecord, match=r"commits/00000001.json is missing"):
        ledger.history()
    store.files["flights/commits/00000001.json"] = gone
    del store.files["flights/commits/00000002.json"]
    assert ledger.verify() == ["HEAD.json tells of commit 2, but the newest is 1: commits are lost"]


def test_a_load_whose_receipts_do_not_tile_the_plan_is_not_committed(ledger: Ledger) -> None:
    plan = begun(ledger)
    ledger.leave_receipt(read(plan, plan.ranges[1]))
    told = r"3 of 4 ranges have no receipt, first clicks-0 \[0, 5\), clicks-1 \[0, 2\), .*it is replayed"
    with pytest.raises(IncompleteLoad, match=told):
        ledger.commit(plan, mode="job", run="run")
    assert ledger.pending() == plan


def test_a_receipt_of_another_plan_is_refused(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    name = "flights/receipts/00000001/clicks/0/0-5.json"
    store.files[name] = encode_receipt(replace(read(plan, plan.ranges[0]), plan_sha256="0" * 64))
    with pytest.raises(ReceiptMismatch, match=r"0-5.json is not for this range of .*delete the receipt"):
        ledger.commit(plan, mode="job", run="run")
    assert ledger.head() is None


def test_a_torn_receipt_is_refused(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    change(store, "receipts/00000001/clicks/0/0-5.json", b"}", b"")
    with pytest.raises(DamagedRecord, match=r"0-5.json is torn"):
        ledger.commit(plan, mode="job", run="run")
    with pytest.raises(DamagedRecord, match=r"0-5.json is torn"):
        ledger.leave_receipt(read(plan, plan.ranges[0]))


@pytest.mark.parametrize("name", ["load.json", "plans/00000001.json", "commits/00000001.json"])
def test_a_newer_format_is_not_guessed_at(ledger: Ledger, store: MemoryStore, name: str) -> None:
    loaded(ledger)
    change(store, name, b'"version": 1', b'"version": 3')
    touch: dict[str, Any] = {
        "load.json": lambda: ledger.identify("cluster-a", {}),
        "plans/00000001.json": lambda: ledger.plan(1),
        "commits/00000001.json": ledger.head,
    }
    with pytest.raises(NewerFormat, match=rf"{name} has format version 3; .*update pyspark-kafkalog"):
        touch[name]()


# ---- what verify finds


def test_receipts_of_a_committed_load_may_be_deleted_as_a_whole_but_not_in_part(
    ledger: Ledger, store: MemoryStore
) -> None:
    loaded(ledger)
    names = [name for name in store.files if "/receipts/" in name]
    del store.files[names[0]]
    assert len(ledger.verify()) == 1
    assert "1 of 4 ranges have no receipt" in ledger.verify()[0]
    for name in names[1:]:
        del store.files[name]
    assert ledger.verify() == []


def rewritten(store: MemoryStore, commit: Commit, **changes: Any) -> None:
    store.files[f"flights/commits/{commit.number:08d}.json"] = encode_commit(replace(commit, **changes))


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"records": 13}, "commit 1 tells of 13 records, 112 bytes; its receipts of 14 and 112"),
        ({"plan_sha256": "0" * 64}, f"commit 1 was made of another plan than {PLAN_1}"),
        ({"positions": (position(P0, 9),)}, "commit 1 has not the positions that its plan ends at"),
        ({"mode": "discard"}, "commit 1 (discard) has not the positions of commit 0"),
    ],
)  # fmt: skip
def test_a_commit_that_does_not_fit_the_rest_is_found(
    ledger: Ledger, store: MemoryStore, changes: Any, finding: str
) -> None:
    rewritten(store, loaded(ledger), **changes)
    assert ledger.verify() == [finding]


def test_a_plan_that_begins_elsewhere_than_its_parent_ended_is_found(ledger: Ledger) -> None:
    loaded(ledger)
    plan = plan_of({P0: facts(0, 20)}, replace(ledger.commit_at(1), positions=(position(P0, 12),)))
    assert plan is not None
    ledger.write_plan(plan)
    assert ledger.verify() == [
        "plan 2 forgot clicks-1, which commit 1 has a position of",
        "plan 2 begins clicks-0 at 12; commit 1 ended at 10",
    ]


@pytest.mark.parametrize("changes", [{"fail_on_data_loss": False}, {"on_topic_recreated": "earliest"}])
def test_a_jump_that_the_plan_gives_a_reason_for_is_sound(ledger: Ledger, changes: dict[str, Any]) -> None:
    loaded(ledger)
    other = "another" if "on_topic_recreated" in changes else facts(0, 1).topic_id
    plan = plan_of({P0: facts(12, 20, topic_id=other), P1: facts(0, 4)}, ledger.head(), **changes)
    assert plan is not None
    plan = ledger.write_plan(plan)
    assert plan.partitions[0].start == 12
    read_all(ledger, plan)
    ledger.commit(plan, mode="job", run="run")
    assert ledger.verify() == []


def test_a_plan_far_ahead_of_the_commits_is_found(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    store.files["flights/plans/00000005.json"] = b""
    assert ledger.verify() == ["plan 5 has no commit 4 before it; the newest is 1"]


def test_a_lost_load_record_is_found(ledger: Ledger, store: MemoryStore) -> None:
    del store.files["flights/load.json"]
    assert ledger.verify() == ["memory/flights/load.json is missing"]


# ---- how much it costs


def with_commits(count: int) -> MemoryStore:
    store = MemoryStore()
    ledger = Ledger(store, "flights")
    ledger.identify("cluster-a", {})
    commit = loaded(ledger)
    for number in range(2, count + 1):
        next_one = replace(commit, number=number, parent=number - 1)
        store.files[f"flights/commits/{number:08d}.json"] = encode_commit(next_one)
    store.files["flights/HEAD.json"] = b'{"newest": %d}\n' % count
    return store


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


def test_a_thousand_partitions_are_planned_read_and_committed_in_linear_time() -> None:
    keys = [TopicPartition("clicks", i) for i in range(1000)]
    store, operations = counting(MemoryStore())
    ledger = Ledger(store, "flights")
    ledger.identify("cluster-a", {})
    operations.clear()
    started = time.perf_counter()
    plan = begun(ledger, {key: facts(0, 9) for key in keys})
    planned = time.perf_counter() - started
    assert len(plan.ranges) == 2000
    read_all(ledger, plan)
    started = time.perf_counter()
    ledger.commit(plan, mode="job", run="run")
    committed = time.perf_counter() - started
    assert operations["create"] == 2002
    assert operations.total() < 6100  # a receipt written and read, a hint for each partition, and some
    # On two quiet cores 0.05 s and 0.2 s; a machine may be busy, but a quadratic cost shows.
    assert planned < 2
    assert committed < 5


def test_only_warnings_and_errors_are_logged(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded(ledger)
    assert caplog.records == []
