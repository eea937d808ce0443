"""Streams by Spark's own connector and by ours: the same batches of the same offsets, across restarts."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from pyspark_kafkalog import create_partitions, delete_topics
from tests.support.both_connectors import OURS, THEIRS, Both, ParityTopic, brief
from tests.support.foreign_face import messages
from tests.support.stream_runs import Batch, StreamRuns

_numbers = itertools.count()
FIRST = messages()[0].timestamp
SEED = int(os.environ.get("KAFKALOG_SEED", "6"))


class Streams:
    """*Not thread-safe.* The same query by each of the two, each with its own checkpoint."""

    def __init__(self, both: Both, directory: Path, **options: object) -> None:
        told = {"startingOffsets": "earliest", "includeHeaders": "true", **options}
        # Spark keeps where a query began in its checkpoint, which a Python source is not shown.
        ours = {"offsetsPath": str(directory / "starts"), "streamName": "parity"}
        self._runs = [
            StreamRuns(both.spark, source, both.servers, directory / source, told | more)
            for source, more in ((THEIRS, {}), (OURS, ours))
        ]

    def run(self, **trigger: object) -> list[Batch]:
        """The batches of a run, which are those of both."""
        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(lambda each: each.run(**trigger), self._runs)
        assert [batch.end for batch in ours] == [batch.end for batch in theirs]
        assert [batch.tasks for batch in ours] == [batch.tasks for batch in theirs]
        return ours

    def errors(self) -> list[str]:
        """What both end with."""
        found = []
        for each in self._runs:
            with pytest.raises(Exception) as info:
                each.run()
            found.append(str(info.value))
        return found


@pytest.fixture
def topic(both: Both, topic_name: str) -> ParityTopic:
    """Records in three partitions, unevenly: 1 in partition 0, 10 in 1, 80 in 2."""
    topic = ParityTopic.make(both.servers, topic_name, 3)
    sent = messages(91)
    topic.add(0, sent[:1])
    topic.add(1, sent[1:11])
    topic.add(2, sent[11:], "zstd")
    return topic


def test_s2_s8_a_limit_is_shared_alike_and_s6_kept_across_restarts(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    streams = Streams(both, tmp_path, subscribe=topic.name, maxOffsetsPerTrigger="20")
    first = streams.run()
    assert sum(len(batch.rows) for batch in first) == 91
    assert len(first) >= 5
    assert streams.run() == []
    topic.add(0, messages(30))
    assert [len(batch.rows) for batch in streams.run()] == [20, 10]


def test_s9_once_knows_no_limit(both: Both, topic: ParityTopic, tmp_path: Path) -> None:
    streams = Streams(both, tmp_path, subscribe=topic.name, maxOffsetsPerTrigger="20")
    assert [len(batch.rows) for batch in streams.run(once=True)] == [91]


def test_s7_the_largest_limit_there_is(both: Both, topic: ParityTopic, tmp_path: Path) -> None:
    streams = Streams(both, tmp_path, subscribe=topic.name, maxOffsetsPerTrigger=str(2**63 - 1))
    assert [len(batch.rows) for batch in streams.run()] == [91]


def test_s31_batches_are_split_alike(both: Both, topic: ParityTopic, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (split,) = Streams(both, tmp_path / "a", subscribe=topic.name, minPartitions="7").run()
    assert len(split.tasks) >= 7
    (cut,) = Streams(both, tmp_path / "b", subscribe=topic.name, maxRecordsPerPartition="30").run()
    assert max(map(len, cut.tasks)) <= 30


def test_s14_s17_topics_that_come_while_a_pattern_runs_are_read_whole(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    streams = Streams(both, tmp_path, subscribePattern=topic.name + ".*", startingOffsets="latest")
    streams.run()
    other = ParityTopic.make(both.servers, topic.name + "-more", 1)
    other.add(0, messages(6))
    topic.add(0, messages(2))
    assert sum(len(batch.rows) for batch in streams.run()) == 8


def test_s16_a_topic_made_anew_with_fewer_records_is_told_alike(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    streams = Streams(both, tmp_path, subscribe=topic.name)
    streams.run()
    delete_topics(both.servers, [topic.name])
    topic.await_gone()
    again = ParityTopic.make(both.servers, topic.name, 3)
    for partition, count in ((0, 1), (1, 10), (2, 5)):
        again.add(partition, messages(count))
    for text in streams.errors():
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
    streams = Streams(both, directory, **options)
    assert sum(len(batch.rows) for batch in streams.run()) == COUNTS[start]
    for partition in range(5):
        topic.add(partition, messages(partition))
    create_partitions(both.servers, {name: 10})
    topic.await_partitions(10)
    topic.add(7, messages(4))
    added = 0 + 1 + 2 + 3 + 4 + (0 if maker == "assign" else 4)
    assert sum(len(batch.rows) for batch in streams.run()) == added


@pytest.mark.parametrize(("maker", "start", "loss"), MATRIX)
def test_s39_to_s68_half_of_the_matrix(
    both_at_kafka: Both, tmp_path: Path, maker: str, start: str, loss: str
) -> None:
    """What is added while it is stopped is read once, new partitions from their beginning."""
    _matrix(both_at_kafka, tmp_path, maker, start, loss)


@pytest.mark.soak
@pytest.mark.parametrize(("maker", "start", "loss"), MATRIX)
def test_s39_to_s68_the_other_half_and_our_broker(
    both: Both, tmp_path: Path, maker: str, start: str, loss: str
) -> None:
    _matrix(both, tmp_path, maker, start, "false" if loss == "true" else "true")


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_s27_s28_s29_batches_that_hold_markers(
    both_at_kafka: Both, topic_name: str, tmp_path: Path, isolation: str
) -> None:
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 2)
    sent = messages(24)
    topic.add_transactions((0, sent[:6], True), (0, sent[6:12], False), (0, sent[12:18], True))
    topic.add_transactions((1, sent[:3], False))
    options = {"subscribe": topic_name, "maxOffsetsPerTrigger": "7", "kafka.isolation.level": isolation}
    streams = Streams(both_at_kafka, tmp_path, **options)
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
    streams = Streams(both_at_kafka, tmp_path, subscribe=topic_name, failOnDataLoss=loss)
    streams.run()
    topic.add(0, messages(10))
    topic.delete_before(p0=14)
    if loss == "true":
        assert all("ould not read" in text for text in streams.errors())
    else:
        assert [row.offset for batch in streams.run() for row in batch.rows] == list(range(14, 20))


def _rounds(both: Both, directory: Path, examples: int) -> None:
    """Random records and new partitions between runs, and random limits."""
    steps = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=3)

    @seed(SEED)
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(steps, st.integers(1, 60), st.none() | st.integers(1, 9))
    def run(added: Sequence[Sequence[int]], limit: int, minimum: int | None) -> None:
        number = next(_numbers)
        count = len(added[0])
        topic = ParityTopic.make(both.servers, f"parity-rounds-{number}", count)
        split = {} if minimum is None else {"minPartitions": str(minimum)}
        options = {"subscribe": topic.name, "maxOffsetsPerTrigger": str(limit), **split}
        streams = Streams(both, directory / str(number), **options)
        for counts in added:
            if len(counts) > count:
                count = len(counts)
                create_partitions(both.servers, {topic.name: count})
                topic.await_partitions(count)
            for partition, records in enumerate(counts):
                topic.add(partition, messages(records))
            found = streams.run()
            assert sum(len(batch.rows) for batch in found) == sum(counts)

    run()


def test_random_growth_under_random_limits_is_cut_into_the_same_batches(
    both_at_kafka: Both, tmp_path: Path
) -> None:
    _rounds(both_at_kafka, tmp_path, 4)


@pytest.mark.soak
def test_much_random_growth_is_cut_into_the_same_batches(both: Both, tmp_path: Path) -> None:
    _rounds(both, tmp_path, 60)
