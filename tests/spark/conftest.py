"""One Spark session and one broker for the whole suite; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kafkalog_broker
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.classic.two_brokers07 import TwoBrokers07
from tests.support.datasource.spark_topics import Topic
from tests.support.protocol.raw_client import RawClient
from tests.support.spark.spark_session import running_session

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with running_session() as session:
        yield session


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedBroker]:
    # Records here are of 1970, and age must not take them while a slow run is still reading.
    settings = {"auto.create.topics.enable": "false", "log.retention.ms": "-1"}
    with kafkalog_broker.start_broker(settings) as running:
        yield running


@pytest.fixture(scope="session")
def brokers07(zookeeper: ZooKeeperServer) -> Iterator[TwoBrokers07]:
    """Brokers 1 and 2 of Kafka 0.7's wire, with two partitions of each topic, that meet in ZooKeeper."""
    place = zookeeper.connect + "/spark-07"
    settings: dict[str, object] = {
        "listeners": "KAFKA07://127.0.0.1:0", "zookeeper.connect": place, "num.partitions": 2,
        "log.flush.interval": 1, "log.file.size": 1000, "zookeeper.session.timeout.ms": 60_000,
    }  # fmt: skip
    with (
        kafkalog_broker.start_broker({**settings, "node.id": 1}) as one,
        kafkalog_broker.start_broker({**settings, "node.id": 2}) as two,
    ):
        yield TwoBrokers07(place, {1: one, 2: two})


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(server.port) as raw:
        yield raw


@pytest.fixture
def new_topic(client: RawClient) -> Callable[..., Topic]:
    """Makes a topic: ``new_topic(partitions=3)``."""

    def make(partitions: int = 1, prefix: str = "topic", **configs: str) -> Topic:
        name = f"{prefix}-{next(_numbers)}"
        created = client.create_topic(name, partitions, configs)
        assert created.error_code == 0, created.error_message
        return Topic(client, name)

    return make


@pytest.fixture
def load(spark: Any, server: EmbeddedBroker) -> Callable[..., Any]:
    """``load(subscribe=topic.name, startingOffsets=...)``: a DataFrame of the source."""

    def read(schema: Any = None, **options: str) -> Any:
        reader = spark.read.format("kafkalog").option("kafka.bootstrap.servers", server.bootstrap_servers)
        reader = reader.options(**options)
        return (reader.schema(schema) if schema is not None else reader).load()

    return read
