"""Connections wait for the next task of a worker, each for one task at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig, ConsumerConfig
from pyspark_kafkalog.datasource.reading.kafka import CAPACITY, KEPT_SECONDS, IdleClusters
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Watched(IdleClusters):
    """Closes at the end what was taken and not given back."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.taken: list[Cluster] = []

    def take(self, config: ClientConfig) -> Cluster:
        self.taken.append(super().take(config))
        return self.taken[-1]


@pytest.fixture
def idle(clock: ManualClock) -> Iterator[IdleClusters]:
    made = Watched(clock)
    yield made
    made.clear()
    for cluster in made.taken:
        cluster.close()


@pytest.fixture
def config(running_broker: EmbeddedBroker) -> ConsumerConfig:
    return ConsumerConfig(bootstrap_servers=running_broker.bootstrap_servers)


def connected(idle: IdleClusters, config: ConsumerConfig) -> Cluster:
    """A cluster with an open connection."""
    cluster = idle.take(config)
    cluster.metadata([])
    return cluster


def test_the_next_task_continues_with_the_same_connection(idle: IdleClusters, config: ConsumerConfig) -> None:
    first = connected(idle, config)
    connection = first.any_connection()
    idle.give_back(first)
    second = idle.take(replace(config))
    assert second is first
    assert second.any_connection() is connection


def test_a_cluster_in_use_is_not_given_to_another(idle: IdleClusters, config: ConsumerConfig) -> None:
    first = idle.take(config)
    second = idle.take(config)
    assert second is not first
    idle.give_back(first)
    idle.give_back(second)
    assert {id(idle.take(config)), id(idle.take(config))} == {id(first), id(second)}


def test_other_properties_are_another_cluster(idle: IdleClusters, config: ConsumerConfig) -> None:
    first = idle.take(config)
    idle.give_back(first)
    assert idle.take(replace(config, client_id="another")) is not first


def test_what_waits_too_long_is_closed(
    idle: IdleClusters, config: ConsumerConfig, clock: ManualClock
) -> None:
    first = connected(idle, config)
    connection = first.any_connection()
    idle.give_back(first)
    clock.advance(KEPT_SECONDS + 1)
    assert idle.take(config) is not first
    assert connection.broken


def test_of_too_many_the_one_that_waits_longest_is_closed(idle: IdleClusters, config: ConsumerConfig) -> None:
    clusters = [connected(idle, config) for _ in range(CAPACITY + 1)]
    first = clusters[0].any_connection()
    for cluster in clusters:
        idle.give_back(cluster)
    assert first.broken
    assert sum(idle.take(config) in clusters for _ in clusters) == CAPACITY


def test_a_broker_that_came_back_is_reconnected() -> None:
    idle = IdleClusters()
    with ScriptedBroker() as running:
        config = ConsumerConfig(bootstrap_servers=running.address)
        cluster = connected(idle, config)
        lost = cluster.any_connection()
        idle.give_back(cluster)
    assert idle.take(config) is cluster
    assert lost.broken


def test_a_forked_process_begins_with_none(idle: IdleClusters, config: ConsumerConfig) -> None:
    first = connected(idle, config)
    connection = first.any_connection()
    idle.give_back(first)
    child = os.fork()
    if child == 0:
        os._exit(0 if idle.take(config) is not first else 1)
    assert os.waitpid(child, 0)[1] == 0
    # The child's end is not ours: the connection still carries requests.
    assert idle.take(config) is first
    assert first.any_connection() is connection
    first.metadata([], refresh=True)
