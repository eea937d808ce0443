"""The source reading topics of Kafka 0.7 without Spark: its tasks, and the rows they give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options

COLUMNS = ("value", "topic", "partition", "offset", "broker", "innerIndex")
QUICK = {"fetchOffset.retryIntervalMs": "1", "kafka.socket.timeout.ms": "5000"}


class Row(NamedTuple):
    """A message and its place."""

    value: bytes | None
    topic: str
    partition: int
    offset: int
    broker: int
    inner_index: int


def reader07(columns: tuple[str, ...] = COLUMNS, **options: str) -> BatchReader:
    """A reader of ``protocol=0.7``; names of options with dots go in as ``**{"broker.list": ...}``."""
    return BatchReader(parse_batch_options({"protocol": "0.7", **QUICK, **options}), columns)


def tasks(reader: BatchReader) -> list[KafkaInputPartition]:
    """Its tasks, each of which is one of ours."""
    found = reader.partitions()
    assert all(isinstance(task, KafkaInputPartition) for task in found)
    return list(found)  # type: ignore[arg-type]


def rows(reader: BatchReader, planned: Iterable[Any] | None = None) -> list[Row]:
    """What all tasks give, one after the other."""
    return [
        Row(*row.values())
        for task in (tasks(reader) if planned is None else planned)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
