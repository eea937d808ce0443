"""The broker's properties that can change without a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from kafkalog_broker.config.broker_config import DYNAMIC, BrokerConfig, LogConfig
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.config.definition import Property, describe, nearest
from pyspark_kafkalog.errors import InvalidConfig, InvalidRequest

_ALL, _OURS = "all.", "this."
"""Prefixes of stored properties: for all brokers, and for this one."""

_logger = logging.getLogger(__name__)


class Changed(NamedTuple):
    """Properties changed while the broker ran; ``for_this`` broker overrides ``for_all``."""

    for_all: Mapping[str, str]
    for_this: Mapping[str, str]


class BrokerSettings:
    """*Thread-safe: ``_lock`` is held over a change; what readers see is replaced as a whole.*

    Changes are stored in the log directories, and the logs follow them at once.
    """

    def __init__(self, given: BrokerConfig, logs: LogManager) -> None:
        """``given`` is the file's configuration; call `defaults` once ``logs`` have read what they stored."""
        self.given = given
        self.config = given
        self.changed = Changed(MappingProxyType({}), MappingProxyType({}))
        self._logs = logs
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
        """The changed properties of this broker, or of all brokers if ``name`` is empty."""
        return self.changed.for_this if name else self.changed.for_all

    def alter(self, name: str, overrides: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the changed properties of this broker, or of all brokers if ``name`` is empty.
        Raises `InvalidRequest`: one is not changeable while the broker runs, or has an illegal value;
        `InvalidConfig`: one is unknown; `StorageError`: the disk failed, and nothing has changed.
        """
        with self._lock:
            wanted = self.changed._replace(**{"for_this" if name else "for_all": dict(overrides)})
            config = self._with(wanted)
            if validate_only:
                return
            kept = {_ALL + key: value for key, value in wanted.for_all.items()}
            kept |= {_OURS + key: value for key, value in wanted.for_this.items()}
            self._logs.set_defaults(config.log_defaults(), kept)
            self.config, self.changed = config, wanted
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
