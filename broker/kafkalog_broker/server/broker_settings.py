"""The broker's own properties while it runs: those that can be changed without a restart, and by whom they
are kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from kafkalog_broker.config.broker import DYNAMIC, BrokerConfig, LogConfig
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.config.definition import Property, describe, nearest
from pyspark_kafkalog.errors import InvalidConfig, InvalidRequest

_ALL, _OURS = "all.", "this."
"""Before the names of the kept properties: those for all brokers, and those for this one."""

_logger = logging.getLogger(__name__)


class Changed(NamedTuple):
    """The properties that were changed while a broker ran, as text: for all brokers, and for this one, which
    go before those.
    """

    for_all: Mapping[str, str]
    for_this: Mapping[str, str]


class BrokerSettings:
    """*Thread-safe: ``_lock`` is held over a change; what readers see is replaced as a whole.*

    The logs' directories keep the changes, and the logs follow them at once.
    """

    def __init__(self, given: BrokerConfig, logs: LogManager) -> None:
        """``given`` is the file's; `load` is called once ``logs`` know what they have kept."""
        self.given = given
        self.config = given
        """What is in force."""
        self.changed = Changed(MappingProxyType({}), MappingProxyType({}))
        self._logs = logs
        self._lock = threading.Lock()

    def defaults(self, kept: Mapping[str, str]) -> LogConfig:
        """Take over what the data directories have ``kept``; the defaults of topics that follow from it."""
        found = Changed(_below(_ALL, kept), _below(_OURS, kept))
        self.config, self.changed = self._with(found), found
        return self.config.log_defaults()

    def check_name(self, name: str) -> None:
        """Raises `InvalidRequest` unless this is the name of this broker, or the empty one of all brokers."""
        if name not in ("", str(self.given.node_id)):
            raise InvalidRequest(f"this is broker {self.given.node_id}, not {name!r}")

    def own(self, name: str) -> Mapping[str, str]:
        """What was changed for this broker, or with an empty ``name`` for all of them."""
        return self.changed.for_this if name else self.changed.for_all

    def alter(self, name: str, overrides: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Have these properties and no others be changed for this broker; for all with an empty ``name``.

        Raises:
            InvalidRequest: one can only be changed in the broker's file, or has a value that it cannot have.
            InvalidConfig: one is unknown.
            StorageError: the disk refused; everything is as it was.
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
