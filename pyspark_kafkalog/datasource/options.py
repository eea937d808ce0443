"""The reader's options: Spark's Kafka connector's names, and a few of our own. Pure.

`OPTIONS` is the manual (docs/datasource.md is written from it); `parse_batch_options` reads what
``spark.read`` hands us, whose keys arrive in lower case.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.config.definition import parse_layers
from pyspark_kafkalog.datasource import offsets
from pyspark_kafkalog.datasource.offsets import (
    EARLIEST,
    LATEST,
    GlobalTimestamp,
    OffsetLimit,
    check_batch_edges,
)
from pyspark_kafkalog.datasource.schema import COLUMN_TYPES
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import IsolationLevel, TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the reader, for `parse_batch_options` and for the manual."""

    name: str
    default: str
    doc: str
    use: str = "both"
    """Where it has a meaning: ``both``, ``batch`` or ``stream``."""


OPTIONS = (
    Option("kafka.bootstrap.servers", "required", "Brokers to begin with, `host:port,host:port`."),
    Option("assign", "", 'Partitions to read, `{"topicA":[0,1]}`. Exactly one of this and the next two.'),
    Option("subscribe", "", "Topics to read, separated by commas."),
    Option("subscribePattern", "", "Regular expression; topics whose whole name matches are read."),
    Option(
        "startingOffsets",
        "earliest",
        'Where to begin: `earliest`, or JSON `{"topicA":{"0":23,"1":-2},"topicB":"earliest"}` that names '
        "every partition or its topic; -2 is earliest.",
    ),
    Option(
        "endingOffsets",
        "latest",
        "Where to end, exclusive: `latest`, or JSON as above; -1 is latest.",
        use="batch",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "",
        'Begin at the first record at or after this time, `{"topicA":{"0":1700000000000}}`, milliseconds. '
        "Beats `startingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "",
        "End before the first record at or after this time; latest where there is none. Beats "
        "`endingOffsets`.",
        use="batch",
    ),
    Option(
        "startingTimestamp",
        "",
        "The same for every partition: one number, milliseconds. Beats the other two.",
    ),
    Option("endingTimestamp", "", "The same for every partition. Beats the other two.", use="batch"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "Where no record is that late: `error`, or `latest` to begin at the end.",
    ),
    Option("minPartitions", "", "Split large ranges so that about so many tasks run."),
    Option("maxRecordsPerPartition", "", "No task reads more than so many offsets."),
    Option(
        "failOnDataLoss",
        "true",
        "Fail where offsets that should be read are gone; `false` reads what is left and logs the rest.",
    ),
    Option("includeHeaders", "false", "Add the column `headers`."),
    Option(
        "includeBroker", "false", "Add the column `broker`, last: the id of the node that served the row."
    ),
    Option(
        "columns",
        "all",
        "Columns to decode, separated by commas, in this order. What is not named costs nothing.",
    ),
    Option(
        "kafka.isolation.level",
        "read_uncommitted",
        "`read_committed` leaves out what aborted transactions wrote and ends at the last stable offset.",
    ),
    Option("kafkaConsumer.pollTimeoutMs", "120000", "How long a task waits for records before it fails."),
    Option("fetchOffset.numRetries", "3", "How often a look-up of offsets is tried again."),
    Option("fetchOffset.retryIntervalMs", "1000", "Milliseconds between two of them."),
    Option(
        "kafka.group.id", "", "Accepted for compatibility: a batch read joins no group and commits nothing."
    ),
    Option("groupIdPrefix", "spark-kafka-relation", "Accepted for compatibility: reading needs no group."),
    Option("maxOffsetsPerTrigger", "", "At most so many offsets a batch.", use="stream"),
    Option("minOffsetsPerTrigger", "", "Wait for so many offsets.", use="stream"),
    Option("maxTriggerDelay", "15m", "But no longer than this.", use="stream"),
)
"""Every ``kafka.*`` property of the client beside these is passed on: docs/configuration.md."""

