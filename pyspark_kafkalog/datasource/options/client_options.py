"""Options that become a client's configuration: brokers, ``kafka.*`` properties, a group's offsets. Pure.
``given`` are the options as text, with names in lower case.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark_kafkalog.config.classic_config import KAFKA, ZOOKEEPER, Source07Config
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import Config, describe, warn_unknown, with_families
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig, znode_name
from pyspark_kafkalog.datasource.options.option_definitions import SourceOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    PartitionTimestamps,
    SpecificOffsets,
    StartLimit,
    Subscription,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import NO_BROKER, PROTOCOL_07, PROTOCOL_08, TopicPartition

log = logging.getLogger(__name__)

NO_MAX_RECORDS = (
    "maxRecordsPerPartition has no meaning with protocol=0.7: offsets of Kafka 0.7 are positions in bytes "
    "and do not tell how many records lie between them. minPartitions cuts large logs where segments begin"
)

_PREFIX = "kafka."
_PROTOCOL = "kafka.security.protocol"
_CONNECT, _ZK_CONNECT, _BROKER_LIST = "zookeeper.connect", "zk.connect", "broker.list"
_CONSUMER_DEFAULTS = {"client_id": "spark-kafka-relation", "max_partition_fetch_bytes": 8 << 20}
"""Differences from Kafka's defaults. A task reads a single partition, and most often all of it."""
NAMES_IN_SPARK = "As options of Spark the names of Kafka's properties begin with 'kafka.'"
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


def client_properties(
    config: type[Config],
    given: Mapping[str, str],
    *,
    left_out: Collection[str] = (),
    warn_except: Collection[str] | None = None,
) -> dict[str, object]:
    """The fields set by ``kafka.*`` options. Unknown ones are logged, except ``warn_except``; None: none."""
    known = {
        _PREFIX + name.lower(): item
        for item in describe(config)
        if item.name not in left_out
        for name in (item.name, *item.aliases)
    }
    config.check_names({key.removeprefix(_PREFIX) for key in given if key.startswith(_PREFIX)}, _PREFIX)
    values = {}
    for key, text in with_families(config, given, _PREFIX).items():
        if key in known:
            if key != (name := _PREFIX + known[key].name.lower()) and name in given:
                continue  # an alias
            values[known[key].field] = replace(known[key], name=key).read(text, "option")
        elif warn_except is None or not key.startswith(_PREFIX) or key in warn_except:
            continue
        elif key.removeprefix(_PREFIX) not in config.meaningless:
            warn_unknown(key, known, "options")
    return values


def wire_config(options: SourceOptions, given: Mapping[str, str]) -> ConsumerConfig | Source07Config:
    """The client configuration of the generation in ``protocol``; only this function reads that option."""
    if options.protocol == PROTOCOL_07:
        return _wire_07(given)
    for_groups = (_CONNECT, _ZK_CONNECT) if options.offset_store == ZOOKEEPER else ()
    for name in (_CONNECT, _ZK_CONNECT, _BROKER_LIST):
        if name in given and name not in for_groups:
            raise InvalidConfig(
                f"{name} has a meaning with protocol={PROTOCOL_07} only; protocol is {PROTOCOL_08}, whose "
                "brokers are found by kafka.bootstrap.servers. (offsetStore=zookeeper needs "
                "zookeeper.connect with both.)"
            )
    if options.servers is None:
        raise InvalidConfig(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"
        )
    known = {item.name.lower() for item in describe(type(options))}
    if options.offset_store == ZOOKEEPER:
        items = [item for item in describe(ZooKeeperConfig) if item.name != _CONNECT]
        known |= {_PREFIX + name.lower() for item in items for name in (item.name, *item.aliases)}
    given = {**given, "kafka.isolation.level": options.isolation}
    values = client_properties(ConsumerConfig, given, warn_except=known)
    try:
        return ConsumerConfig(
            **{**_CONSUMER_DEFAULTS, "servers_option": "kafka.bootstrap.servers", **values}  # type: ignore[arg-type]
        )
    except InvalidConfig as e:
        raise InvalidConfig(f"{e}. {NAMES_IN_SPARK}") from None


