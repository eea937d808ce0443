"""Topics that are created, widened and deleted while other threads do the same, or a crash comes between."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.log.generations import V07
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.handlers07 import append
from kafkalog_broker.server.log_access import LogAccess
from kafkalog_broker.server.topics import GENERATION_PROPERTY, Topics
from pyspark_kafkalog.errors import (
    InvalidPartitions,
    InvalidTopic,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.protocol.v07 import ProduceRequest, RequestType
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.log.logs import crash, crash_all, open_manager
from tests.support.protocol.wire07 import entry


class ContendedFiles(FaultyFiles):
    """Has another thread do something, once, between two partitions: after the first is made or renamed."""

    def __init__(self) -> None:
        super().__init__()
        self._meanwhile: Callable[[], object] | None = None

    def then(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        self._interrupt()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if source.is_dir() or target.is_dir():
            self._interrupt()

    def _interrupt(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            with ThreadPoolExecutor(1) as others:
                others.submit(meanwhile).result(60)  # which would not come if a lock were held here


def nothing() -> None:
    pass


@pytest.fixture
def files() -> ContendedFiles:
    return ContendedFiles()


@pytest.fixture
def manager(tmp_path: Path, files: ContendedFiles) -> Iterator[LogManager]:
    yield open_manager(tmp_path, files=files)
    crash_all()


def _directories(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_dir())


def test_others_see_all_of_a_new_topic_or_nothing_and_make_theirs(
    manager: LogManager, files: ContendedFiles
) -> None:
    topics = Topics(manager, BrokerConfig())

    def meanwhile() -> None:
        assert "t" not in manager.topics
        topics.create("other", 2)

    files.then(meanwhile)
    assert topics.create("t", 100).partitions == tuple(range(100))
    assert {name: len(topic.partitions) for name, topic in manager.topics.items()} == {"t": 100, "other": 2}


def test_what_is_being_made_cannot_be_made_by_another(manager: LogManager, files: ContendedFiles) -> None:
    topics = Topics(manager, BrokerConfig())

    def meanwhile() -> None:
        with pytest.raises(TopicAlreadyExists):
            topics.create("a.b", 1)
        with pytest.raises(InvalidTopic, match="collides"):
            topics.create("a_b", 1)
        with pytest.raises(ServerError, match="being made"):
            topics.get_or_create("a.b")
        with pytest.raises(UnknownTopicOrPartition):
            topics.delete("a.b", nothing)

    files.then(meanwhile)
    assert len(topics.create("a.b", 2).partitions) == 2
    assert len(topics.get_or_create("a.b").partitions) == 2


@pytest.mark.parametrize("change", ["created", "deleted"])
def test_a_producer_of_07_waits_while_its_topic_is(
    change: str, manager: LogManager, files: ContendedFiles, tmp_path: Path
) -> None:
    """Its request has no answer that could tell it to try again."""
    refused = threading.Event()

    class WatchedTopics(Topics):
        def create(self, *args: Any, **options: Any) -> StoredTopic:
            try:
                return super().create(*args, **options)
            except TopicAlreadyExists:
                refused.set()
                raise

    config = BrokerConfig()
    topics = WatchedTopics(manager, config)
    services: Any = SimpleNamespace(
        config=config, metrics=Metrics(), logs=LogAccess(manager, V07), topics=topics
    )
    request = ProduceRequest("t", 0, memoryview(bytearray(entry(b"first"))))
    with ThreadPoolExecutor(1) as producer:

        def meanwhile() -> None:
            written.append(producer.submit(append, request, services, RequestType.PRODUCE))
            assert refused.wait(60)

        written: list[Future[None]] = []
        if change == "deleted":
            topics.create("t", 2, {GENERATION_PROPERTY: "0.7"})
        files.then(meanwhile)
        if change == "created":
            topics.create("t", 2, {GENERATION_PROPERTY: "0.7"})
        else:
            topics.delete("t", nothing)
        written[0].result(60)
    assert manager.log(TopicPartition("t", 0)).end_offset == len(entry(b"first"))


def test_partitions_are_added_to_the_topic_that_there_is_then(
    manager: LogManager, files: ContendedFiles
) -> None:
    topics = Topics(manager, BrokerConfig())
    topics.create("t", 1)

    def meanwhile() -> None:
        with pytest.raises(InvalidPartitions, match="being given more"):
            topics.add_partitions("t", 5)
        manager.set_overrides("t", {"retention.ms": "7"})

    files.then(meanwhile)
    topics.add_partitions("t", 3)
    assert manager.topics["t"].overrides == {"retention.ms": "7"}
    assert [manager.log(TopicPartition("t", n)).config.retention_ms for n in range(3)] == [7, 7, 7]


def test_a_topic_deleted_while_it_is_widened_leaves_nothing(
    manager: LogManager, files: ContendedFiles, tmp_path: Path
) -> None:
    topics = Topics(manager, BrokerConfig())
    topics.create("t", 1)
    files.then(lambda: topics.delete("t", nothing))
    with pytest.raises(UnknownTopicOrPartition, match="deleted meanwhile"):
        topics.add_partitions("t", 3)
    assert _directories(tmp_path) == []
    assert len(topics.create("t", 2).partitions) == 2


def test_what_is_being_deleted_is_gone_and_cannot_be_made(
    manager: LogManager, files: ContendedFiles, tmp_path: Path
) -> None:
    """What others have of it goes first."""
    topics = Topics(manager, BrokerConfig())
    seen: list[Any] = []

    def meanwhile() -> None:
        with pytest.raises(UnknownTopicOrPartition):
            manager.log(TopicPartition("t", 0))
        with pytest.raises(TopicAlreadyExists):
            topics.create("t", 1)
        seen.append("meanwhile")

    topics.create("t", 100)
    files.then(meanwhile)
    topics.delete("t", lambda: seen.append(("t" in manager.topics, len(_directories(tmp_path)))))
    assert seen == [(False, 100), "meanwhile"]
    assert _directories(tmp_path) == []
    assert len(topics.create("t", 2).partitions) == 2


def test_after_a_crash_a_half_created_topic_does_not_exist(
    manager: LogManager, files: ContendedFiles, tmp_path: Path
) -> None:
    def meanwhile() -> None:
        assert len(_directories(tmp_path)) == 1
        raise KeyboardInterrupt

    files.then(meanwhile)
    with pytest.raises(KeyboardInterrupt):
        manager.create_topic("t", uuid.uuid4(), 4)
    crash(manager)
    again = open_manager(tmp_path)
    assert (dict(again.topics), _directories(tmp_path)) == ({}, [])
