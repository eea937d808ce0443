"""The values of the znodes in which a cluster keeps its topics."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.zookeeper.cluster_nodes import (
    CHANGES_KEPT,
    ClusterNodes,
    DeletedTopic,
    RegistryChange,
    RegistryNode,
    TopicNode,
    read_config,
    read_deleted,
    read_name_07,
    read_registry,
    read_topic,
    write_config,
    write_deleted,
    write_name_07,
    write_registry,
    write_topic,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode

NODES = ClusterNodes(JsonLayout())
ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")


def test_the_nodes_are_those_of_kafka() -> None:
    assert NODES.topic("clicks") == "/kafka/brokers/topics/clicks"
    assert NODES.config("clicks") == "/kafka/config/topics/clicks"
    assert NODES.deletion(ID) == "/kafka/admin/delete_topics/AQIDBAUGBwgJCgsMDQ4PEA"
    assert json.loads(write_topic(TopicNode(ID, (2, -1, 1), frozenset({2, 0})))) == {
        "version": 3, "topic_id": "AQIDBAUGBwgJCgsMDQ4PEA", "partitions": {"0": [2], "1": [], "2": [1]},
        "adding_replicas": {}, "removing_replicas": {}, "pending": [0, 2],
    }  # fmt: skip
    assert write_config({"retention.ms": "5"}) == b'{"version":1,"config":{"retention.ms":"5"}}'
    with pytest.raises(InvalidConfig):
        NODES.topic("a/b")


_COUNTS = st.dictionaries(st.integers(0, 20), st.integers(1, 1 << 31))


@given(
    st.uuids(),
    st.lists(st.integers(-1, 1 << 31), min_size=1, max_size=20),
    st.sets(st.integers(0, 20)),
    _COUNTS,
    _COUNTS,
)
def test_a_topic_is_read_as_it_was_written(
    topic_id: UUID, owners: list[int], pending: set[int], starts: dict[int, int], epochs: dict[int, int]
) -> None:
    topic = TopicNode(topic_id, tuple(owners), frozenset(pending), starts, epochs)
    assert read_topic("t", write_topic(topic)) == topic
    deleted = DeletedTopic(topic_id, "t", frozenset(pending))
    assert read_deleted(NODES.deletion(topic_id).rpartition("/")[2], write_deleted(deleted)) == deleted


def test_a_topic_without_partitions_does_not_exist_but_07_may_use_its_name() -> None:
    for data in (b"", b'{"version":3,"partitions":{}}', write_name_07(())):
        assert read_topic("t", data) is None
        assert read_name_07("t", data) == frozenset()
    taken = write_name_07((2, 1))
    assert read_topic("t", taken) is None
    assert read_name_07("t", taken) == {1, 2}
    with pytest.raises(MalformedNode):
        read_name_07("t", b'{"partitions":{},"brokers_07":["1"]}')


@pytest.mark.parametrize(
    "data",
    [
        b"\xff", b"[]", b'{"partitions":[]}', b'{"partitions":{"x":[1]}}', b'{"partitions":{"0":1}}',
        b'{"partitions":{"0":["1"]}}', b'{"partitions":{"0":[1]}}', b'{"partitions":{"999999999":[1]}}',
        b'{"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA","partitions":{"0":[1]},"pending":[true]}',
        b'{"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA","partitions":{"0":[1]},"leader_epochs":[1]}',
        b'{"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA","partitions":{"0":[1]},"leader_epochs":{"0":-1}}',
        b'{"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA","partitions":{"0":[1]},"leader_epochs":{"x":1}}',
    ],
)  # fmt: skip
def test_what_is_no_topic_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedNode):
        read_topic("t", data)


def test_other_values_that_cannot_be_are_refused() -> None:
    for data in (b"", b'{"config":{"a":1}}', b'{"config":[]}'):
        with pytest.raises(MalformedNode):
            read_config("t", data)
    for data in (
        b"x",
        b'{"registry":1,"members":{},"changes":[]}',
        b'{"registry":"r","members":{"x":true},"changes":[]}',
        b'{"registry":"r","members":{},"changes":[["a",1,"x"]]}',
        b'{"registry":"r","members":{},"changes":[[1,"a"]]}',
    ):
        with pytest.raises(MalformedNode):
            read_registry(data)
    assert read_registry(b"") is None
    with pytest.raises(MalformedNode):
        read_deleted("no-id", b'{"name":"t","brokers":[1]}')


def test_changes_say_what_is_to_be_read_again_or_that_they_do_not_reach_back_far_enough() -> None:
    node = RegistryNode("r", members={1: True, 2: False})
    assert node.since(0, 0) == set()
    for version in range(1, CHANGES_KEPT + 4):
        node = node.after(RegistryChange(version, f"t{version}", f"tag{version}"))
    assert read_registry(write_registry(node)) == node
    last = CHANGES_KEPT + 3
    assert node.since(last - 2, last) == {f"t{last - 1}", f"t{last}"}
    assert node.since(3, last) == {f"t{version}" for version in range(4, last + 1)}
    assert node.since(2, last) is None
    # Who wrote the node without telling of a change.
    assert node.since(last - 2, last + 1) is None
    assert [node.has(f"tag{version}") for version in (3, 4, last)] == [False, True, True]
    # A change of the members alone is of no topic.
    arrived = node.after(RegistryChange(last + 1, "", "x"), {1: True, 2: True})
    assert arrived.since(last, last + 1) == set()
    assert (node.members[2], arrived.members[2]) == (False, True)