def _wire_07(given: Mapping[str, str]) -> Source07Config:
    for key, why in _REFUSED.items():
        if key in given:
            raise InvalidConfig(why)
    for key, why in _IGNORED.items():
        if key in given:
            log.warning("%s: it is ignored", why)
    _check_unprotected(given)
    named = [name for name in (_CONNECT, _ZK_CONNECT, _BROKER_LIST) if name in given]
    if len(named) != 1:
        raise InvalidConfig(
            "protocol=0.7 needs exactly one of zookeeper.connect=host:port,host:port/chroot (or zk.connect, "
            "the same) and broker.list=id:host:port,id:host:port; given: " + (", ".join(named) or "none")
        )
    brokers = (_CONNECT, _BROKER_LIST)
    values = client_properties(
        Source07Config, given, left_out=("protocol", *brokers), warn_except={*_IGNORED, "kafka.group.id"}
    )
    (place,) = named
    own = _BROKER_LIST if place == _BROKER_LIST else _CONNECT
    item = next(item for item in describe(Source07Config) if item.name == own)
    values[item.field] = replace(item, name=place).read(given[place], "option")
    return Source07Config(**values)  # type: ignore[arg-type]


def _check_unprotected(given: Mapping[str, str]) -> None:
    """Refuse TLS and logins, which 0.7 does not have: the connection would silently be in plain text."""
    protocol = given.get(_PROTOCOL, "").strip().upper()
    protected = [key for key in given if key.startswith((f"{_PREFIX}sasl.", f"{_PREFIX}ssl."))]
    if protocol:
        protected = [] if protocol == "PLAINTEXT" else [_PROTOCOL]
    if protected:
        raise InvalidConfig(
            f"{', '.join(sorted(protected))}: Kafka 0.7 has neither TLS nor SASL. Remove these options, or "
            f"set {_PROTOCOL}=PLAINTEXT to have them ignored"
        )


def group_store(
    options: SourceOptions, given: Mapping[str, str], wire: ConsumerConfig | Source07Config
) -> ZooKeeperConfig | None:
    group, is_given = options.group_id, "offsetstore" in given
    asked = options.offset_store == ZOOKEEPER
    if is_given and group is None:
        raise InvalidConfig("offsetStore needs kafka.group.id: the group whose offsets are kept there")
    if group is not None and (asked or isinstance(wire, Source07Config)) and not znode_name.test(group):
        raise InvalidConfig(
            f"kafka.group.id={group} is not allowed where ZooKeeper keeps its offsets; allowed: "
            f"{znode_name.allowed}"
        )
    if isinstance(wire, Source07Config):
        if is_given and not asked:
            raise InvalidConfig(
                f"offsetStore={KAFKA} has no meaning with protocol=0.7, whose brokers keep no offsets of "
                f"groups; offsetStore={ZOOKEEPER} is what 0.7 has"
            )
        if wire.zookeeper_connect:
            return wire
        if group is not None and "loadname" in given:
            raise InvalidConfig(
                "kafka.group.id with a load needs zookeeper.connect instead of broker.list: a load's offsets "
                "are also committed to the group, and 0.7 keeps groups in ZooKeeper. Or leave kafka.group.id "
                "out"
            )
        return None
    return _group_zookeeper(given) if asked else None


def _group_zookeeper(given: Mapping[str, str]) -> ZooKeeperConfig:
    places = {key: given[key] for key in (_CONNECT, _ZK_CONNECT) if given.get(key, "").strip()}
    if len(places) != 1:  # none, or both spellings
        raise InvalidConfig(
            f"offsetStore={ZOOKEEPER} needs {_CONNECT}=host:port,host:port/chroot (or zk.connect, the same): "
            f"given: {', '.join(places) or 'none'}"
        )
    (place,) = places.values()
    (connect,) = (item for item in describe(ZooKeeperConfig) if item.name == _CONNECT)
    values = client_properties(ZooKeeperConfig, given, left_out=(_CONNECT,))
    return ZooKeeperConfig(**{**values, connect.field: connect.read(place, "option")})


def check_partition_names(subscription: Subscription, *limits: StartLimit, per_broker: bool) -> None:
    """Refuse partition names of the other generation; ``limits`` are start and end."""
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
                f"{option}: {partition.number} is not a partition of topic {partition.topic!r}: with "
                f"protocol={protocol} it is {form}"
            )
