"""Streams are driven as Spark drives them, against the broker that all tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.datasource.reading.kafka import IDLE_CLUSTERS
from tests.support.datasource.spark_stream import Checkpoint, Run
from tests.support.datasource.spark_topics import Topic
from tests.support.manual_clock import ManualClock
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


class PausesOnly(ManualClock):
    """*Thread-safe.* Passes with its own pauses, which are real ones, and stands while the process does."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self.advance(seconds)


@pytest.fixture
def reading_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[ManualClock], None]]:
    """Gives the clusters that reads open another clock; idle ones would keep theirs."""

    def use(clock: ManualClock) -> None:
        IDLE_CLUSTERS.clear()
        monkeypatch.setattr(IDLE_CLUSTERS, "_clock", clock)

    yield use
    IDLE_CLUSTERS.clear()


@pytest.fixture
def standing_clock(reading_by: Callable[[ManualClock], None]) -> None:
    """Readers' time passes with their own pauses only, so that a short patience is not over by chance."""
    reading_by(PausesOnly())


@pytest.fixture
def pauses_take_no_time(reading_by: Callable[[ManualClock], None]) -> None:
    """A long patience is over at once, and no answer is late: sockets wait as long as the patience says."""
    reading_by(ManualClock())
