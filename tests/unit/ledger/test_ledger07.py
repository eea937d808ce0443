"""Ledgers of 0.7: a partition is a broker's, and two brokers number theirs alike."""

from __future__ import annotations

import json

import pytest

from pyspark_kafkalog.errors import DamagedRecord, ForeignCluster, ReceiptMismatch, TopicRecreated
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import BROKERS_VERSION, seal
from pyspark_kafkalog.types import PROTOCOL_07
from tests.support.ledger.memory_store import MemoryStore
from tests.support.ledger.plans import (
    B1,
    B2,
    Row,
    begun,
    facts07,
    loaded,
    plan_of,
    position,
    read,
    read_all,
)

BOTH = {B1: facts07(1000, 1), B2: facts07(400, 2)}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store: MemoryStore) -> Ledger:
    ledger = Ledger(store, "flights")
    ledger.identify("", {"subscribe": "clicks"}, protocol=PROTOCOL_07)
    return ledger


def record(store: MemoryStore, name: str) -> dict[str, object]:
    found = json.loads(store.records[f"flights/{name}"])
    assert isinstance(found, dict)
    return found


def test_partitions_of_one_number_are_planned_read_and_committed_apart(
    ledger: Ledger, store: MemoryStore
) -> None:
    plan = begun(ledger, BOTH)
    assert ledger.plan(1) == plan
    assert [(str(r.key), r.start, r.end) for r in plan.ranges] == [
        ("clicks-1-0", 0, 500),
        ("clicks-1-0", 500, 1000),
        ("clicks-2-0", 0, 200),
        ("clicks-2-0", 200, 400),
    ]
    read_all(ledger, plan)
    assert sorted(name for name in store.records if "/receipts/" in name) == [
        "flights/receipts/00000001/clicks/1-0/0-500.json",
        "flights/receipts/00000001/clicks/1-0/500-1000.json",
        "flights/receipts/00000001/clicks/2-0/0-200.json",
        "flights/receipts/00000001/clicks/2-0/200-400.json",
    ]
    commit = ledger.commit(plan, mode="job", run="run")
    assert commit.positions == (position(B1, 1000, topic_id=""), position(B2, 400, topic_id=""))
    assert ledger.head() == commit
    assert ledger.verify() == []
    following = begun(ledger, {B1: facts07(1000, 1), B2: facts07(460, 2)})
    assert [(r.key, r.start, r.end) for r in following.ranges] == [(B2, 400, 430), (B2, 430, 460)]


def test_the_text_mirror_names_the_broker_in_the_file_and_by_its_address(
    ledger: Ledger, store: MemoryStore
) -> None:
    loaded(ledger, BOTH)
    assert {name: data for name, data in store.records.items() if "/offsets/" in name} == {
        "flights/offsets/part-1-clicks-0": b"tcp://broker-1:9092\tclicks\t0\t1000\n",
        "flights/offsets/part-2-clicks-0": b"tcp://broker-2:9092\tclicks\t0\t400\n",
    }


def test_each_record_says_its_brokers_and_that_older_readers_would_misread_it(
    ledger: Ledger, store: MemoryStore
) -> None:
    loaded(ledger, BOTH)
    load = record(store, "load.json")
    assert (load["version"], load["protocol"]) == (2, "0.7")
    plan, commit = record(store, "plans/00000001.json"), record(store, "commits/00000001.json")
    receipt = record(store, "receipts/00000001/clicks/2-0/0-200.json")
    assert [one["version"] for one in (plan, commit, receipt)] == [2, 2, 2]
    for entries in (plan["partitions"], commit["positions"]):
        assert isinstance(entries, list)
        assert [list(one)[:3] for one in entries] == [["topic", "partition", "broker"]] * 2
        assert [one["broker"] for one in entries] == [1, 2]
    assert receipt["broker"] == 2


def test_records_of_todays_partitions_are_as_they_were(store: MemoryStore) -> None:
    ledger = Ledger(store, "flights")
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    loaded(ledger)
    for data in (data for name, data in store.records.items() if name.endswith("1.json")):
        assert b'"version": 1' in data
        assert b"broker" not in data.replace(b"broker-1:9092", b"")
    assert "protocol" not in record(store, "load.json")


