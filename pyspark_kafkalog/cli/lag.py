"""``kafkalog lag``: how far groups and loads are behind the end of the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_kafkalog.cli.connecting import (
    DEFAULT_SERVER,
    AsJson,
    Servers,
    connected,
    properties,
    speaks_07,
)
from pyspark_kafkalog.cli.group_rows import (
    Rows,
    behind,
    check_group,
    partition_rows,
    stored_offsets,
    without_tp,
)
from pyspark_kafkalog.cli.loads import open_ledger, say_pending
from pyspark_kafkalog.cli.showing import show
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import NO_BROKER, TopicPartition, encode_id

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.plan import Position

LAG_EPILOG = """\
Examples:

kafkalog lag --group dashboard

kafkalog lag --load flights --offsets /lake/_offsets

kafkalog lag flights --group dashboard --load flights --offsets /lake/_offsets --json

kafkalog lag --load old --offsets /lake/_offsets --option protocol=0.7 --option zk.connect=localhost:2181
"""


def lag(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="Only these topics.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="A consumer group.")] = None,
    load: Annotated[str | None, typer.Option("--load", help="A load, by its name.")] = None,
    directory: Annotated[
        str | None, typer.Option("--offsets", help="The directory of the ledgers (offsetsPath).")
    ] = None,
    as_json: AsJson = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="For topics of Kafka 0.7: protocol=0.7, and zookeeper.connect=... or broker.list=...",
        ),
    ] = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show how many offsets a group, a load or both have still to read, partition by partition.

    Partitions of which nothing is committed count from their beginning; a load that was planned and not
    committed, from where its plan begins. Offsets are counted, not records: compaction and transactions leave
    gaps. Offsets of Kafka 0.7 are bytes, and so is the lag. A group that is not known is an error.
    """
    if group is None and load is None:
        raise InvalidConfig("lag of what? Give --group, or --load with --offsets, or both")
    if (load is None) != (directory is None):
        raise InvalidConfig("--load and --offsets go together")
    positions = _positions(load, directory) if load is not None and directory is not None else {}
    given = properties(option, "--option")
    if load is not None:
        _check_generation(load, positions, of_brokers=speaks_07(given))
    if speaks_07(given):
        from pyspark_kafkalog.cli.lag07 import BYTES, rows_07

        rows = rows_07(given, topics or (), group, positions)
        typer.echo(BYTES, err=True)
    elif given:
        raise InvalidConfig("--option is for topics of Kafka 0.7: it needs --option protocol=0.7")
    else:
        rows = _todays_rows(server, topics, group, positions)
    for row in rows:
        reached = row.pop("committed"), row.pop("load_next")
        if group is not None:
            row["group"] = group
            row["committed"], row["lag"] = behind(reached[0], row)
        if load is not None:
            row["load"] = load
            row["load_next"], row["load_lag"] = behind(reached[1], row)
    columns = ["topic", "partition", "latest"]
    columns += ["committed", "lag"] if group is not None else []
    columns += ["load_next", "load_lag"] if load is not None else []
    total: dict[str, Any] = {"topic": "total"}
    for column in ("lag", "load_lag"):
        if column in columns:
            total[column] = sum(row[column] or 0 for row in rows)
    if not rows and not as_json:
        typer.echo("nothing is committed yet; name a topic to see what is in it", err=True)
    show(without_tp(rows), columns, as_json=as_json, total=total)


def _todays_rows(
    server: str,
    topics: Collection[str] | None,
    group: str | None,
    positions: Mapping[TopicPartition, Position],
) -> Rows:
    """A row for each partition, with where group and load stand."""
    with connected(server) as cluster:
        stored = stored_offsets(cluster, group) if group is not None else {}
        if group is not None and not stored:
            check_group(cluster, group)
        named = set(topics) if topics else {tp.topic for tp in (*stored, *positions)}
        rows = partition_rows(cluster, named, [*stored, *positions])
        for row in rows:
            row["committed"] = stored.get(row["tp"])
            row["load_next"] = _next(cluster, positions, row)
    return rows


def _positions(name: str, directory: str) -> dict[TopicPartition, Position]:
    """Where the next load begins: with the plan that is pending, else where the newest commit ended."""
    ledger = open_ledger(name, directory)
    pending = ledger.pending()
    if pending is not None:
        say_pending(pending)
        return pending.starts
    head = ledger.head()
    return {} if head is None else head.stored


def _check_generation(load: str, positions: Iterable[TopicPartition], *, of_brokers: bool) -> None:
    """Refuse positions of one generation where partitions of the other are asked for."""
    if all((partition.broker != NO_BROKER) == of_brokers for partition in positions):
        return
    raise InvalidConfig(
        f"load {load!r} is not of topics of Kafka 0.7: leave --option protocol=0.7 out"
        if of_brokers
        else f"load {load!r} is of topics of Kafka 0.7: say --option protocol=0.7, and --option "
        "zookeeper.connect=... or broker.list=..."
    )


def _next(
    cluster: Cluster, positions: Mapping[TopicPartition, Position], row: Mapping[str, Any]
) -> int | None:
    """Where the load goes on in a partition; None where it has not read any of this topic."""
    position = positions.get(row["tp"])
    if position is None:
        return None
    topic_id = encode_id(cluster.metadata([position.topic]).topics[position.topic].topic_id)
    if row["latest"] is not None and position.topic_id not in ("", topic_id):
        typer.echo(
            f"kafkalog: {row['tp']} was deleted and made anew since the load read it: its position counts "
            "for nothing",
            err=True,
        )
        return None
    return position.next
