"""maxBytesPerPartition: tasks of about so many bytes, by what the log is like where it is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.types import NewRecord
from tests.support.datasource.spark_topics import Topic
from tests.support.protocol.raw_client import RawClient


@pytest.fixture
def rows(client: RawClient, topic: str) -> Topic:
    return Topic(client, topic)


def parts(broker: EmbeddedBroker, topic: Topic, **options: str) -> list[tuple[int, int, int]]:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic.name, **options}
    tasks: list[Any] = list(BatchReader(parse_batch_options(given), ("offset",)).partitions())
    return [(task.partition, task.start, task.end) for task in tasks]


def fill(topic: Topic, batches: int, value_bytes: int, partition: int = 0) -> None:
    """Batches of ten records."""
    for _ in range(batches):
        topic.add_records([NewRecord(bytes(value_bytes))] * 10, partition=partition)


def test_what_is_left_is_cut_by_records_and_to_the_minimum(
    running_broker: EmbeddedBroker, rows: Topic
) -> None:
    fill(rows, 40, 1000)
    options = {"maxBytesPerPartition": "210000", "maxRecordsPerPartition": "150"}
    assert [end for _, _, end in parts(running_broker, rows, **options)][:-1] == [100, 200, 300, -1]
    options = {"maxBytesPerPartition": "210000", "minPartitions": "5"}
    *_, empty = found = parts(running_broker, rows, **options)
    assert (len(found), empty) == (6 + 1, (1, -2, -1))
