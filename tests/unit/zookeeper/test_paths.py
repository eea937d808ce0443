"""Znodes and their values as real brokers and consumers wrote them, and as the design papers have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.zookeeper.paths import (
    BLACK_LIST,
    MAX_PARTITIONS,
    WHITE_LIST,
    BrokerNode,
    ConsumerSubscription,
    JsonLayout,
    ListenerNode,
    MalformedNode,
    PartitionNode,
    RegistryLayout,
    V07Layout,
    read_cluster_id,
    read_offset,
    write_cluster_id,
)
from pyspark_kafkalog.zookeeper.topic_filters import topic_regex

PLAIN, JSON = V07Layout(), JsonLayout("/")
NOW_MS = 1_300_000_000_123


def test_the_paths_of_07() -> None:
    assert PLAIN.broker(3) == "/brokers/ids/3"
    assert PLAIN.topic_nodes("clicks", 3, 2) == {"/brokers/topics/clicks/3": b"2"}
    assert PLAIN.consumer("g", "g_host-1-ab") == "/consumers/g/ids/g_host-1-ab"
    assert PLAIN.owner("g", "clicks", "3-1") == "/consumers/g/owners/clicks/3-1"
    assert PLAIN.offset("g", "clicks", "3-1") == "/consumers/g/offsets/clicks/3-1"
    assert PLAIN.partition_name(3, 1) == "3-1"


def test_the_paths_of_the_later_papers() -> None:
    assert JSON.broker(3) == "/brokers/ids/3"
    nodes = JSON.topic_nodes("clicks", 3, 2)
    assert list(nodes) == [f"/brokers/topics/clicks/partitions/{n}/state" for n in (0, 1)]
    state = b'{"controller_epoch":1,"leader":3,"version":1,"leader_epoch":0,"isr":[3]}'
    assert set(nodes.values()) == {state}
    later = JSON.topic_nodes("clicks", 3, 2, (1, 4), {4: 2})
    assert list(later.values()) == [state, state.replace(b'"leader_epoch":0', b'"leader_epoch":2')]
    assert JSON.offset("g", "clicks", JSON.partition_name(3, 1)) == "/consumers/g/offsets/clicks/1"
    assert JSON.cluster_id == "/cluster/id"


@pytest.mark.parametrize("prefix", ["/kafka/one", "/kafka/one/"])
def test_a_prefix_goes_before_everything(prefix: str) -> None:
    for layout in (V07Layout(prefix), JsonLayout(prefix)):
        paths = [layout.broker(1), layout.topic("t"), layout.consumers("g"), layout.cluster_id, layout.groups]
        assert all(path.startswith("/kafka/one/") for path in paths)
        assert all(path.startswith("/kafka/one/") for path in layout.topic_nodes("t", 1, 1))


def test_the_two_spellings_do_not_meet_by_default() -> None:
    assert (V07Layout().prefix, JsonLayout().prefix) == ("", "/kafka")


@pytest.mark.parametrize("prefix", ["kafka", "", "/a//b", "/a/../b", "/."])
def test_a_prefix_that_is_not_a_path_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidConfig):
        V07Layout(prefix)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_a_name_that_would_be_another_path_is_refused(name: str) -> None:
    for layout in (PLAIN, JSON):
        for path in (layout.topic, layout.consumers, layout.owned_topics, layout.stored_topics):
            with pytest.raises(InvalidConfig, match="cannot be the name of a znode"):
                path(name)


def test_a_broker_in_plain_text_is_creator_host_and_port_or_as_in_the_papers_without_the_creator() -> None:
    node = BrokerNode(3, "10.0.0.7", 9092, NOW_MS)
    assert PLAIN.write_broker(node) == b"10.0.0.7-1300000000123:10.0.0.7:9092"
    assert PLAIN.read_broker(3, b"10.0.0.7-1300000000123:10.0.0.7:9092") == node
    for layout in (PLAIN, JSON):
        assert layout.read_broker(3, b"kafka1:9092") == BrokerNode(3, "kafka1", 9092)


def test_an_ipv6_address_cannot_be_written_in_plain_text() -> None:
    with pytest.raises(InvalidConfig, match="advertise a host name or an IPv4 address"):
        PLAIN.write_broker(BrokerNode(1, "::1", 9092, 0))
    assert JSON.read_broker(1, JSON.write_broker(BrokerNode(1, "::1", 9092, 0))).host == "::1"


def test_a_broker_in_json_has_the_fields_of_real_ones() -> None:
    data = JSON.write_broker(BrokerNode(1, "kafka1", 9092, NOW_MS))
    assert json.loads(data) == {
        "jmx_port": -1,
        "timestamp": "1300000000123",
        "endpoints": ["PLAINTEXT://kafka1:9092"],
        "host": "kafka1",
        "version": 2,
        "port": 9092,
    }
    assert JSON.read_broker(1, data) == BrokerNode(1, "kafka1", 9092, NOW_MS)


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (b'{"jmx_port":-1,"timestamp":"1","host":"old","version":1,"port":9092}', ("old", 9092)),
        (
            b'{"listener_security_protocol_map":{},"endpoints":["SSL://x:9093","PLAINTEXT://[::1]:9094"],'
            b'"jmx_port":-1,"host":null,"timestamp":"1","port":-1,"version":4}',
            ("::1", 9094),
        ),
    ],
)
def test_brokers_of_other_versions_are_read(data: bytes, address: tuple[str, int]) -> None:
    node = JSON.read_broker(5, data)
    assert (node.host, node.port) == address


def test_partitions_are_read_as_brokers_wrote_them() -> None:
    assert PLAIN.read_partitions("3", b"2") == [PartitionNode("3-0", 3, 0), PartitionNode("3-1", 3, 1)]
    state = b'{"controller_epoch":22,"leader":3,"version":1,"leader_epoch":7,"isr":[3,1]}'
    assert JSON.read_partitions("4", state) == [PartitionNode("4", 3, 4)]
    assert JSON.read_partitions("4", state.replace(b":3,", b":-1,")) == []


def test_a_subscription_in_plain_text() -> None:
    for subscription, data in (
        (ConsumerSubscription({"clicks": 2}), b'{ "clicks": 2 }'),
        (ConsumerSubscription({"clicks": 2, "views": 1}), b'{ "clicks": 2,"views": 1 }'),
        (ConsumerSubscription({"cl.*": 3}, WHITE_LIST), b"*3*cl.*"),
        (ConsumerSubscription({"cl!*": 3}, BLACK_LIST), b"!3!cl!*"),
    ):
        assert PLAIN.write_subscription(subscription, NOW_MS) == data
        assert PLAIN.read_subscription(data) == subscription
    assert PLAIN.read_subscription(b'{"clicks":2}') == ConsumerSubscription({"clicks": 2})


def test_a_subscription_in_json() -> None:
    data = JSON.write_subscription(ConsumerSubscription({"cl.*": 3}, WHITE_LIST), NOW_MS)
    assert json.loads(data) == {
        "version": 1, "subscription": {"cl.*": 3}, "pattern": "white_list", "timestamp": "1300000000123",
    }  # fmt: skip
    assert JSON.read_subscription(data) == ConsumerSubscription({"cl.*": 3}, WHITE_LIST)
    by_broker = ConsumerSubscription({"a": 1}, by_broker=True)
    assert JSON.read_subscription(JSON.write_subscription(by_broker, NOW_MS)) == by_broker
    assert JSON.read_subscription(b'{"version":1,"subscription":{"a":1}}') == ConsumerSubscription({"a": 1})


def test_filters_choose_topics_as_07_read_them() -> None:
    topics = ["clicks", "clicks.old", "views", "other"]
    assert ConsumerSubscription({"a": 1}).chosen(topics) == {"a": 1}, "a topic may come later"
    assert ConsumerSubscription({"clicks.*": 2}, WHITE_LIST).chosen(topics) == {"clicks": 2, "clicks.old": 2}
    assert ConsumerSubscription({"clicks, views": 1}, WHITE_LIST).chosen(topics) == {"clicks": 1, "views": 1}
    assert ConsumerSubscription({'"views|other"': 1}, BLACK_LIST).chosen(topics) == {
        "clicks": 1,
        "clicks.old": 1,
    }
    with pytest.raises(InvalidConfig, match="regular expression"):
        ConsumerSubscription({"(": 1}, WHITE_LIST).chosen(topics)


@pytest.mark.parametrize(
    ("java", "matched"),
    [
        (r"\p{Alpha}+", ["a", "AB", "aa"]), (r"\P{Alpha}", ["1", "é"]), (r"[\p{Digit}_-]+", ["1", "1-_"]),
        (r"(?<twice>a)\k<twice>", ["aa"]), (r"\w+", ["a", "AB", "aa", "1"]), (r"(?i)ab|x", ["AB"]),
        (r"\Qa.b\E1?", ["a.b"]), (r"a\z", ["a"]), (r"a{2}", ["aa"]), ("[a||.b]+", ["a", "aa", "a.b"]),
    ],
)  # fmt: skip
def test_a_filter_has_the_meaning_that_it_has_in_java(java: str, matched: list[str]) -> None:
    topics = ["a", "AB", "aa", "1", "é", "1-_", "a.b"]
    assert [topic for topic in topics if topic_regex(java).fullmatch(topic)] == matched
    assert list(ConsumerSubscription({java: 1}, BLACK_LIST).chosen(topics)) == [
        topic for topic in topics if topic not in matched
    ]


@pytest.mark.parametrize(
    "java",
    ["[a-z&&[^b]]+", "[a[bc]]", r"\p{L}", r"\pL", r"\v", r"\h", "x(?i)a", "(?u)a", "(?x)a", "(?P<n>a)",
     "(?#n)a", "a{1,2}", "a{,2}", "{a", r"[\b]", r"\b{g}", r"\101", r"\041", r"[\P{Alpha}]", r"(a)\11"],
)  # fmt: skip
def test_a_filter_that_python_would_read_otherwise_is_refused(java: str) -> None:
    with pytest.raises(InvalidConfig, match="is not a regular expression for topics"):
        topic_regex(java)


def test_a_cluster_id_is_read_in_json_and_as_text() -> None:
    assert write_cluster_id("abc-_9") == b'{"version":"1","id":"abc-_9"}'
    assert read_cluster_id(b'{"version":"1","id":"abc-_9"}') == "abc-_9"
    assert read_cluster_id(b"abc-_9") == "abc-_9"
    for data in (b"", b"{}", b"a" * 23, b"a b", b'{"id":null}', b'{"id":"a b"}'):
        with pytest.raises(MalformedNode):
            read_cluster_id(data)


def test_an_offset_is_a_decimal_number() -> None:
    assert read_offset(b"9223372036854775807") == 2**63 - 1
    for data in (b"", b"-1", b"1.5", b"0x1", b"1" * 30):
        with pytest.raises(MalformedNode):
            read_offset(data)


@pytest.mark.parametrize(
    ("layout", "names", "in_order"),
    [
        (PLAIN, ["2-0", "10-1", "1-10", "1-2", "1-0"], ["1-0", "1-10", "1-2", "10-1", "2-0"]),
        (JSON, ["10", "2", "0"], ["0", "2", "10"]),
    ],
)
def test_partitions_are_sorted_as_the_other_members_sort_them(
    layout: RegistryLayout, names: list[str], in_order: list[str]
) -> None:
    assert sorted(names, key=layout.partition_order) == in_order


def test_a_broker_with_named_listeners_is_written_as_kafka_3_writes_it() -> None:
    inside = ListenerNode("INSIDE", "PLAINTEXT", "::1", 9092)
    outside = ListenerNode("OUTSIDE", "SASL_SSL", "kafka1", 9093)
    data = JSON.write_broker(BrokerNode(1, "", -1, NOW_MS, (outside, inside)))
    assert json.loads(data) == {
        "listener_security_protocol_map": {"OUTSIDE": "SASL_SSL", "INSIDE": "PLAINTEXT"},
        "endpoints": ["OUTSIDE://kafka1:9093", "INSIDE://[::1]:9092"],
        "jmx_port": -1, "host": None, "port": -1, "timestamp": str(NOW_MS), "version": 4,
    }  # fmt: skip
    assert JSON.read_broker(1, data) == BrokerNode(1, "kafka1", 9093, NOW_MS)


NO_ADDRESS = [b"", b"host", b"host:", b":9092", b"a:b:c", b"a:b:70000", b"\xff:1", b"a::9092", b"x:host:0"]
NO_BROKER = [b"{", b"[]", b"{}", b'{"host":1,"port":9}', b'{"host":"h","port":true}']
NO_SUBSCRIPTION = [
    b"", b"*x*a", b"*1!a", b"*0*a", b'{"a": 0}', b'{"a": true}', b'{"a": "1"}', b"[1]", b"\xff",
]  # fmt: skip
MALFORMED = [
    *((layout.read_broker, 1, data) for layout in (PLAIN, JSON) for data in NO_ADDRESS),
    *((JSON.read_broker, 1, data) for data in NO_BROKER),
    *((layout.read_subscription, data) for layout in (PLAIN, JSON) for data in NO_SUBSCRIPTION),
    *((PLAIN.read_partitions, "3", data) for data in (b"two", b"-1", b"%d" % (MAX_PARTITIONS + 1))),
    *((layout.read_partitions, "x", data) for layout, data in ((PLAIN, b"2"), (JSON, b'{"leader":3}'))),
    *((JSON.read_partitions, "0", data) for data in (b"{}", b'{"leader":"3"}')),
]


@pytest.mark.parametrize(("read", "given"), [(read, given) for read, *given in MALFORMED])
def test_what_is_no_broker_subscription_or_partitions_is_reported(
    read: Callable[..., object], given: list[Any]
) -> None:
    with pytest.raises(MalformedNode):
        read(*given)
