"""Reads of many partitions ask for their beginnings together, and give what reads of each alone give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.client.admin import delete_topics
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pyspark_kafkalog.types import TopicPartition
from tests.support.protocol.raw_client import RawClient, batch

COUNT = 300
LARGE = 7
"""A partition that is not read with the first request."""

Rows = list[tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """With a topic ``many`` of which each third partition is empty."""
    with start_broker({"metrics.listener": "127.0.0.1:0"}) as running, RawClient(running.port) as client:
        client.create_topic("many", COUNT)
        for number in range(COUNT):
            for _ in range(100 if number == LARGE else number % 3):
                client.produce("many", batch(b"%d" % number, b"x" * 1000), number)
        yield running


def expected() -> Rows:
    counts = {number: 100 if number == LARGE else number % 3 for number in range(COUNT)}
    return [
        (number, 2 * n + m, (b"%d" % number, b"x" * 1000)[m])
        for number, count in counts.items()
        for n in range(count)
        for m in range(2)
    ]


def rows_of(batches: Any) -> Rows:
    return sorted(
        row
        for one in batches
        for row in zip(*(one[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
    )


def requests(broker: EmbeddedBroker, api: str) -> int:
    with urlopen(f"{broker.status_url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.search(rf'^kafkalog_broker_requests_total{{api="{api}"}} (\S+)$', text, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


def delete_before(broker: EmbeddedBroker, partition: TopicPartition, offset: int) -> None:
    part = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
    topic = DeleteRecordsTopic(partition.topic, (part,))
    with RawClient(broker.port) as client:
        client.ask(DeleteRecordsRequest(topics=(topic,), timeout_ms=1000))


def test_two_hundred_partitions_cost_a_few_requests(broker: EmbeddedBroker) -> None:
    before = {api: requests(broker, api) for api in ("FETCH", "LIST_OFFSETS", "METADATA")}
    with kafkalog.read_arrow(broker.bootstrap_servers, "many") as reader:
        assert rows_of(reader) == sorted(expected())
    used = {api: requests(broker, api) - count for api, count in before.items()}
    assert max(used.values()) < 10, used


@pytest.mark.parametrize("each", [1, 40, 1000])
def test_a_task_may_read_many_partitions(broker: EmbeddedBroker, each: int) -> None:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "many",
        "topicPartitionsPerTask": str(each),
    }
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    assert len(tasks) == -(-COUNT // each)
    assert rows_of(row for task in tasks for row in reader.read(task)) == sorted(expected())


def test_loads_have_a_task_for_each_range(broker: EmbeddedBroker, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "many"}
    with pytest.raises(InvalidConfig, match="topicPartitionsPerTask is not for loads"):
        kafkalog.load(None, name="n", offsets=tmp_path, topicPartitionsPerTask=2, **options)


def test_records_that_retention_took_while_others_were_read_are_no_loss(broker: EmbeddedBroker) -> None:
    with RawClient(broker.port) as client:
        client.create_topic("aging", 50, {"cleanup.policy": "delete"})
        for number in range(50):
            client.produce("aging", batch(*[b"x" * 1000] * 100), number)
            client.produce("aging", batch(b"new"), number)
    with kafkalog.read_arrow(broker.bootstrap_servers, "aging") as reader:
        found = [next(iter(reader))]
        delete_before(broker, TopicPartition("aging", 49), 100)
        found += list(reader)
    assert [(offset, value) for number, offset, value in rows_of(found) if number == 49] == [(100, b"new")]


@pytest.mark.usefixtures("pauses_take_no_time")
@pytest.mark.parametrize("loses", [False, True], ids=["an error", "read on"])
def test_a_topic_that_is_gone_is_lost_as_where_few_are_read(broker: EmbeddedBroker, loses: bool) -> None:
    with RawClient(broker.port) as client:
        client.create_topic("gone", 10)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "gone",
        "topicPartitionsPerTask": "10",
        "kafkaConsumer.pollTimeoutMs": "30000",
        "fetchOffset.numRetries": "0",
        "failOnDataLoss": "false" if loses else "true",
    }
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    parts = [replace(part, start=0, end=1, topic_id="of-before", more=()) for part in (task, *task.more)]
    delete_topics(broker.bootstrap_servers, ["gone"])
    rows = reader.read(replace(parts[0], more=tuple(parts[1:])))
    if loses:
        assert list(rows) == []
    else:
        with pytest.raises(DataLoss):
            next(rows)


def test_a_corrupt_batch_is_named_with_its_partition(tmp_path: Path) -> None:
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("many", 20)
        for number in range(20):
            for value in (b"a", b"b", b"c"):
                client.produce("many", batch(value), number)
        segment = next((tmp_path / "many_13").glob("*.kafka"))
        data = bytearray(segment.read_bytes())
        data[len(data) // 3 + 30] ^= 1
        segment.write_bytes(data)
        with (
            pytest.raises(CorruptMessage, match="many-13"),
            kafkalog.read_arrow(broker.bootstrap_servers, "many") as reader,
        ):
            reader.read_all()
        with kafkalog.read_arrow(broker.bootstrap_servers, "many", onCorruptBatch="skip") as reader:
            rows = rows_of(reader)
        assert len(rows) == 59
        assert [offset for number, offset, _ in rows if number == 13] == [0, 2]
