"""The options that go to the clients: where the brokers are, and where a group's offsets are kept. Pure.

Keys are in lower case. The clients' properties have the prefix ``kafka.``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.config.client07 import PROTOCOL_07, PROTOCOL_08
from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.config.consumer07 import KAFKA, ZOOKEEPER, Source07Config
from pyspark_kafkalog.config.definition import Property, describe, warn_unknown
from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig, znode_name
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    PartitionTimestamps,
    SpecificOffsets,
    StartLimit,
    Subscription,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

log = logging.getLogger(__name__)

NO_MAX_RECORDS = (
    "maxRecordsPerPartition has no meaning with protocol=0.7: offsets of Kafka 0.7 are positions in bytes "
    "and do not tell how many records lie between them. minPartitions cuts large logs where segments begin"
)

_PREFIX = "kafka."
_PLACES = {
    "zookeeper.connect": "zookeeper.connect",
    "zk.connect": "zookeeper.connect",
    "broker.list": "broker.list",
}
_BY_TIME = (
    "a broker of Kafka 0.7 knows the times of whole segments only, so an end would leave out or add records"
)
_REFUSED = {
    "kafka.bootstrap.servers": "kafka.bootstrap.servers has no meaning with protocol=0.7: its brokers cannot "
    "be asked for each other. Say zookeeper.connect=host:port/chroot or broker.list=id:host:port",
    "maxrecordsperpartition": NO_MAX_RECORDS,
    "endingtimestamp": f"endingTimestamp has no meaning with protocol=0.7: {_BY_TIME}. Say endingOffsets",
    "endingoffsetsbytimestamp": "endingOffsetsByTimestamp has no meaning with protocol=0.7: "
    f"{_BY_TIME}. Say endingOffsets",
}
_IGNORED = {
    "kafka.isolation.level": "kafka.isolation.level has no meaning in 0.7, which has no transactions",
    "startingoffsetsbytimestampstrategy": "startingOffsetsByTimestampStrategy has no meaning in 0.7, where "
    "every time has a segment to begin with",
}


def refuse_07(options: Mapping[str, str]) -> None:
    """Today's wire has no use for the places of 0.7's topics, but for that of a group's offsets.

    Raises:
        InvalidConfig: one is given.
    """
    used = ("zookeeper.connect", "zk.connect") if asks_zookeeper(options) else ()
    given = [key for key in _PLACES if key in options and key not in used]
    if given:
        raise InvalidConfig(
            f"{given[0]} has a meaning with protocol={PROTOCOL_07} only; protocol is {PROTOCOL_08}, whose "
            "brokers are found by kafka.bootstrap.servers. (offsetStore=zookeeper has a meaning for both.)"
        )


def parse_07(options: Mapping[str, str]) -> Source07Config:
    """Where the brokers are and how they are asked.

    Raises:
        InvalidConfig: an option that has no meaning, a wrong value, or not exactly one place.
    """
    for key, why in _REFUSED.items():
        if key in options:
            raise InvalidConfig(why)
    for key, why in _IGNORED.items():
        if key in options:
            log.warning("%s: it is ignored", why)
    ClientConfig.check_names(
        {key.removeprefix(_PREFIX) for key in options if key.startswith(_PREFIX)}, _PREFIX
    )
    places = {key: name for key, name in _PLACES.items() if key in options}
    both_spellings = "zookeeper.connect" in options and "zk.connect" in options
    if both_spellings or len(places) != 1:
        given = ", ".join(key for key in _PLACES if key in options) or "none"
        raise InvalidConfig(
            "protocol=0.7 needs exactly one of zookeeper.connect=host:port,host:port/chroot (or zk.connect, "
            f"the same) and broker.list=id:host:port,id:host:port; given: {given}"
        )
    items = {item.name: item for item in describe(Source07Config)}
    values: dict[str, object] = {
        items[name].field: replace(items[name], name=key).read(options[key], "option")
        for key, name in places.items()
    }
    known = _client_properties()
    for key, value in options.items():
        item = known.get(key)
        if item is not None:
            values[item.field] = replace(item, name=key).read(value, "option")
        elif key.startswith(_PREFIX) and key not in _IGNORED and key != "kafka.group.id":
            warn_unknown(key, known, "options")
    return Source07Config(**values)  # type: ignore[arg-type]


def _client_properties() -> dict[str, Property]:
    """By their names as options; older names too."""
    return {
        _PREFIX + name.lower(): item
        for item in describe(Source07Config)
        if item.name not in ("protocol", *_PLACES.values())
        for name in (item.name, *item.aliases)
    }


def check_names(subscription: Subscription, *limits: StartLimit, per_broker: bool) -> None:
    """Refuse partitions that are named as those of the other generation; ``limits`` are start and end.

    Raises:
        InvalidConfig: one is.
    """
    named: list[tuple[str, TopicPartition]] = []
    if isinstance(subscription, Assign):
        named += (("assign", partition) for partition in subscription.partitions)
    for side, limit in zip(("starting", "ending"), limits, strict=False):
        if isinstance(limit, SpecificOffsets):
            named += ((f"{side}Offsets", partition) for partition in limit.partitions)
        elif isinstance(limit, PartitionTimestamps):
            named += ((f"{side}OffsetsByTimestamp", partition) for partition in limit.timestamps)
    for option, partition in named:
        if (partition.broker != NO_BROKER) != per_broker:
            protocol, form = (
                (PROTOCOL_07, '<broker>-<number>, as in "1-0"') if per_broker else (PROTOCOL_08, "a number")
            )
            raise InvalidConfig(
                f"{option}: {partition.number} is no partition of topic {partition.topic!r}: with "
                f"protocol={protocol} it is {form}"
            )


_OPTION = "offsetStore"

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
