"""DescribeLogDirs, AlterReplicaLogDirs, DescribeCluster, DescribeClientQuotas, OffsetForLeaderEpoch,
DescribeTopicPartitions, elections, reassignments, ListConfigResources.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.server.broker import Broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ComponentData,
    DescribableLogDirTopic,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectTopicPartitions,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pyspark_kafkalog.protocol.api.configs import ListConfigResourcesRequest
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pyspark_kafkalog.protocol.api.metadata import (
    NOT_ASKED,
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    NamedTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.log.logs import open_manager
from tests.support.protocol.raw_client import RawClient, batch, versions
from tests.support.until import until


def sizes(response: DescribeLogDirsResponse) -> list[tuple[str, dict[tuple[str, int], int]]]:
    return [
        (
            each.log_dir,
            {(t.name, p.partition_index): p.partition_size for t in each.topics for p in t.partitions},
        )
        for each in response.results
    ]


def test_directories_are_described_with_the_bytes_of_their_partitions(tmp_path: Path) -> None:
    place, total = str(tmp_path), shutil.disk_usage(tmp_path).total
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t", 2)
        client.create_topic("u")
        data = batch(b"0", b"1")
        client.produce("t", data, 1)
        some = DescribeLogDirsRequest(
            (DescribableLogDirTopic("t", (1, 7)), DescribableLogDirTopic("no", (0,)))
        )
        for version in (1, 3, 4):
            found = client.ask(DescribeLogDirsRequest(), version)
            assert sizes(found) == [(place, {("t", 0): 0, ("t", 1): len(data), ("u", 0): 0})]
            assert found.results[0].error_code == ErrorCode.NONE
            assert sizes(client.ask(some, version)) == [(place, {("t", 1): len(data)})]
            assert found.results[0].total_bytes == (total if version >= 4 else -1)
            assert (found.results[0].usable_bytes > 0) is (version >= 4)


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_REPLICA_LOG_DIRS))
def test_a_partition_is_moved_to_another_directory(tmp_path: Path, version: int) -> None:
    a, b = (str(tmp_path / name) for name in "ab")
    broker = Broker(BrokerConfig.load(None, {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": f"{a},{b}"}))
    broker.start()
    with ExitStack() as stack, RawClient(broker.port) as client:
        stack.callback(broker.stop)
        client.create_topic("t", 2)
        data = batch(b"0", b"1")
        client.produce("t", data, 0)
        before = dict(sizes(client.ask(DescribeLogDirsRequest())))
        assert before == {a: {("t", 0): len(data)}, b: {("t", 1): 0}}

        def move(path: str, *numbers: int, topic: str = "t") -> list[int]:
            dirs = (AlterReplicaLogDir(path, (AlterReplicaLogDirTopic(topic, numbers),)),)
            (found,) = client.ask(AlterReplicaLogDirsRequest(dirs), version).results
            assert (found.topic_name, [p.partition_index for p in found.partitions]) == (topic, [*numbers])
            return [each.error_code for each in found.partitions]

        assert move(str(tmp_path), 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert move(a, 7, topic="no") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert move(b, 0, 1, 7) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        after = {a: {}, b: {("t", 0): len(data), ("t", 1): 0}}
        until(lambda: dict(sizes(client.ask(DescribeLogDirsRequest()))) == after)
        assert client.produce("t", batch(b"2"), 0).base_offset == 2
        assert [record.value for record in client.read("t", 0)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_the_cluster_is_this_broker(client: RawClient, running_broker: EmbeddedBroker, version: int) -> None:
    found = client.ask(DescribeClusterRequest(), version)
    assert found.cluster_id == client.ask(MetadataRequest(())).cluster_id
    assert (found.error_code, found.controller_id, found.endpoint_type) == (0, 0, 1)
    assert [(b.broker_id, b.port, b.rack) for b in found.brokers] == [(0, running_broker.port, None)]
    assert found.cluster_authorized_operations == NOT_ASKED
    asked = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert asked.cluster_authorized_operations == 0b1111110100000


def test_controllers_are_not_at_this_address(client: RawClient) -> None:
    found = client.ask(DescribeClusterRequest(endpoint_type=2))
    assert (found.error_code, found.brokers) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, ())


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLIENT_QUOTAS))
def test_there_are_no_quotas(client: RawClient, version: int) -> None:
    filters = (
        (),
        (ComponentData("user", 2, None),),
        (ComponentData("client-id", 0, "c"), ComponentData("user", 1, None)),
    )
    for components in filters:
        found = client.ask(DescribeClientQuotasRequest(components), version)
        assert (found.error_code, found.error_message, found.entries) == (ErrorCode.NONE, "", ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((ComponentData("user", 3, None),), ErrorCode.INVALID_REQUEST),
        ((ComponentData("user", 0, None),), ErrorCode.INVALID_REQUEST),
        ((ComponentData("user", 1, "u"),), ErrorCode.INVALID_REQUEST),
        ((ComponentData("ip", 2, None),) * 2, ErrorCode.INVALID_REQUEST),
        ((ComponentData("group", 2, None),), ErrorCode.UNSUPPORTED_VERSION),
        ((ComponentData("ip", 2, None), ComponentData("user", 2, None)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_says_nothing_is_refused(
    client: RawClient, components: tuple[ComponentData, ...], code: ErrorCode
) -> None:
    found = client.ask(DescribeClientQuotasRequest(components))
    assert (found.error_code, found.entries) == (code, None)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
def test_leader_epoch_0_ends_where_the_log_does(client: RawClient, topic: str, version: int) -> None:
    client.produce(topic, batch(b"0", b"1"))
    wanted = ((0, -1, 0), (0, 0, 0), (0, -1, 1), (0, -1, -1), (0, 1, 0), (9, -1, 0), (9, 1, 0))
    partitions = tuple(OffsetForLeaderPartition(*each) for each in wanted)
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic, partitions),))
    (answer,) = client.ask(request, version).topics
    assert [(p.partition, p.error_code, p.leader_epoch, p.end_offset) for p in answer.partitions] == [
        (0, 0, 0, 2),
        (0, 0, 0, 2),
        (0, 0, -1, -1),
        (0, 0, -1, -1),
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
    ]


def test_what_a_later_owner_serves_has_its_leader_epoch(tmp_path: Path) -> None:
    logs = open_manager(tmp_path)
    logs.create_topic("t", UUID(int=5), 1, starts={0: 50}, epochs={0: 2})
    logs.close()
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.produce("t", batch(b"0", b"1"))
        (described,) = client.ask(DescribeTopicPartitionsRequest((NamedTopic("t"),), 10)).topics
        (told,) = client.ask(MetadataRequest((MetadataRequestTopic(name="t"),))).topics
        assert [p.leader_epoch for p in (*described.partitions, *told.partitions)] == [2, 2]
        found = [client.offset_at("t", at) for at in (-2, -1, 0, -3, 2**60)]
        assert [(each.offset, each.leader_epoch) for each in found] == [
            (50, 2), (52, 2), (50, 2), (51, 2), (-1, -1)
        ]  # fmt: skip
        header = read_header(memoryview(client.fetch("t", 50).records or b""))
        assert header.partition_leader_epoch == 2
        fenced, unknown = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
        for epoch, code in ((-1, 0), (0, fenced), (1, fenced), (2, 0), (3, unknown)):
            want = FetchPartition(0, epoch, 50, partition_max_bytes=1000)
            (fetched,) = client.ask(FetchRequest(topics=(FetchTopic("t", partitions=(want,)),)), 12).responses
            wanted = ListOffsetsPartition(0, epoch, -1)
            (listed,) = client.ask(ListOffsetsRequest(topics=(ListOffsetsTopic("t", (wanted,)),))).topics
            end = OffsetForLeaderPartition(0, epoch, 2)
            request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic("t", (end,)),))
            (ended,) = client.ask(request).topics
            assert [each.partitions[0].error_code for each in (fetched, listed, ended)] == [code] * 3
        # Kafka: the end of the largest epoch up to the one asked for. Earlier owners' logs are gone.
        for epoch, end_offset in ((0, 50), (1, 50), (2, 52), (3, -1), (-1, -1)):
            earlier = OffsetForLeaderPartition(0, -1, epoch)
            request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic("t", (earlier,)),))
            (answer,) = client.ask(request).topics[0].partitions
            assert (answer.leader_epoch, answer.end_offset) == (-1 if end_offset < 0 else epoch, end_offset)


def test_partitions_are_described_in_pages(client: RawClient, topic_name: str) -> None:
    first, second = f"{topic_name}-a", f"{topic_name}-b"
    for name in (second, first):
        client.create_topic(name, 3)
    asked, seen = (NamedTopic(second), NamedTopic(first)), []
    cursor: Cursor | None = Cursor(first, 1)
    while cursor is not None:
        page = client.ask(DescribeTopicPartitionsRequest(asked, 2, cursor))
        seen.append([(t.name, [p.partition_index for p in t.partitions]) for t in page.topics])
        cursor = page.next_cursor
    assert seen == [[(first, [1, 2])], [(second, [0, 1])], [(second, [2])]]
    everything = client.ask(DescribeTopicPartitionsRequest((), 2_000, Cursor(first, 0))).topics
    assert [topic.name for topic in everything][:2] == [first, second]
    topic = everything[0]
    assert [(p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [(0, (0,), (0,))] * 3
    assert topic.topic_id == client.topic_id(first)


def test_an_invalid_cursor_is_refused_for_each_topic(client: RawClient, topic: str) -> None:
    for cursor in (Cursor(topic, -1), Cursor("another", 0)):
        found = client.ask(DescribeTopicPartitionsRequest((NamedTopic(topic),), 10, cursor))
        assert [(t.name, t.error_code) for t in found.topics] == [(topic, ErrorCode.INVALID_REQUEST)]


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_a_leader_needs_no_election(client: RawClient, topic: str, version: int) -> None:
    named = client.ask(ElectLeadersRequest(0, (ElectTopicPartitions(topic, (0, 9)),)), version)
    (result,) = named.replica_election_results
    assert [(p.partition_id, p.error_code) for p in result.partition_result] == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    everything = client.ask(ElectLeadersRequest(0, None), version)
    assert everything.error_code == ErrorCode.NONE
    assert {len(each.partition_result) for each in everything.replica_election_results} == {0}


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ((0,), ErrorCode.NONE),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ((1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_partition_stays_where_it_is(
    client: RawClient, topic: str, replicas: tuple[int, ...] | None, code: ErrorCode
) -> None:
    wanted = ReassignableTopic(topic, (ReassignablePartition(0, replicas),))
    (found,) = client.ask(AlterPartitionReassignmentsRequest(topics=(wanted,))).responses
    assert [(p.partition_index, p.error_code) for p in found.partitions] == [(0, code)]
    ongoing = client.ask(ListPartitionReassignmentsRequest(topics=None))
    assert (ongoing.error_code, ongoing.topics) == (ErrorCode.NONE, ())


def test_topics_and_brokers_have_properties(client: RawClient, topic: str) -> None:
    found = client.ask(ListConfigResourcesRequest(), 1)
    assert {(4, "0"), (2, topic)} <= {(r.resource_type, r.resource_name) for r in found.config_resources}
    brokers = client.ask(ListConfigResourcesRequest((4,)), 1)
    assert [(r.resource_type, r.resource_name) for r in brokers.config_resources] == [(4, "0")]
    assert client.ask(ListConfigResourcesRequest(), 0).config_resources == ()
    assert client.ask(ListConfigResourcesRequest((77,)), 1).error_code == ErrorCode.UNSUPPORTED_VERSION
