"""Streams are driven as Spark drives them, against the broker that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.embedded import EmbeddedBroker
from tests.support.datasource.spark_stream import Checkpoint, Run
from tests.support.datasource.spark_topics import Topic
from tests.support.protocol.raw_client import RawClient


@pytest.fixture
def new_topic(client: RawClient, topic_name: str) -> Callable[..., Topic]:
    """Makes a topic, or makes it anew: ``new_topic(5, "-b")`` has the test's name with this ending."""

    def make(partitions: int = 1, ending: str = "", **configs: str) -> Topic:
        name = topic_name + ending
        created = client.create_topic(name, partitions, configs)
        assert created.error_code == 0, created.error_message
        return Topic(client, name)

    return make


@pytest.fixture
def start(running_broker: EmbeddedBroker) -> Iterator[Callable[..., Run]]:
    """``start(checkpoint, subscribe="t", trigger="available_now")``: a run of a query, from earliest on."""
    runs: list[Run] = []

    def begin(
        checkpoint: Checkpoint, *, trigger: str = "processing", columns: Any = None, **options: str
    ) -> Run:
        given = {
            "kafka.bootstrap.servers": running_broker.bootstrap_servers,
            **({} if "startingTimestamp" in options else {"startingOffsets": "earliest"}),
            **options,
        }
        runs.append(Run(given, checkpoint, trigger=trigger, columns=columns))
        return runs[-1]

    yield begin
    for run in runs:
        run.reader.stop()
