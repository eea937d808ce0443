"""What the tasks of a load leave behind: receipts, and a commit once one action has read everything."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.errors import (
    CorruptMessage,
    DamagedRecord,
    LoadBusy,
    LoadError,
    LostRace,
    ReceiptMismatch,
    TopicRecreated,
)
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.formats.vectors import vector

QUICK = {
    "kafka.retry.backoff.ms": "1",
    "fetchOffset.retryIntervalMs": "1",
    "fetchOffset.numRetries": "0",
    "kafka.fetch.max.wait.ms": "1",
}
THREE_TASKS = {"maxRecordsPerPartition": "5"}


@pytest.fixture
def log() -> ScriptedLog:
    return ScriptedLog(batches(range(5), range(5, 10), range(10, 15)))


@pytest.fixture
def broker(log: ScriptedLog) -> Iterator[ScriptedBroker]:
    with serving(log) as scripted:
        yield scripted


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.at(tmp_path / "offsets", "load")


def reader(
    broker: ScriptedBroker, ledger: Ledger, columns: tuple[str, ...] = ("value", "offset"), **given: str
) -> LoadReader:
    where = {
        "loadName": ledger.name,
        "offsetsPath": str(Path(ledger.location).parent),
        "commitOffsets": "stage",
    }
    known = {"kafka.bootstrap.servers": broker.address, "subscribe": "t", **where, **QUICK, **THREE_TASKS}
    options = parse_batch_options({**known, **given})
    assert options.load is not None
    return LoadReader(options, columns, options.load)


def offsets(source: BatchReader, *tasks: InputPartition) -> list[int]:
    return [o for task in tasks for batch in source.read(task) for o in batch.column("offset").to_pylist()]


def planned(source: BatchReader) -> list[Any]:
    tasks = list(source.partitions())
    assert all(isinstance(task, LoadInputPartition) for task in tasks)
    return tasks


def test_the_task_that_completes_the_reading_commits(broker: ScriptedBroker, ledger: Ledger) -> None:
    source = reader(broker, ledger)
    first, second, third = planned(source)
    assert offsets(source, second) == list(range(5, 10))
    assert offsets(source, third) == list(range(10, 15))
    assert ledger.head() is None
    assert offsets(source, first) == list(range(5))
    commit = ledger.head()
    assert commit is not None
    assert (commit.number, commit.mode, commit.run, commit.records) == (1, "stage", first.run, 15)
    assert [(p.topic, p.partition, p.next) for p in commit.positions] == [("t", 0, 15)]
    assert ledger.verify() == []
    assert planned(reader(broker, ledger)) == []


def test_a_frame_that_is_planned_twice_is_one_run_before_and_after_its_commit(
    broker: ScriptedBroker, ledger: Ledger
) -> None:
    options = reader(broker, ledger)._options
    assert options.load is not None
    first, second, late = (LoadReader(options, ("offset",), options.load, "one") for _ in range(3))
    tasks, same = planned(first), planned(second)
    assert tasks == same
    assert offsets(first, *tasks) == list(range(15))
    assert planned(late) == tasks
    assert offsets(second, *same) == offsets(late, *tasks) == list(range(15))
    assert ledger.head_number() == 1
    assert planned(LoadReader(options, ("offset",), options.load, "another")) == []


def test_scans_of_one_frame_that_are_planned_at_once_wait_for_each_other(
    broker: ScriptedBroker, ledger: Ledger
) -> None:
    options = reader(broker, ledger)._options
    assert options.load is not None
    scans = [LoadReader(options, ("offset",), options.load, "one") for _ in range(4)]
    with ThreadPoolExecutor(len(scans)) as pool:
        first, *others = pool.map(planned, scans)
    assert [len(first), *others] == [3, first, first, first]


def test_a_receipt_tells_what_its_task_saw_whatever_the_columns(
    broker: ScriptedBroker, ledger: Ledger
) -> None:
    source = reader(broker, ledger, ("partition",))
    tasks = planned(source)
    (batch,) = source.read(tasks[2])
    assert batch.schema.names == ["partition"]
    assert batch.column(0).to_pylist() == [0] * 5
    plan = ledger.plan(1)
    receipt = ledger.receipt(plan, plan.ranges[2])
    assert receipt is not None
    assert (receipt.start, receipt.end, receipt.next, receipt.records) == (10, 15, 15, 5)
    assert (receipt.first_offset, receipt.last_offset, receipt.bytes) == (10, 14, 10)
    assert (receipt.first_timestamp_ms, receipt.last_timestamp_ms, receipt.lost) == (1000, 1000, ())


def test_a_task_that_is_stopped_or_fails_leaves_nothing(
    broker: ScriptedBroker, log: ScriptedLog, ledger: Ledger
) -> None:
    source = reader(broker, ledger)
    first, second, _ = planned(source)
    rows = source.read(first)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    broker.script(ApiKey.FETCH, damaged(log))
    with pytest.raises(CorruptMessage):
        offsets(source, second)
    plan = ledger.plan(1)
    assert [ledger.receipt(plan, planned_range) for planned_range in plan.ranges] == [None] * 3


def test_gaps_that_compaction_left_are_counted_by_receipts_and_commit(ledger: Ledger) -> None:
    compacted = ScriptedLog(batches(range(0, 5, 2), range(10, 12), range(14, 15)))
    with serving(compacted) as broker:
        source = reader(broker, ledger)
        assert offsets(source, *planned(source)) == [0, 2, 4, 10, 11, 14]
    plan = ledger.plan(1)
    found = [ledger.receipt(plan, planned_range) for planned_range in plan.ranges]
    assert [(r.missing, r.gaps) for r in found if r is not None] == [
        (2, ((1, 2), (3, 4))), (5, ((5, 10),)), (2, ((12, 14),)),
    ]  # fmt: skip
    commit = ledger.head()
    assert commit is not None
    assert (commit.records, commit.missing, commit.skipped) == (6, 9, 0)


def test_a_task_that_is_repeated_finds_its_own_receipt(broker: ScriptedBroker, ledger: Ledger) -> None:
    source = reader(broker, ledger)
    first, second, third = planned(source)
    assert offsets(source, first, first, second) == [*range(5), *range(5), *range(5, 10)]
    assert ledger.head() is None
    offsets(source, third, second)
    assert len(ledger.history()) == 1


def test_what_an_earlier_run_read_does_not_complete_a_later_one(
    broker: ScriptedBroker, log: ScriptedLog, ledger: Ledger
) -> None:
    """The first run read two of three ranges and died: its output is gone, and all is to be read again."""
    dead = reader(broker, ledger)
    offsets(dead, *planned(dead)[:2])
    log.append(batches(range(15, 20)))
    source = reader(broker, ledger)
    first, second, third = planned(source)
    assert (third.start, third.end) == (10, 15)
    offsets(source, third)
    assert ledger.head() is None
    assert offsets(source, first, second) == list(range(10))
    assert ledger.head() is not None
    assert [(t.start, t.end) for t in planned(reader(broker, ledger))] == [(15, 20)]


def test_two_runs_at_once_commit_once(broker: ScriptedBroker, ledger: Ledger) -> None:
    one, two = reader(broker, ledger), reader(broker, ledger)
    ones, twos = planned(one), planned(two)
    assert [(t.plan, t.start, t.end) for t in ones] == [(t.plan, t.start, t.end) for t in twos]
    offsets(one, ones[0])
    rows = two.read(twos[0])
    next(rows)
    offsets(two, twos[1], twos[2])
    offsets(one, ones[1], ones[2])
    told = (
        r"another driver committed load 1 of .*load \(mode stage\) while this read ran: discard this output"
    )
    with pytest.raises(LostRace, match=told):
        next(rows)
    with pytest.raises(LostRace, match=told):
        offsets(two, twos[1])
    head = ledger.head()
    assert head is not None
    assert head.run == ones[0].run


def test_a_second_attempt_that_sees_other_records_is_an_error(
    broker: ScriptedBroker, log: ScriptedLog, ledger: Ledger
) -> None:
    source = reader(broker, ledger)
    first, *_ = planned(source)
    offsets(source, first)
    compacted = ScriptedLog(batches(range(0, 5, 2), range(5, 10), range(10, 15)))
    broker.default(ApiKey.FETCH, compacted.fetch)
    with pytest.raises(ReceiptMismatch, match="records: 5 then, 3 now"):
        offsets(source, first)


def test_what_is_lost_is_in_the_receipt(broker: ScriptedBroker, log: ScriptedLog, ledger: Ledger) -> None:
    source = reader(broker, ledger, failOnDataLoss="false", maxRecordsPerPartition="100")
    strict = reader(broker, ledger, maxRecordsPerPartition="100")
    (task,) = planned(source)
    log.keep(start=10)
    with pytest.raises(DataLoss):
        offsets(strict, task)
    assert ledger.head() is None
    assert offsets(source, task) == list(range(10, 15))
    (receipt,) = ledger.receipts(ledger.plan(1))
    assert (receipt.lost, receipt.records, receipt.next) == (((0, 10),), 5, 15)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_markers_and_aborted_records_at_the_edges_belong_to_the_range(ledger: Ledger, level: str) -> None:
    log = ScriptedLog(vector("v2-txn-log.bin").data, aborted=[(4000, 0)], at_once=True)
    with serving(log) as broker:
        source = reader(broker, ledger, maxRecordsPerPartition="4", **{"kafka.isolation.level": level})
        found = offsets(source, *planned(source))
    assert found == ([4, 5, 6, 7] if level == "read_committed" else [0, 1, 2, 4, 5, 6, 7])
    head = ledger.head()
    assert head is not None
    assert (head.records, head.positions[0].next) == (len(found), 9)
    assert ledger.verify() == []


def test_a_plan_may_be_read_for_someone_else_to_commit(broker: ScriptedBroker, ledger: Ledger) -> None:
    stage = reader(broker, ledger)
    stage.partitions()
    source = reader(broker, ledger, loadPlan="1", commitOffsets="none")
    tasks = planned(source)
    assert offsets(source, *tasks) == list(range(15))
    assert len(ledger.receipts(ledger.plan(1))) == len(ledger.plan(1).ranges)
    assert ledger.head() is None
    committed = ledger.commit(ledger.plan(1), mode="job", run="mine")
    assert offsets(source, *tasks) == list(range(15))
    assert committed.records == 15


def test_a_look_at_a_load_writes_nothing(
    broker: ScriptedBroker, log: ScriptedLog, ledger: Ledger, tmp_path: Path
) -> None:
    def look(**given: str) -> list[int]:
        source = reader(broker, ledger, commitOffsets="none", **given)
        tasks = source.partitions()
        assert {type(task) for task in tasks} <= {KafkaInputPartition}
        return offsets(source, *tasks)

    assert look() == list(range(15))
    assert list(tmp_path.iterdir()) == []
    stage = reader(broker, ledger, endingOffsets='{"t":{"0":7}}')
    offsets(stage, *planned(stage))
    before = sorted(tmp_path.rglob("*"))
    assert look() == list(range(7, 15))
    assert sorted(tmp_path.rglob("*")) == before
    pending = reader(broker, ledger)
    pending.partitions()
    log.append(batches(range(15, 20)))
    before = sorted(tmp_path.rglob("*"))
    assert look() == list(range(7, 15))
    assert look(onPendingPlan="discard") == list(range(7, 20))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_load_that_another_driver_holds_is_not_planned(broker: ScriptedBroker, ledger: Ledger) -> None:
    with ledger.hold("the nightly job"), pytest.raises(LoadBusy, match="the nightly job"):
        reader(broker, ledger).partitions()
    assert len(planned(reader(broker, ledger))) == 3


def test_a_ledger_that_tasks_do_not_see_is_reported(broker: ScriptedBroker, ledger: Ledger) -> None:
    source = reader(broker, ledger)
    tasks = planned(source)
    shutil.rmtree(ledger.location)
    with pytest.raises(LoadError, match=r"offsetsPath is not reachable from the executors: .*receipts=False"):
        offsets(source, tasks[0])


def test_a_ledger_that_was_replaced_meanwhile_is_reported(
    broker: ScriptedBroker, log: ScriptedLog, ledger: Ledger
) -> None:
    source = reader(broker, ledger)
    tasks = planned(source)
    shutil.rmtree(ledger.location)
    log.append(batches(range(15, 20)))
    reader(broker, ledger).partitions()
    with pytest.raises(DamagedRecord, match=r"plan 1 .* is not the one that this read was planned with"):
        offsets(source, tasks[0])


def test_a_recreated_topic_after_planning_is_not_read(broker: ScriptedBroker, ledger: Ledger) -> None:
    source = reader(broker, ledger)
    task = replace(planned(source)[0], topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    answer = broker.layout.metadata

    def described(request: Any) -> Any:
        found = answer(request)
        return structs.replace(
            found, topics=tuple(structs.replace(t, topic_id=uuid.UUID(int=2)) for t in found.topics)
        )

    broker.default(ApiKey.METADATA, described)
    with pytest.raises(TopicRecreated, match="t-0 was deleted and created again after it was planned"):
        offsets(source, task)


def damaged(log: ScriptedLog) -> Any:
    """An answer whose last byte was changed on its way."""

    def damage(request: Any) -> Any:
        answer = log.fetch(request)
        topic = answer.responses[0]
        data = topic.partitions[0].records
        part = structs.replace(topic.partitions[0], records=data[:-1] + bytes([data[-1] ^ 1]))
        return structs.replace(answer, responses=(structs.replace(topic, partitions=(part,)),))

    return damage