_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_SUBSCRIPTIONS = ("subscribe", "subscribepattern", "assign")
_BULK_DEFAULTS = {"max.partition.fetch.bytes": "4194304", "client.id": "spark-kafka-relation"}
"""A task reads one partition to its end: fewer, larger fetches than Kafka's own default of 1 MiB."""
_REFUSED = {
    "kafka.auto.offset.reset": "Instead set the source option 'startingOffsets' to 'earliest' or 'latest'.",
    "kafka.key.deserializer": "Keys are binary: use DataFrame operations to decode them.",
    "kafka.value.deserializer": "Values are binary: use DataFrame operations to decode them.",
    "kafka.enable.auto.commit": "This source commits no offsets by itself.",
    "kafka.interceptor.classes": "Interceptors are Java classes.",
}


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: tuple[TopicPartition, ...]

    @property
    def names(self) -> frozenset[str]:
        """The topics named."""
        return frozenset(p.topic for p in self.partitions)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Every partition of these topics."""

    topics: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The topics named."""
        return frozenset(self.topics)


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Every partition of the topics whose whole name matches."""

    pattern: str

    def matches(self, topic: str) -> bool:
        """Whether ``topic`` is read."""
        return re.fullmatch(self.pattern, topic) is not None


Subscription = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch read was asked for, checked and typed. Times are in milliseconds."""

    subscription: Subscription
    start: OffsetLimit
    end: OffsetLimit
    missing_is_latest: bool
    min_partitions: int | None
    max_records: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_broker: bool
    columns: tuple[str, ...] | None
    isolation: IsolationLevel
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    consumer: ConsumerConfig
    """What the ``kafka.*`` options say to the client."""


