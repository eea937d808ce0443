"""Properties: those that can change without a restart, and all of them as the wire describes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from kafkalog_broker.config.broker_config import DYNAMIC, BrokerConfig, LogConfig
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.server.topics import GENERATION_PROPERTY
from pyspark_kafkalog.config.definition import Property, describe, nearest
from pyspark_kafkalog.errors import InvalidConfig, InvalidRequest
from pyspark_kafkalog.protocol.api.configs import ConfigSource, ConfigType, DescribeConfigsSynonym

_ALL, _OURS = "all.", "this."
"""Prefixes of stored properties: for all brokers, and for this one."""

_logger = logging.getLogger(__name__)


class Changed(NamedTuple):
    """Properties changed while the broker ran; ``for_this`` broker overrides ``for_all``."""

    for_all: Mapping[str, str]
    for_this: Mapping[str, str]


class BrokerSettings:
    """*Thread-safe: ``_lock`` is held over a change; what readers see is replaced as a whole.*"""

    def __init__(
        self,
        given: BrokerConfig,
        logs: LogManager,
        changed: Callable[[BrokerConfig], object] = lambda _: None,
    ) -> None:
        """``given`` is the file's configuration; call `defaults` once ``logs`` have read what they stored.
        ``changed`` gets the configuration after each change.
        """
        self.given = given
        self.config = given
        self.changed = Changed(MappingProxyType({}), MappingProxyType({}))
        self._logs = logs
        self._on_change = changed
        self._lock = threading.Lock()

    def defaults(self, kept: Mapping[str, str]) -> LogConfig:
        """Apply the properties ``kept`` in the data directories; returns the resulting topic defaults."""
        found = Changed(_below(_ALL, kept), _below(_OURS, kept))
        self.config, self.changed = self._with(found), found
        return self.config.log_defaults()

    def check_name(self, name: str) -> None:
        """Raises `InvalidRequest` unless the name is this broker's id, or empty for all brokers."""
        if name not in ("", str(self.given.node_id)):
            raise InvalidRequest(f"this is broker {self.given.node_id}, not {name!r}")

    def own(self, name: str) -> Mapping[str, str]:
        return self.changed.for_this if name else self.changed.for_all

    def alter(self, name: str, overrides: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Change this broker's properties, or if ``name`` is empty all brokers'; all or none."""
        with self._lock:
            wanted = self.changed._replace(**{"for_this" if name else "for_all": dict(overrides)})
            config = self._with(wanted)
            if validate_only:
                return
            kept = {_ALL + key: value for key, value in wanted.for_all.items()}
            kept |= {_OURS + key: value for key, value in wanted.for_this.items()}
            self._logs.set_defaults(config.log_defaults(), kept)
            self.config, self.changed = config, wanted
            self._on_change(config)
            _logger.info("broker %s now has the properties %s", name or "defaults", dict(overrides))

    def _with(self, changed: Changed) -> BrokerConfig:
        known = {item.name: item for item in describe(BrokerConfig)}
        values = {}
        for overrides in changed:
            for name, value in overrides.items():
                item = _changeable(name, known)
                try:
                    values[item.field] = item.read(value, "broker")
                except InvalidConfig as e:
                    raise InvalidRequest(str(e)) from e
        return replace(self.given, **values)


def _below(prefix: str, kept: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in kept.items():
        name = key.removeprefix(prefix)
        if name == key:
            continue
        if name in DYNAMIC:
            found[name] = value
        else:
            _logger.warning("%s is ignored: it cannot be changed while a broker runs any more", name)
    return found


def _changeable(name: str, known: Mapping[str, Property]) -> Property:
    if name not in known:
        near = nearest(name[:100], known)
        raise InvalidConfig(
            f"broker: unknown property {name[:100]}" + (f"; did you mean {near}?" if near else "")
        )
    if name not in DYNAMIC:
        raise InvalidRequest(
            f"{name} cannot be changed while the broker runs: change it in the broker's file and restart it"
        )
    return known[name]


# --- descriptions

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
        "flush.ms", "local.retention.bytes", "local.retention.ms", "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size", "log.flush.interval.messages",
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


class ConfigEntry(msgspec.Struct, frozen=True):
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
