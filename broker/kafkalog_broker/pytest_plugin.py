"""Fixtures for the tests of an application: a Kafka broker, topics, and what is in them.

pytest finds them once the package is installed (entry point ``pytest11``); see docs/testing.md. With
pytest-xdist each worker process has a broker of its own. Nothing of the broker is imported before a test
asks for it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafkalog_broker.embedded import EmbeddedBroker, EmbeddedCluster
    from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord
    from pyspark_kafkalog.types import TopicPartition

_POLL_SECONDS = 0.2
_NAME_LENGTH = 60
_SHOWN = 10


@pytest.fixture(scope="session")
def kafka_broker_properties() -> dict[str, object]:
    """Properties of `kafka_broker` and `kafka_cluster`; override it in a ``conftest.py`` to change them."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_properties: dict[str, object]) -> Iterator[EmbeddedBroker]:
    """A broker for the whole run; ``kafka_broker.bootstrap_servers`` is where clients connect."""
    from kafkalog_broker import start_broker

    with start_broker(kafka_broker_properties) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_cluster(kafka_broker_properties: dict[str, object]) -> Iterator[EmbeddedCluster]:
    """Three brokers and their ZooKeeper for the whole run. Needs Java and the extra ``spark``."""
    from kafkalog_broker import start_cluster

    with start_cluster(3, kafka_broker_properties) as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_broker: EmbeddedBroker) -> Iterator[str]:
    """The name of a new topic with one partition, deleted after the test. The test's name is part of it."""
    from pyspark_kafkalog import KafkaError, NewTopic, create_topics, delete_topics

    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:_NAME_LENGTH]
    name = f"{plain}-{uuid.uuid4().hex[:8]}"
    create_topics(kafka_broker.bootstrap_servers, [NewTopic(name, 1)])
    yield name
    with suppress(KafkaError):  # the test may have deleted it, or stopped the broker
        delete_topics(kafka_broker.bootstrap_servers, [name])


@pytest.fixture
def kafka_records(kafka_broker: EmbeddedBroker) -> Callable[..., list[ConsumerRecord]]:
    """A function that reads a topic from its beginning: ``kafka_records(topic)``.

    It returns what the topic has now, of transactions only what is committed, in the order of partitions and
    offsets. ``count=3`` waits until there are so many records instead, and fails with those that came if it
    takes longer than ``timeout`` seconds. ``isolation_level="read_uncommitted"`` shows transactions whole.
    """

    def read(
        topic: str,
        *,
        count: int | None = None,
        timeout: float = 30.0,
        isolation_level: str = "read_committed",
    ) -> list[ConsumerRecord]:
        from pyspark_kafkalog import Consumer

        given = {"bootstrap.servers": kafka_broker.bootstrap_servers, "isolation.level": isolation_level}
        ends_at = time.monotonic() + timeout
        found: list[ConsumerRecord] = []
        with Consumer(given) as consumer:
            partitions = consumer.partitions_for(topic)
            if not partitions:
                pytest.fail(f"there is no topic {topic!r}", pytrace=False)
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)

            def lacks_some() -> bool:
                return _is_behind(consumer.positions(), ends) if count is None else len(found) < count

            while lacks_some():
                found += consumer.poll(_POLL_SECONDS)
                if time.monotonic() > ends_at and lacks_some():
                    wanted = "and not at its end yet" if count is None else f"not {count}"
                    pytest.fail(f"{topic}: {_shown(found)} after {timeout:g} s, {wanted}", pytrace=False)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    return read


def _is_behind(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
    return any(positions.get(partition, 0) < end for partition, end in ends.items())


def _shown(records: list[ConsumerRecord]) -> str:
    values = ", ".join(repr(record.value) for record in records[:_SHOWN])
    more = ", ..." if len(records) > _SHOWN else ""
    return f"{len(records)} records ({values}{more})" if records else "no records"
