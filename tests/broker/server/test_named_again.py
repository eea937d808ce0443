"""What a request names again is not described again: its answer may be very much longer than its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafkalog.protocol.api.configs import DescribeConfigsRequest, DescribeConfigsResource
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupDescribeRequest
from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from pyspark_kafkalog.protocol.api.groups import DescribeGroupsRequest
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.producers import DescribeProducersRequest, TopicRequest
from pyspark_kafkalog.protocol.api.transactions import DescribeTransactionsRequest
from tests.support.protocol.raw_client import RawClient
from tests.support.protocol.raw_groups import commit


def topic_configs(name: str) -> DescribeConfigsResource:
    return DescribeConfigsResource(2, name, ("retention.ms",))


@pytest.mark.parametrize(
    ("version", "request_of", "found"),
    [
        (5, lambda names: DescribeGroupsRequest(names), lambda a: [each.group_id for each in a.groups]),
        (0, lambda names: ConsumerGroupDescribeRequest(names), lambda a: [g.group_id for g in a.groups]),
        (
            0,
            lambda names: DescribeTransactionsRequest(names),
            lambda a: [each.transactional_id for each in a.transaction_states],
        ),
        (
            0,
            lambda names: DescribeProducersRequest(tuple(TopicRequest(name, (0, 0)) for name in names)),
            lambda a: [topic.name for topic in a.topics for _ in topic.partitions],
        ),
        (
            4,
            lambda names: DescribeConfigsRequest(tuple(topic_configs(name) for name in names)),
            lambda a: [each.resource_name for each in a.results],
        ),
        (
            4,
            lambda names: MetadataRequest(tuple(MetadataRequestTopic(name=name) for name in names)),
            lambda a: [each.name for each in a.topics],
        ),
    ],
    ids=["groups", "newer groups", "transactions", "producers", "configs", "metadata"],
)
def test_what_is_named_again(
    client: RawClient,
    version: int,
    request_of: Callable[[tuple[str, ...]], Any],
    found: Callable[[Any], list[str]],
) -> None:
    assert found(client.ask(request_of(("b", "a", "b", "b", "a")), version)) == ["b", "a"]


def test_all_offsets_of_a_group_asked_for_again(client: RawClient, topic: str) -> None:
    assert commit(client, "again", topic, 7) == 0
    wanted = tuple(OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("again", "none") * 2)
    answer = client.ask(OffsetFetchRequest(groups=wanted), 8)
    assert [(each.group_id, len(each.topics)) for each in answer.groups] == [("again", 1), ("none", 0)]
    assert answer.groups[0].topics[0].partitions[0].committed_offset == 7
