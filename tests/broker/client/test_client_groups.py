"""Groups as our client sees them, against our broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    MemberDescription,
    commit_offsets,
    committed_offsets,
    describe_group,
    list_groups,
)
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, ServerError, UnknownTopicOrPartition
from pyspark_kafkalog.protocol.api import consumer_groups
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
)
from pyspark_kafkalog.protocol.api.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
)
from pyspark_kafkalog.protocol.api.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_server import HOST


def test_what_is_committed_is_read_back_whole_or_in_part(cluster: Cluster, topic: str) -> None:
    group, first, second = f"g-{topic}", TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert committed_offsets(cluster, group) == {}
    commit_offsets(cluster, group, {first: 7, second: 0}, metadata="note")
    both = {first: CommittedOffset(7, -1, "note"), second: CommittedOffset(0, -1, "note")}
    assert committed_offsets(cluster, group) == both
    assert committed_offsets(cluster, group, [second, TopicPartition("other", 3)]) == {second: both[second]}
    assert committed_offsets(cluster, group, []) == {}
    commit_offsets(cluster, group, {first: 9})
    assert committed_offsets(cluster, group)[first].offset == 9


def test_a_partition_that_does_not_exist_fails_and_the_others_are_stored(
    cluster: Cluster, topic: str
) -> None:
    group = f"g-{topic}"
    with pytest.raises(UnknownTopicOrPartition, match=f"{topic}-9 for group '{group}': no such topic"):
        commit_offsets(cluster, group, {TopicPartition(topic, 9): 1, TopicPartition(topic, 0): 4})
    assert {tp: o.offset for tp, o in committed_offsets(cluster, group).items()} == {
        TopicPartition(topic, 0): 4
    }


def test_an_offset_below_zero_is_not_sent(cluster: Cluster, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="offset -1 cannot be committed"):
        commit_offsets(cluster, f"g-{topic}", {TopicPartition(topic, 0): -1})
    commit_offsets(cluster, f"g-{topic}", {})
    assert committed_offsets(cluster, f"g-{topic}") == {}


def test_groups_are_listed_and_described(cluster: Cluster, topic: str) -> None:
    group = f"g-{topic}"
    assert describe_group(cluster, group) == GroupDescription(group, "Dead", "", "", ())
    commit_offsets(cluster, group, {TopicPartition(topic, 0): 1})
    assert GroupListing(group, "", "Empty", "classic") in list_groups(cluster)
    assert describe_group(cluster, group) == GroupDescription(group, "Empty", "", "", ())


OLD = {ApiKey.FIND_COORDINATOR: (0, 3), ApiKey.OFFSET_FETCH: (1, 7), ApiKey.LIST_GROUPS: (0, 2)}


@pytest.fixture
def two() -> Iterator[tuple[ScriptedBroker, ScriptedBroker, Cluster]]:
    """Two brokers of before Kafka 2.6, and a cluster that knows the first."""
    layout = Layout()
    with (
        ScriptedBroker(layout, versions=OLD) as first,
        ScriptedBroker(layout, node_id=1, versions=OLD) as second,
    ):
        made = Cluster(
            ClientConfig(bootstrap_servers=first.address, request_timeout_ms=600_000, retry_backoff_ms=1)
        )
        yield first, second, made
        made.close()


def test_a_coordinator_that_moves_or_still_loads_is_asked_again(
    two: tuple[ScriptedBroker, ScriptedBroker, Cluster],
) -> None:
    first, second, cluster = two
    for asked in (first, second):  # any of the two may be asked where the coordinator is
        asked.default(ApiKey.FIND_COORDINATOR, lambda _: FindCoordinatorResponse(node_id=1, host=HOST))
    first.script(
        ApiKey.FIND_COORDINATOR,
        FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1),
        FindCoordinatorResponse(node_id=0, host=HOST),
    )
    first.script(ApiKey.OFFSET_FETCH, OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR))
    second.script(
        ApiKey.OFFSET_FETCH,
        OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        OffsetFetchResponse(),
    )
    assert committed_offsets(cluster, "g") == {}
    assert [len(broker.received(ApiKey.OFFSET_FETCH)) for broker in (first, second)] == [1, 2]
    assert second.received(ApiKey.OFFSET_FETCH)[0].topics is None


def test_only_what_is_not_stored_yet_is_committed_again(
    two: tuple[ScriptedBroker, ScriptedBroker, Cluster],
) -> None:
    first, _, cluster = two
    first.default(ApiKey.FIND_COORDINATOR, lambda _: FindCoordinatorResponse(node_id=0, host=HOST))
    first.script(
        ApiKey.OFFSET_COMMIT,
        committed((0, ErrorCode.NONE), (1, ErrorCode.NOT_COORDINATOR)),
        committed((1, 0)),
    )
    commit_offsets(cluster, "g", {TopicPartition("t", 0): 5, TopicPartition("t", 1): 6})
    sent = [
        [(p.partition_index, p.committed_offset) for t in request.topics for p in t.partitions]
        for request in first.received(ApiKey.OFFSET_COMMIT)
    ]
    assert sent == [[(0, 5), (1, 6)], [(1, 6)]]


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]
)
def test_a_group_that_has_members_is_not_committed_for(
    two: tuple[ScriptedBroker, ScriptedBroker, Cluster], code: ErrorCode
) -> None:
    first, _, cluster = two
    first.default(ApiKey.FIND_COORDINATOR, lambda _: FindCoordinatorResponse(node_id=0, host=HOST))
    first.script(ApiKey.OFFSET_COMMIT, committed((0, code)))
    with pytest.raises(ServerError, match="group 'g': the group has members") as raised:
        commit_offsets(cluster, "g", {TopicPartition("t", 0): 5})
    assert raised.value.code == code


def test_the_groups_of_all_brokers_are_listed_once_all_have_loaded(
    two: tuple[ScriptedBroker, ScriptedBroker, Cluster],
) -> None:
    first, second, cluster = two
    first.default(ApiKey.LIST_GROUPS, lambda _: ListGroupsResponse(groups=(ListedGroup("b", "consumer"),)))
    second.script(
        ApiKey.LIST_GROUPS,
        ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ListGroupsResponse(groups=(ListedGroup("a", ""),)),
    )
    assert list_groups(cluster) == [GroupListing("a", "", ""), GroupListing("b", "consumer", "")]


def test_a_group_unknown_to_a_broker_without_the_new_groups_does_not_exist() -> None:
    # Kafka 3.9 lists the call, but refuses it unless group.coordinator.rebalance.protocols has "consumer".
    with ScriptedBroker(versions={ApiKey.DESCRIBE_GROUPS: (0, 5)}) as broker:
        broker.default(ApiKey.FIND_COORDINATOR, _coordinator_of)
        dead = DescribedGroup(ErrorCode.NONE, None, "g", "Dead", "", "", ())
        broker.default(ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=(dead,)))
        newer = consumer_groups.DescribedGroup(ErrorCode.UNSUPPORTED_VERSION, group_id="g")
        refusal = consumer_groups.ConsumerGroupDescribeResponse(groups=(newer,))
        broker.default(ApiKey.CONSUMER_GROUP_DESCRIBE, refusal)
        assert describe_group(broker.address, "g") == GroupDescription("g", "Dead", "", "", ())
        assert len(broker.received(ApiKey.CONSUMER_GROUP_DESCRIBE)) == 1


def _coordinator_of(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    found = (Coordinator(key, 0, HOST, 1) for key in request.coordinator_keys)
    return FindCoordinatorResponse(coordinators=tuple(found))


def test_members_are_described_with_what_they_read(
    two: tuple[ScriptedBroker, ScriptedBroker, Cluster],
) -> None:
    first, _, cluster = two
    first.default(ApiKey.FIND_COORDINATOR, lambda _: FindCoordinatorResponse(node_id=0, host=HOST))
    # Kafka's own bytes: version 1, two topics with partitions 1, 0 and 7, no user data.
    assigned = bytes.fromhex(
        "0001 00000002 0001 75 00000002 00000001 00000000 0001 74 00000001 00000007 ffffffff"
    )
    members = tuple(
        DescribedGroupMember(f"m{i}", None, f"client-{i}", "/10.0.0.1", b"", data)
        for i, data in enumerate((assigned, b""))
    )
    group = DescribedGroup(ErrorCode.NONE, None, "g", "Stable", "consumer", "range", members)
    other = DescribedGroup(ErrorCode.NONE, None, "g", "Stable", "connect", "default", members[:1])
    first.script(ApiKey.DESCRIBE_GROUPS, *(DescribeGroupsResponse(groups=(g,)) for g in (group, other)))
    read = (TopicPartition("t", 7), TopicPartition("u", 0), TopicPartition("u", 1))
    assert describe_group(cluster, "g") == GroupDescription(
        "g",
        "Stable",
        "consumer",
        "range",
        (
            MemberDescription("m0", "client-0", "/10.0.0.1", read),
            MemberDescription("m1", "client-1", "/10.0.0.1", ()),
        ),
    )
    assert describe_group(cluster, "g").members == (MemberDescription("m0", "client-0", "/10.0.0.1", ()),)


def committed(*codes: tuple[int, int]) -> OffsetCommitResponse:
    parts = tuple(OffsetCommitResponsePartition(p, ErrorCode(code)) for p, code in codes)
    return OffsetCommitResponse(topics=(OffsetCommitResponseTopic("t", parts),))
