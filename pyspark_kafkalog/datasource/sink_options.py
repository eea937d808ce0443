"""The options of ``df.write.format("kafkalog")`` as checked and typed values. Pure.

Names, defaults and the words of the errors are those of Spark's Kafka connector, and a few of our own.
Keys arrive in lower case, whatever the user wrote; `sink_option_table` is the manual.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_kafkalog.config.definition import describe, nearest, warn_unknown
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.datasource.option_table import OPTIONS
from pyspark_kafkalog.datasource.sink_option_table import SINK_OPTIONS
from pyspark_kafkalog.errors import InvalidConfig

log = logging.getLogger(__name__)

_PREFIX = "kafka."
_BY_KEY = {option.name.lower(): option for option in SINK_OPTIONS}
_OF_READS = {option.name.lower(): option.name for option in OPTIONS}
REFUSED = {
    "kafka.key.serializer": "Keys are serialized with ByteArraySerializer: the column key is binary or "
    "string.",
    "kafka.value.serializer": "Values are serialized with ByteArraySerializer: the column value is binary or "
    "string.",
    "kafka.partitioner.class": "Partitioners are Java classes. Instead add a column 'partition' (int), made "
    "with DataFrame operations: it beats the default partitioner, which is Kafka's hash of the key.",
    "kafka.interceptor.classes": "Interceptors are Java classes.",
    "kafka.transactional.id": "Each task needs an id of its own: writes in transactions have the option "
    "'transactional.id.prefix'.",
}
_DEFAULTS = {"client_id": "spark-kafka-sink", "batch_size": 128 << 10}
"""What differs from Kafka's own defaults: rows come many at a time, and larger batches cost less."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was asked for."""

    topic: str | None
    """Where all rows go; None where the column says it."""
    include_headers: bool
    include_timestamp: bool
    producer: ProducerConfig


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of ``df.write.format("kafkalog")``.

    Raises:
        InvalidConfig: one is missing, unknown, contradictory or has a wrong value; the text names it.
    """
    options = {key.lower(): value for key, value in given.items()}
    _check_names(options)
    if not options.get("kafka.bootstrap.servers", "").strip():
        raise InvalidConfig(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"
        )
    return SinkOptions(
        topic=options.get("topic", "").strip() or None,
        include_headers=_flag(options, "includeHeaders"),
        include_timestamp=_flag(options, "includeTimestamp"),
        producer=_producer_config(options),
    )


def _check_names(options: Mapping[str, str]) -> None:
    for key in options:
        if key in REFUSED:
            raise InvalidConfig(f"Kafka option '{key}' is not supported. {REFUSED[key]}")
        if key in _BY_KEY or key.startswith(_PREFIX):
            continue
        if key in _OF_READS:
            # A table made with SQL has one set of options for both directions.
            log.warning("option %s has no meaning in a write and is ignored", _OF_READS[key])
            continue
        if key == "path":
            raise InvalidConfig("Unknown option 'path'. The option 'topic' says where rows go")
        near = nearest(key, _BY_KEY)
        known = ", ".join(option.name for option in SINK_OPTIONS) + " and kafka.* properties"
        hint = f"Did you mean '{_BY_KEY[near].name}'?" if near else f"Known: {known}"
        raise InvalidConfig(f"Unknown option '{key}'. {hint}")


def _producer_config(options: Mapping[str, str]) -> ProducerConfig:
    """The producer's properties, each checked under the name that the user gave it."""
    known = {_PREFIX + name: item for item in describe(ProducerConfig) for name in (item.name, *item.aliases)}
    values: dict[str, object] = dict(_DEFAULTS)
    for key, value in options.items():
        item = known.get(key)
        if item is not None:
            values[item.field] = replace(item, name=key).read(value, "option")
        elif key.startswith(_PREFIX):
            warn_unknown(key, known, "options")
    return ProducerConfig(**values)  # type: ignore[arg-type]


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name.lower(), _BY_KEY[name.lower()].default).strip().lower()
    if value not in ("true", "false"):
        raise InvalidConfig(f"{name} is one of true, false; got '{value}'")
    return value == "true"
