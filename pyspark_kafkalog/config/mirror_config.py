"""Properties of a mirror, its sources and its target, in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

import msgspec

from pyspark_kafkalog.config.classic_config import ClassicProducerConfig, ConnectorConfig
from pyspark_kafkalog.config.client_config import EARLIEST, LATEST, GroupConsumerConfig
from pyspark_kafkalog.config.client_config import NONE as GROUP_NONE
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    Config,
    between,
    configuration,
    describe,
    not_empty,
    one_of,
    parse,
    positive_int,
    prop,
    warn_unknown,
    with_families,
)
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import PROTOCOL_07, PROTOCOL_08

C = TypeVar("C", bound=Config)

SOURCE, TARGET = "source.", "target."  # property prefixes; a source's name follows the first
BY_KEY, AS_SOURCE = "key", "source"  # how a target partition is selected
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_names = Check(
    "names of letters, digits, _ and -, separated by commas, each once",
    lambda words: (
        len(words) > 0 and len(set(words)) == len(words) and all(_NAME.fullmatch(word) for word in words)
    ),
)


@configuration
class MirrorConfig(Config):
    sources: tuple[str, ...] = prop(
        "sources", kind=tuple, check=_names, section="The mirror",
        doc="Names of the clusters to read; properties of each begin with source.<name>.",
    )  # fmt: skip
    target_protocol: str = prop(
        "target.protocol", PROTOCOL_08, check=one_of(PROTOCOL_07, PROTOCOL_08),
        doc="Wire protocol of the target: 0.8 with the properties of Producer, 0.7 with those of "
            "ClassicProducer.",
    )  # fmt: skip
    whitelist: str | None = prop(
        "whitelist", None, check=not_empty,
        doc="Regular expression for topics to mirror, including later ones; a comma means or. Set this or "
            "blacklist.",
    )  # fmt: skip
    blacklist: str | None = prop(
        "blacklist", None, check=not_empty, doc="Regular expression for topics not to mirror.",
    )  # fmt: skip
    exclude_internal_topics: bool = prop(
        "exclude.internal.topics", True, bool, doc="Never mirror __consumer_offsets and __transaction_state.",
    )  # fmt: skip
    num_streams: int = prop(
        "num.streams", 1, int, check=between(1, 1000), unit="threads",
        doc="Threads that read each source, each with its own partitions.",
    )  # fmt: skip
    offset_commit_interval_ms: int = prop(
        "offset.commit.interval.ms", 60_000, int, check=positive_int, unit="ms",
        doc="How often the mirror waits for the target and commits the sources' offsets; a killed mirror "
            "repeats at most this much.",
    )  # fmt: skip
    abort_on_send_failure: bool = prop(
        "abort.on.send.failure", True, bool,
        doc="Stop without committing if the target rejects a message. false: log, count and lose it.",
    )  # fmt: skip
    partition_assignment: str = prop(
        "partition.assignment", BY_KEY, check=one_of(BY_KEY, AS_SOURCE),
        doc="By the message's key (any partition without one), or by the source partition modulo the "
            "target's number of partitions, which keeps each partition's order.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.whitelist is None) == (self.blacklist is None):
            given = "neither is" if self.whitelist is None else "both are"
            raise InvalidConfig(f"either whitelist or blacklist must be given; {given}")


_COMMITTED: str = prop(
    "isolation.level", "read_committed", str, check=one_of("read_uncommitted", "read_committed"),
    doc="Whether records of open and aborted transactions are copied; in the target they would look "
        "committed.",
)  # fmt: skip


@configuration
class SourceConfig(ConnectorConfig):
    """A source found through ZooKeeper."""

    isolation_level: str = _COMMITTED


@configuration
class BrokersSourceConfig(GroupConsumerConfig):
    """A source with ``bootstrap.servers``."""

    isolation_level: str = _COMMITTED
    auto_offset_reset: str = prop(
        "auto.offset.reset", EARLIEST, check=one_of(EARLIEST, LATEST, GROUP_NONE), section="Offsets",
        doc="Where to start if the group's offset is missing or not in the log: the log's start, its end, "
            "or (none) an error.",
    )  # fmt: skip


@configuration
class Target07Config(ClassicProducerConfig):
    delivery_timeout_ms: int = prop(
        "delivery.timeout.ms", 120_000, int, check=between(0, INT_MAX), unit="ms",
        section="Time limit of a mirror's target", doc="How long a batch is retried after retriable errors.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.required_acks == 0:
            raise InvalidConfig(
                "request.required.acks=0 is not allowed in a mirror, which must know what was delivered; "
                "allowed: 1 and -1"
            )


Source: TypeAlias = SourceConfig | BrokersSourceConfig
Target: TypeAlias = ProducerConfig | Target07Config

SOURCE_LEFT_OUT = {
    "auto_commit": "a mirror commits after delivery",
    "auto_commit_interval_ms": "use offset.commit.interval.ms, for all sources",
    "consumer_timeout_ms": "a mirror waits without limit",
}
"""Fields that users cannot set for a source, and why."""

BROKERS_SOURCE_LEFT_OUT = {
    "enable_auto_commit": "a mirror commits after delivery",
    "auto_commit_interval_ms": "use offset.commit.interval.ms, for all sources",
}
"""The same for a source with ``bootstrap.servers``."""

TARGET_LEFT_OUT = {"transactional_id": "a mirror delivers at least once, without transactions"}
"""Fields that users cannot set for a target, and why."""

TARGET_07_LEFT_OUT = {
    "producer_type": "a mirror has its own queue",
    "enqueue_timeout_ms": "a mirror waits for room in the queue",
    "num_retries": "use delivery.timeout.ms",
    "serializer_class": "messages are copied unchanged",
    "event_handler": "messages are copied unchanged",
    "event_handler_props": "messages are copied unchanged",
    "callback_handler": "messages are copied unchanged",
    "callback_handler_props": "messages are copied unchanged",
}
"""The same for a target with Kafka 0.7's protocol."""

