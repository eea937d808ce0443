from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig, LogConfig
from kafkalog_broker.config.endpoint import Endpoint, parse_endpoint
from kafkalog_broker.log.cleaning.run import Dirt
from pyspark_kafkalog.config.definition import LONG_MAX, describe, parse
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TimestampType

HOUR_MS = 3_600_000


def broker(**properties: str) -> BrokerConfig:
    return parse(
        BrokerConfig, {name.replace("_", "."): value for name, value in properties.items()}, source="test"
    )


def test_overrides_go_before_the_file_whichever_name_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=3\nlog.dirs=/a\nnum.partitions=4\n")
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.load(path, {"broker.id": "5", "log.dir": "/b,/c"})
    assert (config.node_id, config.directories(), config.num_partitions) == (5, (Path("/b"), Path("/c")), 4)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("brokerid", "node.id", "4"),
        ("log.file.size", "log.segment.bytes", "1048576"),
        ("log.flush.interval", "log.flush.interval.messages", "500"),
        ("log.default.flush.interval.ms", "log.flush.interval.ms", "2000"),
        ("log.retention.size", "log.retention.bytes", "1000"),
        ("max.socket.request.bytes", "socket.request.max.bytes", "2000"),
    ],
)
def test_the_oldest_brokers_files_are_understood(old: str, new: str, value: str) -> None:
    assert parse(BrokerConfig, {old: value}, source="f").as_properties()[new] == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        (" PLAINTEXT://:0 ", Endpoint("PLAINTEXT", "", 0)),
        ("PLAINTEXT://[::1]:1", Endpoint("PLAINTEXT", "::1", 1)),
        ("KAFKA07://a:1", Endpoint("KAFKA07", "a", 1)),
        ("PLAINTEXT://broker-1.example.org:65535", Endpoint("PLAINTEXT", "broker-1.example.org", 65535)),
    ],
)
def test_an_endpoint_is_protocol_host_and_port(text: str, expected: Endpoint) -> None:
    assert parse_endpoint(text) == expected
    assert str(expected) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "", "127.0.0.1:9092", "PLAINTEXT://127.0.0.1", "PLAINTEXT://a:65536", "PLAINTEXT://a:-1",
        "PLAINTEXT://::1:9092", "A:B://a:1", "PLAINTEXT://a:1,PLAINTEXT://b:2",
        "PLAINTEXT://a:1,KAFKA07://a:1", "PLAINTEXT://a:1,", "KAFKA07://a:1;PLAINTEXT://a:2",
        "PLAINTEXT://a:1/x", "PLAINTEXT://a b:1", "PLAINTEXT://[:1", "PLAINTEXT://a:١",
    ],
)  # fmt: skip
def test_anything_else_is_not_a_listener(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"listeners=.* is not allowed; allowed: PLAINTEXT://host:port"):
        broker(listeners=text)


@pytest.mark.parametrize(
    ("listeners", "advertised", "told"),
    [
        ("PLAINTEXT://127.0.0.1:0", None, "PLAINTEXT://127.0.0.1:4711"),
        ("PLAINTEXT://:9092", None, "PLAINTEXT://box:9092"),
        ("PLAINTEXT://0.0.0.0:9092", None, "PLAINTEXT://box:9092"),
        ("PLAINTEXT://[::]:9092", "PLAINTEXT://public:0", "PLAINTEXT://public:4711"),
        ("PLAINTEXT://:9092", "PLAINTEXT://public:19092", "PLAINTEXT://public:19092"),
    ],
)
def test_clients_get_an_address_they_can_reach(listeners: str, advertised: str | None, told: str) -> None:
    config = BrokerConfig(listeners=listeners, advertised_listeners=advertised)
    assert str(config.advertised_endpoint(config.endpoints[0], 4711, "box")) == told


def test_listeners_have_names_and_a_map_says_what_they_speak() -> None:
    config = BrokerConfig.load(
        None,
        {
            "listeners": "internal://127.0.0.1:0,CLIENT-1://:9093,SSL://:9094",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT, client-1:SASL_SSL",
            "advertised.listeners": "CLIENT-1://public:19093,INTERNAL://10.0.0.1:9092",
            "inter.broker.listener.name": "internal",
        },
    )
    assert [(each.name, config.protocols[each.name]) for each in config.endpoints] == [
        ("INTERNAL", "PLAINTEXT"), ("CLIENT-1", "SASL_SSL"), ("SSL", "SSL")
    ]  # fmt: skip
    told = [str(config.advertised_endpoint(each, each.port or 1, "box")) for each in config.endpoints]
    assert told == ["INTERNAL://10.0.0.1:9092", "CLIENT-1://public:19093", "SSL://box:9094"]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"listeners": "KAFKA08://a:1"}, "KAFKA08 is not a protocol; say in listener.security.protocol.map"),
        ({"listener.security.protocol.map": "A:TLS"}, "listener.security.protocol.map=A:TLS is not allowed"),
        (
            {"listeners": "KAFKA07://:1,OLD://:2", "listener.security.protocol.map": "OLD:KAFKA07"},
            "only one listener can speak KAFKA07",
        ),
        ({"inter.broker.listener.name": "X"}, "inter.broker.listener.name=X: listeners has none of X"),
        ({"security.inter.broker.protocol": "SSL"}, "security.inter.broker.protocol=SSL: no listener"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "are both given; give one",
        ),
        ({"max.connections.per.ip.overrides": "a:b"}, "max.connections.per.ip.overrides=a:b is not allowed"),
    ],
)
def test_listeners_that_do_not_fit_together_are_refused(properties: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(words)):
        BrokerConfig.load(None, properties)


