"""The properties of a mirror, and those of its sources and its target in the same file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_kafkalog.classic.mirror import topics_of
from pyspark_kafkalog.config.mirror_config import (
    BrokersSourceConfig,
    MirrorConfig,
    Mirroring,
    SourceConfig,
    Target07Config,
    mirror_config,
)
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.errors import InvalidConfig

CONF = Path(__file__).resolve().parents[3] / "conf" / "mirror.properties"
OLD = {"target.protocol": "0.7", "target.zookeeper.connect": "zk:2181/target"}
NEW = {"target.bootstrap.servers": "kafka:9092"}
BROKERS = NEW | {"sources": "b", "source.b.bootstrap.servers": "kafka:9092"}


def config(**properties: object) -> Mirroring:
    return configured(NEW | {name.replace("_", "."): value for name, value in properties.items()})


def configured(properties: dict[str, object]) -> Mirroring:
    given = {
        "sources": "a", "source.a.zk.connect": "zk:2181", "source.a.groupid": "m", "whitelist": "t.*",
    } | properties  # fmt: skip
    return mirror_config({name: value for name, value in given.items() if value is not None}, source="test")


def test_the_file_is_the_defaults_with_one_source_on_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read = mirror_config(load_properties(CONF), source=str(CONF))
    source = SourceConfig(
        zookeeper_connect="localhost:2181", group_id="mirror", auto_commit_interval_ms=60_000
    )
    assert read == Mirroring(
        MirrorConfig(sources=("main",), whitelist=".*"),
        {"main": source},
        ProducerConfig(bootstrap_servers="localhost:9092"),
        keep_codec=True,
    )
    assert caplog.text == ""


def test_each_source_has_properties_of_its_own() -> None:
    found = config(
        sources="a,b", source_b_zk_connect="other:2181", source_b_protocol="0.8",
        source_b_group_id="group1", source_a_groupid="g", offset_commit_interval_ms="50",
    ).sources  # fmt: skip
    assert {
        name: (one.connect, one.protocol, one.group_id, one.auto_commit_interval_ms)
        for name, one in found.items()
        if isinstance(one, SourceConfig)
    } == {"a": ("zk:2181", "0.7", "g", 50), "b": ("other:2181", "0.8", "group1", 50)}


def test_a_source_with_bootstrap_servers_has_the_properties_of_todays_consumer() -> None:
    given = {
        "sources": "b", "source.b.bootstrap.servers": "kafka:9092", "source.b.group.id": "g",
        "source.b.protocol": "0.8", "source.b.client.id": "m1", "offset.commit.interval.ms": "50",
    }  # fmt: skip
    (source,) = configured(NEW | given).sources.values()
    assert isinstance(source, BrokersSourceConfig)
    assert (source.bootstrap_servers, source.group_id, source.client_id) == ("kafka:9092", "g", "m1")
    assert (source.enable_auto_commit, source.auto_commit_interval_ms) == (False, 50)
    assert (source.isolation_level, source.auto_offset_reset) == ("read_committed", "earliest")
    (other,) = configured(NEW | given | {"source.b.isolation.level": "read_uncommitted"}).sources.values()
    assert other.isolation_level == "read_uncommitted"


def test_a_target_of_0_7_has_the_properties_of_the_first_producer() -> None:
    target = configured(OLD | {"target.batch.size": "7", "target.delivery.timeout.ms": "9"}).target
    assert isinstance(target, Target07Config)
    assert (target.protocol, target.batch_size, target.delivery_timeout_ms) == ("0.7", 7, 9)


@pytest.mark.parametrize(
    ("properties", "keeps"),
    [
        (NEW, True),
        (OLD, True),
        (NEW | {"target.compression.type": "none"}, False),
        (NEW | {"target.compression.codec": "zstd"}, False),
        (OLD | {"target.compression.codec": "2"}, False),
    ],
)
def test_a_codec_that_is_named_goes_before_that_of_the_messages(
    properties: dict[str, object], keeps: bool
) -> None:
    assert configured(properties).keep_codec is keeps


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("whitelst", "unknown property whitelst is ignored; did you mean whitelist?"),
        ("source.a.autooffset.rest", "did you mean source.a.autooffset.reset?"),
        ("source.b.groupid", "unknown property source.b.groupid is ignored; did you mean source.a.groupid?"),
        ("target.linger", "did you mean target.linger.ms?"),
        ("target.queue.size", "unknown property target.queue.size is ignored"),
    ],
)
def test_an_unknown_name_is_reported_with_the_nearest_one(
    name: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    configured(NEW | {name: "x"})
    assert said in caplog.text


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (NEW | {"sources": None}, "test: sources is missing; allowed: names of letters"),
        (NEW | {"sources": "a,a"}, "sources=a,a is not allowed; allowed: names of letters, digits"),
        (
            NEW | {"sources": "a,b", "source.b.groupid": "m"},
            r"source\.b\.\*: zookeeper\.connect is missing",
        ),
        (NEW | {"source.a.groupid": None}, r"test: source\.a\.groupid is missing: .* its own group"),
        (NEW | {"blacklist": "x"}, "either whitelist or blacklist must be given; both are"),
        (NEW | {"whitelist": None}, "either whitelist or blacklist must be given; neither is"),
        ({}, r"target\.\*: test: bootstrap\.servers is missing"),
        (
            NEW | {"source.a.bootstrap.servers": "kafka:9092"},
            r"test: source\.a\.bootstrap\.servers and source\.a\.zk\.connect are both given",
        ),
        (BROKERS, r"test: source\.b\.group\.id is missing: .* its own group"),
        (
            BROKERS | {"source.b.protocol": "0.7"},
            r"source\.b\.protocol=0\.7 is not allowed with bootstrap\.servers.*allowed: 0\.8, or zookeeper",
        ),
        (BROKERS | {"source.b.enable.auto.commit": "true"}, r"source\.b\.enable\.auto\.commit cannot be set"),
        (NEW | {"source.a.groupid": "a/b"}, r"source\.a\.\*: test: groupid=a/b is not allowed"),
        (NEW | {"source.a.auto.commit.enable": "true"}, r"source\.a\.auto\.commit\.enable cannot be set"),
        (NEW | {"target.acks": "0"}, r"target\.acks=0 is not allowed in a mirror.*allowed: all"),
        (OLD | {"target.request.required.acks": "0"}, "must know what was delivered; allowed: 1 and -1"),
        (NEW | {"target.transactional.id": "m"}, r"target\.transactional\.id cannot be set .*at least once"),
        (OLD | {"target.num.retries": "1"}, r"target\.num\.retries cannot be set .*delivery\.timeout\.ms"),
        (OLD | {"target.compression.codec": "lz4"}, "allowed with protocol=0.7: none, gzip, snappy"),
        (OLD | {"source.a.zk.connect": "zk:2181/target"}, "source a and the target are the same cluster"),
        (
            {
                "target.protocol": "0.7",
                "target.broker.list": "1:h:1",
                "partition.assignment": "source",
            },
            r"partition\.assignment=source needs target\.zookeeper\.connect",
        ),
    ],
)
def test_what_cannot_be_is_refused(properties: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        configured(properties)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"whitelist": "a, b.*"}, {"a", "bc"}),
        ({"whitelist": '".*"'}, {"a", "bc", "d"}),
        ({"whitelist": ".*", "exclude.internal.topics": False}, {"a", "bc", "d", "__consumer_offsets"}),
        ({"whitelist": "__.*", "exclude.internal.topics": False}, {"__consumer_offsets"}),
        ({"whitelist": "__.*"}, set()),
        ({"whitelist": None, "blacklist": "b.*, d"}, {"a"}),
        (
            {"whitelist": None, "blacklist": "a", "exclude.internal.topics": "false"},
            {"bc", "d", "__consumer_offsets"},
        ),
    ],
)
def test_internal_topics_are_left_out_of_what_the_expression_chooses(
    properties: dict[str, object], expected: set[str]
) -> None:
    chosen = topics_of(configured(NEW | properties))
    assert {topic for topic in ("a", "bc", "d", "__consumer_offsets") if chosen.allows(topic)} == expected
