"""Groups whose partition another broker keeps from now on, as after `forget`, and again later this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.config import LogConfig
from broker.group.classic_rules import JoinAnswer, JoinRequest, SyncRequest
from broker.group.consumer_group import Client, Settings
from broker.group.coordinator import GroupCoordinator, GroupSettings
from broker.offsets.offset_records import OFFSETS_TOPIC, CommittedOffset
from broker.scheduler import Scheduler
from broker.store.manager import LogManager
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.steps import run_steps
from pyspark_kafkalog.types import TopicPartition
from tests.support.manual_clock import ManualClock
from tests.support.placement import ShiftingPlacement

T = TopicPartition("t", 0)
SESSION_MS = 10_000


class Bench:
    """A coordinator of one partition that a cluster may give to others."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.placement = ShiftingPlacement()
        self.timer = Scheduler(self.clock)
        self.logs = LogManager(
            [directory], defaults=LogConfig(), clock=self.clock, producer_expiration_ms=1000
        )
        self.logs.start()
        for name in ("t", OFFSETS_TOPIC):
            run_steps(self.logs.creating_topic(name, uuid4(), 1, {}))
        self.groups = GroupCoordinator(
            self.logs,
            self.clock,
            self.timer,
            GroupSettings(6_000, 1_800_000, 3_000, 100, 60_000),
            Settings(),
            create=lambda: None,
            appended=lambda *_: None,
            placement=self.placement,
        )
        self.see(None)

    def see(self, code: ErrorCode | None) -> None:
        """The partition is ours, or refused with ``code``, from now on."""
        self.placement.code = code
        self.groups.look()
        self.groups.load()

    def join(self, group: str) -> list[JoinAnswer]:
        answers: list[JoinAnswer] = []
        request = JoinRequest(
            "", "a", None, "c", "/h", SESSION_MS, 60_000, "consumer", (("range", b""),), False, True
        )
        self.groups.join(group, request, answers.append)
        return answers

    def beat(self, epoch: int, **fields: Any) -> int:
        request = ConsumerGroupHeartbeatRequest(group_id="new", member_id="m", member_epoch=epoch, **fields)
        return self.groups.consumers.heartbeat(request, Client("c", "/h", 1)).epoch

    def pass_by(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.run_due()

    def log_end(self) -> int:
        return self.logs.log(TopicPartition(OFFSETS_TOPIC, 0)).end_offset


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.logs.close()


def test_who_waits_and_who_comes_is_sent_to_the_other_broker(bench: Bench) -> None:
    waiting = bench.join("g")
    bench.groups.offsets.commit("g2", {T: CommittedOffset(5)})
    assert waiting == []
    bench.see(ErrorCode.NOT_COORDINATOR)
    assert [answer.error for answer in waiting] == [ErrorCode.NOT_COORDINATOR]
    for asked in (
        lambda: bench.join("g"),
        lambda: bench.groups.sync("g", SyncRequest("a", None, 1, None, None, {}), lambda _: None),
        lambda: bench.groups.heartbeat("g", "a", None, 1),
        lambda: bench.groups.leave("g", [("a", None)]),
        lambda: bench.groups.describe("g2"),
        lambda: bench.groups.offsets.fetch("g2"),
        lambda: bench.groups.offsets.unstable("g2", [T]),
        lambda: bench.groups.offsets.commit("g2", {T: CommittedOffset(6)}),
        lambda: bench.groups.delete("g2"),
    ):
        with pytest.raises(ServerError) as refused:
            asked()
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert bench.groups.groups() == []


def test_the_refusal_comes_at_once_when_ownership_ends_not_only_when_somebody_looks(bench: Bench) -> None:
    bench.groups.offsets.commit("g", {T: CommittedOffset(5)})
    bench.placement.code = ErrorCode.NOT_COORDINATOR
    end = bench.log_end()
    with pytest.raises(ServerError) as refused:
        bench.groups.offsets.fetch("g")
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError):
        bench.groups.offsets.commit("g", {T: CommittedOffset(6)})
    assert bench.log_end() == end


def test_time_does_nothing_to_groups_of_another_broker(bench: Bench) -> None:
    bench.join("g")
    bench.pass_by(4)
    bench.beat(0, subscribed_topic_names=("t",), rebalance_timeout_ms=9_000, topic_partitions=())
    end = bench.log_end()
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.pass_by(100)
    assert bench.log_end() == end


def test_groups_are_as_stored_when_the_partition_comes_back_and_sessions_begin_then(bench: Bench) -> None:
    bench.groups.offsets.commit("g", {T: CommittedOffset(5)})
    bench.beat(0, subscribed_topic_names=("t",), rebalance_timeout_ms=9_000, topic_partitions=())
    bench.pass_by(40)
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.pass_by(40)
    bench.see(None)
    assert {p: value.offset for p, value in bench.groups.offsets.fetch("g").items()} == {T: 5}
    bench.pass_by(40)
    assert bench.beat(1) == 1
    bench.pass_by(46)
    assert bench.groups.consumers.get("new").members == {}


def test_while_its_data_is_lost_clients_are_to_wait_and_the_other_groups_are_listed(bench: Bench) -> None:
    bench.groups.offsets.commit("g", {T: CommittedOffset(5)})
    bench.see(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for asked in (lambda: bench.groups.heartbeat("g", "a", None, 1), lambda: bench.groups.offsets.fetch("g")):
        with pytest.raises(ServerError) as refused:
            asked()
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.groups.groups() == []


def test_a_heartbeat_while_the_partition_is_read_is_well_received(bench: Bench) -> None:
    bench.placement.code = ErrorCode.NOT_COORDINATOR
    bench.groups.look()
    bench.placement.code = None
    assert bench.groups.heartbeat("g", "a", None, 1) is ErrorCode.NONE
