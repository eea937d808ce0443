"""Groups whose partition another broker keeps from now on, as after `forget`, and again later this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.groups.classic_rules import JoinAnswer, JoinRequest, SyncRequest
from kafkalog_broker.groups.consumer_group import Client
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.types import TopicPartition
from tests.support.group.coordinators import Coordinators
from tests.support.placement import ShiftingPlacement

T = TopicPartition("t", 0)
SESSION_MS = 10_000


class Bench(Coordinators):
    """A coordinator of one partition that a cluster may give to others."""

    placement: ShiftingPlacement

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, initial_delay_ms=3_000, placement=ShiftingPlacement())
        for name in ("t", OFFSETS_TOPIC):
            self.create(name)
        self.restart()

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
        return self.groups.consumers.heartbeat(request, Client("c", "/h", 1, lambda _: True)).epoch


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


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
    bench.advance(4)
    bench.beat(0, subscribed_topic_names=("t",), rebalance_timeout_ms=9_000, topic_partitions=())
    end = bench.log_end()
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.advance(100)
    assert bench.log_end() == end


def test_groups_are_as_stored_when_the_partition_comes_back_and_sessions_begin_then(bench: Bench) -> None:
    bench.groups.offsets.commit("g", {T: CommittedOffset(5)})
    bench.beat(0, subscribed_topic_names=("t",), rebalance_timeout_ms=9_000, topic_partitions=())
    bench.advance(40)
    bench.see(ErrorCode.NOT_COORDINATOR)
    bench.advance(40)
    bench.see(None)
    assert {p: value.offset for p, value in bench.groups.offsets.fetch("g").items()} == {T: 5}
    bench.advance(40)
    assert bench.beat(1) == 1
    bench.advance(46)
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
