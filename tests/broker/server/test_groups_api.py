"""ListGroups, DescribeGroups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
)
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.api.topics import DeleteTopicsRequest, DeleteTopicState
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, versions
from tests.support.protocol.raw_groups import commit


@pytest.fixture(scope="module")
def three_groups() -> Iterator[EmbeddedBroker]:
    with start_broker({"offsets.topic.num.partitions": 5}) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        for group in ("c", "a", "b"):
            assert commit(client, group, "t", 1) == ErrorCode.NONE
        yield broker


@pytest.fixture
def client(three_groups: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(three_groups.port) as client:
        yield client


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_with_offsets_are_listed_in_every_version(client: RawClient, version: int) -> None:
    answer = client.ask(ListGroupsRequest(), version)
    state = "Empty" if version >= 4 else ""
    assert answer.error_code == ErrorCode.NONE
    kind = "classic" if version >= 5 else ""
    assert list(answer.groups) == [ListedGroup(name, "", state, kind) for name in "abc"]


@pytest.mark.parametrize(
    ("states", "types", "count"),
    [
        (("empty",), (), 3),
        (("Stable", "Dead"), (), 0),
        (("Dead", "Empty"), (), 3),
        ((), ("consumer",), 0),
        ((), ("share", "classic"), 3),
    ],
)
def test_groups_are_listed_by_state_and_type(
    client: RawClient, states: tuple[str, ...], types: tuple[str, ...], count: int
) -> None:
    assert len(client.ask(ListGroupsRequest(states, types), 5).groups) == count


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_a_group_with_offsets_is_empty_and_one_without_is_dead(client: RawClient, version: int) -> None:
    answer = client.ask(DescribeGroupsRequest(("b", "never-seen")), version)
    told, unknown = ErrorCode.NONE, None
    if version >= 6:
        told, unknown = ErrorCode.GROUP_ID_NOT_FOUND, "there is no group 'never-seen'"
    assert list(answer.groups) == [
        DescribedGroup(group_id="b", group_state="Empty"),
        DescribedGroup(told, unknown, group_id="never-seen", group_state="Dead"),
    ]


def test_the_group_without_a_name_is_a_group_as_in_kafka(client: RawClient) -> None:
    assert client.ask(DescribeGroupsRequest(("",)), 5).groups == (DescribedGroup(group_state="Dead"),)


def test_operations_are_answered_when_asked_for(client: RawClient) -> None:
    (asked,) = client.ask(DescribeGroupsRequest(("a",), include_authorized_operations=True)).groups
    (unasked,) = client.ask(DescribeGroupsRequest(("a",))).groups
    assert (asked.authorized_operations, unasked.authorized_operations) == (
        1 << 3 | 1 << 6 | 1 << 8,
        NOT_ASKED,
    )


def test_before_the_first_commit_there_are_no_groups_and_a_group_ends_with_its_last_offset() -> None:
    with start_broker() as broker, RawClient(broker.port) as client:
        assert client.ask(ListGroupsRequest()).groups == ()
        client.create_topic("gone")
        assert commit(client, "g", "gone", 1) == ErrorCode.NONE
        assert [group.group_id for group in client.ask(ListGroupsRequest()).groups] == ["g"]
        client.ask(DeleteTopicsRequest(topics=(DeleteTopicState(name="gone"),)))
        assert client.ask(ListGroupsRequest()).groups == ()
        assert client.ask(DescribeGroupsRequest(("g",))).groups[0].group_state == "Dead"
