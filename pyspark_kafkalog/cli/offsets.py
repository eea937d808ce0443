"""``kafkalog offsets`` and ``kafkalog lag``, and the table shared with ``groups describe``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    EARLIEST,
    LATEST,
    AsJson,
    ClusterCommands,
    Partitions,
    Servers,
    Topic,
    chosen_partitions,
    connected,
    examples,
    group_names,
    parse_time,
    properties,
    resolve,
    speaks_07,
    topic_names,
)
from pyspark_kafkalog.cli.ledgers import open_ledger, say_pending
from pyspark_kafkalog.cli.terminal_output import show
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets, list_groups
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.clock import utc_text
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.errors import InvalidConfig, KafkaError, UnsupportedVersion
from pyspark_kafkalog.status.snapshot import offsets_behind
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_BROKER,
    PROTOCOL_07,
    IsolationLevel,
    TopicPartition,
    encode_id,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.plan import PartitionFacts, Position

Rows = list[dict[str, Any]]  # each row has its partition under ``tp``, which is not printed

_WORDS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "newest": MAX_TIMESTAMP}

positions = ClusterCommands()


@positions.command(
    epilog=examples(
        "offsets flights",
        "offsets flights --time 2026-11-21T06:00Z",
        "offsets flights --group dashboard --json",
    )
)
def offsets(
    topic: Topic,
    time: Annotated[
        str | None,
        typer.Option(
            help="Show the first record at or after this time, in milliseconds or ISO 8601 (by default UTC); "
            "or earliest, latest, newest (the record with the latest time)."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Also show this group's committed offsets and lag.",
            autocompletion=group_names,
        ),
    ] = None,
    partition: Partitions = None,
    committed: Annotated[
        bool, typer.Option("--read-committed", help="End before the first open transaction.")
    ] = False,
    as_json: AsJson = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show the first and the end offset of each partition of a topic.

    The end is the offset of the next record.
    """
    asked = None if time is None else _time(time)
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    with connected(server) as cluster:
        partitions = chosen_partitions(cluster, topic, partition)
        stored = stored_offsets(cluster, group, partitions) if group is not None else {}
        if group is not None and not stored:
            check_group(cluster, group)
        needs_ends = asked is None or group is not None
        ends = end_rows(cluster, partitions, isolation=isolation) if needs_ends else []
        if asked is not None:
            rows, columns = _at(cluster, partitions, asked, isolation), ["partition", "offset", "time"]
        else:
            rows = [{**row, "offsets": row["latest"] - row["earliest"]} for row in ends]
            columns = ["partition", "earliest", "latest", "offsets"]
    if group is not None:
        for row, end in zip(rows, ends, strict=True):
            row["group"] = group
            row["committed"], row["lag"] = behind(stored.get(end["tp"]), end)
        columns += ["committed", "lag"]
    if group is not None and asked is None:
        show_positions(rows, as_json=as_json)
        return
    total: dict[str, Any] = {"partition": "total"}
    total |= {name: sum(row[name] for row in rows) for name in ("offsets", "lag") if name in columns}
    show(without_tp(rows), columns, as_json=as_json, total=total if len(total) > 1 else None)


def _time(text: str) -> int:
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    time_ms = parse_time(f"timestamp:{word}" if word.isdecimal() else text.strip())
    if time_ms is None:
        raise InvalidConfig(
            f"--time: {text!r} is not a time; allowed: earliest, latest, newest, milliseconds or ISO 8601"
        )
    return time_ms


def _at(
    cluster: Cluster, partitions: list[TopicPartition], timestamp: int, isolation: IsolationLevel
) -> list[dict[str, Any]]:
    found = list_offsets(cluster, dict.fromkeys(partitions, timestamp), isolation=isolation)
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": found[tp].offset if found[tp].offset >= 0 else None,
            "timestamp": found[tp].timestamp if found[tp].timestamp >= 0 else None,
            "time": _shown(found[tp].timestamp),
        }
        for tp in partitions
    ]


