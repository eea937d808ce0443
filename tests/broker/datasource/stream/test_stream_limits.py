"""How much a batch takes, and when it comes: checklist S2 and S7-S13, with a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_kafkalog.datasource.stream.stream_reader import StreamReader
from pyspark_kafkalog.types import TopicPartition
from tests.support.datasource.spark_stream import Checkpoint, Run
from tests.support.datasource.spark_topics import Topic
from tests.support.until import until

NewTopic = Callable[..., Topic]
Start = Callable[..., Run]


@pytest.fixture
def uneven(new_topic: NewTopic) -> Topic:
    """Partition 0 has 101 records, 1 has 11, 2 has one."""
    topic = new_topic(3)
    topic.add(*range(100, 201), partition=0)
    topic.add(*range(10, 21), partition=1)
    topic.add(1, partition=2)
    return topic


def test_s2_fifteen_records_and_a_limit_of_five_are_three_batches(new_topic: NewTopic, start: Start) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(*range(15))
    run = start(checkpoint, subscribe=topic.name, trigger="available_now", maxOffsetsPerTrigger="5")
    first = run.batch()
    topic.add(99)  # came later: it is the next run's
    assert [b and b.values for b in [first, *run.batches()]] == [
        [*range(5)], [*range(5, 10)], [*range(10, 15)]
    ]  # fmt: skip
    again = start(checkpoint, subscribe=topic.name, trigger="available_now", maxOffsetsPerTrigger="5")
    assert [b.values for b in again.batches()] == [[99]]


def test_s7_the_largest_limit_does_not_overflow(uneven: Topic, start: Start) -> None:
    run = start(Checkpoint(), subscribe=uneven.name, maxOffsetsPerTrigger=str(2**63 - 1))
    assert [len(b.rows) for b in run.batches()] == [113]


def test_s8_a_limit_is_shared_by_uneven_partitions_and_continues_after_a_restart(
    uneven: Topic, start: Start
) -> None:
    checkpoint = Checkpoint()
    run = start(checkpoint, subscribe=uneven.name, maxOffsetsPerTrigger="10")
    first = run.batch()
    assert first is not None
    assert first.values == [1, 10, *range(100, 108)]
    run = start(checkpoint, subscribe=uneven.name, maxOffsetsPerTrigger="10")
    second = run.batch()
    assert second is not None
    assert second.values == [11, *range(108, 117)]
    rest = run.batches()
    every = sorted(v for b in [first, second, *rest] for v in b.values)
    assert every == [1, *range(10, 21), *range(100, 201)]
    assert max(len(b.rows) for b in rest) <= 11


@pytest.mark.parametrize("limits", [{"maxOffsetsPerTrigger": "10"}, {"minOffsetsPerTrigger": "1000"}])
def test_s9_once_ignores_limits(uneven: Topic, start: Start, limits: dict[str, str]) -> None:
    run = start(Checkpoint(), subscribe=uneven.name, trigger="once", **limits)
    assert [len(b.rows) for b in run.batches()] == [113]


def test_s10_a_batch_waits_until_there_is_enough_but_the_first(new_topic: NewTopic, start: Start) -> None:
    topic = new_topic()
    topic.add(1)
    run = start(Checkpoint(), subscribe=topic.name, minOffsetsPerTrigger="3")
    assert [b.values for b in run.batches()] == [[1]]
    topic.add(2, 3)
    assert run.batches() == []
    topic.add(4)
    assert [b.values for b in run.batches()] == [[2, 3, 4]]


def test_s11_and_s12_a_delay_forces_a_small_batch_and_a_limit_holds_with_it(
    new_topic: NewTopic, start: Start
) -> None:
    topic = new_topic()
    topic.add(1)
    run = start(
        Checkpoint(),
        subscribe=topic.name,
        minOffsetsPerTrigger="3",
        maxOffsetsPerTrigger="4",
        maxTriggerDelay="300ms",
    )
    assert [b.values for b in run.batches()] == [[1]]
    topic.add(2)
    assert [b.values for b in until(run.batches)] == [[2]]
    topic.add(*range(3, 9))  # six: four now, two wait
    assert [b.values for b in run.batches()] == [[3, 4, 5, 6]]


def test_s12_available_now_does_not_wait_for_more_that_cannot_come(new_topic: NewTopic, start: Start) -> None:
    topic = new_topic()
    topic.add(*range(7))
    run = start(
        Checkpoint(), subscribe=topic.name, trigger="available_now",
        minOffsetsPerTrigger="3", maxOffsetsPerTrigger="3",
    )  # fmt: skip
    assert [len(b.rows) for b in run.batches()] == [3, 3, 1]


def test_s13_the_rows_of_all_batches_are_the_records(uneven: Topic, start: Start) -> None:
    checkpoint = Checkpoint()
    run = start(checkpoint, subscribe=uneven.name, maxOffsetsPerTrigger="25")
    batches = run.batches()
    assert sum(len(b.rows) for b in batches) == 113 == sum(checkpoint.end()[uneven.name].values())
    assert len({(r.partition, r.offset) for b in batches for r in b.rows}) == 113


def test_s31_tasks_are_at_least_min_partitions_and_read_everything(uneven: Topic, start: Start) -> None:
    (batch,) = start(Checkpoint(), subscribe=uneven.name, minPartitions="7").batches()
    assert batch.tasks >= 7
    assert batch.values == [1, *range(10, 21), *range(100, 201)]
    (batch,) = start(Checkpoint(), subscribe=uneven.name, maxRecordsPerPartition="20").batches()
    assert batch.tasks == 6 + 1 + 1
    assert len(batch.rows) == 113


def test_spark_4_1_tells_no_start_and_limits_hold_all_the_same(uneven: Topic, start: Start) -> None:
    """There `latestOffset` has no arguments: the position is remembered, but not beyond a restart."""
    reader = start(Checkpoint(), subscribe=uneven.name, maxOffsetsPerTrigger="10").reader
    at = reader.initialOffset()
    counts = []
    for _ in range(3):
        end = reader.latestOffset()
        reader.partitions(at, end)
        counts.append(sum(end["offsets"][uneven.name].values()) - sum(at["offsets"][uneven.name].values()))
        at = end
    assert counts == [10, 10, 10]
    reader.stop()
    restarted: StreamReader = start(Checkpoint(), subscribe=uneven.name, maxOffsetsPerTrigger="10").reader
    # Spark 4.1 asks in this order, of a new query too.
    end = restarted.latestOffset()
    assert sum(end["offsets"][uneven.name].values()) == 113
    uneven.add(5)
    at = start(Checkpoint(), subscribe=uneven.name, startingOffsets="latest").reader
    end = at.latestOffset()
    uneven.add(6)
    assert at.initialOffset() == end  # not behind it


def test_s35_what_is_there_is_reported_beside_what_was_read(uneven: Topic, start: Start) -> None:
    run = start(Checkpoint(), subscribe=uneven.name, maxOffsetsPerTrigger="10")
    assert run.reader.reportLatestOffset() is None  # S37: before it was ever asked
    batch = run.batch()
    assert batch is not None
    assert batch.latest is not None
    assert batch.latest["offsets"] == {uneven.name: {"0": 101, "1": 11, "2": 1}}
    assert run.reader._driver.newest is not None
    assert TopicPartition(uneven.name, 2) in run.reader._driver.newest.offsets
