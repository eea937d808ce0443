"""The options of ``spark.read.format("kafkalog")`` as checked and typed values. Pure.

What streams have beside them is `stream_options`'.

Names, defaults and the words of the errors are those of Spark's Kafka connector, and a few of our own.
Keys arrive in lower case, whatever the user wrote; `option_table` is the manual.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark_kafkalog.config.client07 import PROTOCOL_07, PROTOCOL_08
from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.config.consumer07 import Source07Config
from pyspark_kafkalog.config.definition import LONG_MAX, describe, nearest, warn_unknown
from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig
from pyspark_kafkalog.datasource.options import topics_and_offsets
from pyspark_kafkalog.datasource.options.client_options import (
    asks_zookeeper,
    check_names,
    parse_07,
    parse_group_store,
    refuse_07,
    zookeeper_properties,
)
from pyspark_kafkalog.datasource.options.load_options import LoadOptions, parse_load_options
from pyspark_kafkalog.datasource.options.option_table import OPTIONS, SINK_OPTIONS
from pyspark_kafkalog.datasource.options.row_schema import column_types
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    EARLIEST,
    LATEST,
    GlobalTimestamp,
    GroupOffsets,
    OffsetLimit,
    StartLimit,
    Subscription,
    check_batch_edges,
    parse_subscription,
)
from pyspark_kafkalog.errors import InvalidConfig

log = logging.getLogger(__name__)

_PREFIX = "kafka."
_OF_SINKS = {option.name.lower(): option.name for option in SINK_OPTIONS}
_REFUSED = {
    "kafka.auto.offset.reset": "Instead set the source option 'startingOffsets' to 'earliest' or 'latest'.",
    "kafka.key.deserializer": "Keys are binary: use DataFrame operations to decode them.",
    "kafka.value.deserializer": "Values are binary: use DataFrame operations to decode them.",
    "kafka.enable.auto.commit": "Loads commit: commitOffsets=stage, with loadName and offsetsPath.",
    "kafka.interceptor.classes": "Interceptors are Java classes.",
}
NAMES_IN_SPARK = "As options of Spark the names of Kafka's properties begin with 'kafka.'"
ALL_RECORDS = "read_uncommitted"
_READS = {"batch": "batch read", "stream": "stream"}
_DEFAULTS = {"client_id": "spark-kafka-relation", "max_partition_fetch_bytes": 8 << 20}
"""What differs from Kafka's own defaults. A task reads a single partition, and most often all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What any read was asked for, batch or stream. Times are in milliseconds."""

    subscription: Subscription
    start: StartLimit
    missing_is_latest: bool
    """Whether a starting time after the last record means the partition's end, and is no error."""
    min_partitions: int | None
    max_records: int | None
    max_bytes: int | None
    fail_on_data_loss: bool
    skip_corrupt: bool
    """Whether corrupt batches are left out; else they fail the read."""
    include_headers: bool
    include_broker: bool
    columns: tuple[str, ...] | None
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    group_id: str | None
    group_store: ZooKeeperConfig | None
    """The ZooKeeper that keeps the group's offsets; None where its brokers do, or nobody."""
    wire: ConsumerConfig | Source07Config
    """What the ``kafka.*`` options say to the client of the generation that is read."""

    @property
    def splits(self) -> bool:
        """Whether a partition may become several tasks."""
        return not (self.min_partitions is self.max_records is self.max_bytes is None)

    def divides(self, count: int) -> bool:
        """Whether a batch of ``count`` partitions may become more tasks than these.

        A minimum that they reach by themselves divides none of them, empty ones counted: as Spark's connector
        has it.
        """
        limited = self.max_records is not None or self.max_bytes is not None
        return limited or (self.min_partitions or 0) > count

    @property
    def v07(self) -> Source07Config | None:
        """Where topics of Kafka 0.7 are; None for a read over the wire since 0.8."""
        return self.wire if isinstance(self.wire, Source07Config) else None

    @property
    def consumer(self) -> ConsumerConfig:
        """The client of the wire since 0.8. Raises `InvalidConfig` for a read of 0.7."""
        if isinstance(self.wire, Source07Config):
            raise InvalidConfig("this needs brokers of the wire since 0.8, and protocol=0.7 is read")
        return self.wire

    @property
    def isolation_level(self) -> str:
        """Which records are seen; in 0.7, which has no transactions, all."""
        return ALL_RECORDS if isinstance(self.wire, Source07Config) else self.wire.isolation_level


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(SourceOptions):
    """What a batch read was asked for."""

    end: OffsetLimit
    load: LoadOptions | None
    """None for a read that remembers nothing."""


def parse_batch_options(given: Mapping[str, str]) -> BatchOptions:
    """Check the options of ``spark.read.format("kafkalog")``.

    Raises:
        InvalidConfig: one is missing, unknown, contradictory or has a wrong value; the text names it.
    """
    return batch_options(options_for_use(given, "batch"))