def _shown(timestamp: int) -> str | None:
    try:
        return utc_text(timestamp) if timestamp >= 0 else None
    except OverflowError:
        return None


_IN_BYTES = f"protocol={PROTOCOL_07}: offsets, lag and load_lag are bytes"


@positions.command(
    epilog=examples(
        "lag --group dashboard",
        "lag --load flights --offsets /lake/_offsets",
        "lag flights --group dashboard --load flights --offsets /lake/_offsets --json",
        "lag --load old --offsets /lake/_offsets --option protocol=0.7 --option zk.connect=localhost:2181",
    )
)
def lag(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC...", help="Only these topics.", autocompletion=topic_names),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Consumer group.", autocompletion=group_names)
    ] = None,
    load: Annotated[str | None, typer.Option(help="Name of a load.")] = None,
    directory: Annotated[
        str | None, typer.Option("--offsets", help="Directory of the ledgers (offsetsPath).")
    ] = None,
    as_json: AsJson = False,
    option: Annotated[
        list[str] | None,
        typer.Option(help="For Kafka 0.7: protocol=0.7, and zookeeper.connect or broker.list."),
    ] = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show how many offsets a group, a load or both still have to read in each partition.

    A partition without a committed offset counts from its first offset; a pending load counts from the start
    of its plan. The lag counts offsets, not records: compaction and transactions leave gaps. With Kafka 0.7,
    offsets and lag are bytes. An unknown group is an error.
    """
    if group is None and load is None:
        raise InvalidConfig("lag needs --group, --load with --offsets, or both")
    if (load is None) != (directory is None):
        raise InvalidConfig("--load and --offsets go together")
    positions = _positions(load, directory) if load is not None and directory is not None else {}
    given = properties(option, "--option")
    if load is not None:
        _check_generation(load, positions, of_brokers=speaks_07(given))
    if speaks_07(given):
        rows = _rows_07(given, topics or (), group, positions)
        typer.echo(_IN_BYTES, err=True)
    elif given:
        raise InvalidConfig("--option is only for Kafka 0.7: it needs --option protocol=0.7")
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
    if not rows and not as_json:
        typer.echo("nothing is committed yet; name a topic to see its offsets", err=True)
    of_load = ("load_next", "load_lag") if load is not None else ()
    show_positions(rows, of_load, of_group=group is not None, as_json=as_json)


def _todays_rows(
    server: str,
    topics: Collection[str] | None,
    group: str | None,
    positions: Mapping[TopicPartition, Position],
) -> Rows:
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
    ledger = open_ledger(name, directory)
    pending = ledger.pending()
    if pending is not None:
        say_pending(pending)
        return pending.starts
    return ledger.stored(ledger.head()) or {}


def _check_generation(load: str, positions: Iterable[TopicPartition], *, of_brokers: bool) -> None:
    if all((partition.broker != NO_BROKER) == of_brokers for partition in positions):
        return
    raise InvalidConfig(
        f"load {load!r} does not read Kafka 0.7: omit --option protocol=0.7"
        if of_brokers
        else f"load {load!r} reads Kafka 0.7: add --option protocol=0.7, and --option "
        "zookeeper.connect=... or broker.list=..."
    )


def _next(
    cluster: Cluster, positions: Mapping[TopicPartition, Position], row: Mapping[str, Any]
) -> int | None:
    """The load's position; None if it has not read this topic, or one since recreated."""
    position = positions.get(row["tp"])
    if position is None:
        return None
    topic_id = encode_id(cluster.metadata([position.topic]).topics[position.topic].topic_id)
    if row["latest"] is not None and position.topic_id not in ("", topic_id):
        typer.echo(
            f"kafkalog: {row['tp']} was recreated since the load read it; its position is ignored", err=True
        )
        return None
    return position.next


