"""Streams by Spark's own connector and by ours: the same batches of the same offsets, across restarts."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pyspark_kafkalog import LagListener, SourceLag, create_partitions, delete_topics
from tests.support.datasource.both_connectors import Both, ParityTopic, at_kafka, brief
from tests.support.datasource.stream_runs import Batch, BothStreams
from tests.support.foreign.foreign_face import messages
from tests.support.until import until

_numbers = itertools.count()
FIRST = messages()[0].timestamp


@pytest.fixture
def topic(both: Both, topic_name: str) -> ParityTopic:
    """Records in three partitions, unevenly: 1 in partition 0, 10 in 1, 80 in 2."""
    topic = ParityTopic.make(both.servers, topic_name, 3)
    sent = messages(91)
    topic.add(0, sent[:1])
    topic.add(1, sent[1:11])
    topic.add(2, sent[11:], "zstd")
    return topic


def test_s2_s8_a_limit_is_shared_the_same_and_s6_kept_across_restarts(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    streams = BothStreams(both, tmp_path, subscribe=topic.name, maxOffsetsPerTrigger="20")
    first = streams.run()
    assert sum(len(batch.rows) for batch in first) == 91
    assert len(first) >= 5
    assert streams.run() == []
    topic.add(0, messages(30))
    assert [len(batch.rows) for batch in streams.run()] == [20, 10]


def test_s12_available_now_leaves_nothing_below_the_least_count_with_ours_only(
    both_at_kafka: Both, topic_name: str, tmp_path: Path
) -> None:
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 1)
    topic.add(0, messages(25))
    limits = {"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "10"}
    streams = BothStreams(both_at_kafka, tmp_path, subscribe=topic.name, **limits)
    theirs, ours = streams.outcomes()
    assert counts_of(ours) == [10, 10, 5]
    assert counts_of(theirs) == [10, 10], "Spark's connector has mended this: see docs/migration.md"
    assert [counts_of(each) for each in streams.outcomes()] == [[5], []]


def counts_of(outcome: Sequence[Batch] | str) -> list[int]:
    """Rows by batch."""
    assert not isinstance(outcome, str), brief(outcome)
    return [len(batch.rows) for batch in outcome]


@at_kafka
def test_s35_s36_the_listener_tells_what_sparks_connector_has_as_metrics(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    heard: list[SourceLag] = []
    both.spark.streams.addListener(listener := LagListener(heard.append))
    try:
        streams = BothStreams(both, tmp_path, subscribe=topic.name, maxOffsetsPerTrigger="20")
        ours = streams.run()
        told = streams.theirs.batches()
        create_partitions(both.servers, {topic.name: 4})
        topic.await_partitions(4)
        topic.add(0, messages(30))
        topic.add(3, messages(3))
        ours += streams.run()
        told += streams.theirs.batches()
        # Listeners are told a moment later.
        query = streams.ours.query_id
        until(lambda: len([lag for lag in heard if lag.query_id == query]) >= len(told))
        lags = [lag for lag in heard if lag.query_id == query]
    finally:
        both.spark.streams.removeListener(listener)
    metrics = [{name: float(value) for name, value in batch.metrics.items()} for batch in told]
    # Spark writes its numbers with one digit.
    assert [as_metrics(lag) for lag in lags] == [pytest.approx(each, abs=0.05) for each in metrics]
    assert max(lag.max_offsets_behind for lag in lags) > 20
    assert [batch.metrics for batch in ours] == [{}] * len(told), "Python sources have metrics by now"


def as_metrics(lag: SourceLag) -> dict[str, float]:
    """By the names of Spark's connector."""
    return {
        "minOffsetsBehindLatest": lag.min_offsets_behind,
        "maxOffsetsBehindLatest": lag.max_offsets_behind,
        "avgOffsetsBehindLatest": lag.avg_offsets_behind,
    }


