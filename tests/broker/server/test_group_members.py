"""Members of classic groups over the wire: every version, who waits for whom, and what a restart keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from pyspark_kafkalog.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, versions

NONE = ErrorCode.NONE
SUBSCRIPTION = bytes.fromhex("0000 00000001 0001") + b"t" + bytes.fromhex("ffffffff")
"""To topic t, version 0, without user data."""


class Member:
    """One member on a connection of its own, which knows what it was told."""

    def __init__(self, client: RawClient, group: str, instance: str | None = None) -> None:
        self.client = client
        self.group = group
        self.instance = instance
        self.id = ""
        self.generation = -1

    def send_join(self, version: int = 9, metadata: bytes = SUBSCRIPTION, **other: Any) -> None:
        fields: dict[str, Any] = {
            "session_timeout_ms": 300_000,
            "rebalance_timeout_ms": 300_000,
            "protocol_type": "consumer",
            "protocols": (JoinGroupRequestProtocol("range", metadata),),
        }
        request = JoinGroupRequest(
            group_id=self.group, member_id=self.id, group_instance_id=self.instance, **fields | other
        )
        self.client.send(request, version)

    def joined(self) -> JoinGroupResponse:
        answer: JoinGroupResponse = self.client.receive()
        self.id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, version: int = 9, **other: Any) -> JoinGroupResponse:
        self.send_join(version, **other)
        return self.joined()

    def enter(self, **other: Any) -> JoinGroupResponse:
        """Join for the first time, through MEMBER_ID_REQUIRED."""
        assert self.join(**other).error_code == ErrorCode.MEMBER_ID_REQUIRED
        return self.join(**other)

    def sync(self, version: int = 5, assignments: dict[str, bytes] | None = None) -> SyncGroupResponse:
        self.send_sync(version, assignments)
        answer: SyncGroupResponse = self.client.receive()
        return answer

    def send_sync(self, version: int = 5, assignments: dict[str, bytes] | None = None) -> None:
        given = tuple(SyncGroupRequestAssignment(m, a) for m, a in (assignments or {}).items())
        request = SyncGroupRequest(
            self.group, self.generation, self.id, self.instance, "consumer", "range", given
        )
        self.client.send(request, version)

    def beat(self, version: int = 4) -> ErrorCode:
        request = HeartbeatRequest(self.group, self.generation, self.id, self.instance)
        code: ErrorCode = self.client.ask(request, version).error_code
        return code

    def hear_of_rebalance(self) -> None:
        """Heartbeat until what another connection sent has been handled."""
        while (code := self.beat()) != ErrorCode.REBALANCE_IN_PROGRESS:
            assert code == NONE

    def leave(self, version: int = 5) -> list[ErrorCode]:
        """The code of the answer, and from version 3 the member's own."""
        request = LeaveGroupRequest(self.group, members=(MemberIdentity(self.id, self.instance),))
        if version < 3:
            request = LeaveGroupRequest(self.group, self.id)
        answer = self.client.ask(request, version)
        return [answer.error_code, *(m.error_code for m in answer.members)]

    def commit(self, topic: str, offset: int, version: int = 8, **other: Any) -> ErrorCode:
        fields: dict[str, Any] = {
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        partition = OffsetCommitRequestPartition(0, offset)
        request = OffsetCommitRequest(
            group_id=self.group, topics=(OffsetCommitRequestTopic(topic, (partition,)),), **fields | other
        )
        (answer,) = self.client.ask(request, version).topics[0].partitions
        code: ErrorCode = answer.error_code
        return code


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker() as running, RawClient(running.port) as client:
        client.create_topic("t", partitions=2)
        yield running


Make = Callable[..., Member]


@pytest.fixture
def member(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a member of the test's own group."""
    with ExitStack() as stack:
        yield lambda instance=None: Member(
            stack.enter_context(RawClient(broker.port)), request.node.name, instance
        )


def described(client: RawClient, group: str) -> DescribedGroup:
    (found,) = client.ask(DescribeGroupsRequest((group,)), 5).groups
    assert isinstance(found, DescribedGroup)
    return found


def stable(member: Make) -> tuple[Member, Member]:
    """A leader and a follower with the assignments b"1" and b"2"."""
    leader, follower = member(), member()
    leader.enter()
    leader.sync()
    follower.join()
    follower.send_join()
    leader.hear_of_rebalance()
    leader.join()
    follower.joined()
    follower.send_sync()
    leader.sync(assignments={leader.id: b"1", follower.id: b"2"})
    assert follower.client.receive().assignment == b"2"
    return leader, follower


@pytest.mark.long("a broker that is started more than once")
@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_lives_in_every_version(member: Make, version: int) -> None:
    """Those of the other calls go along, as far as they go."""
    one = member()
    answer = one.join(version)
    if version >= 4:
        assert answer == JoinGroupResponse(
            error_code=ErrorCode.MEMBER_ID_REQUIRED,
            protocol_name=None if version >= 7 else "",
            member_id=answer.member_id,
        )
        assert answer.member_id.startswith("raw-")
        answer = one.join(version)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (NONE, 1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id == one.id
    assert [(m.member_id, m.metadata) for m in answer.members] == [(one.id, SUBSCRIPTION)]
    sync_version = min(version, 5)
    synced = one.sync(sync_version, {one.id: b"all"})
    assert (synced.error_code, synced.assignment) == (NONE, b"all")
    assert synced.protocol_name == ("range" if sync_version >= 5 else None)
    assert one.beat(min(version, 4)) == NONE
    assert one.commit("t", 7, max(1, min(version, 9))) == NONE
    assert one.leave(min(version, 5)) == ([NONE, NONE] if version >= 3 else [NONE])
    assert one.beat(min(version, 4)) == ErrorCode.UNKNOWN_MEMBER_ID
    empty = described(one.client, one.group)
    assert (empty.group_state, empty.protocol_type, empty.members) == ("Empty", "consumer", ())


def test_two_members_wait_for_each_other(member: Make) -> None:
    leader, follower = stable(member)
    assert (leader.generation, follower.generation) == (2, 2)
    found = described(leader.client, leader.group)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    assert [
        (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
        for m in found.members
    ] == [
        (leader.id, "raw", "/127.0.0.1", SUBSCRIPTION, b"1"),
        (follower.id, "raw", "/127.0.0.1", SUBSCRIPTION, b"2"),
    ]
    listed = leader.client.ask(ListGroupsRequest(("stable",), ("classic",)), 5).groups
    assert ListedGroup(leader.group, "consumer", "Stable", "classic") in listed
    leader.send_join(metadata=SUBSCRIPTION + b"\0")
    follower.hear_of_rebalance()
    moving = described(follower.client, leader.group)
    assert (moving.group_state, moving.protocol_data) == ("PreparingRebalance", "")
    assert {m.member_metadata + m.member_assignment for m in moving.members} == {b""}
    assert follower.commit("t", 9) == NONE  # what it read before it joins again
    answer = follower.join()
    assert (answer.generation_id, answer.leader, answer.members) == (3, leader.id, ())
    assert follower.commit("t", 10) == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.joined().generation_id == 3


def test_a_parked_member_whose_connection_ends_is_not_waited_for(member: Make) -> None:
    leader, follower = stable(member)
    new = member()
    new.send_join(version=3)  # it is not told its name before it is in
    leader.hear_of_rebalance()
    new.client.close()
    leader.send_join()
    answer = follower.join()
    assert (answer.error_code, answer.generation_id) == (NONE, 3)
    assert len(leader.joined().members) == 2


def test_a_static_member_comes_back_without_a_rebalance(member: Make) -> None:
    one, again = member("i"), member("i")
    one.join()
    one.sync(assignments={one.id: b"1"})
    answer = again.join()
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (NONE, 1, True)
    assert answer.leader == again.id != one.id
    assert again.sync().assignment == b"1"
    assert (again.beat(), one.beat()) == (NONE, ErrorCode.FENCED_INSTANCE_ID)
    leaving = LeaveGroupRequest(one.group, members=(MemberIdentity("", "i"), MemberIdentity("", "none")))
    assert [(m.group_instance_id, m.error_code) for m in one.client.ask(leaving).members] == [
        ("i", NONE), ("none", ErrorCode.UNKNOWN_MEMBER_ID),
    ]  # fmt: skip


def test_what_is_refused_before_the_group_is_looked_at(member: Make) -> None:
    one = member()
    assert one.join(session_timeout_ms=5999).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert one.join(session_timeout_ms=1_800_001).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    nameless = Member(one.client, "")
    assert nameless.join(session_timeout_ms=1).error_code == ErrorCode.INVALID_GROUP_ID
    assert nameless.sync().error_code == ErrorCode.INVALID_GROUP_ID
    assert nameless.beat() == ErrorCode.INVALID_GROUP_ID
    assert one.client.ask(LeaveGroupRequest("")).error_code == ErrorCode.INVALID_GROUP_ID
    without = SyncGroupRequest("g", 1, "m")
    assert one.client.ask(without, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert one.client.ask(without, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_no_group(member: Make) -> None:
    one = member()
    one.id, one.generation = "m", 3
    assert one.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    one.id, one.generation = "m", 3
    assert one.sync().error_code == one.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.commit("t", 1, 8) == ErrorCode.ILLEGAL_GENERATION
    assert one.commit("t", 1, 9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert one.leave(2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert one.leave(5) == [NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert described(one.client, one.group).group_state == "Dead"


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_are_deleted_when_they_have_no_members(member: Make, version: int) -> None:
    one = member()
    one.enter()
    one.sync()
    one.commit("t", 1)
    wanted = DeleteGroupsRequest((one.group, f"{one.group} that never was"))
    codes = [r.error_code for r in one.client.ask(wanted, version).results]
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    assert one.leave() == [NONE, NONE]
    assert described(one.client, one.group).group_state == "Empty"
    assert one.client.ask(wanted, version).results[0].error_code == NONE
    assert described(one.client, one.group).group_state == "Dead"
    (group,) = one.client.ask(OffsetFetchRequest(groups=(OffsetFetchRequestGroup(one.group),))).groups
    assert group.topics == ()


def delete_offsets(client: RawClient, group: str, *partitions: tuple[str, int]) -> OffsetDeleteResponse:
    topics = tuple(OffsetDeleteRequestTopic(t, (OffsetDeleteRequestPartition(p),)) for t, p in partitions)
    answer: OffsetDeleteResponse = client.ask(OffsetDeleteRequest(group, topics))
    return answer


def test_offsets_are_deleted_where_no_member_subscribes(member: Make, broker: EmbeddedBroker) -> None:
    one = member()
    one.client.create_topic("other-than-t")
    assert delete_offsets(one.client, "", ("t", 0)).error_code == ErrorCode.INVALID_GROUP_ID
    assert delete_offsets(one.client, one.group, ("t", 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    one.enter()
    one.sync()
    one.commit("t", 1)
    one.commit("other-than-t", 2)
    answer = delete_offsets(one.client, one.group, ("t", 0), ("other-than-t", 0), ("nowhere", 0))
    assert (answer.error_code, [t.partitions[0].error_code for t in answer.topics]) == (
        NONE,
        [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    )
    (group,) = one.client.ask(OffsetFetchRequest(groups=(OffsetFetchRequestGroup(one.group),))).groups
    assert [topic.name for topic in group.topics] == ["t"]


def test_who_waits_is_answered_when_the_broker_stops() -> None:
    with start_broker() as broker, RawClient(broker.port) as first, RawClient(broker.port) as second:
        leader, follower = Member(first, "g"), Member(second, "g")
        leader.enter()
        follower.join()
        follower.send_join()
        leader.hear_of_rebalance()
        broker.stop()
        assert follower.joined().error_code == ErrorCode.NOT_COORDINATOR
