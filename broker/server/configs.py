"""The properties of topics and of the broker as the wire describes them: value, source, synonyms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker.config import BrokerConfig, LogConfig
from broker.log.generations import SINCE_08
from broker.server.served_topics import GENERATION_PROPERTY
from pyspark_kafkalog.config.definition import Property, describe
from pyspark_kafkalog.protocol.api.describe_configs import ConfigSource, ConfigType, DescribeConfigsSynonym

_TYPES = {
    bool: ConfigType.BOOLEAN,
    str: ConfigType.STRING,
    int: ConfigType.INT,
    float: ConfigType.DOUBLE,
    tuple: ConfigType.LIST,
}
_INT_MAX = (1 << 31) - 1

_LONGS = frozenset(
    {
        "connections.max.idle.ms", "delete.retention.ms", "file.delete.delay.ms", "flush.messages",
        "flush.ms", "local.retention.bytes", "local.retention.ms", "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms", "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms", "log.retention.bytes", "log.retention.check.interval.ms",
        "log.retention.ms", "log.roll.ms", "log.segment.delete.delay.ms", "max.compaction.lag.ms",
        "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms", "min.compaction.lag.ms", "offsets.retention.check.interval.ms",
        "queued.max.request.bytes", "retention.bytes", "retention.ms", "segment.jitter.ms", "segment.ms",
    }
)  # fmt: skip
"""Whole numbers that Kafka describes as LONG, whatever their default: clients may parse by the type."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One property as it is in force."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    config_type: ConfigType
    doc: str
    synonyms: tuple[DescribeConfigsSynonym, ...]
    """The properties that the value may come from, best first."""


def topic_entries(
    config: BrokerConfig, overrides: Mapping[str, str], generation: str
) -> Iterator[ConfigEntry]:
    """Every property of a topic that sets ``overrides`` for itself, with what it would be without."""
    from_broker = config.log_defaults()
    values = from_broker.overridden(overrides)
    for item in describe(LogConfig):
        value = _text(item, getattr(values, item.field))
        synonyms = (
            [DescribeConfigsSynonym(item.name, value, ConfigSource.TOPIC_CONFIG)]
            if item.name in overrides
            else []
        )
        synonyms += _static(item, item.inherits or item.name, getattr(from_broker, item.field))
        yield _entry(item, value, synonyms, read_only=False)
    yield _generation(generation)


def broker_entries(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Every property of the broker. None can be changed while it runs."""
    for item in describe(BrokerConfig):
        value = getattr(config, item.field)
        yield _entry(item, _text(item, value), _static(item, item.name, value), read_only=True)


def _generation(value: str) -> ConfigEntry:
    synonyms = [DescribeConfigsSynonym(GENERATION_PROPERTY, SINCE_08.generation, ConfigSource.DEFAULT_CONFIG)]
    if value != SINCE_08.generation:
        synonyms.insert(0, DescribeConfigsSynonym(GENERATION_PROPERTY, value, ConfigSource.TOPIC_CONFIG))
    return ConfigEntry(
        GENERATION_PROPERTY, value, ConfigSource(synonyms[0].source), True, ConfigType.STRING,
        "The family of messages in this topic: 0.7, or 0.8 onwards. Given when it is created; fixed.",
        tuple(synonyms),
    )  # fmt: skip


def _static(item: Property, name: str, value: Any) -> list[DescribeConfigsSynonym]:
    """What the broker's own property ``name`` gives: its file's value, if any, before the default."""
    default = DescribeConfigsSynonym(name, _text(item, item.default), ConfigSource.DEFAULT_CONFIG)
    if value == item.default:
        return [default]
    return [DescribeConfigsSynonym(name, _text(item, value), ConfigSource.STATIC_BROKER_CONFIG), default]


def _entry(
    item: Property, value: str | None, synonyms: list[DescribeConfigsSynonym], *, read_only: bool
) -> ConfigEntry:
    kind = _TYPES[item.kind]
    large = isinstance(item.default, int) and item.default > _INT_MAX
    if item.kind is int and (large or item.name in _LONGS):
        kind = ConfigType.LONG
    return ConfigEntry(
        item.name, value, ConfigSource(synonyms[0].source), read_only, kind, item.doc, tuple(synonyms)
    )


def _text(item: Property, value: Any) -> str | None:
    return None if value is None else item.text(value)
