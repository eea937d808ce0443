"""The options that a read of Kafka 0.7 has, and those that it has not. Pure.

Keys are in lower case. ``zookeeper.connect`` and ``broker.list`` say where the topics are; the client's
properties have the prefix ``kafka.``, as those of today's wire.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.config.client07 import PROTOCOL_07, PROTOCOL_08
from pyspark_kafkalog.config.consumer07 import Source07Config
from pyspark_kafkalog.config.definition import Property, describe, warn_unknown
from pyspark_kafkalog.datasource.group_options import asks_zookeeper
from pyspark_kafkalog.datasource.offsets import PartitionTimestamps, SpecificOffsets, StartLimit
from pyspark_kafkalog.datasource.subscription import Assign, Subscription
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