def test_s14_s17_topics_that_come_while_a_pattern_runs_are_read_whole(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    streams = BothStreams(both, tmp_path, subscribePattern=topic.name + ".*", startingOffsets="latest")
    streams.run()
    other = ParityTopic.make(both.servers, topic.name + "-more", 1)
    other.add(0, messages(6))
    topic.add(0, messages(2))
    assert sum(len(batch.rows) for batch in streams.run()) == 8


def test_s16_a_recreated_topic_with_fewer_records_is_reported_the_same(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    streams = BothStreams(both, tmp_path, subscribe=topic.name)
    streams.run()
    delete_topics(both.servers, [topic.name])
    topic.await_gone()
    again = ParityTopic.make(both.servers, topic.name, 3)
    for partition, count in ((0, 1), (1, 10), (2, 5)):
        again.add(partition, messages(count))
    for text in map(str, streams.outcomes()):
        assert re.search(rf"{topic.name}-2.* was changed from 80 to 5", text), brief(text)


MAKERS: dict[str, Callable[[str], dict[str, object]]] = {
    "assign": lambda name: {"assign": json.dumps({name: [0, 1, 2, 3, 4]})},
    "subscribe": lambda name: {"subscribe": name},
    "subscribePattern": lambda name: {"subscribePattern": name + "$|" + name},
}
FROM: dict[str, Callable[[ParityTopic], dict[str, object]]] = {
    "latest": lambda t: {"startingOffsets": "latest"},
    "earliest": lambda t: {"startingOffsets": "earliest"},
    "specific offsets": lambda t: {"startingOffsets": t.offsets(p0=-2, p1=-1, p2=0, p3=1, p4=2)},
    "times of partitions": lambda t: {
        "startingOffsetsByTimestamp": t.offsets(**{f"p{p}": FIRST + 14 for p in range(5)})
    },
    "one time": lambda t: {"startingTimestamp": str(FIRST + 15)},
}
COUNTS = {
    "latest": 0,
    "earliest": 25,
    "specific offsets": 5 + 0 + 5 + 4 + 3,
    "times of partitions": 5 * 3,
    "one time": 5 * 2,
}
MATRIX = [
    (maker, start, ("true", "false")[(i + j) % 2])
    for i, maker in enumerate(MAKERS)
    for j, start in enumerate(FROM)
]


def _matrix(both: Both, directory: Path, maker: str, start: str, loss: str) -> None:
    name = f"parity-matrix-{next(_numbers)}"
    topic = ParityTopic.make(both.servers, name, 5)
    for partition in range(5):
        topic.add(partition, messages(5))
    options = {**MAKERS[maker](name), **FROM[start](topic), "failOnDataLoss": loss}
    streams = BothStreams(both, directory, **options)
    assert sum(len(batch.rows) for batch in streams.run()) == COUNTS[start]
    for partition in range(5):
        topic.add(partition, messages(partition))
    create_partitions(both.servers, {name: 10})
    topic.await_partitions(10)
    topic.add(7, messages(4))
    added = 0 + 1 + 2 + 3 + 4 + (0 if maker == "assign" else 4)
    assert sum(len(batch.rows) for batch in streams.run()) == added


@pytest.mark.parametrize(("maker", "start", "loss"), MATRIX[::3])
def test_s39_to_s68_a_part_of_the_matrix(
    both_at_kafka: Both, tmp_path: Path, maker: str, start: str, loss: str
) -> None:
    """What is added while it is stopped is read once, new partitions from their beginning."""
    _matrix(both_at_kafka, tmp_path, maker, start, loss)


@pytest.mark.soak
@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize(("maker", "start", "_"), MATRIX)
def test_s39_to_s68_the_whole_matrix_and_our_broker(
    both: Both, tmp_path: Path, maker: str, start: str, loss: str, _: str
) -> None:
    _matrix(both, tmp_path, maker, start, loss)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_s27_s28_s29_batches_that_hold_markers(
    both_at_kafka: Both, topic_name: str, tmp_path: Path, isolation: str
) -> None:
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 2)
    sent = messages(24)
    topic.add_transactions((0, sent[:6], True), (0, sent[6:12], False), (0, sent[12:18], True))
    topic.add_transactions((1, sent[:3], False))
    options = {"subscribe": topic_name, "maxOffsetsPerTrigger": "7", "kafka.isolation.level": isolation}
    streams = BothStreams(both_at_kafka, tmp_path, **options)
    found = streams.run()
    assert sum(len(b.rows) for b in found) == (12 if isolation == "read_committed" else 21)
    topic.add_transactions((1, sent[18:20], True))
    assert sum(len(b.rows) for b in streams.run()) == 2


@pytest.mark.parametrize("loss", ["true", "false"])
def test_s80_what_was_deleted_before_it_was_read(
    both_at_kafka: Both, topic_name: str, tmp_path: Path, loss: str
) -> None:
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 1)
    topic.add(0, messages(10))
    streams = BothStreams(both_at_kafka, tmp_path, subscribe=topic_name, failOnDataLoss=loss)
    streams.run()
    topic.add(0, messages(10))
    topic.delete_before(p0=14)
    if loss == "true":
        assert all("ould not read" in str(text) for text in streams.outcomes())
    else:
        assert [row.offset for batch in streams.run() for row in batch.rows] == list(range(14, 20))
