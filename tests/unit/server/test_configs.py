from __future__ import annotations

import pytest

from kafkalog_broker.config.broker_config import DYNAMIC, BrokerConfig, LogConfig
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.server.broker_settings import BrokerSettings, broker_entries, topic_entries
from pyspark_kafkalog.config.definition import describe
from pyspark_kafkalog.protocol.api.configs import ConfigSource, ConfigType, DescribeConfigsSynonym


def settings(config: BrokerConfig | None = None) -> BrokerSettings:
    """Of a broker that was started with ``config``, and changed nothing since."""
    return BrokerSettings(
        config or BrokerConfig(), LogManager([], defaults=LogConfig(), producer_expiration_ms=1)
    )


def test_a_topic_that_sets_nothing_has_every_property_by_default() -> None:
    *entries, generation = topic_entries(settings(), {}, "0.8")
    assert [e.name for e in entries] == [item.name for item in describe(LogConfig)]
    assert {e.source for e in entries} == {ConfigSource.DEFAULT_CONFIG}
    assert not any(e.read_only for e in entries)
    assert (generation.name, generation.value, generation.source, generation.read_only) == (
        "generation", "0.8", ConfigSource.DEFAULT_CONFIG, True,
    )  # fmt: skip


def test_a_topic_of_the_first_generation_says_so() -> None:
    *_, generation = topic_entries(settings(), {}, "0.7")
    assert generation.synonyms == (
        DescribeConfigsSynonym("generation", "0.7", ConfigSource.TOPIC_CONFIG),
        DescribeConfigsSynonym("generation", "0.8", ConfigSource.DEFAULT_CONFIG),
    )


def test_a_topics_own_value_goes_before_the_brokers_and_the_default() -> None:
    config = BrokerConfig.load(None, {"log.retention.minutes": "3"})
    overrides = {"retention.ms": "5", "segment.bytes": "2048"}
    by_name = {e.name: e for e in topic_entries(settings(config), overrides, "0.8")}
    assert by_name["retention.ms"].synonyms == (
        DescribeConfigsSynonym("retention.ms", "5", ConfigSource.TOPIC_CONFIG),
        DescribeConfigsSynonym("log.retention.ms", "180000", ConfigSource.STATIC_BROKER_CONFIG),
        DescribeConfigsSynonym("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
    )
    assert by_name["segment.bytes"].value == "2048"
    assert by_name["segment.ms"].source == ConfigSource.DEFAULT_CONFIG


def test_the_broker_tells_every_property_and_which_were_set() -> None:
    entries = list(broker_entries(settings(BrokerConfig.load(None, {"num.partitions": "4"})), "0"))
    assert [e.name for e in entries] == [item.name for item in describe(BrokerConfig)]
    set_ones = [e for e in entries if e.source == ConfigSource.STATIC_BROKER_CONFIG]
    assert [(e.name, e.value) for e in set_ones] == [("num.partitions", "4")]
    assert {e.name for e in entries if not e.read_only} == DYNAMIC
    assert not list(broker_entries(settings(), ""))


def test_types_are_kafkas() -> None:
    types = {e.name: e.config_type for e in broker_entries(settings(), "0")}
    assert types["num.partitions"] == ConfigType.INT
    assert types["log.flush.interval.messages"] == ConfigType.LONG
    assert types["auto.create.topics.enable"] == ConfigType.BOOLEAN
    assert types["log.dirs"] == ConfigType.LIST
    assert types["listeners"] == ConfigType.STRING


@pytest.mark.parametrize(
    "name",
    ["retention.ms", "retention.bytes", "flush.ms", "flush.messages", "segment.ms", "file.delete.delay.ms"],
)
def test_a_topics_times_and_sizes_that_kafka_calls_long_are_long(name: str) -> None:
    types = {e.name: e.config_type for e in topic_entries(settings(), {}, "0.8")}
    assert types[name] == ConfigType.LONG
    assert types["segment.bytes"] == types["max.message.bytes"] == ConfigType.INT
    assert types["min.cleanable.dirty.ratio"] == ConfigType.DOUBLE


def test_what_has_no_effect_says_so() -> None:
    docs = {e.name: e.doc for e in topic_entries(settings(), {}, "0.8")}
    for item in describe(LogConfig):
        if not item.inherits and item.name != "remote.storage.enable":
            assert docs[item.name].startswith("Kept and shown, without effect:"), item.name
    assert "whatever this says" in docs["compression.type"]
