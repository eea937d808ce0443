"""The options of ``df.write.format("kafkalog")`` as checked and typed values. Pure.

Names, defaults and the words of the errors are those of Spark's Kafka connector, and a few of our own.
Keys arrive in lower case, whatever the user wrote; `sink_option_table` is the manual.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafkalog.config.client07 import PROTOCOL_08
from pyspark_kafkalog.config.definition import describe, nearest, warn_unknown
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.datasource.options.option_table import OPTIONS, SINK_OPTIONS
from pyspark_kafkalog.datasource.options.read_options import NAMES_IN_SPARK
from pyspark_kafkalog.datasource.source import options_for
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_PREFIX = "kafka."
_SERVERS = "kafka.bootstrap.servers"
_MOST_OPEN_MS = 15 * 60_000
"""How long a transaction may stay open, unless it is said: the most that brokers allow by default."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
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


class Unit(NamedTuple):
    """What is to be written once: a batch of a query, or a write that was given an id."""

    name: str
    batch: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was asked for."""

    topic: str | None
    """Where all rows go; None where the column says it."""
    include_headers: bool
    include_timestamp: bool
    transactional_prefix: str | None
    """What the ids of the tasks' transactions begin with; None for a write without transactions."""
    write_id: str | None
    producer: ProducerConfig

    @property
    def unit(self) -> Unit | None:
        """What a batch write with an id writes once."""
        return Unit(f"write {self.write_id}", 0) if self.write_id is not None else None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of ``df.write.format("kafkalog")``.

    Raises:
        InvalidConfig: one is missing, unknown, contradictory or has a wrong value; the text names it.
    """
    options = {key.lower(): value for key, value in given.items()}
    if options.get("protocol", PROTOCOL_08).strip() != PROTOCOL_08:
        raise InvalidConfig(
            "protocol=0.7 is for reads. Its topics are written with ClassicProducer, in foreachPartition, or "
            "by a mirror from a topic that this sink writes"
        )
    _check_names(options)
    if not options.get(_SERVERS, "").strip():
        raise InvalidConfig(f"Option '{_SERVERS}' must be specified for configuring Kafka producer")
    prefix = _name(options, "transactional.id.prefix")
    write_id = _name(options, "transactional.write.id")
    if write_id is not None and prefix is None:
        raise InvalidConfig("transactional.write.id needs transactional.id.prefix")
    return SinkOptions(
        topic=options.get("topic", "").strip() or None,
        include_headers=_flag(options, "includeHeaders"),
        include_timestamp=_flag(options, "includeTimestamp"),
        transactional_prefix=prefix,
        write_id=write_id,
        producer=_producer_config(options, prefix),
    )


def sink_options_for(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a write: those that were given; of an insert into a table, which has none, the table's.

    Rows that were read from a table keep what their columns say of it, and are not to go back there: a write
    that says where it goes takes nothing from it.
    """
    return given if _SERVERS in {key.lower() for key in given} else options_for(given, schema)


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


def _producer_config(options: Mapping[str, str], prefix: str | None) -> ProducerConfig:
    """The producer's properties, each checked under the name that the user gave it.

    With a prefix they are such that transactions are possible.
    """
    known = {_PREFIX + name: item for item in describe(ProducerConfig) for name in (item.name, *item.aliases)}
    values: dict[str, object] = {**_DEFAULTS, "servers_option": _SERVERS}
    if prefix is not None:
        values |= {"transactional_id": prefix, "transaction_timeout_ms": _MOST_OPEN_MS}
    of_kafka = {key.removeprefix(_PREFIX) for key in options if key.startswith(_PREFIX)}
    ProducerConfig.check_names(of_kafka, _PREFIX)
    for key, value in options.items():
        item = known.get(key)
        if item is not None:
            values[item.field] = replace(item, name=key).read(value, "option")
        elif key.startswith(_PREFIX):
            warn_unknown(key, known, "options")
    try:
        return ProducerConfig(**values)  # type: ignore[arg-type]
    except InvalidConfig as e:
        if prefix is None or "transactional.id" not in str(e):
            raise InvalidConfig(f"{e}. {NAMES_IN_SPARK}") from None
        raise InvalidConfig(f"{e} (with transactional.id.prefix there is a transactional.id)") from None


def _name(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name, "").strip()
    if value and not _NAME.fullmatch(value):
        raise InvalidConfig(f"{name} is up to 200 letters, digits and '.', '_', '-'; got '{value}'")
    return value or None


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name.lower(), _BY_KEY[name.lower()].default).strip().lower()
    if value not in ("true", "false"):
        raise InvalidConfig(f"{name} is one of true, false; got '{value}'")
    return value == "true"
