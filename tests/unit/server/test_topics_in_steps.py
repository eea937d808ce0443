"""Topics that are made in steps, between which anything may happen."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.config import BrokerConfig
from kafkalog_broker.server.served_topics import Topics
from kafkalog_broker.store.manager import LogManager
from pyspark_kafkalog.errors import (
    InvalidPartitions,
    InvalidTopic,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.steps import Steps, run_steps
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.logs import crash, crash_all, open_manager


def nothing() -> Steps[None]:
    yield from ()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    yield open_manager(tmp_path)
    crash_all()


def _directories(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_dir())


def test_others_have_their_turn_after_each_partition_and_see_all_or_nothing(manager: LogManager) -> None:
    steps = Topics(manager, BrokerConfig()).creating("t", 100)
    count = 0
    for _ in steps:
        count += 1
        assert "t" not in manager.topics()
        run_steps(manager.creating_topic(f"other-{count}", uuid.uuid4(), 1))
    assert count == 100
    assert manager.topics()["t"].partitions == tuple(range(100))


def test_what_is_being_made_cannot_be_made_by_another(manager: LogManager) -> None:
    topics = Topics(manager, BrokerConfig())
    steps = topics.creating("a.b", 2)
    next(steps)
    with pytest.raises(TopicAlreadyExists):
        topics.create("a.b", 1)
    with pytest.raises(InvalidTopic, match="collides"):
        topics.create("a_b", 1)
    with pytest.raises(ServerError, match="being made"):
        topics.get_or_create("a.b")
    with pytest.raises(UnknownTopicOrPartition):
        run_steps(topics.deleting("a.b", nothing))
    assert len(run_steps(steps).partitions) == 2
    assert len(topics.get_or_create("a.b").partitions) == 2


def test_partitions_are_added_to_the_topic_that_there_is_then(manager: LogManager) -> None:
    topics = Topics(manager, BrokerConfig())
    topics.create("t", 1)
    steps = topics.adding_partitions("t", 3)
    next(steps)
    with pytest.raises(InvalidPartitions, match="being given more"):
        run_steps(topics.adding_partitions("t", 5))
    manager.set_overrides("t", {"retention.ms": "7"})
    run_steps(steps)
    assert manager.topics()["t"].overrides == {"retention.ms": "7"}
    assert [manager.log(TopicPartition("t", n)).config.retention_ms for n in range(3)] == [7, 7, 7]


def test_a_topic_deleted_while_it_is_widened_leaves_nothing(manager: LogManager, tmp_path: Path) -> None:
    topics = Topics(manager, BrokerConfig())
    topics.create("t", 1)
    steps = topics.adding_partitions("t", 3)
    next(steps)
    run_steps(topics.deleting("t", nothing))
    with pytest.raises(UnknownTopicOrPartition, match="deleted meanwhile"):
        run_steps(steps)
    assert _directories(tmp_path) == []
    assert len(topics.create("t", 2).partitions) == 2


def test_what_is_being_deleted_is_gone_and_cannot_be_made(manager: LogManager, tmp_path: Path) -> None:
    """Others have their turns between its partitions; what others have of it goes first."""
    topics, told = Topics(manager, BrokerConfig()), []

    def goes_too() -> Steps[None]:
        told.append(("t" in manager.topics(), len(_directories(tmp_path))))
        yield None

    topics.create("t", 100)
    steps = topics.deleting("t", goes_too)
    next(steps)
    assert told == [(False, 100)]
    with pytest.raises(UnknownTopicOrPartition):
        manager.log(TopicPartition("t", 0))
    with pytest.raises(TopicAlreadyExists):
        topics.create("t", 1)
    assert sum(1 for _ in steps) >= 100
    assert _directories(tmp_path) == []
    assert len(topics.create("t", 2).partitions) == 2


def test_what_a_client_asked_for_is_deleted_though_it_leaves(manager: LogManager, tmp_path: Path) -> None:
    topics = Topics(manager, BrokerConfig())
    topics.create("t", 3)
    steps = topics.deleting("t", nothing)
    next(steps)
    steps.close()
    assert len(_directories(tmp_path)) == 2
    topics.go_on()
    assert _directories(tmp_path) == []
    assert len(topics.create("t", 1).partitions) == 1


def test_what_a_client_asked_for_is_made_though_it_leaves(manager: LogManager) -> None:
    topics = Topics(manager, BrokerConfig())
    told = []
    topics.watch(lambda: told.append(len(topics.all())))
    steps = topics.creating("t", 3)
    next(steps)
    steps.close()
    assert "t" not in topics.all()
    topics.go_on()
    assert (len(topics.get("t").partitions), told) == (3, [1])


def test_after_a_crash_half_a_topic_is_none(manager: LogManager, tmp_path: Path) -> None:
    steps = manager.creating_topic("t", uuid.uuid4(), 4)
    next(steps)
    next(steps)
    assert len(_directories(tmp_path)) == 2
    crash(manager)
    again = open_manager(tmp_path)
    assert (dict(again.topics()), _directories(tmp_path)) == ({}, [])
