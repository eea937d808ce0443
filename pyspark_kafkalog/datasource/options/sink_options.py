"""Parses the options of ``df.write`` and ``df.writeStream`` with ``format("kafkalog")``; see `read_options`.
Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.datasource.options.client_options import NAMES_IN_SPARK, client_properties
from pyspark_kafkalog.datasource.options.option_definitions import (
    READ_OPTIONS,
    SINK_OPTIONS,
    SinkOptions,
    unknown_option,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import PROTOCOL_08

log = logging.getLogger(__name__)

_MOST_OPEN_MS = 15 * 60_000
"""Default limit of an open transaction: the most that brokers allow by default."""
_OF_SINKS = {option.name.lower(): option for option in SINK_OPTIONS}
_OF_READS = {option.name.lower(): option.name for option in READ_OPTIONS}
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
_DEFAULTS = {
    "client_id": "spark-kafka-sink",
    "batch_size": 512 << 10,
    "servers_option": "kafka.bootstrap.servers",
}
"""Differences from Kafka's defaults: rows come many at a time, and larger batches cost less."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    given = {key.lower(): value for key, value in given.items()}
    if given.get("protocol", PROTOCOL_08).strip() != PROTOCOL_08:
        raise InvalidConfig(
            "protocol=0.7 is for reads. Its topics are written with ClassicProducer, in foreachPartition, or "
            "by a mirror from a topic that this sink writes"
        )
    _check_names(given)
    options = SinkOptions(
        **{item.field: item.read(given[key], "option") for key, item in _OF_SINKS.items() if key in given}
    )
    if options.servers is None:
        raise InvalidConfig(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"
        )
    if options.write_id is not None and options.transactional_prefix is None:
        raise InvalidConfig("transactional.write.id needs transactional.id.prefix")
    return replace(options, producer=_producer_config(given, options.transactional_prefix))


def _check_names(given: Mapping[str, str]) -> None:
    for key in given:
        if (refused := REFUSED.get(f"kafka.{key.removeprefix('kafka.')}")) is not None:
            raise InvalidConfig(f"Kafka option '{key}' is not supported. {refused}")
        if key in _OF_SINKS or key.startswith("kafka."):
            continue
        if key == "path":
            raise InvalidConfig("Unknown option 'path'. The option 'topic' says where rows go")
        if key not in _OF_READS:
            raise unknown_option(key, SINK_OPTIONS, ProducerConfig)
        # A table made with SQL has one set of options for both directions.
        log.warning("option %s has no meaning in a write and is ignored", _OF_READS[key])


def _producer_config(given: Mapping[str, str], prefix: str | None) -> ProducerConfig:
    values: dict[str, object] = dict(_DEFAULTS)
    if prefix is not None:
        values |= {"transactional_id": prefix, "transaction_timeout_ms": _MOST_OPEN_MS}
    values |= client_properties(ProducerConfig, given, warn_except=())
    try:
        return ProducerConfig(**values)  # type: ignore[arg-type]
    except InvalidConfig as e:
        if prefix is None or "transactional.id" not in str(e):
            raise InvalidConfig(f"{e}. {NAMES_IN_SPARK}") from None
        raise InvalidConfig(f"{e} (with transactional.id.prefix there is a transactional.id)") from None
