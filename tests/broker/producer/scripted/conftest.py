"""Producers and the scripted broker that they send to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.fake_log import FakeLog
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_producers import Make, producers


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def broker(log: FakeLog) -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}, "two": {0: 0, 1: 0}})) as scripted:
        scripted.default(ApiKey.PRODUCE, log.produce)
        yield scripted


@pytest.fixture
def make(broker: ScriptedBroker) -> Iterator[Make]:
    with producers(broker.address) as make:
        yield make