def batch_options(options: Mapping[str, str]) -> BatchOptions:
    """`parse_batch_options` of names in lower case, and without a word about what is ignored."""
    start, end = start_of(options, EARLIEST), _end(options)
    check_batch_edges(start, end)
    shared = shared_options(options, start, end)
    load = parse_load_options(options, lambda name, allowed: choice(options, name, allowed))
    return BatchOptions(end=end, load=load, **shared)


def shared_options(options: Mapping[str, str], start: StartLimit, *limits: OffsetLimit) -> dict[str, Any]:
    """The fields of `SourceOptions`; ``limits`` are those beside ``start`` that name partitions.

    Raises:
        InvalidConfig: one is missing, unknown, contradictory or has a wrong value; the text names it.
    """
    subscription = parse_subscription(options)
    wire = _wire(options)
    per_broker = isinstance(wire, Source07Config)
    check_names(subscription, start, *limits, per_broker=per_broker)
    strategy = choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    return {
        "subscription": subscription,
        "start": start,
        "missing_is_latest": strategy == "latest",
        "min_partitions": positive(options, "minPartitions"),
        "max_records": positive(options, "maxRecordsPerPartition"),
        "max_bytes": positive(options, "maxBytesPerPartition"),
        "fail_on_data_loss": flag(options, "failOnDataLoss"),
        "skip_corrupt": choice(options, "onCorruptBatch", ("fail", "skip")) == "skip",
        "include_headers": flag(options, "includeHeaders"),
        "include_broker": flag(options, "includeBroker"),
        "columns": _columns(options, column_types(per_broker=per_broker)),
        "poll_timeout_ms": number(options, "kafkaConsumer.pollTimeoutMs", least=1),
        "offset_retries": number(options, "fetchOffset.numRetries", least=0),
        "offset_retry_interval_ms": number(options, "fetchOffset.retryIntervalMs", least=0),
        "group_id": options.get("kafka.group.id", "").strip() or None,
        "group_store": parse_group_store(options, wire),
        "wire": wire,
    }


def by_lower_name(given: Mapping[str, str]) -> dict[str, str]:
    """Options as everything here takes them. Spark's are in lower case already; a program's may not be.

    Raises:
        InvalidConfig: one is unknown or not supported; the text has its name as it was given.
    """
    _check_names(given)
    return {key.lower(): value for key, value in given.items()}


def options_for_use(given: Mapping[str, str], use: str) -> dict[str, str]:
    """`by_lower_name`, with a warning for those that mean nothing in a read of this ``use``, ``batch`` or
    ``stream``, or in any.
    """
    options = by_lower_name(given)
    for key in options:
        option = BY_KEY.get(key)
        if option is not None and option.use not in ("both", use):
            log.warning("option %s has no meaning in a %s and is ignored", option.name, _READS[use])
        elif option is None and key in _OF_SINKS:
            log.warning("option %s has no meaning in a read and is ignored", _OF_SINKS[key])
    return options


def _check_names(given: Iterable[str]) -> None:
    for name in given:
        key = name.lower()
        if key in _REFUSED:
            raise InvalidConfig(f"Kafka option '{name}' is not supported. {_REFUSED[key]}")
        if key not in BY_KEY and key not in _OF_SINKS and not key.startswith(_PREFIX):
            near = nearest(key, BY_KEY)
            hint = f"Did you mean '{BY_KEY[near].name}'?" if near else f"Known: {_known()}"
            raise InvalidConfig(f"Unknown option '{name}'. {hint}")


def _wire(options: Mapping[str, str]) -> ConsumerConfig | Source07Config:
    """The client of the generation that ``protocol`` names: the one place where it is looked at."""
    if choice(options, "protocol", (PROTOCOL_08, PROTOCOL_07)) == PROTOCOL_07:
        return parse_07(options)
    refuse_07(options)
    if not options.get("kafka.bootstrap.servers", "").strip():
        raise InvalidConfig(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"
        )
    return _consumer_config(options)


def _known() -> str:
    return ", ".join(option.name for option in OPTIONS) + " and kafka.* properties"


def _consumer_config(options: Mapping[str, str]) -> ConsumerConfig:
    """The client's properties, each checked under the name that the user gave it."""
    given = {key: value for key, value in options.items() if key.startswith(_PREFIX)}
    level = "kafka.isolation.level"
    given[level] = choice(options, level, ("read_uncommitted", "read_committed"))
    ConsumerConfig.check_names({key.removeprefix(_PREFIX) for key in given}, _PREFIX)
    known = {_PREFIX + item.name: item for item in describe(ConsumerConfig)}
    elsewhere = zookeeper_properties() if asks_zookeeper(options) else {}
    values: dict[str, object] = {**_DEFAULTS, "servers_option": "kafka.bootstrap.servers"}
    for key, value in given.items():
        item = known.get(key)
        if item is not None:
            values[item.field] = replace(item, name=key).read(value, "option")
        elif key not in BY_KEY and key not in elsewhere:
            warn_unknown(key, known, "options")
    try:
        return ConsumerConfig(**values)  # type: ignore[arg-type]
    except InvalidConfig as e:
        raise InvalidConfig(f"{e}. {NAMES_IN_SPARK}") from None


