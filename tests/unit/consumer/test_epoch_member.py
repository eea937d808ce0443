"""A member of the newer protocol: its heartbeats, and what it tells the program, answer by answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pyspark_kafkalog.client.discovery import PartitionMetadata, TopicMetadata
from pyspark_kafkalog.config.client_config import GroupConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.consumer.member import EpochMember, PartitionChange
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from pyspark_kafkalog.types import TopicPartition

A = UUID(int=7)


def parts(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("a", number) for number in numbers]


class Driven:
    """A member whose answers the test gives, at a time that moves only as it says."""

    def __init__(self, **properties: object) -> None:
        given = {
            "bootstrap.servers": "h:1", "group.id": "g", "group.protocol": "consumer", **properties,
        }  # fmt: skip
        self.member = EpochMember(parse(GroupConsumerConfig, given, source="test"))
        self.now = 100.0
        self.member.subscribe(frozenset("a"), self.now)

    def beat(
        self, epoch: int, *assigned: int, none: bool = False, code: ErrorCode = ErrorCode.NONE
    ) -> ConsumerGroupHeartbeatRequest:
        """The heartbeat that it sends now, answered with this epoch and assignment, or ``none``."""
        request = self.member.request(self.now)
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        answer: Any = ConsumerGroupHeartbeatResponse(
            error_code=code,
            member_id=request.member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=5000,
            assignment=None if none else Assignment((TopicPartitions(A, assigned),) if assigned else ()),
        )
        self.member.answered(request, answer, self.now)
        return request

    def learn(self) -> None:
        assert self.member.wanted_topics == ("a",)
        found = {n: PartitionMetadata(1, 0) for n in range(9)}
        self.member.learn({"a": TopicMetadata("a", A, ErrorCode.NONE, found)}, self.now)

    def program(self) -> list[tuple[PartitionChange, list[TopicPartition]]]:
        """The program does what is pending."""
        done = []
        while self.member.pending:
            first = self.member.pending[0]
            done.append((first.change, list(first.partitions)))
            self.member.done(first, self.now)
        return done


def stable(*numbers: int) -> Driven:
    found = Driven()
    found.beat(3, *numbers)
    found.learn()
    found.program()
    found.beat(3, none=True)
    return found


def test_it_joins_with_all_that_it_is_and_then_says_only_what_changes() -> None:
    one = Driven(**{"group.instance.id": "i", "group.remote.assignor": "range"})
    joined = one.beat(1, 0, 1)
    assert (joined.member_epoch, joined.subscribed_topic_names, joined.topic_partitions) == (0, ("a",), ())
    assert (joined.instance_id, joined.server_assignor, joined.rebalance_timeout_ms) == (
        "i",
        "range",
        300_000,
    )
    one.learn()
    assert one.program() == [(PartitionChange.ASSIGNED, parts(0, 1))]
    told = one.beat(1, none=True)
    assert (told.member_epoch, told.subscribed_topic_names) == (1, None)
    assert told.topic_partitions == (TopicPartitions(A, (0, 1)),)
    assert one.member.request(one.now) is None
    one.now += 5.0
    quiet = one.beat(1, none=True)
    assert (quiet.topic_partitions, quiet.subscribed_topic_names, quiet.rebalance_timeout_ms) == (
        None,
        None,
        -1,
    )


def test_it_says_that_it_gave_partitions_up_only_when_the_program_has() -> None:
    one = stable(0, 1)
    one.now += 5.0
    one.beat(3, 0)
    assert one.member.pending[0].change is PartitionChange.REVOKED
    one.now += 5.0
    assert one.beat(3, none=True).topic_partitions is None
    assert one.program() == [(PartitionChange.REVOKED, parts(1))]
    assert one.beat(4, none=True).topic_partitions == (TopicPartitions(A, (0,)),)
    assert one.member.identity.generation == 4


def test_an_assignment_that_comes_during_another_is_done_after_it() -> None:
    one = stable(0, 1)
    one.now += 5.0
    one.beat(3, 0)
    one.now += 5.0
    one.beat(4, 0, 2)
    assert one.program() == [(PartitionChange.REVOKED, parts(1)), (PartitionChange.ASSIGNED, parts(2))]


def test_a_fenced_member_loses_everything_and_joins_again_as_the_same() -> None:
    one = stable(0, 1)
    one.now += 5.0
    before = one.beat(0, none=True, code=ErrorCode.FENCED_MEMBER_EPOCH)
    assert one.member.request(one.now) is None  # not before the program knows
    assert one.program() == [(PartitionChange.LOST, parts(0, 1))]
    again = one.beat(5, 0)
    assert (again.member_id, again.member_epoch, again.topic_partitions) == (before.member_id, 0, ())
    assert one.program() == [(PartitionChange.ASSIGNED, parts(0))]


def test_after_a_lost_answer_it_says_everything_again() -> None:
    one = stable(0)
    one.now += 5.0
    assert one.member.request(one.now) is not None
    one.member.failed(one.now)
    one.now = one.member.due()
    told = one.beat(3, 0)
    assert (told.member_epoch, told.subscribed_topic_names) == (3, ("a",))
    assert told.topic_partitions == (TopicPartitions(A, (0,)),)
    assert one.program() == []


def test_new_topics_are_said_at_once() -> None:
    one = stable(0)
    one.member.subscribe(frozenset("ab"), one.now)
    assert one.beat(3, none=True).subscribed_topic_names == ("a", "b")
    assert one.member.request(one.now) is None


def test_partitions_of_a_topic_that_is_not_known_wait_until_it_is() -> None:
    one = Driven()
    one.beat(1, 0)
    one.member.learn({}, one.now)
    assert not one.member.pending
    assert one.member.due() <= one.now + 1.0
    one.now += 1.0
    one.member.request(one.now)
    one.learn()
    assert one.program() == [(PartitionChange.ASSIGNED, parts(0))]


def test_a_group_of_the_classic_protocol_is_an_error_that_says_so() -> None:
    one = Driven()
    one.beat(0, none=True, code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert "group.protocol=classic" in str(one.member.failure)
    assert one.member.request(one.now) is None
    one.member.resume(one.now)
    assert one.member.request(one.member.due()) is not None


def test_a_program_that_does_not_poll_leaves_and_a_static_member_says_that_it_comes_back() -> None:
    one = stable(0)
    assert one.member.expire().member_epoch == -1
    assert one.member.request(one.now + 99) is None
    assert one.program() == [(PartitionChange.LOST, parts(0))]
    assert one.beat(9, 0).member_epoch == 0

    static = Driven(**{"group.instance.id": "i"})
    static.beat(1, none=True)
    goodbye = static.member.leave()
    assert (goodbye.member_epoch, goodbye.instance_id) == (-2, "i")
