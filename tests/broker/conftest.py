"""One broker for the tests that need nothing special of it, and a topic of its own for each test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.log.data_directories import write_log
from tests.support.log.logs import crash_all
from tests.support.protocol.raw_client import RawClient
from tests.support.protocol.wire07 import Wire07
from tests.support.two_brokers import Two
from tests.support.zookeeper import patient_session

_numbers = itertools.count()


@pytest.fixture(scope="session")
def running_broker() -> Iterator[EmbeddedBroker]:
    # Records here are of 1970, and age must not take them while a slow run is still reading.
    with start_broker({"offset.metadata.max.bytes": 20, "log.retention.ms": -1}) as broker:
        yield broker


@pytest.fixture
def client(running_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(running_broker.port) as client:
        yield client


@pytest.fixture
def modern(broker: EmbeddedBroker) -> Iterator[RawClient]:
    """Today's protocol, of the ``broker`` of two listeners that the test's module has."""
    with RawClient(broker.port_of("PLAINTEXT")) as client:
        yield client


@pytest.fixture
def first(broker: EmbeddedBroker) -> Iterator[Wire07]:
    """The other listener of that broker: the protocol of 0.7."""
    with Wire07(broker.port_of("KAFKA07")) as wire:
        yield wire


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{next(_numbers)}-{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.originalname)[:200]}"


@pytest.fixture
def topic(client: RawClient, topic_name: str) -> str:
    """A topic with two partitions."""
    assert client.create_topic(topic_name, partitions=2).error_code == 0
    return topic_name


@pytest.fixture
def cluster(running_broker: EmbeddedBroker) -> Iterator[Cluster]:
    made = Cluster(ClientConfig(bootstrap_servers=running_broker.bootstrap_servers))
    yield made
    made.close()


@pytest.fixture
def session(zookeeper_connect: str) -> Iterator[ZooKeeperSession]:
    """A session that ends when the test says so; see `expire`."""
    with patient_session(zookeeper_connect) as session:
        yield session


@pytest.fixture
def other(zookeeper_connect: str) -> Iterator[ZooKeeperSession]:
    """Another one in the same place."""
    with patient_session(zookeeper_connect) as session:
        yield session


@pytest.fixture
def two(zookeeper_connect: str, tmp_path: Path) -> Iterator[Two]:
    """Two brokers of one cluster."""
    with Two(zookeeper_connect, tmp_path) as running:
        yield running


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """The directory of a partition that a broker left behind; see `write_log`."""
    try:
        return write_log(tmp_path / "data")
    finally:
        crash_all()
