"""Groups as our client sees them, against our broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset, commit_offsets, committed_offsets
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, ServerError, UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition


@pytest.fixture
def cluster(running_broker: EmbeddedBroker) -> Iterator[Cluster]:
    made = Cluster(ClientConfig(bootstrap_servers=running_broker.bootstrap_servers))
    yield made
    made.close()


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


def test_what_the_broker_refuses_is_told(cluster: Cluster, topic: str) -> None:
    with pytest.raises(ServerError) as raised:
        commit_offsets(cluster, "g", {TopicPartition(topic, 0): 1}, metadata="x" * 21)
    assert raised.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE
