"""Where ZooKeeper is: connect strings, prefixes, old names."""

from __future__ import annotations

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig, parse_connect
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.zookeeper.paths import JSON_PREFIX, V07_PREFIX


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("zk:2181", "zk:2181", ""),
        (" a:1,b:2/kafka/one/ ", "a:1,b:2", "/kafka/one"),
        ("[::1]:2181/", "[::1]:2181", ""),
    ],
)
def test_a_connect_string_is_servers_and_perhaps_a_chroot(text: str, servers: str, chroot: str) -> None:
    assert parse_connect(text) == (servers, chroot)


@pytest.mark.parametrize("text", ["", "/kafka", "zk", "zk:2181/a//b", "zk:2181/..", "zk:99999"])
def test_an_invalid_connect_string_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"zookeeper\.connect=.* allowed: host:port, separated by"):
        parse(ZooKeeperConfig, {"zookeeper.connect": text}, source="test")


@pytest.mark.parametrize("name", ["zookeeper.prefix", "zookeeper.prefix.07"])
@pytest.mark.parametrize("value", ["kafka", "", "/a//b", "/../x"])
def test_a_prefix_that_is_not_a_path_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match="a path such as /kafka"):
        parse(ZooKeeperConfig, {name: value}, source="test")


def test_brokers_and_clients_look_in_the_same_places_by_default() -> None:
    for config in (ZooKeeperConfig(), BrokerConfig()):
        assert config.zookeeper_connect is None
        assert (config.zookeeper_prefix, config.zookeeper_prefix_07) == (JSON_PREFIX, V07_PREFIX)
        assert config.zookeeper_session_timeout_ms == 6000
