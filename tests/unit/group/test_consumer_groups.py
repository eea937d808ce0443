"""Groups of the newer protocol over a log: what is stored, what a full disk prevents, and the timers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from broker.config import LogConfig
from broker.group.consumer_group import Client, ConsumerGroup, GroupState, Settings
from broker.group.coordinator import GroupCoordinator, GroupSettings
from broker.group.group import NoSuchGroup
from broker.offsets.offset_records import OFFSETS_TOPIC
from broker.scheduler import Scheduler
from broker.store.manager import LogManager
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.steps import run_steps
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.manual_clock import ManualClock


class Bench:
    """Coordinators one after the other over one log manager, and a timer that runs when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.files = ManualClock(), FaultyFiles()
        self.logs = LogManager(
            [directory],
            defaults=LogConfig(),
            clock=self.clock,
            files=self.files,
            producer_expiration_ms=1000,
        )
        self.logs.start()
        self.create("a", 2)
        self.restart()

    def create(self, name: str, partitions: int) -> None:
        run_steps(self.logs.creating_topic(name, uuid4(), partitions, {}))

    def restart(self) -> None:
        self.timer = Scheduler(self.clock)
        self.coordinator = GroupCoordinator(
            self.logs,
            self.clock,
            self.timer,
            GroupSettings(6_000, 1_800_000, 0, 100, 60_000),
            Settings(),
            create=self._create_offsets_topic,
            appended=lambda *_: None,
        )
        self.coordinator.look()
        self.coordinator.load()

    def beat(self, member: str, epoch: int = 0, **fields: object) -> int:
        everything: dict[str, object] = {}
        if epoch == 0:
            everything = {"subscribed_topic_names": ("a",), "rebalance_timeout_ms": 9_000}
            everything["topic_partitions"] = ()
        values: dict[str, Any] = {**everything, **fields}
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member, member_epoch=epoch, **values)
        return self.coordinator.consumers.heartbeat(request, Client("c", "/h", 1)).epoch

    @property
    def group(self) -> ConsumerGroup:
        return self.coordinator.consumers.get("g")

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.run_due()

    def _create_offsets_topic(self) -> int:
        self.create(OFFSETS_TOPIC, 1)
        return 1


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "data")


def test_a_restart_finds_the_group_as_it_was_and_begins_sessions_again(bench: Bench) -> None:
    bench.beat("m1", instance_id="i")
    bench.wait(1)
    bench.beat("m2")
    before = bench.group
    bench.wait(40)
    bench.restart()
    assert bench.group == before
    bench.wait(44)
    assert bench.beat("m1", 1, topic_partitions=()) == 2
    bench.wait(2)
    assert list(bench.group.members) == ["m1"]
    assert bench.beat("m1", 2) == 3


def test_what_the_log_refuses_has_not_happened(bench: Bench) -> None:
    bench.beat("m1")
    before = bench.group
    bench.files.space_bytes = 0
    with pytest.raises(KafkaError):
        bench.beat("m2")
    assert bench.group is before
    bench.wait(46)
    assert bench.group is before
    bench.files.space_bytes = None
    bench.wait(2)
    assert bench.group.state == GroupState.EMPTY
    after = bench.group
    bench.restart()
    assert bench.group == after


def test_quiet_heartbeats_store_nothing(bench: Bench) -> None:
    bench.beat("m1")
    (partition,) = bench.logs.topics()[OFFSETS_TOPIC].partitions
    log = bench.logs.log(TopicPartition(OFFSETS_TOPIC, partition))
    end = log.end_offset
    for _ in range(10):
        bench.wait(5)
        assert bench.beat("m1", 1) == 1
    assert log.end_offset == end


def test_patterns_are_matched_apart_from_calls_and_again_when_topics_change(bench: Bench) -> None:
    def names() -> Mapping[str, UUID]:
        return {name: topic.topic_id for name, topic in bench.group.topics.items()}

    assert bench.beat("m1", subscribed_topic_names=None, subscribed_topic_regex="a.*|__.*") == 1
    assert names() == {}
    bench.wait(0)
    assert bench.beat("m1", 1) == 2
    assert list(names()) == ["a"]
    bench.create("ab", 1)
    assert bench.beat("m1", 2) == 2
    bench.wait(0)
    assert bench.beat("m1", 2) == 3
    assert list(names()) == ["a", "ab"]


def test_a_group_of_the_newer_protocol_ends_without_members_and_offsets(bench: Bench) -> None:
    bench.beat("m1")
    bench.coordinator.offsets.expire()
    assert bench.group.members
    bench.beat("m1", -1)
    bench.coordinator.offsets.expire()
    for _ in range(2):
        with pytest.raises(NoSuchGroup):
            bench.coordinator.consumers.get("g")
        bench.restart()
