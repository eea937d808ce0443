"""Rows of partitions, with what a group has committed of them and how far it is behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark_kafkalog.cli.positions import EARLIEST, LATEST, resolve
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets, list_groups
from pyspark_kafkalog.errors import KafkaError, UnsupportedVersion
from pyspark_kafkalog.types import TopicPartition

Rows = list[dict[str, Any]]
"""Each has its partition under ``tp``, which is not shown."""


def group_rows(cluster: Cluster, group: str, also: Iterable[TopicPartition] = ()) -> Rows:
    """A row for each partition of the topics of which ``group`` has committed something, and of ``also``."""
    stored = stored_offsets(cluster, group)
    known = [*stored, *also]
    rows = partition_rows(cluster, {tp.topic for tp in known}, known)
    for row in rows:
        row["committed"], row["lag"] = behind(stored.get(row["tp"]), row)
    return rows


def partition_rows(cluster: Cluster, topics: Collection[str], known: Iterable[TopicPartition]) -> Rows:
    """A row for each partition of ``topics``; those ``known`` of are shown also when they are gone."""
    seen = cluster.metadata(sorted(topics)).topics
    there = [TopicPartition(name, number) for name in sorted(topics) for number in seen[name].partitions]
    gone = {tp for tp in known if tp.topic in topics} - set(there)
    first, last = resolve(cluster, there, EARLIEST), resolve(cluster, there, LATEST)
    return [
        {
            "tp": tp,
            "topic": tp.topic,
            "partition": tp.partition,
            "earliest": first.get(tp),
            "latest": last.get(tp),
        }
        for tp in sorted({*there, *gone})
    ]


def behind(position: int | None, row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Position and lag; no lag where the partition is gone."""
    if row["latest"] is None:
        return position, None
    return position, offsets_behind(position, row["earliest"], row["latest"])


def offsets_behind(position: int | None, first: int, last: int) -> int:
    """How many offsets are left to read from ``position``, or from the beginning where there is none.

    What has aged out cannot be read any more and does not count.
    """
    return max(last - max(first if position is None else position, first), 0)


def stored_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """The offsets that a group has committed, of all partitions."""
    return {tp: found.offset for tp, found in committed_offsets(cluster, group).items()}


def check_group(cluster: Cluster, group: str) -> None:
    """See that the cluster knows a group that has committed nothing.

    Raises:
        KafkaError: there is none of that name.
    """
    try:
        if group in {found.group for found in list_groups(cluster)}:
            return
    except UnsupportedVersion:  # before Kafka 0.9, where brokers do not tell which groups there are
        return
    raise KafkaError(f"no group is called {group!r} on {cluster.config.bootstrap_servers}")


def without_tp(rows: Rows) -> Rows:
    """The rows as they are shown."""
    return [{name: value for name, value in row.items() if name != "tp"} for row in rows]
