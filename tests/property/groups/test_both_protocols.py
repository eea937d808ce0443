"""A group of both protocols is of the newer one while it has such members, and keeps its offsets."""

from __future__ import annotations

import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.groups.classic_rules import JoinRequest
from kafkalog_broker.groups.consumer_group import Client, ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset
from kafkalog_broker.scheduler import Scheduler
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.protocol.consumer_protocol import Subscription, encode_subscription
from pyspark_kafkalog.types import TopicPartition
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock

PARTITION = TopicPartition("t", 0)


class Group(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.logs = LogManager(
            [Path(self.directory.name) / "data"],
            defaults=LogConfig(),
            clock=self.clock,
            files=FileSystem(),
            producer_expiration_ms=1000,
        )
        self.logs.start()
        self.newer: dict[str, int] = {}
        self.classic: set[str] = set()
        self.offset: int | None = None
        self.made = 0
        self._start()

    def teardown(self) -> None:
        self.logs.close()
        self.directory.cleanup()

    def _create(self) -> int:
        self.logs.create_topic(OFFSETS_TOPIC, uuid4(), 1, {})
        return 1

    @precondition(lambda self: not self.classic)
    @rule()
    def restart(self) -> None:
        """Not with classic members: those of a group that has not finished its rebalance are not stored."""
        self._start()

    def _start(self) -> None:
        self.timer = Scheduler(self.clock)
        self.coordinator = GroupCoordinator(
            GroupTopic(self.logs, create=self._create, appended=lambda *_: None),
            self.clock,
            self.timer,
            GroupSettings(1_000, 1_800_000, 0, 100, 60_000),
            ConsumerGroupSettings(),
            topics=lambda: self.logs.topics,
        )
        self.coordinator.look()
        self.coordinator.load()

    @rule()
    def join_by_the_newer_protocol(self) -> None:
        member = self._name()
        request = ConsumerGroupHeartbeatRequest(
            "g", member, rebalance_timeout_ms=1, subscribed_topic_names=("t",), topic_partitions=()
        )
        answer = self.coordinator.consumers.heartbeat(request, Client("c", "/h", 1, lambda _: True))
        self.newer[member] = answer.epoch

    @rule()
    def join_by_the_classic_protocol(self) -> None:
        member = self._name()
        protocols = (("range", encode_subscription(Subscription(("t",)))),)
        request = JoinRequest(
            "", member, None, "c", "/h", 30_000, 30_000, "consumer", protocols, False, False
        )
        self.coordinator.join("g", request, lambda _: None)
        self.classic.add(member)

    @precondition(lambda self: self.newer)
    @rule(data=st.data())
    def leave_by_the_newer_protocol(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.newer)))
        del self.newer[member]
        request = ConsumerGroupHeartbeatRequest("g", member, -1)
        self.coordinator.consumers.heartbeat(request, Client("c", "/h", 1, lambda _: True))

    @precondition(lambda self: self.classic)
    @rule(data=st.data())
    def leave_by_the_classic_protocol(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.classic)))
        self.classic.remove(member)
        assert self.coordinator.leave("g", [(member, None)]) == [0]

    @rule(offset=st.integers(0, 9), by_member=st.booleans())
    def commit(self, offset: int, by_member: bool) -> None:
        member, epoch = next(iter(self.newer.items())) if by_member and self.newer else ("", -1)
        offsets = {PARTITION: CommittedOffset(offset, commit_timestamp_ms=self.clock.time_ms())}
        if member or not (self.newer or self.classic):
            self.coordinator.offsets.commit("g", offsets, member_id=member, generation=epoch)
            self.offset = offset
        else:
            with pytest.raises(KafkaError):
                self.coordinator.offsets.commit("g", offsets, member_id=member, generation=epoch)

    @rule()
    def delete(self) -> None:
        known = [each.group for each in self.coordinator.groups()] == ["g"]
        if self.newer or self.classic or not known:
            with pytest.raises(KafkaError):
                self.coordinator.delete("g")
        else:
            self.coordinator.delete("g")
            self.offset = None

    @invariant()
    def it_has_one_kind_and_its_offsets(self) -> None:
        found = self.coordinator.offsets.fetch("g").get(PARTITION)
        assert (found.offset if found is not None else None) == self.offset
        listed = {each.group: each.kind for each in self.coordinator.groups()}
        if self.newer or self.classic:
            assert listed == {"g": "consumer" if self.newer else "classic"}
        if self.newer:
            assert set(self.coordinator.consumers.get("g").members) == {*self.newer, *self.classic}
        elif self.offset is not None:
            assert "g" in listed

    def _name(self) -> str:
        self.made += 1
        return f"m{self.made}"


TestGroup = Group.TestCase
TestGroup.settings = examples(40, stateful_step_count=25)