_CODEC_FIELDS = ("compression_type", "compression_codec")


class Mirroring(msgspec.Struct, frozen=True):
    mirror: MirrorConfig
    sources: Mapping[str, Source]
    target: Target
    keep_codec: bool  # whether messages keep their compression, because the target sets no codec


def mirror_config(properties: Mapping[str, object], *, source: str) -> Mirroring:
    """Read a mirror's properties; ``source`` names them in errors. Raises `InvalidConfig`."""
    own_names = set(_names_of(MirrorConfig))
    own = parse(
        MirrorConfig, {name: value for name, value in properties.items() if name in own_names}, source=source
    )
    target_class = Target07Config if own.target_protocol == PROTOCOL_07 else ProducerConfig
    known = own_names | {TARGET + name for name in (*_names_of(target_class), *target_class.meaningless)}
    properties = with_families(target_class, properties, TARGET)
    for one in own.sources:
        source_class = _source_class(properties, f"{SOURCE}{one}.", source)
        names = (*_names_of(source_class), *source_class.meaningless, "protocol")
        known |= {f"{SOURCE}{one}.{name}" for name in names}
        properties = with_families(source_class, properties, f"{SOURCE}{one}.")
    for name in properties:
        if name not in known:
            warn_unknown(name, known, source)
    sources = {
        one: _source(own, one, _below(f"{SOURCE}{one}.", properties, known), source) for one in own.sources
    }
    given = {name: value for name, value in _below(TARGET, properties, known).items() if name != "protocol"}
    target = _target(target_class, given, source)
    _check(own, sources, target)
    codec_names = {name for field in _CODEC_FIELDS for name in _names_of(target_class, field)}
    return Mirroring(own, sources, target, keep_codec=codec_names.isdisjoint(given))


def _source_class(properties: Mapping[str, object], prefix: str, source: str) -> type[Source]:
    if not any(prefix + name in properties for name in _names_of(BrokersSourceConfig, "bootstrap_servers")):
        return SourceConfig
    for name in _names_of(SourceConfig, "zookeeper_connect"):
        if prefix + name in properties:
            raise InvalidConfig(
                f"{source}: {prefix}bootstrap.servers and {prefix}{name} are both given; a source has one: "
                "brokers of 0.7 and groups in ZooKeeper need zookeeper.connect"
            )
    if properties.get(f"{prefix}protocol", PROTOCOL_08) != PROTOCOL_08:
        raise InvalidConfig(
            f"{source}: {prefix}protocol={properties[prefix + 'protocol']} is not allowed with "
            f"bootstrap.servers, which is today's wire; allowed: {PROTOCOL_08}, or zookeeper.connect"
        )
    return BrokersSourceConfig