def test_what_is_not_listened_on_cannot_be_advertised() -> None:
    with pytest.raises(InvalidConfig, match=r"KAFKA07://a:1: listeners has none of KAFKA07"):
        BrokerConfig(advertised_listeners="KAFKA07://a:1")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_every_interface_cannot_be_advertised(host: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^BrokerConfig: advertised\.listeners="):
        BrokerConfig(advertised_listeners=f"PLAINTEXT://{host}:9092")


def test_the_same_directory_twice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"log\.dirs=/a,/a is not allowed"):
        broker(log_dirs="/a,/a")


def test_a_copy_more_than_this_broker_has_is_refused() -> None:
    with pytest.raises(
        InvalidConfig, match=r"default\.replication\.factor=3 is not allowed; allowed: only 1"
    ):
        broker(default_replication_factor="3")


def test_a_topics_defaults_are_the_brokers() -> None:
    assert BrokerConfig().log_defaults() == LogConfig()
    names = {item.name for item in describe(BrokerConfig)}
    assert {item.inherits for item in describe(LogConfig) if item.inherits} <= names


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, 300_000),
        ({"log.retention.minutes": "5", "log.retention.ms": "7"}, 7),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "0", "log.retention.hours": "-1"}, 0),
        ({"log.retention.ms": "-1"}, -1),
        ({"log.retention.hours": str(LONG_MAX)}, LONG_MAX),
    ],
)
def test_the_finest_unit_of_retention_counts(properties: dict[str, str], retention_ms: int) -> None:
    assert parse(BrokerConfig, properties, source="f").log_defaults().retention_ms == retention_ms


def test_the_finest_unit_of_rolling_counts() -> None:
    assert broker(log_roll_hours="2").log_defaults().segment_ms == 2 * HOUR_MS
    assert broker(log_roll_hours="2", log_roll_ms="9").log_defaults().segment_ms == 9


def test_a_topic_overrides_what_it_names_and_nothing_else() -> None:
    defaults = broker(log_segment_bytes="1000").log_defaults()
    topic = defaults.overridden(
        {"retention.ms": "5", "cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"}
    )
    assert (topic.segment_bytes, topic.retention_ms, topic.cleanup_policy) == (1000, 5, ("compact", "delete"))
    assert topic.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert defaults.timestamp_type is TimestampType.CREATE_TIME
    assert defaults.overridden({}) == defaults


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "compact,compact", ("compact", "compact")),
        ("segment.bytes", "14", 14),
        ("min.cleanable.dirty.ratio", "1e-3", 0.001),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("follower.replication.throttled.replicas", "0:1, 1:2", ("0:1", "1:2")),
    ],
)
def test_values_that_kafka_allows(name: str, text: str, value: object) -> None:
    (item,) = (each for each in describe(LogConfig) if each.name == name)
    assert getattr(LogConfig().overridden({name: text}), item.field) == value


def test_a_log_whose_ratio_is_nan_is_not_cleaned_for_being_dirty() -> None:
    config = LogConfig().overridden({"min.cleanable.dirty.ratio": "NaN"})
    assert not Dirt(0, 9, clean_bytes=0, dirty_bytes=100, overdue=False).is_due(config)
    assert Dirt(0, 9, clean_bytes=0, dirty_bytes=100, overdue=True).is_due(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention": "5"}, "topic: unknown property retention; did you mean retention.ms?"),
        ({"zzz": "5"}, "topic: unknown property zzz"),
        ({"segment.bytes": "13"}, "topic: segment.bytes=13 is not allowed; allowed: 14 to 2147483647"),
        (
            {"cleanup.policy": "none"},
            "topic: cleanup.policy=none is not allowed; "
            "allowed: delete, compact or both, separated by commas, or nothing",
        ),
        (
            {"leader.replication.throttled.replicas": "0:1,1:2:3"},
            "topic: leader.replication.throttled.replicas=0:1,1:2:3 is not allowed; "
            "allowed: * for all, or PARTITION:BROKER, several separated by commas",
        ),
        (
            {"follower.replication.throttled.replicas": "*,0:1"},
            "topic: follower.replication.throttled.replicas=*,0:1 is not allowed; "
            "allowed: * for all, or PARTITION:BROKER, several separated by commas",
        ),
        (
            {"min.cleanable.dirty.ratio": "nan"},
            "topic: min.cleanable.dirty.ratio=nan is not allowed; allowed: 0 to 1, or NaN",
        ),
        (
            {"compression.type": "rot13"},
            "topic: compression.type=rot13 is not allowed; "
            "allowed: one of producer, uncompressed, gzip, snappy, lz4, zstd",
        ),
    ],
)
def test_a_topic_may_set_only_what_topics_have(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        LogConfig().overridden(overrides)
    assert str(caught.value) == message


def test_memory_for_requests_has_room_for_the_largest_or_no_limit() -> None:
    with pytest.raises(InvalidConfig, match=r"queued\.max\.request\.bytes=10 is less than socket\.request"):
        BrokerConfig(queued_max_request_bytes=10)
    assert BrokerConfig(queued_max_request_bytes=-1).queued_max_request_bytes == -1
    assert BrokerConfig().queued_max_request_bytes == 256 << 20


def test_an_address_has_any_number_of_connections_unless_a_limit_is_set() -> None:
    assert broker().address_limits() == (None, {})
    limited = broker(
        max_connections_per_ip="3", max_connections_per_ip_overrides="127.0.0.1:10,host.example.org:0"
    )
    assert limited.address_limits() == (3, {"127.0.0.1": 10, "host.example.org": 0})
