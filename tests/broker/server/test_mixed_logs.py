"""Readers of a log of v0, v1 and v2, one after the other: the source, the simple consumer, the command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_log import ScriptedLog, serving
from tests.support.formats.upgraded_log import EACH, EXPECTED, WRITTEN, expected_rows, record, stored_log


@pytest.fixture(scope="module")
def written(running_broker: EmbeddedBroker) -> str:
    """A topic whose one partition holds `EXPECTED`, a few messages in each format and codec."""
    topic = "mixed-logs"
    create_topics(
        running_broker.bootstrap_servers, [NewTopic(topic, 1, configs={"message.format.version": "producer"})]
    )
    offset = 0
    for message_format, codec in WRITTEN:
        properties = {
            "bootstrap.servers": running_broker.bootstrap_servers,
            "message.format": message_format,
            "compression.type": codec,
            "linger.ms": 1000,
        }
        with Producer(properties) as producer:
            for _ in range(EACH):
                new = record(offset, "v1")
                producer.send(topic, new.value, new.key, partition=0, timestamp_ms=new.timestamp)
                offset += 1
    return topic


def rows(server: str, topic: str, start: int, end: int) -> list[tuple[Any, ...]]:
    options = parse_batch_options({"kafka.bootstrap.servers": server, "subscribe": topic})
    columns = ("offset", "key", "value", "timestamp", "timestampType")
    batches = BatchReader(options, columns).read(KafkaInputPartition(topic, 0, start, end, 0))
    found = [row for batch in batches for row in batch.to_pylist()]
    for row in found:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    return [tuple(row[name] for name in columns) for row in found]


@pytest.mark.parametrize(("start", "end"), [(0, 36), (4, 5), (10, 31), (35, 36), (13, 14)])
def test_the_source_reads_what_our_broker_holds(
    running_broker: EmbeddedBroker, written: str, start: int, end: int
) -> None:
    assert rows(running_broker.bootstrap_servers, written, start, end) == expected_rows(start, end)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("start", "end"), [(0, 36), (4, 5), (10, 31), (13, 14)])
def test_the_source_reads_what_a_broker_of_kafka_holds(start: int, end: int, at_once: bool) -> None:
    with serving(ScriptedLog(stored_log(), at_once=at_once)) as broker:
        assert rows(broker.address, "t", start, end) == expected_rows(start, end)


@pytest.fixture
def consumer(running_broker: EmbeddedBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", running_broker.port, {"protocol": "0.8"}) as consumer:
        yield consumer


@pytest.mark.parametrize("start", [0, 4, 16, 35])
def test_the_simple_consumer_reads_from_any_offset(
    consumer: SimpleConsumer, written: str, start: int
) -> None:
    found = consumer.fetch(written, 0, start)
    assert found.next_offset == len(EXPECTED)
    assert [(r.offset, r.key, r.value, r.timestamp) for r in found.records()] == [
        row[:4] for row in expected_rows(start, len(EXPECTED))
    ]
    assert [bytes(payload) for payload, _ in found] == [r.value or b"" for r in EXPECTED[start:]]


def test_the_command_reads_them_as_records(running_broker: EmbeddedBroker, written: str) -> None:
    config = ConsumerConfig(bootstrap_servers=running_broker.bootstrap_servers)
    cluster = Cluster(config)
    try:
        wanted = {TopicPartition(written, 0): (1, 35)}
        found = [r for _, records in read_ranges(cluster, wanted, config) for r in records]
    finally:
        cluster.close()
    assert [(r.offset, r.key, r.value, r.timestamp) for r in found] == [r[:4] for r in expected_rows(1, 35)]
