"""Offsets of a broker, from before it came to its cluster, on their way to the cluster's coordinators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import ClusterTopic, ClusterView, Ownership
from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.groups import offset_migration
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.groups.offset_migration import FILE_NAME, OffsetMigration
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset
from kafkalog_broker.logs.state_topic import partition_for
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.scheduler import Scheduler
from pyspark_kafkalog.errors import ConnectionLost, ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from pyspark_kafkalog.types import TopicPartition
from tests.support.manual_clock import ManualClock
from tests.support.until import until

ME, OTHER = 1, 2
A0, A1, OLD = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("old", 0)
FAR = next(name for name in map(str, range(99)) if partition_for(name, 2) == 1)
NEAR = next(name for name in map(str, range(99)) if partition_for(name, 2) == 0)
"""Groups that broker 2 coordinates, and this one."""


class Peer:
    """Broker 2, by the calls to it: ``stored`` is what its groups have, ``code`` its answer to commits."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, TopicPartition], int] = {}
        self.committed_ms: list[int] = []
        self.code = ErrorCode.NONE
        self.is_away = False
        self.asked = 0

    def ask(
        self, broker: int, request: Any, version: int, answered: Callable[[Any, KafkaError | None], None],
        seconds: float,
    ) -> None:  # fmt: skip
        assert broker == OTHER
        self.asked += 1
        if self.is_away:
            answered(None, ConnectionLost("broker 2 is away"))
        elif isinstance(request, OffsetFetchRequest):
            assert (version, request.require_stable) == (7, True)
            answered(self._fetched(request), None)
        else:
            assert version == 1
            answered(self._committed(request), None)

    def _fetched(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        topics = []
        for topic in request.topics or ():
            found = [
                (number, self.stored.get((request.group_id, TopicPartition(topic.name, number)), -1))
                for number in topic.partition_indexes
            ]
            topics.append(
                OffsetFetchResponseTopic(
                    topic.name,
                    tuple(OffsetFetchResponsePartition(n, o, error_code=ErrorCode.NONE) for n, o in found),
                )
            )
        return OffsetFetchResponse(topics=tuple(topics), error_code=ErrorCode.NONE)

    def _committed(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        topics = []
        for topic in request.topics:
            for each in topic.partitions:
                if self.code is ErrorCode.NONE:
                    where = TopicPartition(topic.name, each.partition_index)
                    self.stored[request.group_id, where] = each.committed_offset
                    self.committed_ms.append(each.commit_timestamp)
            codes = [OffsetCommitResponsePartition(e.partition_index, self.code) for e in topic.partitions]
            topics.append(OffsetCommitResponseTopic(topic.name, tuple(codes)))
        return OffsetCommitResponse(topics=tuple(topics))


class Bench:
    """Broker 1, with groups from before; the cluster's offsets topic has a partition at each broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.peer: Any = Peer()
        self.ids = {"a": uuid4(), "old": uuid4()}
        self.ownership = Ownership(ME)
        self.logs = self._open(directory / "own")
        for name, topic_id in self.ids.items():
            self.logs.create_topic(name, topic_id, 2, {})
        own = self._coordinator(self.logs)
        self.before = own.offsets
        self.cluster_logs = self._open(directory / "cluster")
        self.here = self._coordinator(self.cluster_logs)
        self.see(a=self.ids["a"], old=uuid4())

    def _open(self, directory: Path) -> LogManager:
        directory.mkdir()
        logs = LogManager([directory], defaults=LogConfig(), clock=self.clock, producer_expiration_ms=1000)
        logs.start()
        return logs

    def _coordinator(self, logs: LogManager) -> GroupCoordinator:
        return GroupCoordinator(
            GroupTopic(
                logs,
                create=lambda: logs.create_topic(OFFSETS_TOPIC, uuid4(), 1, {}),
                appended=lambda *_: None,
            ),
            self.clock,
            Scheduler(self.clock),
            GroupSettings(6_000, 1_800_000, 0, 100, 1 << 40),
            ConsumerGroupSettings(),
            topics=lambda: logs.topics,
        )

    def see(self, **topics: UUID) -> None:
        """The cluster has these topics."""
        found = {
            name: ClusterTopic(StoredTopic(topic_id, (0, 1), {}), (ME, OTHER), frozenset(), 0, 0)
            for name, topic_id in {OFFSETS_TOPIC: uuid4(), **topics}.items()
        }
        version = 0 if self.ownership.view is None else self.ownership.view.version
        self.ownership.see(ClusterView(version + 1, "registry", found))
        self.ownership.serve()

    def brought(self) -> OffsetMigration:
        """As a start has it."""
        made = OffsetMigration(
            [self.directory], FileSystem(), self.logs, self.ownership, self.peer, self.here.offsets
        )
        made.find()
        return made

    def commit(self, group: str, partition: TopicPartition, offset: int, committed_ms: int = 7) -> None:
        """Before the broker came to the cluster."""
        self.before.commit(group, {partition: CommittedOffset(offset, 0, "m", committed_ms)})

    def is_noted(self) -> bool:
        return (self.directory / FILE_NAME).exists()

    def offsets_here(self, group: str) -> dict[TopicPartition, int]:
        return {p: value.offset for p, value in self.here.offsets.fetch(group).items()}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(offset_migration, "_AGAIN_SECONDS", 0.01)
    made = Bench(tmp_path)
    yield made
    made.logs.close()
    made.cluster_logs.close()


def all_brought(bench: Bench) -> None:
    """Bring everything, to the end."""
    brought = bench.brought()
    brought.bring()
    brought.go_on()
    until(lambda: not bench.is_noted())
    brought.close()


def test_offsets_go_to_the_coordinators_of_their_groups_with_the_time_of_their_commit(bench: Bench) -> None:
    for group in (NEAR, FAR):
        bench.commit(group, A0, 5)
        bench.commit(group, A1, 6)
    all_brought(bench)
    assert bench.offsets_here(NEAR) == {A0: 5, A1: 6}
    topic_id = bench.logs.topics["a"].topic_id
    assert bench.here.offsets.fetch(NEAR)[A0] == CommittedOffset(5, 0, "m", 7, topic_id=topic_id)
    assert bench.peer.stored == {(FAR, A0): 5, (FAR, A1): 6}
    assert bench.peer.committed_ms == [7, 7]


def test_offsets_of_a_topic_that_another_has_replaced_stay_behind(bench: Bench) -> None:
    replaced = CommittedOffset(777, 0, "m", 7, topic_id=UUID(int=9))
    bench.before.commit(NEAR, {A0: replaced, A1: replace(replaced, topic_id=bench.logs.topics["a"].topic_id)})
    all_brought(bench)
    assert bench.offsets_here(NEAR) == {A1: 777}


def test_what_the_cluster_has_stays(bench: Bench) -> None:
    bench.commit(FAR, A0, 5)
    bench.commit(FAR, A1, 6)
    bench.commit(NEAR, A0, 5)
    bench.peer.stored[FAR, A0] = 50
    bench.here.offsets.commit(NEAR, {A0: CommittedOffset(60)})
    all_brought(bench)
    assert bench.peer.stored == {(FAR, A0): 50, (FAR, A1): 6}
    assert bench.offsets_here(NEAR) == {A0: 60}


def test_offsets_of_a_topic_that_the_cluster_has_under_another_id_are_not_of_its_topic(bench: Bench) -> None:
    bench.commit(FAR, OLD, 5)
    bench.commit(FAR, TopicPartition("never-there", 0), 5)
    bench.commit(FAR, A0, 1)
    brought = bench.brought()
    brought.bring()
    brought.try_once()
    assert bench.is_noted(), "ours has yet to be set aside"
    bench.logs.set_aside("old", bench.ids["old"], [0, 1])
    brought.try_once()
    assert not bench.is_noted()
    assert bench.peer.stored == {(FAR, A0): 1}


def test_while_a_group_has_members_its_offsets_wait_and_are_looked_at_again(bench: Bench) -> None:
    bench.commit(FAR, A0, 5)
    bench.commit(FAR, A1, 6)
    bench.peer.code = ErrorCode.UNKNOWN_MEMBER_ID
    brought = bench.brought()
    brought.bring()
    brought.go_on()
    until(lambda: bench.peer.asked >= 6)
    bench.peer.stored[FAR, A0] = 70
    bench.peer.code = ErrorCode.NONE
    until(lambda: not bench.is_noted())
    assert bench.peer.stored == {(FAR, A0): 70, (FAR, A1): 6}
    brought.close()


def test_a_restart_continues_with_what_is_left(bench: Bench) -> None:
    bench.commit(NEAR, A0, 5)
    bench.commit(FAR, A0, 5)
    bench.peer.is_away = True
    first = bench.brought()
    first.bring()
    first.go_on()
    until(lambda: bench.offsets_here(NEAR) == {A0: 5})
    first.close()
    bench.here.delete(NEAR)
    bench.peer.is_away = False
    second = bench.brought()
    second.go_on()
    until(lambda: not bench.is_noted())
    second.close()
    assert bench.peer.stored == {(FAR, A0): 5}
    assert bench.offsets_here(NEAR) == {}, "what was done is not done again"
    third = bench.brought()
    third.go_on()
    assert not [each for each in threading.enumerate() if each.name == "brought-offsets"]


def test_a_silent_coordinator_is_asked_once_in_a_round_and_keeps_no_other_group_waiting(bench: Bench) -> None:
    names = [name for name in map(str, range(99)) if partition_for(name, 2) == 1][:20]
    for name in (*names, NEAR):
        bench.commit(name, A0, 5)
    bench.peer.is_away = True
    brought = bench.brought()
    brought.bring()
    brought.try_once()
    assert bench.peer.asked == 1
    assert bench.offsets_here(NEAR) == {A0: 5}


def test_what_a_coordinator_will_never_take_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.commit(FAR, A0, 5)
    bench.peer.code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    all_brought(bench)
    assert bench.peer.stored == {}
    assert f"offset of group '{FAR}' for a-0 is lost: OFFSET_METADATA_TOO_LARGE" in caplog.text


def test_offsets_of_a_topic_that_was_deleted_meanwhile_are_not_of_the_next_of_its_name(bench: Bench) -> None:
    bench.commit(FAR, A0, 5)
    bench.peer.is_away = True
    brought = bench.brought()
    brought.bring()
    brought.try_once()
    bench.logs.delete_topic("a")
    bench.logs.create_topic("a", uuid4(), 2, {})
    bench.peer.is_away = False
    brought.try_once()
    assert not bench.is_noted()
    assert bench.peer.stored == {}


def test_offsets_wait_while_the_cluster_has_lost_its_topics(bench: Bench) -> None:
    """ZooKeeper was emptied, and their owners have yet to bring them again."""
    bench.commit(FAR, A0, 5)
    brought = bench.brought()
    brought.bring()
    known = bench.ownership.view
    assert known is not None
    bench.ownership.see(ClusterView(known.version + 1, "registry"))
    brought.try_once()
    assert (bench.is_noted(), bench.peer.asked) == (True, 0)
    bench.ownership.see(ClusterView(known.version + 2, "registry", known.topics))
    brought.try_once()
    assert bench.peer.stored == {(FAR, A0): 5}


def test_whoever_looks_for_the_coordinator_waits_until_the_groups_offsets_were_tried(bench: Bench) -> None:
    bench.commit(FAR, A0, 5)
    bench.peer.is_away = True
    brought = bench.brought()
    brought.check_tried(FAR)
    brought.bring()
    with pytest.raises(ServerError) as refused:
        brought.check_tried(FAR)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    brought.check_tried("another group")
    brought.try_once()
    brought.check_tried(FAR)


def test_a_damaged_note_is_refused_rather_than_forgotten(bench: Bench) -> None:
    (bench.directory / FILE_NAME).write_bytes(b'{"offsets": [["g"]]}')
    with pytest.raises(KafkaError, match="is damaged; remove it to go on without these offsets"):
        bench.brought()
