"""Producers with a transactional id, and their coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.fake_log import FakeLog
from tests.support.client.fake_transactions import FakeTransactions
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_producers import Make, producers


@pytest.fixture
def broker(log: FakeLog) -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": dict.fromkeys(range(8), 0)})) as scripted:
        scripted.default(ApiKey.PRODUCE, log.produce)
        yield scripted


@pytest.fixture
def coordinator(broker: ScriptedBroker) -> FakeTransactions:
    return FakeTransactions(broker)


@pytest.fixture
def make(broker: ScriptedBroker, coordinator: FakeTransactions) -> Iterator[Make]:
    """``make(init=False)`` leaves `init_transactions` to the test."""
    with producers(broker.address, transactional_id="loads-1") as plain:

        def make(clock: Clock = SYSTEM_CLOCK, *, init: bool = True, **changes: Any) -> Producer:
            producer = plain(clock, **changes)
            if init:
                producer.init_transactions()
            return producer

        yield make


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[Cluster]:
    made = Cluster(ConsumerConfig(bootstrap_servers=broker.address, request_timeout_ms=600_000))
    yield made
    made.close()


@pytest.fixture
def of_0_11(broker: ScriptedBroker) -> None:
    """The broker speaks what Kafka 0.11 did of transactions."""
    broker.versions |= dict.fromkeys(
        (
            ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN,
        ),
        (0, 0),
    )  # fmt: skip
    broker.versions |= {ApiKey.FIND_COORDINATOR: (0, 1), ApiKey.PRODUCE: (0, 3)}
