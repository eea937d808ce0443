"""A plain batch remembers nothing, on the broker that all tests share."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.datasource.source import DefaultSource
from tests.support.datasource.spark_topics import Topic


def test_a_batch_that_is_run_again_reads_all_of_the_topic_as_it_is_by_then(
    running_broker: EmbeddedBroker, new_topic: Callable[..., Topic], cluster: Cluster
) -> None:
    topic = new_topic(2)
    topic.add(1, 2)
    options = {
        "kafka.bootstrap.servers": running_broker.bootstrap_servers, "subscribe": topic.name,
        "kafka.group.id": topic.name, "columns": "value",
    }  # fmt: skip

    def run(tasks: int | None = None) -> list[int]:
        """A driver of its own, that dies after so many tasks."""
        source = DefaultSource(options)
        reader = source.reader(source.schema())
        return sorted(
            int(value)
            for task in reader.partitions()[:tasks]
            for batch in reader.read(task)
            for value in batch.column("value").to_pylist()
        )

    assert run(tasks=1) == [1, 2]
    topic.add(3, partition=1)
    assert run() == [1, 2, 3]
    topic.add(4)
    assert run() == [1, 2, 3, 4]
    assert committed_offsets(cluster, topic.name) == {}


@pytest.mark.parametrize(
    ("split", "tasks"), [({}, 3), ({"minPartitions": "5"}, 5), ({"maxRecordsPerPartition": "2"}, 3)]
)
def test_a_plan_reads_partitions_that_were_empty_when_it_was_made(
    running_broker: EmbeddedBroker, new_topic: Callable[..., Topic], split: dict[str, str], tasks: int
) -> None:
    """As a DataFrame does, which Spark plans once and runs again."""
    topic = new_topic(3)
    topic.add(*range(4))
    source = DefaultSource(
        {"kafka.bootstrap.servers": running_broker.bootstrap_servers, "subscribe": topic.name, **split}
    )
    reader = source.reader(source.schema())
    planned = reader.partitions()
    assert len(planned) == tasks

    def values() -> list[int]:
        batches = [batch for task in planned for batch in reader.read(pickle.loads(pickle.dumps(task)))]
        return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())

    assert values() == [0, 1, 2, 3]
    topic.add(4)
    topic.add(5, 6, 7, partition=1)
    topic.add(8, partition=2)
    assert values() == list(range(9))