def start_of(options: Mapping[str, str], default: StartLimit) -> StartLimit:
    """Where the read begins. Raises `InvalidConfig`."""
    by_time, text = _time_limit(options, "starting"), options.get("startingoffsets")
    if by_time is not None or text is None:
        return by_time or default
    start = topics_and_offsets.parse_start("startingOffsets", text)
    if isinstance(start, GroupOffsets) and not options.get("kafka.group.id", "").strip():
        raise InvalidConfig(
            "startingOffsets=group needs kafka.group.id: the group whose committed offsets are meant"
        )
    return start


def _end(options: Mapping[str, str]) -> OffsetLimit:
    by_time, text = _time_limit(options, "ending"), options.get("endingoffsets")
    if by_time is not None or text is None:
        return by_time or LATEST
    return topics_and_offsets.parse_offsets("endingOffsets", text)


def _time_limit(options: Mapping[str, str], side: str) -> OffsetLimit | None:
    """What is said about times, which beats what is said about offsets."""
    timestamp = options.get(f"{side}timestamp")
    if timestamp is not None:
        if not re.fullmatch(r"\s*[0-9]{1,19}\s*", timestamp) or int(timestamp) > LONG_MAX:
            raise InvalidConfig(
                f"{side}Timestamp: Expected a single long value, got {timestamp}; it is a time in "
                "milliseconds since the epoch, such as 1700000000000 (2023-11-14 22:13:20 UTC)"
            )
        return GlobalTimestamp(int(timestamp))
    by_partition = options.get(f"{side}offsetsbytimestamp")
    if by_partition is not None:
        return topics_and_offsets.parse_partition_timestamps(f"{side}OffsetsByTimestamp", by_partition)
    return None


def _columns(options: Mapping[str, str], known: Mapping[str, str]) -> tuple[str, ...] | None:
    value = options.get("columns")
    if value is None:
        return None
    by_key = {name.lower(): name for name in known}
    named = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in named if name.lower() not in by_key]
    if unknown or not named:
        raise InvalidConfig(f"columns are some of {', '.join(known)}; got '{value}'")
    columns = [by_key[name.lower()] for name in named]
    if len(set(columns)) < len(columns):
        raise InvalidConfig(f"columns names one twice: '{value}'")
    return tuple(columns)


BY_KEY = {option.name.lower(): option for option in OPTIONS}
"""The options that there are, by their names in lower case."""

_UNITS_MS = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
"""Spark's units of time, in milliseconds."""


def value_of(options: Mapping[str, str], name: str) -> str:
    """What is given, or the default."""
    return options.get(name.lower(), BY_KEY[name.lower()].default)


def choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of several words, in any case. Raises `InvalidConfig`."""
    value = value_of(options, name).strip().lower()
    if value not in allowed:
        raise InvalidConfig(f"{name} is one of {', '.join(allowed)}; got '{value}'")
    return value


def flag(options: Mapping[str, str], name: str) -> bool:
    """True or false. Raises `InvalidConfig`."""
    return choice(options, name, ("true", "false")) == "true"


def number(options: Mapping[str, str], name: str, *, least: int) -> int:
    """A whole number, ``least`` or more. Raises `InvalidConfig`."""
    value = value_of(options, name)
    if not _is_whole(value) or int(value) < least:
        raise InvalidConfig(f"{name} is a whole number, {least} or more; got '{value}'")
    return int(value)


def positive(options: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0; None where it is not given. Raises `InvalidConfig`."""
    value = options.get(name.lower())
    if value is None:
        return None
    if not _is_whole(value) or int(value) == 0:
        raise InvalidConfig(
            f"{name} must be positive; got '{value}'; expected a whole number of 1 or more, such as 1000"
        )
    return int(value)


def duration_ms(options: Mapping[str, str], name: str) -> int:
    """A time as Spark writes it, ``100ms``, ``15m``, ``2h``, in milliseconds; so is a number alone.

    Raises:
        InvalidConfig: anything else.
    """
    value = value_of(options, name).strip().lower()
    found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", value)
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise InvalidConfig(f"{name} is a time such as 100ms, 30s, 15m, 2h or 1d; got '{value}'")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"\s*[0-9]{1,19}\s*", text) is not None and int(text) <= LONG_MAX
