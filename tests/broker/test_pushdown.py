"""What a read with pushed filters leaves out of its plan, against a broker: never a row that can match."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.datasource.options import parse_batch_options
from pyspark_kafkalog.datasource.pushing_reader import PushingReader
from tests.support.raw_client import RawClient
from tests.support.spark_topics import Topic

Part = tuple[int, int, int]
EARLIEST, LATEST = -2, -1


@pytest.fixture
def rows(client: RawClient, topic: str) -> Topic:
    """Ten rows in each of two partitions, in batches of five; row n is of millisecond 1000 + n."""
    made = Topic(client, topic)
    for partition in (0, 1):
        made.add(*range(5), partition=partition, timestamp=1000, step=1)
        made.add(*range(5, 10), partition=partition, timestamp=1005, step=1)
    return made


class Read:
    """A planned read, and what its tasks gave: ``parts`` as (partition, start, end), rows by partition."""

    def __init__(self, broker: EmbeddedBroker, topic: Topic, filters: Sequence[Any], **options: str) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic.name, **options}
        self.reader = PushingReader(parse_batch_options(given), ("partition", "offset"))
        assert list(self.reader.pushFilters(list(filters))) == list(filters)
        self.tasks: list[Any] = list(self.reader.partitions())
        self.parts = [(task.partition, task.start, task.end) for task in self.tasks]

    def offsets(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for task in self.tasks:
            for batch in self.reader.read(task):
                found.setdefault(task.partition, []).extend(batch.column("offset").to_pylist())
        return found


def at(millisecond: int) -> datetime:
    return datetime.fromtimestamp(millisecond / 1000, timezone.utc)


@pytest.mark.parametrize(
    ("filters", "parts"),
    [
        ([], [(0, EARLIEST, LATEST), (1, EARLIEST, LATEST)]),
        ([EqualTo(("partition",), 1)], [(1, EARLIEST, LATEST)]),
        ([In(("partition",), (7, 8))], []),
        ([EqualTo(("topic",), "another")], []),
        ([GreaterThan(("offset",), 3)], [(0, 4, LATEST), (1, 4, LATEST)]),
        ([LessThan(("offset",), 4)], [(0, EARLIEST, 4), (1, EARLIEST, 4)]),
        ([EqualTo(("partition",), 0), EqualTo(("offset",), 6)], [(0, 6, 7)]),
        # Behind the end nothing matches now; what comes later may.
        ([GreaterThan(("offset",), 50)], [(0, 10, LATEST), (1, 10, LATEST)]),
        ([LessThan(("offset",), 50)], [(0, EARLIEST, LATEST), (1, EARLIEST, LATEST)]),
        ([GreaterThanOrEqual(("timestamp",), at(1007))], [(0, 7, LATEST), (1, 7, LATEST)]),
        ([GreaterThanOrEqual(("timestamp",), at(2000))], [(0, 10, LATEST), (1, 10, LATEST)]),
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 5)], []),
    ],
)
def test_filters_leave_out_what_cannot_match(
    running_broker: EmbeddedBroker, rows: Topic, filters: list[Any], parts: list[Part]
) -> None:
    assert Read(running_broker, rows, filters).parts == parts


def test_the_tasks_read_all_rows_that_match(running_broker: EmbeddedBroker, rows: Topic) -> None:
    read = Read(running_broker, rows, [GreaterThan(("offset",), 6), LessThan(("offset",), 9)])
    assert read.offsets() == {0: [7, 8], 1: [7, 8]}


def test_given_offsets_are_narrowed_and_never_widened(running_broker: EmbeddedBroker, rows: Topic) -> None:
    given = {"startingOffsets": rows.offsets(p0=2, p1=8), "endingOffsets": rows.offsets(p0=6, p1=9)}
    filters = [GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 20)]
    assert Read(running_broker, rows, filters, **given).parts == [(0, 4, 6), (1, 8, 9)]


def test_split_ranges_that_cannot_match_have_no_task(running_broker: EmbeddedBroker, rows: Topic) -> None:
    read = Read(running_broker, rows, [GreaterThanOrEqual(("offset",), 7)], maxRecordsPerPartition="5")
    assert read.parts == [(0, 7, LATEST), (1, 7, LATEST)]


def test_rows_that_come_after_the_plan_are_read_where_the_end_is_open(
    running_broker: EmbeddedBroker, rows: Topic
) -> None:
    read = Read(running_broker, rows, [EqualTo(("partition",), 0), GreaterThan(("timestamp",), at(1500))])
    assert read.offsets() == {}
    rows.add("later", timestamp=1600)
    assert read.offsets() == {0: [10]}


def test_a_time_is_looked_up_in_records_whose_times_go_back(
    running_broker: EmbeddedBroker, rows: Topic
) -> None:
    rows.add("early", "late", timestamp=900, step=200)
    read = Read(
        running_broker, rows, [EqualTo(("partition",), 0), GreaterThanOrEqual(("timestamp",), at(1009))]
    )
    assert read.offsets() == {0: [9, 10, 11]}
