"""Ledgers that are wrong: what is refused, what is found by `Ledger.verify`, and that nothing is guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.errors import (
    DamagedRecord,
    ForeignCluster,
    IncompleteLoad,
    InvalidConfig,
    LoadError,
    NewerFormat,
    ReceiptMismatch,
    UnsafeStore,
)
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import encode
from tests.support.ledger.memory_store import ForgetfulStore, MemoryStore
from tests.support.ledger.plans import MORE, P0, P1, begun, facts, loaded, plan_of, position, read, read_all

PLAN_1 = "memory/flights/plans/00000001.json"


def change(store: MemoryStore, name: str, old: bytes, new: bytes) -> None:
    data = store.records[f"flights/{name}"]
    assert old in data
    store.records[f"flights/{name}"] = data.replace(old, new, 1)


# ---- bad input


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 201])
def test_a_load_name_that_is_not_a_directory_is_refused(name: str) -> None:
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
    assert store.records == {}


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
    store.records["flights/plans/00000001.json"] = encode(replace(plan, created="another"))
    with pytest.raises(DamagedRecord, match="is not the plan that was read: it was replaced"):
        ledger.commit(plan, mode="job", run="run")


def test_a_missing_plan_is_refused_and_found(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    data = store.records.pop("flights/plans/00000001.json")
    with pytest.raises(DamagedRecord, match=r"plans/00000001.json is missing"):
        ledger.commit(plan, mode="job", run="run")
    store.records["flights/plans/00000001.json"] = data
    ledger.commit(plan, mode="job", run="run")
    del store.records["flights/plans/00000001.json"]
    assert any("plans/00000001.json is missing" in finding for finding in ledger.verify())


def test_a_plan_copied_to_another_number_is_refused(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    store.records["flights/plans/00000002.json"] = store.records["flights/plans/00000001.json"]
    with pytest.raises(DamagedRecord, match=r"00000002.json is plan 1 after commit 0: a copy of another"):
        ledger.pending()


def test_a_torn_commit_stops_the_load_rather_than_being_skipped(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    loaded(ledger, MORE)
    store.records["flights/commits/00000002.json"] = store.records["flights/commits/00000002.json"][:100]
    for read_head in (ledger.head, ledger.pending, ledger.history, ledger.lineage):
        with pytest.raises(DamagedRecord, match=r"commits/00000002.json is torn"):
            read_head()
    assert any("commits/00000002.json is torn" in finding for finding in ledger.verify())


def test_a_commit_that_is_gone_is_found(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger)
    loaded(ledger, MORE)
    gone = store.records.pop("flights/commits/00000001.json")
    assert any("commits/00000001.json is missing" in finding for finding in ledger.verify())
    with pytest.raises(DamagedRecord, match=r"commits/00000001.json is missing"):
        ledger.history()
    store.records["flights/commits/00000001.json"] = gone
    del store.records["flights/commits/00000002.json"]
    assert ledger.verify() == ["HEAD.json names commit 2, but the newest is 1: commits are lost"]


def test_a_load_whose_receipts_do_not_tile_the_plan_is_not_committed(ledger: Ledger) -> None:
    plan = begun(ledger)
    ledger.leave_receipt(read(plan, plan.ranges[1]), 1)
    told = r"3 of 4 ranges have no receipt, first clicks-0 \[0, 5\), clicks-1 \[0, 2\), .*it is replayed"
    with pytest.raises(IncompleteLoad, match=told):
        ledger.commit(plan, mode="job", run="run")
    assert ledger.pending() == plan


def test_a_receipt_of_another_plan_is_refused(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger)
    read_all(ledger, plan)
    name = "flights/receipts/00000001/clicks/0/0-5.json"
    store.records[name] = encode(replace(read(plan, plan.ranges[0]), plan_sha256="0" * 64))
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
        ledger.leave_receipt(read(plan, plan.ranges[0]), 0)


@pytest.mark.parametrize("name", ["load.json", "start.json", "plans/00000001.json", "commits/00000001.json"])
def test_a_newer_format_is_not_guessed_at(ledger: Ledger, store: MemoryStore, name: str) -> None:
    loaded(ledger)
    ledger.keep_start([position(P0, 3)])
    change(store, name, b'"version": 1', b'"version": 4')
    touch: dict[str, Any] = {
        "load.json": lambda: ledger.identify("cluster-a", {}),
        "start.json": lambda: ledger.stored(None),
        "plans/00000001.json": lambda: ledger.plan(1),
        "commits/00000001.json": ledger.head,
    }
    with pytest.raises(NewerFormat, match=rf"{name} has format version 4; .*update pyspark-kafkalog"):
        touch[name]()


# ---- what verify finds


def test_receipts_of_a_committed_load_may_be_deleted_as_a_whole_but_not_in_part(
    ledger: Ledger, store: MemoryStore
) -> None:
    loaded(ledger)
    names = [name for name in store.records if "/receipts/" in name]
    del store.records[names[0]]
    assert len(ledger.verify()) == 1
    assert "1 of 4 ranges have no receipt" in ledger.verify()[0]
    for name in names[1:]:
        del store.records[name]
    assert ledger.verify() == []


def rewritten(store: MemoryStore, commit: Commit, **changes: Any) -> None:
    store.records[f"flights/commits/{commit.number:08d}.json"] = encode(replace(commit, **changes))


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"records": 13}, "commit 1 counts 13 records and 112 bytes, its receipts 14 and 112"),
        ({"plan_sha256": "0" * 64}, f"commit 1 was made from another plan than {PLAN_1}"),
        ({"positions": (position(P0, 9),)}, "commit 1 does not have the positions at which its plan ends"),
        ({"mode": "discard"}, "commit 1 (discard) does not have the positions of commit 0"),
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
    ledger.write_plan(plan)
    assert ledger.verify() == [
        "plan 2 lacks clicks-1, which has a position in commit 1",
        "plan 2 begins clicks-0 at 12; commit 1 ended at 10",
    ]


@pytest.mark.parametrize("changes", [{"fail_on_data_loss": False}, {"on_topic_recreated": "earliest"}])
def test_a_jump_that_the_plan_gives_a_reason_for_is_sound(ledger: Ledger, changes: dict[str, Any]) -> None:
    loaded(ledger)
    other = "another" if "on_topic_recreated" in changes else facts(0, 1).topic_id
    plan = begun(ledger, {P0: facts(12, 20, topic_id=other), P1: facts(0, 4)}, **changes)
    assert plan.partitions[0].start == 12
    read_all(ledger, plan)
    ledger.commit(plan, mode="job", run="run")
    assert ledger.verify() == []


def test_a_plan_far_ahead_of_the_commits_and_a_lost_load_record_are_found(
    ledger: Ledger, store: MemoryStore
) -> None:
    loaded(ledger)
    store.records["flights/plans/00000005.json"] = b""
    assert ledger.verify() == ["plan 5 has no commit 4 before it; the newest is 1"]
    del store.records["flights/plans/00000005.json"], store.records["flights/load.json"]
    ledger.keep_start([position(P0, 3)])
    change(store, "start.json", b'"next": 3', b'"next": 4')
    missing, changed = ledger.verify()
    assert missing == "memory/flights/load.json is missing"
    assert changed.startswith("memory/flights/start.json was changed after it was written")
