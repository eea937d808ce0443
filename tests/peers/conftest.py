"""Peers for all tests: Apache Kafka and its tools, clients of 0.7. What cannot be had is skipped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache_kafka import ApacheKafka, fetch, run_tool
from tests.support.clients07 import Driver
from tests.support.fetched import NotAvailable
from tests.support.spark_session import running_session

_numbers = itertools.count()

Tool = Callable[..., str]


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Where Kafka's jars are; skips the test where there are none, and says why."""
    try:
        return fetch()
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")


@pytest.fixture(scope="session")
def dump_log_segments(kafka_jars: Path) -> Tool:
    """``kafka-dump-log`` with the arguments given; returns what it writes."""
    return lambda *arguments: run_tool(kafka_jars, "kafka.tools.DumpLogSegments", *arguments)


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running broker that all tests share: each makes topics of its own."""
    kafka = ApacheKafka(kafka_jars, tmp_path_factory.mktemp("kafka"))
    try:
        yield kafka.start()
    finally:
        kafka.stop()


def _driver(start: Callable[[Path], Driver], directory: Path) -> Iterator[Driver]:
    try:
        driver = start(directory)
    except NotAvailable as e:
        pytest.skip(f"clients of Kafka 0.7 are not here: {e}")
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def node_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """prozess and kafka of npm."""
    yield from _driver(Driver.for_node, tmp_path_factory.mktemp("node-clients"))


@pytest.fixture(scope="session")
def python2_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """brod, pykafka and samsa of PyPI."""
    yield from _driver(Driver.for_python2, tmp_path_factory.mktemp("python2-clients"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests that read with Spark."""
    with running_session() as session:
        yield session


@pytest.fixture
def topic_name() -> str:
    """A name that no other test uses."""
    return f"peers-{next(_numbers)}"