def _source(own: MirrorConfig, name: str, given: Mapping[str, object], source: str) -> Source:
    prefix = f"{SOURCE}{name}."
    cls = _source_class(given, "", source)
    by_brokers = cls is BrokersSourceConfig
    _refuse(cls, BROKERS_SOURCE_LEFT_OUT if by_brokers else SOURCE_LEFT_OUT, given, prefix, source)
    if given.keys().isdisjoint(_names_of(cls, "group_id")):
        # With the default group, mirrors to different targets would share the messages.
        raise InvalidConfig(
            f"{source}: {prefix}{'group.id' if by_brokers else 'groupid'} is missing: mirrors with the same "
            "group share the messages, so each target needs its own group"
        )
    interval = own.offset_commit_interval_ms
    fixed: dict[str, object] = {"autocommit.enable": True, "autocommit.interval.ms": interval}
    if by_brokers:
        given = {name: value for name, value in given.items() if name != "protocol"}
        fixed = {"enable.auto.commit": False, "auto.commit.interval.ms": interval}
    parsed: Source = _parsed(cls, given, fixed, prefix, source)
    return parsed


def _target(cls: type[Target], given: Mapping[str, object], source: str) -> Target:
    left_out = TARGET_07_LEFT_OUT if cls is Target07Config else TARGET_LEFT_OUT
    _refuse(cls, left_out, given, TARGET, source)
    fixed = {"protocol": PROTOCOL_07} if cls is Target07Config else {}
    parsed: Target = _parsed(cls, given, fixed, TARGET, source)
    if isinstance(parsed, ProducerConfig) and parsed.required_acks == 0:
        raise InvalidConfig(
            f"{source}: {TARGET}acks=0 is not allowed in a mirror, which must know what was delivered; "
            "allowed: all, -1 and 1"
        )
    return parsed


def _parsed(
    cls: type[C], given: Mapping[str, object], fixed: Mapping[str, object], prefix: str, source: str
) -> C:
    """`parse` with the mirror's ``fixed`` values; errors include the ``prefix``."""
    try:
        return parse(cls, {**given, **fixed}, source=source)
    except InvalidConfig as e:
        raise InvalidConfig(f"{prefix}*: {e}") from e


def _check(own: MirrorConfig, sources: Mapping[str, Source], target: Target) -> None:
    if not isinstance(target, Target07Config):
        return
    if own.partition_assignment == AS_SOURCE and (target.broker_list or target.partitioner_class):
        raise InvalidConfig(
            f"partition.assignment={AS_SOURCE} needs target.zookeeper.connect and no "
            "target.partitioner.class: with target.broker.list partitions are chosen at random"
        )
    for name, one in sources.items():
        if (
            isinstance(one, SourceConfig)
            and one.protocol == PROTOCOL_07
            and one.connect == target.zookeeper_connect
            and one.zookeeper_prefix_07 == target.zookeeper_prefix_07
        ):
            raise InvalidConfig(f"source {name} and the target are the same cluster: {one.connect}")


def _below(prefix: str, properties: Mapping[str, object], known: set[str]) -> dict[str, object]:
    return {
        name[len(prefix) :]: value
        for name, value in properties.items()
        if name.startswith(prefix) and name in known
    }


def _refuse(
    cls: type[Config], left_out: Mapping[str, str], given: Mapping[str, object], prefix: str, source: str
) -> None:
    for field, why in left_out.items():
        for name in _names_of(cls, field):
            if name in given:
                raise InvalidConfig(f"{source}: {prefix}{name} cannot be set for a mirror: {why}")


def _names_of(cls: type[Config], field: str | None = None) -> Iterator[str]:
    for item in describe(cls):
        if field in (None, item.field):
            yield item.name
            yield from item.aliases
