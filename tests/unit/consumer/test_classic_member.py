"""A classic member's requests, and what it tells the program, answer by answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pyspark_kafkalog.client.discovery import PartitionMetadata, TopicMetadata
from pyspark_kafkalog.config.client_config import GroupConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.consumer.classic_member import ClassicMember
from pyspark_kafkalog.consumer.member import PartitionChange
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from pyspark_kafkalog.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    flat,
)
from pyspark_kafkalog.types import TopicPartition


def parts(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("a", number) for number in numbers]


def topic(partitions: int) -> dict[str, TopicMetadata]:
    found = {n: PartitionMetadata(1, 0) for n in range(partitions)}
    return {"a": TopicMetadata("a", UUID(int=1), ErrorCode.NONE, found)}


class Driven:
    """A member whose answers the test gives, at a time that moves only as it says."""

    def __init__(self, strategy: str = "range", **properties: object) -> None:
        given = {
            "bootstrap.servers": "h:1",
            "group.id": "g",
            "heartbeat.interval.ms": 1000,
            "partition.assignment.strategy": strategy,
            **properties,
        }
        self.strategy = strategy.split(",")[0]
        self.member = ClassicMember(parse(GroupConsumerConfig, given, source="test"))
        self.now = 100.0
        self.member.subscribe(frozenset("a"), self.now)

    def asked(self, kind: type[Any]) -> Any:
        request = self.member.request(self.now)
        assert isinstance(request, kind)
        return request

    def answer(self, answer: Any) -> Any:
        """Answer the request that it sends now."""
        request = self.member.request(self.now)
        assert request is not None
        self.member.answered(request, answer, self.now)
        return request

    def join(self, generation: int, *, leads: bool = False, others: tuple[bytes, ...] = ()) -> Any:
        """It joins this generation, perhaps as leader of members with these subscriptions."""
        request = self.asked(JoinGroupRequest)
        members = []
        if leads:
            members = [JoinGroupResponseMember("me", None, request.protocols[0].metadata)]
            members += [JoinGroupResponseMember(f"m{n}", None, data) for n, data in enumerate(others)]
        leader = "me" if leads else "m0"
        self.member.answered(
            request,
            JoinGroupResponse(
                generation_id=generation,
                protocol_name=self.strategy,
                leader=leader,
                member_id="me",
                members=tuple(members),
            ),
            self.now,
        )
        return request

    def sync(self, *numbers: int) -> SyncGroupRequest:
        request: SyncGroupRequest = self.answer(
            SyncGroupResponse(assignment=encode_assignment(parts(*numbers)))
        )
        return request

    def program(self) -> list[tuple[PartitionChange, list[TopicPartition]]]:
        """The program does what is pending."""
        done = []
        while self.member.pending:
            first = self.member.pending[0]
            done.append((first.change, list(first.partitions)))
            self.member.done(first, self.now)
        return done

    def heartbeat(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.now += 1.0
        assert isinstance(self.answer(HeartbeatResponse(error_code=code)), HeartbeatRequest)


def stable(strategy: str = "range", *numbers: int) -> Driven:
    found = Driven(strategy)
    found.join(1)
    found.sync(*numbers)
    found.program()
    return found


def test_the_leader_assigns_with_the_partitions_that_there_are_and_others_only_sync() -> None:
    led = Driven()
    other = encode_subscription(Subscription(("a",)))
    led.join(1, leads=True, others=(other,))
    assert led.member.request(led.now) is None
    assert led.member.wanted_topics == ("a",)
    led.member.learn(topic(3), led.now)
    sync = led.sync(0, 1)
    shares = {row.member_id: decode_assignment(row.assignment) for row in sync.assignments}
    assert shares == {"m0": tuple(parts(0, 1)), "me": tuple(parts(2))}
    assert led.program() == [(PartitionChange.ASSIGNED, parts(0, 1))]

    follower = Driven()
    follower.join(1)
    assert follower.sync(2).assignments == ()
    assert follower.member.identity.generation == 1


def test_a_new_member_takes_the_id_that_it_is_given() -> None:
    new = Driven()
    first = new.answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="id-7"))
    assert (first.member_id, new.asked(JoinGroupRequest).member_id) == ("", "id-7")


def test_an_eager_member_gives_up_everything_before_it_joins_again_and_heartbeats_meanwhile() -> None:
    one = stable("range", 0, 1)
    one.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert one.member.pending[0].change is PartitionChange.REVOKED
    one.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(one.member.pending) == 1
    assert one.program() == [(PartitionChange.REVOKED, parts(0, 1))]
    told = decode_subscription(one.asked(JoinGroupRequest).protocols[0].metadata)
    assert told.owned_partitions == ()


def test_a_cooperative_member_continues_and_gives_up_only_what_moves_then_joins_again() -> None:
    one = stable("cooperative-sticky", 0, 1)
    one.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert not one.member.pending
    told = decode_subscription(one.join(2).protocols[0].metadata)
    assert (flat(told.owned_partitions), told.generation_id) == (tuple(parts(0, 1)), 1)
    one.sync(0)
    assert one.program() == [(PartitionChange.REVOKED, parts(1)), (PartitionChange.ASSIGNED, [])]
    told = decode_subscription(one.asked(JoinGroupRequest).protocols[0].metadata)
    assert (flat(told.owned_partitions), told.generation_id) == (tuple(parts(0)), 2)


def test_the_protocol_is_eager_unless_all_strategies_are_cooperative() -> None:
    one = stable("range,cooperative-sticky", 0)
    one.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert one.program() == [(PartitionChange.REVOKED, parts(0))]


def test_sticky_tells_what_it_had_although_it_has_given_it_up() -> None:
    one = stable("sticky", 0, 1)
    one.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    one.program()
    one.join(2, leads=True, others=(encode_subscription(Subscription(("a",))),))
    one.member.learn(topic(2), one.now)
    shares = {
        row.member_id: decode_assignment(row.assignment) for row in one.asked(SyncGroupRequest).assignments
    }
    assert len(shares["me"]) == len(shares["m0"]) == 1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_the_group_does_not_know_has_lost_its_partitions_and_joins_again(
    code: ErrorCode,
) -> None:
    one = stable("cooperative-sticky", 0, 1)
    one.heartbeat(code)
    assert one.member.identity.generation == -1
    assert one.member.request(one.now + 99) is None  # not before the program knows
    assert one.program() == [(PartitionChange.LOST, parts(0, 1))]
    join = one.asked(JoinGroupRequest)
    assert join.member_id == ("" if code == ErrorCode.UNKNOWN_MEMBER_ID else "me")
    assert decode_subscription(join.protocols[0].metadata).owned_partitions == ()


def test_partitions_lost_during_the_callback_that_reports_them_are_not_forgotten() -> None:
    one = Driven()
    one.join(1)
    one.sync(0)
    assigned = one.member.pending[0]
    one.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    one.member.done(assigned, one.now)
    assert [change for change, _ in one.program()] == [PartitionChange.LOST]


def test_a_rebalance_during_the_sync_joins_again() -> None:
    one = Driven()
    one.join(1)
    one.answer(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    one.asked(JoinGroupRequest)


def test_topics_that_change_while_it_joins_make_it_join_again() -> None:
    one = Driven()
    request = one.asked(JoinGroupRequest)
    one.member.subscribe(frozenset("ab"), one.now)
    one.member.answered(
        request,
        JoinGroupResponse(generation_id=1, protocol_name="range", leader="x", member_id="me"),
        one.now,
    )
    one.sync(0)
    one.program()
    told = decode_subscription(one.asked(JoinGroupRequest).protocols[0].metadata)
    assert told.topics == ("a", "b")


def test_the_leader_joins_again_when_a_topic_has_more_partitions() -> None:
    one = Driven()
    one.join(1, leads=True)
    one.member.learn(topic(2), one.now)
    one.sync(0, 1)
    one.program()
    assert one.member.watched_topics == {"a"}
    one.member.learn(topic(2), one.now)
    assert one.member.request(one.now) is None
    one.member.learn(topic(3), one.now)
    assert one.program() == [(PartitionChange.REVOKED, parts(0, 1))]
    one.asked(JoinGroupRequest)


def test_a_program_that_does_not_poll_leaves_and_comes_back_when_it_does() -> None:
    one = stable("range", 0)
    goodbye = one.member.expire()
    assert (goodbye.member_id, goodbye.members[0].member_id) == ("me", "me")
    assert not one.member.joined
    assert one.member.request(one.now + 99) is None
    assert one.program() == [(PartitionChange.LOST, parts(0))]
    assert one.asked(JoinGroupRequest).member_id == ""


def test_a_static_member_does_not_say_goodbye() -> None:
    one = Driven(**{"group.instance.id": "i"})
    one.join(1)
    one.sync(0)
    one.program()
    assert one.member.leave() is None
    assert one.member.expire() is None


def test_a_fenced_instance_fails_for_good_and_another_refusal_is_tried_again() -> None:
    fenced = stable("range", 0)
    fenced.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    assert "group.instance.id" in str(fenced.member.failure)
    assert fenced.program() == [(PartitionChange.LOST, parts(0))]
    fenced.member.resume(fenced.now)
    assert fenced.member.request(fenced.now + 99) is None

    full = Driven()
    full.answer(JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
    assert "group.max.size" in str(full.member.failure)
    full.member.resume(full.now)
    full.now += 10
    full.asked(JoinGroupRequest)


def test_an_answer_that_does_not_come_is_asked_for_again_after_a_while() -> None:
    one = Driven()
    one.asked(JoinGroupRequest)
    one.member.failed(one.now)
    assert one.member.request(one.now) is None
    assert one.member.request(one.member.due()) is not None
