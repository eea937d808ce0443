"""Groups of the newer protocol as every API about groups answers for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
)
from tests.support.protocol.raw_client import RawClient

NONE = ErrorCode.NONE
_numbers = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedBroker]:
    with start_broker(
        {"group.consumer.heartbeat.interval.ms": 700, "group.consumer.session.timeout.ms": 60_000}
    ) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t", 4)
        yield broker


@pytest.fixture
def client(running: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(running.port) as client:
        yield client


@pytest.fixture
def group() -> str:
    return f"g{next(_numbers)}"


def join(client: RawClient, group: str, member: str = "m", version: int = 1, **more: Any) -> Any:
    everything = {
        "subscribed_topic_names": ("t",),
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": (),
        **more,
    }
    return client.ask(
        ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=0, **everything),
        version,
    )


def beat(client: RawClient, group: str, epoch: int, member: str = "m", **more: Any) -> Any:
    return client.ask(
        ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **more), 1
    )


def join_classic(client: RawClient, group: str, member: str = "") -> Any:
    return client.ask(
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            member_id=member,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol("range", b""),),
        ),
        3,
    )


def commit(client: RawClient, group: str, member: str = "", epoch: int = -1, version: int = 9) -> ErrorCode:
    answer = client.ask(
        OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=(OffsetCommitRequestTopic("t", (OffsetCommitRequestPartition(0, 7),)),),
        ),
        version,
    )
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def fetch(client: RawClient, group: str, member: str | None = None, epoch: int = -1) -> Any:
    """The committed offset, or the error's code."""
    asked = OffsetFetchRequestGroup(group, member, epoch, (OffsetFetchRequestTopics("t", (0,)),))
    (answer,) = client.ask(OffsetFetchRequest(groups=(asked,)), 9).groups
    if answer.error_code:
        assert answer.topics == ()
        return answer.error_code
    return answer.topics[0].partitions[0].committed_offset


def delete(client: RawClient, group: str) -> ErrorCode:
    code: ErrorCode = client.ask(DeleteGroupsRequest((group,))).results[0].error_code
    return code


def test_a_member_gets_its_partitions_and_its_heartbeat_interval(client: RawClient, group: str) -> None:
    topic_id = client.topic_id("t")
    for version in (0, 1):
        answer = join(client, group, "m", version)
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (NONE, "m", 1)
        assert answer.heartbeat_interval_ms == 700
        assert answer.assignment.topic_partitions == (TopicPartitions(topic_id, (0, 1, 2, 3)),)
    assert beat(client, group, 1).assignment is None
    assert beat(client, group, 5).error_code is ErrorCode.FENCED_MEMBER_EPOCH
    left = beat(client, group, -1)
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (NONE, -1, 0)


def test_version_0_names_a_member_that_has_no_name(client: RawClient, group: str) -> None:
    named = join(client, group, "", 0)
    assert len(named.member_id) == 22
    assert beat(client, group, 1, named.member_id).error_code is NONE
    assert join(client, group, "", 1).error_code is ErrorCode.INVALID_REQUEST


def test_who_heartbeats_in_no_group_hears_so(client: RawClient, group: str) -> None:
    assert beat(client, group, 1).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert beat(client, group, -1).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert beat(client, "", 1).error_code is ErrorCode.INVALID_REQUEST


def test_classic_calls_find_no_such_group_or_member(client: RawClient, group: str) -> None:
    join(client, group)
    assert join_classic(client, group).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # no subscription
    assert client.ask(HeartbeatRequest(group, 1, "m")).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    for version, code in ((5, NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        (described,) = client.ask(DescribeGroupsRequest((group,)), version).groups
        assert (described.error_code, described.group_state) == (code, "Dead")


def test_a_group_is_listed_and_described_with_its_members(client: RawClient, group: str) -> None:
    join(client, group, instance_id="i", rack_id="r", server_assignor="range")
    listed = client.ask(ListGroupsRequest(types_filter=("Consumer",), states_filter=("stable",)), 5).groups
    assert ListedGroup(group, "consumer", "Stable", "consumer") in listed
    assert not client.ask(ListGroupsRequest(states_filter=("none",)), 5).groups

    groups = client.ask(ConsumerGroupDescribeRequest((group, "no-such-group", "")), 1).groups
    codes = [each.error_code for each in groups]
    assert codes == [NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID]
    found = groups[0]
    assert (found.group_state, found.assignor_name) == ("Stable", "range")
    assert (found.group_epoch, found.assignment_epoch) == (1, 1)
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 1)
    assert (member.client_host, member.subscribed_topic_names) == ("/127.0.0.1", ("t",))
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name) == (client.topic_id("t"), "t")
    assert topic.partitions == (0, 1, 2, 3)
    assert member.target_assignment == member.assignment
    assert member.member_type == 1


def test_groups_and_offsets_in_use_are_not_deleted(client: RawClient, group: str) -> None:
    join(client, group)
    assert commit(client, group, "m", 1) is NONE
    request = OffsetDeleteRequest(group, (OffsetDeleteRequestTopic("t", (OffsetDeleteRequestPartition(0),)),))
    (topic,) = client.ask(request).topics
    assert topic.partitions[0].error_code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(client, group) is ErrorCode.NON_EMPTY_GROUP
    beat(client, group, -1)
    assert delete(client, group) is NONE
    assert beat(client, group, 1).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(client, group) is ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    running: EmbeddedBroker, client: RawClient, group: str
) -> None:
    join(client, group)
    assert commit(client, group, "m", 1) is NONE
    beat(client, group, -1)
    member = join_classic(client, group)
    assert member.error_code is NONE
    assert join(client, group).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert fetch(client, group) == 7
    assert client.ask(LeaveGroupRequest(group, member.member_id), 0).error_code is NONE
    assert join(client, group).member_epoch == 1
    assert fetch(client, group, "m", 1) == 7


def test_a_broker_may_refuse_the_newer_protocol(group: str) -> None:
    with (
        start_broker({"group.coordinator.rebalance.protocols": "classic"}) as broker,
        RawClient(broker.port) as client,
    ):
        assert join(client, group).error_code is ErrorCode.UNSUPPORTED_VERSION
