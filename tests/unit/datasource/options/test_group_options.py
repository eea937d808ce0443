"""Where a group's offsets are: with its brokers, or in ZooKeeper."""

from __future__ import annotations

import logging

import pytest

from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.errors import InvalidConfig

TODAYS = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
V07 = {"protocol": "0.7", "subscribe": "t"}
GROUP = {"kafka.group.id": "loaders"}
ZOOKEEPER = {"zookeeper.connect": "zk:2181/chroot"}
LOAD = {"loadName": "flights", "offsetsPath": "/lake/offsets"}


def test_brokers_keep_the_offsets_on_todays_wire_by_default() -> None:
    assert parse_batch_options({**TODAYS, **GROUP}).group_store is None
    assert parse_batch_options({**TODAYS, **GROUP, "offsetStore": "Kafka"}).group_store is None


@pytest.mark.parametrize("name", ["zookeeper.connect", "zk.connect", "ZK.connect"])
def test_zookeeper_keeps_them_where_the_option_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {
        **TODAYS, **GROUP, "offsetStore": "zookeeper", name: "zk:2181/chroot", "kafka.zookeeper.prefix": "/",
        "kafka.zk.sessiontimeout.ms": "900",
    }  # fmt: skip
    with caplog.at_level(logging.WARNING):
        store = parse_batch_options(given).group_store
    assert store == ZooKeeperConfig(
        zookeeper_connect="zk:2181/chroot", zookeeper_prefix="/", zookeeper_session_timeout_ms=900
    )
    assert caplog.text == ""


def test_in_07_it_is_the_zookeeper_of_the_brokers() -> None:
    for also in ({}, {"offsetStore": "zookeeper"}):
        store = parse_batch_options({**V07, **GROUP, **ZOOKEEPER, **also}).group_store
        assert store is not None
        assert store.zookeeper_connect == "zk:2181/chroot"
    assert parse_batch_options({**V07, "broker.list": "1:h:9092"}).group_store is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**TODAYS, **GROUP, "offsetStore": "etcd"}, "offsetStore is one of kafka, zookeeper; got 'etcd'"),
        ({**TODAYS, "offsetStore": "kafka"}, "offsetStore needs kafka.group.id"),
        (
            {**TODAYS, **GROUP, "offsetStore": "zookeeper"},
            "offsetStore=zookeeper needs zookeeper.connect=host:port,host:port/chroot .*given: none",
        ),
        (
            {**TODAYS, **GROUP, **ZOOKEEPER, "zk.connect": "zk:2181", "offsetStore": "zookeeper"},
            "given: zookeeper.connect, zk.connect",
        ),
        (
            {**TODAYS, **GROUP, "offsetStore": "zookeeper", "zk.connect": "here"},
            "zookeeper.connect=here is not allowed",
        ),
        (
            {**V07, **ZOOKEEPER, "kafka.group.id": "a/b"},
            "kafka.group.id=a/b is not allowed where ZooKeeper keeps its offsets; allowed: a name",
        ),
        ({**TODAYS, **GROUP, **ZOOKEEPER}, "zookeeper.connect has a meaning with protocol=0.7 only"),
        (
            {**TODAYS, **GROUP, **ZOOKEEPER, "offsetStore": "zookeeper", "broker.list": "1:h:9092"},
            "broker.list has a meaning with protocol=0.7 only",
        ),
        (
            {**V07, **GROUP, **ZOOKEEPER, "offsetStore": "kafka"},
            "offsetStore=kafka has no meaning with protocol=0.7, whose brokers keep no offsets",
        ),
        (
            {**V07, **GROUP, **LOAD, "broker.list": "1:h:9092"},
            "kafka.group.id with a load needs zookeeper.connect instead of broker.list",
        ),
    ],
)
def test_a_store_that_is_not_there_is_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse_batch_options(given)