def _rows_07(
    asked: Mapping[str, str],
    topics: Collection[str],
    group: str | None,
    positions: Mapping[TopicPartition, Position],
) -> list[dict[str, Any]]:
    named = set(topics) or {partition.topic for partition in positions}
    if not named:
        raise InvalidConfig(
            f"name the topics: with protocol={PROTOCOL_07} the topics of a group cannot be listed"
        )
    given = {**asked, "subscribe": ",".join(sorted(named))}
    if group is not None:
        given["kafka.group.id"] = group
    options = parse_batch_options(given)
    with closing(open_cluster(options)) as cluster:
        facts = cluster.facts(cluster.leaders())
        away = {partition for partition in positions if partition.topic in named} - facts.keys()
        shown = sorted({*facts, *away})
        stored = {} if group is None else cluster.group_offsets(group, shown)
    if group is not None and not stored:
        _check_group(options, group)
    rows = []
    for tp in shown:
        fact = facts.get(tp)
        row = (
            position_row(tp, fact.earliest, fact.latest) if fact is not None else position_row(tp, None, None)
        )
        reached = _reached_07(tp, fact, positions.get(tp))
        rows.append({**row, "committed": stored.get(tp), "load_next": reached})
    return rows


def _check_group(options: BatchOptions, group: str) -> None:
    from pyspark_kafkalog.zookeeper.registries import ZooKeeperGroup

    if options.v07 is not None and not ZooKeeperGroup(options.v07, group, PROTOCOL_07).is_known():
        raise KafkaError(
            f"consumer group {group!r} does not exist in ZooKeeper at {options.v07.zookeeper_connect}"
        )


def _reached_07(tp: TopicPartition, facts: PartitionFacts | None, position: Position | None) -> int | None:
    """The load's position, unless the log ends before it."""
    if position is None or facts is None or position.next <= facts.latest:
        return None if position is None else position.next
    typer.echo(
        f"kafkalog: {tp} ends at {facts.latest}, before the position of the load: it was recreated; "
        "its position is ignored",
        err=True,
    )
    return None


def partition_rows(cluster: Cluster, topics: Collection[str], known: Iterable[TopicPartition]) -> Rows:
    seen = cluster.metadata(sorted(topics)).topics
    there = [TopicPartition(name, number) for name in sorted(topics) for number in seen[name].partitions]
    return end_rows(cluster, there, {tp for tp in known if tp.topic in topics} - set(there))


def end_rows(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    gone: Collection[TopicPartition] = (),
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Rows:
    """A row with first and end offset per partition; None for those that are ``gone``."""
    first, last = (resolve(cluster, partitions, end, isolation=isolation) for end in (EARLIEST, LATEST))
    return [position_row(tp, first.get(tp), last.get(tp)) for tp in sorted({*partitions, *gone})]


def position_row(tp: TopicPartition, first: int | None, end: int | None) -> dict[str, Any]:
    partition = tp.partition if tp.broker == NO_BROKER else tp.number
    return {"tp": tp, "topic": tp.topic, "partition": partition, "earliest": first, "latest": end}


def show_positions(
    rows: Rows, more: Sequence[str] = (), *, of_group: bool = True, as_json: bool = False
) -> None:
    """The table of `offsets --group`, `lag` and `groups describe`."""
    columns = ["topic", "partition", "earliest", "latest", *(("committed", "lag") if of_group else ()), *more]
    lags = [column for column in ("lag", "load_lag") if column in columns]
    total = {"topic": "total", **{lag: sum(row[lag] or 0 for row in rows) for lag in lags}}
    show(without_tp(rows), columns, as_json=as_json, total=total)


def behind(position: int | None, row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if row["latest"] is None:
        return position, None
    return position, offsets_behind(position, row["earliest"], row["latest"])


def stored_offsets(
    cluster: Cluster, group: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    return {tp: found.offset for tp, found in committed_offsets(cluster, group, partitions).items()}


def check_group(cluster: Cluster, group: str) -> None:
    """For groups without committed offsets."""
    try:
        if group in {found.group for found in list_groups(cluster)}:
            return
    except UnsupportedVersion:  # brokers before 0.9 cannot list groups
        return
    raise KafkaError(f"consumer group {group!r} does not exist on {cluster.config.bootstrap_servers}")


def without_tp(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if name != "tp"} for row in rows]
