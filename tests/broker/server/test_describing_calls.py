"""DescribeLogDirs, DescribeCluster, DescribeClientQuotas, OffsetForLeaderEpoch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.cluster import (
    ComponentData,
    DescribableLogDirTopic,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED, MetadataRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions


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
    wanted = ((0, -1, 0), (0, 0, 0), (0, -1, 1), (0, -1, -1), (0, 1, 0), (9, -1, 0))
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
    ]