def parse_batch_options(given: Mapping[str, str]) -> BatchOptions:
    """Check the options of ``spark.read.format("kafkalog")``.

    Raises:
        InvalidConfig: one is missing, unknown, contradictory or has a wrong value; the text names it.
    """
    options = {key.lower(): value for key, value in given.items()}
    _check_names(options)
    start = _limit(options, "starting", EARLIEST)
    end = _limit(options, "ending", LATEST)
    check_batch_edges(start, end)
    isolation = _choice(options, "kafka.isolation.level", ("read_uncommitted", "read_committed"))
    strategy = _choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    return BatchOptions(
        subscription=_subscription(options),
        start=start,
        end=end,
        missing_is_latest=strategy == "latest",
        min_partitions=_positive(options, "minPartitions"),
        max_records=_positive(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(options, "failOnDataLoss"),
        include_headers=_flag(options, "includeHeaders"),
        include_broker=_flag(options, "includeBroker"),
        columns=_columns(options),
        isolation=IsolationLevel[isolation.upper()],
        poll_timeout_ms=_number(options, "kafkaConsumer.pollTimeoutMs", least=1),
        offset_retries=_number(options, "fetchOffset.numRetries", least=0),
        offset_retry_interval_ms=_number(options, "fetchOffset.retryIntervalMs", least=0),
        consumer=_consumer_config(options, isolation),
    )


def _check_names(options: Mapping[str, str]) -> None:
    for key in options:
        if key in _REFUSED:
            raise InvalidConfig(f"Kafka option '{key}' is not supported. {_REFUSED[key]}")
        option = _BY_KEY.get(key)
        if option is not None and option.use == "stream":
            log.warning("option %s has no meaning in a batch read and is ignored", option.name)
        if option is None and not key.startswith("kafka."):
            near = difflib.get_close_matches(key, _BY_KEY, n=1)
            hint = f"Did you mean '{_BY_KEY[near[0]].name}'?" if near else f"Known: {_known()}"
            raise InvalidConfig(f"Unknown option '{key}'. {hint}")
    if not options.get("kafka.bootstrap.servers", "").strip():
        raise InvalidConfig(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"
        )


def _known() -> str:
    return ", ".join(option.name for option in OPTIONS) + " and kafka.* properties"


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [key for key in _SUBSCRIPTIONS if key in options]
    allowed = ", ".join(_SUBSCRIPTIONS)
    if not given:
        raise InvalidConfig(
            f"One of the following options must be specified for Kafka source: {allowed}. "
            "See the docs for more details."
        )
    if len(given) > 1:
        raise InvalidConfig(
            f"Only one of the following options can be specified for Kafka source: {allowed}. "
            "See the docs for more details."
        )
    value = options[given[0]]
    if given[0] == "assign":
        return Assign(tuple(offsets.parse_partitions("assign", value)))
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise InvalidConfig(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'"
            )
        return Subscribe(topics)
    if not value.strip():
        raise InvalidConfig(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
        )
    return SubscribePattern(_python_pattern(value.strip()))


def _python_pattern(pattern: str) -> str:
    """Java's named groups in Python's spelling; the rest of what topics' patterns use is the same in both."""
    translated = re.sub(r"\(\?<(?![=!])", "(?P<", pattern)
    try:
        re.compile(translated)
    except re.error as e:
        raise InvalidConfig(f"subscribePattern '{pattern}' is no regular expression: {e}") from e
    return translated


def _limit(options: Mapping[str, str], side: str, default: offsets.Edge) -> OffsetLimit:
    timestamp = options.get(f"{side}timestamp")
    if timestamp is not None:
        if not re.fullmatch(r"\s*\d+\s*", timestamp):
            raise InvalidConfig(f"{side}Timestamp: Expected a single long value, got {timestamp}")
        return GlobalTimestamp(int(timestamp))
    by_partition = options.get(f"{side}offsetsbytimestamp")
    if by_partition is not None:
        return offsets.parse_partition_timestamps(f"{side}OffsetsByTimestamp", by_partition)
    text = options.get(f"{side}offsets")
    return default if text is None else offsets.parse_offsets(f"{side}Offsets", text)


def _consumer_config(options: Mapping[str, str], isolation: str) -> ConsumerConfig:
    prefix = "kafka."
    given = {
        key[len(prefix) :]: value
        for key, value in options.items()
        if key.startswith(prefix) and key != "kafka.group.id"
    }
    given["isolation.level"] = isolation
    return parse_layers(ConsumerConfig, [("defaults", _BULK_DEFAULTS), ("options kafka.*", given)])


def _choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = _value(options, name).strip().lower()
    if value not in allowed:
        raise InvalidConfig(f"{name} is one of {', '.join(allowed)}; got '{value}'")
    return value


def _flag(options: Mapping[str, str], name: str) -> bool:
    return _choice(options, name, ("true", "false")) == "true"


def _number(options: Mapping[str, str], name: str, *, least: int) -> int:
    value = _value(options, name)
    if not re.fullmatch(r"\s*-?\d+\s*", value) or int(value) < least:
        raise InvalidConfig(f"{name} is a whole number, {least} or more; got '{value}'")
    return int(value)


def _positive(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\s*\d+\s*", value) or int(value) == 0:
        raise InvalidConfig(f"{name} must be positive; got '{value}'")
    return int(value)


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    value = options.get("columns")
    if value is None:
        return None
    by_key = {name.lower(): name for name in COLUMN_TYPES}
    named = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in named if name.lower() not in by_key]
    if unknown or not named:
        raise InvalidConfig(f"columns are some of {', '.join(COLUMN_TYPES)}; got '{value}'")
    columns = [by_key[name.lower()] for name in named]
    if len(set(columns)) < len(columns):
        raise InvalidConfig(f"columns names one twice: '{value}'")
    return tuple(columns)


def _value(options: Mapping[str, str], name: str) -> str:
    return options.get(name.lower(), _BY_KEY[name.lower()].default)
