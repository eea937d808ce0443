"""What is written into a znode is read from it again, and rubbish raises nothing but our own error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.zookeeper.paths import (
    BLACK_LIST,
    WHITE_LIST,
    BrokerNode,
    ConsumerSubscription,
    JsonLayout,
    MalformedNode,
    RegistryLayout,
    V07Layout,
    read_cluster_id,
    read_offset,
)

LAYOUTS = pytest.mark.parametrize("layout", [V07Layout(), JsonLayout()], ids=["plain", "json"])

hosts = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,30}", fullmatch=True)
ports = st.integers(1, 65535)
times = st.integers(0, 10**15)
topics = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
counts = st.integers(1, 10**6)
subscriptions = st.one_of(
    st.builds(ConsumerSubscription, st.dictionaries(topics, counts, max_size=4)),
    st.builds(
        ConsumerSubscription,
        st.dictionaries(topics, counts, min_size=1, max_size=1),
        st.sampled_from([WHITE_LIST, BLACK_LIST]),
    ),
)


@LAYOUTS
@given(st.builds(BrokerNode, st.integers(0, 2**31 - 1), hosts, ports, times))
def test_a_broker_is_read_as_it_was_written(layout: RegistryLayout, node: BrokerNode) -> None:
    assert layout.read_broker(node.id, layout.write_broker(node)) == node


@LAYOUTS
@given(subscriptions, times)
def test_a_subscription_is_read_as_it_was_written(
    layout: RegistryLayout, wanted: ConsumerSubscription, now_ms: int
) -> None:
    assert layout.read_subscription(layout.write_subscription(wanted, now_ms)) == wanted


@LAYOUTS
@given(st.integers(0, 1000), st.integers(0, 50))
def test_partitions_are_read_as_they_were_written(layout: RegistryLayout, broker: int, count: int) -> None:
    found = []
    parent = layout.topic("t")
    for path, data in layout.topic_nodes("t", broker, count).items():
        child = path.removeprefix(parent + "/").partition("/")[0]
        assert layout.topic_child("t", child) == path
        found += layout.read_partitions(child, data)
    assert [(p.broker, p.number) for p in found] == [(broker, n) for n in range(count)]
    assert [p.name for p in found] == [layout.partition_name(broker, n) for n in range(count)]


@LAYOUTS
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_rubbish_raises_only_our_error(layout: RegistryLayout, data: bytes) -> None:
    for read in (
        lambda: layout.read_broker(1, data),
        lambda: layout.read_subscription(data),
        lambda: layout.read_partitions("1", data),
        lambda: read_cluster_id(data),
        lambda: read_offset(data),
    ):
        with contextlib.suppress(MalformedNode):
            read()
