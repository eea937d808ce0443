"""Properties of topics and of the broker, as the wire describes and changes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafkalog_broker.config.broker_config import DYNAMIC, BrokerConfig, LogConfig
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.server.broker_settings import BrokerSettings
from kafkalog_broker.server.dispatch import Context
from kafkalog_broker.server.topics import GENERATION_PROPERTY
from pyspark_kafkalog.config.definition import Config, Property, describe
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.configs import (
    AlterableConfig,
    ConfigOperation,
    ConfigSource,
    ConfigType,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    ResourceType,
)
from pyspark_kafkalog.security import acls

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
"""Kafka describes these as LONG, whatever their default; clients may parse by the type."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    config_type: ConfigType
    doc: str
    synonyms: tuple[DescribeConfigsSynonym, ...]
    """The properties from which the value may come, highest precedence first."""


def topic_entries(
    settings: BrokerSettings, overrides: Mapping[str, str], generation: str
) -> Iterator[ConfigEntry]:
    """Every property of a topic with these ``overrides``, with fallbacks."""
    given, from_broker = settings.given.log_defaults(), settings.config.log_defaults()
    values = from_broker.overridden(overrides)
    for item in describe(LogConfig):
        value = _text(item, getattr(values, item.field))
        synonyms = (
            [DescribeConfigsSynonym(item.name, value, ConfigSource.TOPIC_CONFIG)]
            if item.name in overrides
            else []
        )
        synonyms += _of_broker(item, item.inherits or item.name, getattr(given, item.field), settings)
        yield _entry(item, value, synonyms, read_only=False)
    yield _generation(generation)


def broker_entries(settings: BrokerSettings, name: str) -> Iterator[ConfigEntry]:
    """Every property of the broker; with an empty ``name`` only those changed for all brokers."""
    for item in describe(BrokerConfig):
        synonyms = _of_broker(item, item.name, getattr(settings.given, item.field), settings)
        if not name:
            of_all = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            synonyms = [each for each in synonyms if each.source == of_all]
        if synonyms:
            yield _entry(item, synonyms[0].value, synonyms, read_only=item.name not in DYNAMIC)


def _generation(value: str) -> ConfigEntry:
    synonyms = [DescribeConfigsSynonym(GENERATION_PROPERTY, SINCE_08.generation, ConfigSource.DEFAULT_CONFIG)]
    if value != SINCE_08.generation:
        synonyms.insert(0, DescribeConfigsSynonym(GENERATION_PROPERTY, value, ConfigSource.TOPIC_CONFIG))
    return ConfigEntry(
        GENERATION_PROPERTY, value, ConfigSource(synonyms[0].source), True, ConfigType.STRING,
        "The family of messages in this topic: 0.7, or 0.8 onwards. Given when it is created; fixed.",
        tuple(synonyms),
    )  # fmt: skip


def _of_broker(
    item: Property, name: str, given: Any, settings: BrokerSettings
) -> list[DescribeConfigsSynonym]:
    """Values of the broker's property ``name`` by precedence: this broker's, all brokers', file, default."""
    found = []
    for source, changed in (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, settings.changed.for_this),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, settings.changed.for_all),
    ):
        if name in changed:
            value = _text(item, item.read(changed[name], "broker"))
            found.append(DescribeConfigsSynonym(name, value, source))
    if given != item.default:
        found.append(DescribeConfigsSynonym(name, _text(item, given), ConfigSource.STATIC_BROKER_CONFIG))
    found.append(DescribeConfigsSynonym(name, _text(item, item.default), ConfigSource.DEFAULT_CONFIG))
    return found


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


# --- changes

ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Maps a resource's own properties to the new ones. May raise `KafkaError`."""


class Altered(NamedTuple):
    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


def altered(
    changes: Sequence[tuple[int, str, ConfigChange]], ctx: Context, *, validate_only: bool
) -> list[Altered]:
    """Change each resource, given by type and name; returns the results in their order."""
    times = Counter((kind, name) for kind, name, _ in changes)
    results = []
    for kind, name, change in changes:
        try:
            if times[kind, name] > 1:
                raise InvalidRequest(f"resource {name!r} is in the request {times[kind, name]} times")
            _alter(kind, name, change, ctx, validate_only=validate_only)
        except KafkaError as e:
            results.append(Altered(ctx.refused(e), str(e), kind, name))
        else:
            results.append(Altered(ErrorCode.NONE, None, kind, name))
    return results


def _alter(kind: int, name: str, change: ConfigChange, ctx: Context, *, validate_only: bool) -> None:
    if kind == ResourceType.BROKER:
        ctx.demand(acls.Operation.ALTER_CONFIGS, acls.ResourceType.CLUSTER, acls.CLUSTER_NAME)
        settings = ctx.services.settings
        settings.check_name(name)
        settings.alter(name, change(settings.own(name)), validate_only=validate_only)
        return
    if kind != ResourceType.TOPIC:
        raise InvalidRequest(f"resource type {kind}; those of topics (2) and brokers (4) can be changed")
    ctx.demand(acls.Operation.ALTER_CONFIGS, acls.ResourceType.TOPIC, name)
    ctx.services.topics.alter(name, change, validate_only=validate_only)


def replaced(configs: Sequence[AlterableConfig], _: Mapping[str, str]) -> dict[str, str]:
    """A resource's new properties, replacing all. Raises `InvalidRequest`: one is null, or given twice."""
    _check_once(config.name for config in configs)
    return {config.name: _given(config.name, config.value) for config in configs}


def changed(
    configs: Sequence[IncrementalAlterableConfig], defaults: Config, overrides: Mapping[str, str]
) -> dict[str, str]:
    """A resource's own properties after changes to some of them; ``defaults`` apply without them.
    Raises `InvalidRequest`: a null value, repeated name or unknown operation; `InvalidConfig`: not a list.
    """
    _check_once(config.name for config in configs)
    after = dict(overrides)
    for config in configs:
        name = config.name
        if config.config_operation == ConfigOperation.DELETE:
            after.pop(name, None)
        elif config.config_operation == ConfigOperation.SET:
            after[name] = _given(name, config.value)
        elif config.config_operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            words = _listed(name, defaults, overrides)
            given = [word.strip() for word in _given(name, config.value).split(",")]
            if config.config_operation == ConfigOperation.APPEND:
                words += [word for word in given if word not in words]
            else:
                words = [word for word in words if word not in given]
            after[name] = ",".join(words)
        else:
            raise InvalidRequest(
                f"operation {config.config_operation} on {name}; there are"
                " set (0), delete (1), append (2) and subtract (3)"
            )
    return after


def _check_once(names: Iterator[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InvalidRequest(f"property {name} is given {times} times for one resource")


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"property {name} has no value")
    return value


def _listed(name: str, defaults: Config, overrides: Mapping[str, str]) -> list[str]:
    for item in describe(type(defaults)):
        if item.name == name and item.kind is tuple:
            value = item.read(overrides[name], name) if name in overrides else getattr(defaults, item.field)
            return list(value)
    raise InvalidConfig(f"nothing can be appended to {name}, or subtracted from it: it is not a list")
