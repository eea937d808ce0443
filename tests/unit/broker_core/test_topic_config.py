"""``message.format.version``: which of Kafka's versions mean which format."""

from __future__ import annotations

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig, LogConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import InvalidConfig


@pytest.mark.parametrize(
    ("version", "magic"),
    [
        ("producer", None),
        ("0.8.0", 0), ("0.8.2.2", 0), ("0.9.0", 0), ("0.9.0.1", 0),
        ("0.10.0", 1), ("0.10.0-IV1", 1), ("0.10.2.1", 1),
        ("0.11.0", 2), ("0.11.0-IV2", 2), ("1.0", 2), ("2.8.1", 2), ("3.0-IV1", 2), ("3.9", 2),
    ],
)  # fmt: skip
def test_a_version_of_kafka_means_the_format_that_it_wrote(version: str, magic: int | None) -> None:
    assert LogConfig().overridden({"message.format.version": version}).magic == magic


@pytest.mark.parametrize("version", ["0.7.2", "0.8", "0.10", "4.0", "3.10", "v1", "", "2.8-IV", "2", "2.8.x"])
def test_what_no_format_was_named_by_is_refused(version: str) -> None:
    with pytest.raises(
        InvalidConfig, match=r"message\.format\.version=.* is not allowed; allowed: producer,"
    ):
        LogConfig().overridden({"message.format.version": version})


def test_a_topic_has_the_brokers_unless_it_sets_its_own() -> None:
    defaults = parse(BrokerConfig, {"log.message.format.version": "0.9.0"}, source="f").log_defaults()
    assert defaults.magic == 0
    assert defaults.overridden({"message.format.version": "2.0"}).magic == 2
    assert BrokerConfig().log_defaults().magic == 2
