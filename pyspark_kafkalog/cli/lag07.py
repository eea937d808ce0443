"""``kafkalog lag`` of topics of Kafka 0.7, whose offsets are bytes and whose groups are in ZooKeeper."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import typer

from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.datasource.generations import open_lookup
from pyspark_kafkalog.datasource.options import BatchOptions, parse_batch_options
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.plan import PartitionFacts, Position

BYTES = f"protocol={PROTOCOL_07}: offsets, lag and load_lag are bytes"


def rows_07(
    asked: Mapping[str, str],
    topics: Collection[str],
    group: str | None,
    positions: Mapping[TopicPartition, Position],
) -> list[dict[str, Any]]:
    """A row for each partition of ``topics``, or of those that the load has positions in.

    Partitions of brokers that are away are shown without their end. ``committed`` and ``load_next`` are where
    group and load stand; None where they have not begun.

    Raises:
        InvalidConfig: an option is wrong, or no topic is named and the load has none.
        KafkaError: a broker or ZooKeeper would not say, or ZooKeeper knows no such group.
    """
    named = set(topics) or {partition.topic for partition in positions}
    if not named:
        raise InvalidConfig(
            f"name the topics: with protocol={PROTOCOL_07} a group cannot be asked which it has read"
        )
    given = {**asked, "subscribe": ",".join(sorted(named))}
    if group is not None:
        given["kafka.group.id"] = group
    options = parse_batch_options(given)
    lookup = open_lookup(options)
    try:
        facts = lookup.facts(lookup.leaders())
        away = {partition for partition in positions if partition.topic in named} - facts.keys()
        shown = sorted({*facts, *away})
        stored = {} if group is None else lookup.group_offsets(group, shown)
    finally:
        lookup.close()
    if group is not None and not stored:
        _check_group(options, group)
    return [_row(where, facts.get(where), stored.get(where), positions.get(where)) for where in shown]


def _check_group(options: BatchOptions, group: str) -> None:
    """See that a group without offsets in these topics is one at all."""
    from pyspark_kafkalog.datasource.zookeeper_group import ZooKeeperGroup

    if options.v07 is not None and not ZooKeeperGroup(options.v07, group, PROTOCOL_07).is_known():
        raise KafkaError(f"no group is called {group!r} in ZooKeeper at {options.v07.zookeeper_connect}")


def _row(
    where: TopicPartition, found: PartitionFacts | None, stored: int | None, position: Position | None
) -> dict[str, Any]:
    reached = None if position is None else position.next
    if found is not None and reached is not None and reached > found.latest:
        typer.echo(
            f"kafkalog: {where} ends at {found.latest}, before the position of the load: it was made anew, "
            "and the position counts for nothing",
            err=True,
        )
        reached = None
    return {
        "tp": where,
        "topic": where.topic,
        "partition": where.number,
        "earliest": found and found.earliest,
        "latest": found and found.latest,
        "committed": stored,
        "load_next": reached,
    }