def test_a_ledger_of_one_protocol_is_not_read_with_the_other(ledger: Ledger, store: MemoryStore) -> None:
    with pytest.raises(ForeignCluster, match=r"begun with protocol=0.7 and is now read with protocol=0.8"):
        ledger.identify("", {"subscribe": "clicks"})
    todays = Ledger(store, "todays")
    todays.identify("cluster-a", {})
    with pytest.raises(ForeignCluster, match=r"begun with protocol=0.8 and is now read with protocol=0.7"):
        todays.identify("", {}, protocol=PROTOCOL_07)


def test_a_broker_that_is_away_keeps_its_position_and_continues_when_it_is_back(ledger: Ledger) -> None:
    head = loaded(ledger, BOTH)
    without = plan_of({B1: facts07(1200, 1)}, head)
    assert {p.key: (p.start, p.end, p.reason) for p in without.partitions} == {
        B1: (1000, 1200, ""),
        B2: (400, 400, "not subscribed, or its broker is away"),
    }
    ledger.write_plan(without)
    read_all(ledger, without := ledger.plan(2))
    back = plan_of({B1: facts07(1200, 1), B2: facts07(500, 2)}, ledger.commit(without, mode="job", run="r"))
    assert [(r.key, r.start, r.end) for r in back.ranges] == [(B2, 400, 450), (B2, 450, 500)]


def test_without_topic_ids_a_log_that_ends_before_its_position_is_a_recreated_topic(ledger: Ledger) -> None:
    head = loaded(ledger, BOTH)
    anew = {B1: facts07(1000, 1), B2: facts07(80, 2)}
    with pytest.raises(TopicRecreated, match=r"clicks-2-0: position 400 is beyond the end of the log, 80"):
        plan_of(anew, head)
    plan = plan_of(anew, head, on_topic_recreated="earliest")
    assert [(r.key, r.start, r.end) for r in plan.ranges] == [(B2, 0, 40), (B2, 40, 80)]


def test_rows_of_one_entry_share_their_offset_in_the_digest(ledger: Ledger) -> None:
    plan = begun(ledger, BOTH)
    inner: list[Row] = [(0, None, None, b"a"), (0, None, None, b"b"), (90, None, None, b"c")]
    first = read(plan, plan.ranges[0], content=inner)
    ledger.leave_receipt(first, 0)
    assert (first.records, first.bytes, first.first_offset, first.last_offset) == (3, 3, 0, 90)
    assert (first.next, first.first_timestamp_ms) == (500, None)
    assert first.digest != read(plan, plan.ranges[0], content=[inner[0], inner[2]]).digest
    assert ledger.receipt(plan, plan.ranges[0]) == first
    assert ledger.receipt(plan, plan.ranges[2]) is None


def test_a_receipt_of_another_broker_does_not_count(ledger: Ledger, store: MemoryStore) -> None:
    plan = begun(ledger, {B1: facts07(400, 1), B2: facts07(400, 2)})
    read_all(ledger, plan)
    receipts = "flights/receipts/00000001/clicks"
    store.records[f"{receipts}/2-0/0-200.json"] = store.records[f"{receipts}/1-0/0-200.json"]
    with pytest.raises(ReceiptMismatch, match=r"clicks/2-0/0-200.json is not for this range"):
        ledger.commit(plan, mode="job", run="run")


def test_a_broker_that_is_not_a_number_is_damage(ledger: Ledger, store: MemoryStore) -> None:
    loaded(ledger, BOTH)
    fields = record(store, "commits/00000001.json")
    rest = {name: value for name, value in fields.items() if name not in ("record", "version", "sha256")}
    rest["positions"] = [{**one, "broker": -1} for one in rest["positions"]]  # type: ignore[attr-defined]
    store.records["flights/commits/00000001.json"] = seal("commit", rest, version=BROKERS_VERSION)
    with pytest.raises(DamagedRecord, match=r"'broker' is -1, expected a whole number, 0 or more"):
        ledger.head()
