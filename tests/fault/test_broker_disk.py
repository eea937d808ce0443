"""The whole broker on a disk that is full, or that fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.server.broker import Broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest, MetadataRequest
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.until import until

STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


def started(directory: Path, files: FaultyFiles, **properties: str) -> Broker:
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)} | properties
    broker = Broker(BrokerConfig.load(None, config), files=files)
    broker.start()
    return broker


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def broker(tmp_path: Path, files: FaultyFiles) -> Iterator[Broker]:
    running = started(tmp_path, files)
    yield running
    files.space_bytes = None
    running.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        assert client.create_topic("t").error_code == ErrorCode.NONE
        yield client


def commit(client: RawClient, offset: int) -> ErrorCode:
    topics = (OffsetCommitRequestTopic("t", (OffsetCommitRequestPartition(0, offset),)),)
    response = client.ask(OffsetCommitRequest(group_id="g", topics=topics))
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


def _loaded(client: RawClient, request: OffsetFetchRequest) -> OffsetFetchResponseGroup | None:
    """The group's offsets; None while the coordinator reads them after a start."""
    (group,) = client.ask(request).groups
    return None if group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else group


def committed(client: RawClient) -> list[int]:
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=None),))
    group = until(lambda: _loaded(client, request))
    assert group.error_code == ErrorCode.NONE
    return [p.committed_offset for t in group.topics for p in t.partitions]


def test_a_full_disk_refuses_writes_serves_reads_and_continues_when_there_is_room(
    client: RawClient, files: FaultyFiles
) -> None:
    assert client.produce("t", batch(b"before")).base_offset == 0
    assert commit(client, 1) == ErrorCode.NONE
    for space in (0, 1, 60, 100):
        files.space_bytes = space
        refused = client.produce("t", batch(b"x" * 200))
        assert (refused.error_code, refused.base_offset) == (STORAGE, -1)
    files.space_bytes = 0
    assert commit(client, 2) == ErrorCode.NOT_COORDINATOR
    assert client.create_topic("u").error_code == STORAGE
    assert [r.value for r in client.read("t")] == [b"before"]
    assert committed(client) == [1]
    files.space_bytes = None
    assert client.produce("t", batch(b"after")).base_offset == 1
    assert commit(client, 3) == ErrorCode.NONE
    assert client.create_topic("u").error_code == ErrorCode.NONE
    assert [r.value for r in client.read("t")] == [b"before", b"after"]
    assert committed(client) == [3]


def test_what_was_refused_on_a_full_disk_is_not_there_after_a_restart(
    tmp_path: Path, files: FaultyFiles
) -> None:
    broker = started(tmp_path, files)
    with RawClient(broker.port) as client:
        client.create_topic("t")
        client.produce("t", batch(b"kept"))
        commit(client, 1)
        files.space_bytes = 90
        assert client.produce("t", batch(b"x" * 200)).error_code == STORAGE
        assert commit(client, 2) == ErrorCode.NOT_COORDINATOR
        files.space_bytes = None
        client.produce("t", batch(b"kept too"))
    broker.stop()
    broker = started(tmp_path, files)
    with RawClient(broker.port) as client:
        assert [r.value for r in client.read("t")] == [b"kept", b"kept too"]
        assert committed(client) == [1]
    broker.stop()


def test_partitions_that_a_full_disk_kept_from_opening_are_served_when_there_is_room(
    tmp_path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took their directory offline until the next start, the coordinator's with them."""
    monkeypatch.setattr("kafkalog_broker.server.broker._REOPEN_SECONDS", 0.01)
    monkeypatch.setattr("kafkalog_broker.server.coordinators._LOAD_AGAIN_SECONDS", 0.01)
    broker = started(tmp_path, files)
    with RawClient(broker.port) as client:
        for topic in ("t", "u"):
            client.create_topic(topic)
            client.produce(topic, batch(b"kept"))
        commit(client, 1)
    broker.stop()
    for lost in (*tmp_path.glob("t_0/partition.metadata"), *tmp_path.glob("*offsets_0/partition.metadata")):
        lost.unlink()  # to be written again at the start
    files.space_bytes = 0
    broker = started(tmp_path, files)
    with RawClient(broker.port) as client:
        assert client.fetch("t", 0).error_code == STORAGE
        assert [r.value for r in client.read("u")] == [b"kept"]
        files.space_bytes = None
        until(lambda: client.fetch("t", 0).error_code == ErrorCode.NONE)
        assert [r.value for r in client.read("t")] == [b"kept"]
        assert client.produce("t", batch(b"after")).base_offset == 1
        assert committed(client) == [1]
    broker.stop()


def test_no_producer_id_is_given_out_on_a_full_disk(client: RawClient, files: FaultyFiles) -> None:
    files.space_bytes = 0
    assert client.ask(InitProducerIdRequest()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    files.space_bytes = None
    assert client.ask(InitProducerIdRequest()).error_code == ErrorCode.NONE


def test_a_coordinator_that_cannot_be_opened_is_asked_for_again(
    client: RawClient, files: FaultyFiles
) -> None:
    files.space_bytes = 0
    assert client.ask(FindCoordinatorRequest(key="g"), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert commit(client, 1) == ErrorCode.NOT_COORDINATOR
    files.space_bytes = None
    assert client.ask(FindCoordinatorRequest(key="g"), 3).error_code == ErrorCode.NONE
    assert commit(client, 1) == ErrorCode.NONE


def test_a_failed_sync_takes_the_directory_offline_and_the_broker_still_answers(
    tmp_path: Path, files: FaultyFiles
) -> None:
    broker = started(tmp_path, files, **{"log.flush.interval.messages": "1"})
    with RawClient(broker.port) as client:
        client.create_topic("t")
        client.produce("t", batch(b"durable"))
        files.sync_fails = lambda path: path.suffix == ".kafka"
        assert client.produce("t", batch(b"not durable")).error_code == STORAGE
        files.sync_fails = lambda path: False
        # The kernel may have dropped what it could not write: nothing of this directory is trusted again.
        assert client.produce("t", batch(b"later")).error_code == STORAGE
        assert client.fetch("t", 0).error_code == STORAGE
        assert [t.name for t in client.ask(MetadataRequest()).topics] == ["t"]
    broker.stop()
    broker = started(tmp_path, files)
    with RawClient(broker.port) as client:
        assert client.read("t")[0].value == b"durable"
    broker.stop()


def test_a_deletion_that_hangs_does_not_delay_the_flush(tmp_path: Path) -> None:
    """They shared a thread: while thousands of segments were deleted, nothing was put on the disk."""
    hangs, go_on = threading.Event(), threading.Event()

    class Hanging(FaultyFiles):
        def rename(self, source: Path, target: Path) -> None:
            if target.suffix == ".deleted":
                hangs.set()
                go_on.wait(600)
            super().rename(source, target)

    broker = started(
        tmp_path, Hanging(), **{
            "log.retention.check.interval.ms": "50", "log.flush.interval.ms": "0",
            "log.flush.scheduler.interval.ms": "50",
        },
    )  # fmt: skip
    try:
        with RawClient(broker.port) as client:
            client.create_topic("old", configs={"retention.ms": "1"})
            client.create_topic("kept")
            client.produce("old", batch(b"long ago"))
            assert hangs.wait(60)
            client.produce("kept", batch(b"now"))
            log = broker._logs.log(TopicPartition("kept", 0))
            until(lambda: log.flushed_offset == 1)
            assert not go_on.is_set()
    finally:
        go_on.set()
        broker.stop()
