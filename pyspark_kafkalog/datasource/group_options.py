"""Where a group's offsets are looked up and told: the option ``offsetStore``. Pure.

Keys are in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.config.consumer07 import KAFKA, ZOOKEEPER, Source07Config
from pyspark_kafkalog.config.definition import Property, describe
from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig, znode_name
from pyspark_kafkalog.errors import InvalidConfig

_OPTION = "offsetStore"
_PREFIX = "kafka."
_CONNECT = "zookeeper.connect"


def asks_zookeeper(options: Mapping[str, str]) -> bool:
    """Whether ``offsetStore=zookeeper`` is said; in 0.7 it need not be.

    Raises:
        InvalidConfig: something else is said that it cannot be.
    """
    value = options.get(_OPTION.lower(), "").strip().lower()
    if _OPTION.lower() in options and value not in (KAFKA, ZOOKEEPER):
        raise InvalidConfig(f"{_OPTION} is one of {KAFKA}, {ZOOKEEPER}; got '{value}'")
    return value == ZOOKEEPER


def parse_group_store(
    options: Mapping[str, str], wire: ConsumerConfig | Source07Config
) -> ZooKeeperConfig | None:
    """The ZooKeeper that keeps the offsets of ``kafka.group.id``; None where its brokers do, or nobody.

    Raises:
        InvalidConfig: ``offsetStore`` names what is not there, or has no group.
    """
    asked, group = asks_zookeeper(options), options.get("kafka.group.id", "").strip()
    if _OPTION.lower() in options and not group:
        raise InvalidConfig(f"{_OPTION} needs kafka.group.id: the group whose offsets are kept there")
    if group and (asked or isinstance(wire, Source07Config)) and not znode_name.test(group):
        raise InvalidConfig(
            f"kafka.group.id={group} is not allowed where ZooKeeper keeps its offsets; allowed: "
            f"{znode_name.allowed}"
        )
    if isinstance(wire, Source07Config):
        if _OPTION.lower() in options and not asked:
            raise InvalidConfig(
                f"{_OPTION}={KAFKA} has no meaning with protocol=0.7, whose brokers keep no offsets of "
                f"groups; {_OPTION}={ZOOKEEPER} is what 0.7 has"
            )
        if wire.zookeeper_connect:
            return wire
        if group and "loadname" in options:
            raise InvalidConfig(
                "kafka.group.id is told the offsets of a load, which 0.7 keeps in ZooKeeper: say "
                f"{_CONNECT} instead of broker.list, or leave kafka.group.id out"
            )
        return None
    return _todays(options) if asked else None


def zookeeper_properties() -> dict[str, Property]:
    """The client's properties about ZooKeeper, by their names as options."""
    items = [item for item in describe(ZooKeeperConfig) if item.name != _CONNECT]
    return {_PREFIX + name.lower(): item for item in items for name in (item.name, *item.aliases)}


def _todays(options: Mapping[str, str]) -> ZooKeeperConfig:
    places = {key: options[key] for key in (_CONNECT, "zk.connect") if options.get(key, "").strip()}
    if len(places) != 1:  # none, or both spellings
        raise InvalidConfig(
            f"{_OPTION}={ZOOKEEPER} needs {_CONNECT}=host:port,host:port/chroot (or zk.connect, the same): "
            f"given: {', '.join(places) or 'none'}"
        )
    (place,) = places.values()
    (connect,) = (item for item in describe(ZooKeeperConfig) if item.name == _CONNECT)
    values: dict[str, object] = {connect.field: connect.read(place, "option")}
    for key, item in zookeeper_properties().items():
        if key in options:
            values[item.field] = replace(item, name=key).read(options[key], "option")
    return ZooKeeperConfig(**values)  # type: ignore[arg-type]
