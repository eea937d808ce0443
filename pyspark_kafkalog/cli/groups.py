"""``kafkalog groups`` and ``transactions``: state that coordinators keep of consumers and producers."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    EARLIEST,
    FORMS,
    LATEST,
    AsJson,
    ClusterCommands,
    Partitions,
    Position,
    Servers,
    Time,
    Topic,
    connected,
    examples,
    group_names,
    offsets_in_file,
    parse_position,
    topic_names,
)
from pyspark_kafkalog.cli.offsets import Rows, behind, show_positions, without_tp
from pyspark_kafkalog.cli.terminal_output import counted, printable, show
from pyspark_kafkalog.client.admin import abort_transaction, describe_transaction, list_transactions
from pyspark_kafkalog.client.groups import (
    DEAD,
    GroupDescription,
    committed_offsets,
    delete_group_offsets,
    delete_groups,
)
from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.errors import InvalidConfig, KafkaError, OffsetOutOfRange, UnsupportedVersion
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.cli.group_stores import GroupStore, LogPositions

groups = ClusterCommands(
    name="groups",
    no_args_is_help=True,
    help="List, describe and delete consumer groups, and reset their offsets.",
    epilog=examples(
        "groups list",
        "groups describe dashboard",
        "groups reset dashboard flights --to 2026-11-21T00:00Z --dry-run",
    ),
)
Group = Annotated[str, typer.Argument(help="The group.", autocompletion=group_names)]
To = Annotated[str | None, typer.Option("--to", help=f"New position: {FORMS}.")]
ShiftBy = Annotated[int | None, typer.Option(help="Move by this many offsets; negative: back.")]
ByDuration = Annotated[str | None, typer.Option(help="To this time before now: PT30M, PT2H, P1DT12H.")]
FromFile = Annotated[Path | None, typer.Option(help="To the offsets in a CSV file: topic,partition,offset.")]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="All topics with committed offsets.")]
InZooKeeper = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="For groups in ZooKeeper: zookeeper.connect=..., and protocol=0.7 for those of Kafka 0.7.",
    ),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the new offsets as lines for --from-file.")]

_DESCRIBED = ("group", "state", "protocol_type", "protocol", "kind")
_SECONDS = r"(\d+(?:\.\d+)?)S"
_DURATION = re.compile(rf"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:{_SECONDS})?)?")
"""ISO 8601 up to days, as ``--by-duration`` of kafka-consumer-groups.sh."""


@groups.command(
    "list",
    epilog=examples("groups list --json | jq -r .group", "groups list --option zookeeper.connect=zk1:2181"),
)
def list_(as_json: AsJson = False, option: InZooKeeper = None, server: Servers = DEFAULT_SERVER) -> None:
    """List the groups of the cluster. Groups that only store offsets have no protocol."""
    with _store(server, option) as store:
        listed = store.list()
    columns = ["group", "state", "protocol", "kind"]
    fields = ((g.group, g.state or None, g.protocol_type or None, g.kind or None) for g in listed)
    show([dict(zip(columns, row, strict=True)) for row in fields], columns, as_json=as_json)


@groups.command(
    "describe", epilog=examples("groups describe dashboard", "groups describe dashboard --members")
)
def describe(
    group: Group,
    members: Annotated[bool, typer.Option("--members", help="Show members, not offsets.")] = False,
    as_json: AsJson = False,
    option: InZooKeeper = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show a group: its state and, for each partition, committed offset, lag and client."""
    with _store(server, option) as store:
        found = store.describe(group)
        if members and found.state != DEAD:
            _show_members(found, as_json)
            return
        readers = {tp: member for member in found.members for tp in member.partitions}
        rows = _group_rows(store, group, readers)
    if found.state == DEAD and not rows:
        raise KafkaError(f"consumer group {group!r} does not exist on {store.place}")
    for row in rows:
        member = readers.get(row["tp"])
        row["member"] = member.member_id if member else None
        row["client"] = f"{member.client_id} {member.host}".rstrip() if member else None
    if as_json:
        document = {
            **{name: getattr(found, name) for name in _DESCRIBED},
            "members": [
                {"member": m.member_id, "client": m.client_id, "host": m.host} for m in found.members
            ],
            "partitions": without_tp(rows),
        }
        show([document], [], as_json=True)
        return
    strategy = f", assigned by {found.protocol}" if found.protocol else ""
    typer.echo(printable(f"{group}: {found.state}, {counted(len(found.members), 'member')}{strategy}"))
    for member in found.members:
        if not member.partitions:
            typer.echo(printable(f"no partitions: {member.client_id} {member.host} ({member.member_id})"))
    show_positions(rows, ["client"])


def _store(server: str, option: list[str] | None) -> AbstractContextManager[GroupStore]:
    from pyspark_kafkalog.cli.group_stores import group_store  # loads kazoo

    return group_store(server, option)


def _group_rows(store: GroupStore, group: str, also: Iterable[TopicPartition]) -> Rows:
    stored = store.stored(group)
    rows = store.logs.rows([*stored, *also]) if stored or also else []
    for row in rows:
        row["committed"], row["lag"] = behind(stored.get(row["tp"]), row)
    return rows


def _show_members(found: GroupDescription, as_json: bool) -> None:
    rows: Rows = []
    for one in sorted(found.members, key=lambda m: (m.instance_id or "", m.client_id, m.member_id)):
        row: dict[str, Any] = {
            "member": one.member_id,
            "instance": one.instance_id,
            "client": one.client_id,
            "host": one.host,
            "partitions": len(one.partitions),
            "assigned": _by_topic(one.partitions),
        }
        if one.target is not None:
            row["target"] = _by_topic(one.target)
        rows.append(row)
    if not as_json:
        for row in rows:
            for field in ("assigned", "target"):
                topics = row.get(field, {}).items()
                row[field] = " ".join(f"{topic}:{','.join(map(str, n))}" for topic, n in topics) or None
        summary = f"{found.group}: {found.state}, {counted(len(rows), 'member')}, {found.kind} protocol"
        typer.echo(printable(summary))
    columns = ["member", "instance", "client", "host", "partitions", "assigned"]
    show(rows, [*columns, "target"] if found.kind == "consumer" else columns, as_json=as_json)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


@groups.command(
    "reset",
    epilog=examples(
        "groups reset dashboard flights --to earliest --partition 0 --dry-run",
        "groups reset dashboard --all-topics --by-duration PT2H",
        "groups reset dashboard flights --shift-by -100",
        "groups reset dashboard --all-topics --shift-by 0 --dry-run --csv > before.csv",
        "groups reset dashboard --from-file before.csv",
        "groups reset loaders clicks --to latest --option protocol=0.7 --option zookeeper.connect=zk1:2181",
    ),
)
def reset(
    group: Group,
    topic: Annotated[str | None, typer.Argument(help="The topic.", autocompletion=topic_names)] = None,
    to: To = None,
    shift_by: ShiftBy = None,
    by_duration: ByDuration = None,
    from_file: FromFile = None,
    all_topics: AllTopics = False,
    partition: Partitions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be committed.")] = False,
    csv_: AsCsv = False,
    as_json: AsJson = False,
    option: InZooKeeper = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Set the committed offsets of a group without members.

    Name a topic, or --all-topics, and one of --to, --shift-by, --by-duration; or --from-file alone. A group
    that does not exist is created. Positions outside the log are refused, but --shift-by stops at the first
    and at the end offset.
    """
    _check_chosen(topic, all_topics, partition, (to, shift_by, by_duration, from_file))
    target = _target(to, shift_by, by_duration, from_file, group)
    with _store(server, option) as store:
        _check_empty(store, group)
        stored = store.stored(group)
        partitions = _partitions_to_reset(store.logs, topic, partition, target, stored)
        if not partitions:
            raise KafkaError(f"group {group!r} has no committed offsets on {store.place}")
        offsets = _new_offsets(store.logs, group, partitions, target, stored)
        if not dry_run:
            store.commit(group, offsets)
    _show_reset(partitions, stored, offsets, as_csv=csv_, as_json=as_json)
    if dry_run:
        typer.echo("nothing was committed: --dry-run", err=True)


def _check_chosen(
    topic: str | None, all_topics: bool, partition: list[int] | None, ways: tuple[object, ...]
) -> None:
    """``ways`` are the values of the options for the new offsets, --from-file last."""
    if sum(way is not None for way in ways) != 1:
        raise InvalidConfig("give one of --to, --shift-by, --by-duration and --from-file")
    if bool(topic) + all_topics != (1 if ways[-1] is None else 0):
        raise InvalidConfig("name a topic or give --all-topics: one of them; and neither with --from-file")
    if partition and topic is None:
        raise InvalidConfig("--partition needs a topic")


class _Shift(NamedTuple):
    offset_count: int


Target = dict[TopicPartition, int] | Position | _Shift


def _target(
    to: str | None, shift_by: int | None, by_duration: str | None, from_file: Path | None, group: str
) -> Target:
    if from_file is not None:
        return offsets_in_file(from_file, group)
    if to is not None:
        return parse_position(to, "--to")
    if by_duration is not None:
        return Time(SYSTEM_CLOCK.time_ms() - _duration_ms(by_duration))
    return _Shift(shift_by or 0)


def _partitions_to_reset(
    logs: LogPositions,
    topic: str | None,
    numbers: list[int] | None,
    target: Target,
    stored: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    """Partitions of the file, of the topic, or all with a committed offset; the first two must exist."""
    if not isinstance(target, dict):
        return logs.chosen(topic, numbers) if topic is not None else sorted(stored)
    partitions = sorted(target)
    for name in {tp.topic for tp in partitions}:
        logs.chosen(name, [tp.partition for tp in partitions if tp.topic == name])
    return partitions


def _new_offsets(
    logs: LogPositions,
    group: str,
    partitions: list[TopicPartition],
    target: Target,
    stored: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    first, last = (logs.resolve(partitions, end) for end in (EARLIEST, LATEST))
    if isinstance(target, dict):
        offsets: Mapping[TopicPartition, int] = target
    elif isinstance(target, _Shift):
        if without := [str(tp) for tp in partitions if tp not in stored]:
            raise KafkaError(
                f"--shift-by needs committed offsets; group {group!r} has none of {', '.join(without)}"
            )
        shift = target.offset_count
        offsets = {tp: min(max(stored[tp] + shift, first[tp]), last[tp]) for tp in partitions}
    else:
        offsets = logs.resolve(partitions, target)
    for tp in partitions:
        if not first[tp] <= offsets[tp] <= last[tp]:
            raise OffsetOutOfRange(str(tp), offsets[tp], first[tp], last[tp])
    logs.check(offsets)
    return offsets


def _show_reset(
    partitions: Iterable[TopicPartition],
    stored: Mapping[TopicPartition, int],
    offsets: Mapping[TopicPartition, int],
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    if as_csv:
        lines = ((tp.topic, tp.number, offsets[tp]) for tp in partitions)
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
        return
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition if tp.broker == NO_BROKER else tp.number,
            "before": stored.get(tp),
            "committed": offsets[tp],
        }
        for tp in partitions
    ]
    show(rows, ["topic", "partition", "before", "committed"], as_json=as_json)


@groups.command("delete", epilog=examples("groups delete dashboard loaders"))
def delete(
    group: Annotated[list[str], typer.Argument(help="The groups.", autocompletion=group_names)],
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Delete groups without members, with all their committed offsets."""
    with connected(server) as cluster:
        for name in group:
            delete_groups(cluster, [name])
            typer.echo(f"deleted group {name}", err=True)


@groups.command("delete-offsets", epilog=examples("groups delete-offsets dashboard flights --partition 0"))
def delete_offsets(
    group: Group,
    topic: Topic,
    partition: Partitions = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Delete a group's committed offsets for a topic to which no member is subscribed."""
    with connected(server) as cluster:
        stored = sorted(tp for tp in committed_offsets(cluster, group) if tp.topic == topic)
        chosen = [tp for tp in stored if not partition or tp.partition in partition]
        if not chosen:
            raise KafkaError(f"group {group!r} has no such committed offsets of topic {topic!r} on {server}")
        delete_group_offsets(cluster, group, chosen)
    typer.echo(f"deleted {counted(len(chosen), 'offset')} of group {group}", err=True)


def _check_empty(store: GroupStore, group: str) -> None:
    """Members would overwrite the offsets."""
    try:
        found = store.describe(group)
    except UnsupportedVersion:  # brokers before 0.9 have no members
        return
    if found.members:
        raise KafkaError(
            f"group {group!r} is {found.state}: the group has members, and only they may commit for it: stop "
            "them, or use another group"
        )


def _duration_ms(text: str) -> int:
    parts = _DURATION.fullmatch(text.strip().upper())
    if parts is None or not any(parts.groups()):
        raise InvalidConfig(f"--by-duration: {text!r} is not a duration, such as PT30M, PT2H or P1DT12H")
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


transactions = ClusterCommands(
    name="transactions",
    no_args_is_help=True,
    help="List and describe transactions, and abort one whose producer is gone.",
    epilog=examples(
        "transactions list --open", "transactions describe orders-loader", "transactions abort orders-loader"
    ),
)
Id = Annotated[str, typer.Argument(metavar="ID", help="The transactional.id.")]


@transactions.command("list", epilog=examples("transactions list --open"))
def list_ids(
    only_open: Annotated[bool, typer.Option("--open", help="Only ids with an open transaction.")] = False,
    as_json: AsJson = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """List the transactional ids of the cluster, each with the state of its last transaction."""
    with connected(server) as cluster:
        listed = list_transactions(cluster, ongoing=only_open)
    columns = ["transactional_id", "state", "producer_id"]
    show([{name: getattr(one, name) for name in columns} for one in listed], columns, as_json=as_json)


@transactions.command("describe", epilog=examples("transactions describe orders-loader"))
def describe_id(transactional_id: Id, as_json: AsJson = False, server: Servers = DEFAULT_SERVER) -> None:
    """Show an id's producer, and the state and partitions of its transaction."""
    with connected(server) as cluster:
        found = describe_transaction(cluster, transactional_id)
    started = None if found.started_ms is None else utc_text(found.started_ms)
    rows = [{"topic": tp.topic, "partition": tp.partition} for tp in found.partitions]
    if as_json:
        document = {
            "transactional_id": found.transactional_id,
            "state": found.state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.timeout_ms,
            "started": started,
            "partitions": rows,
        }
        show([document], [], as_json=True)
        return
    typer.echo(
        f"{transactional_id}: {found.state}, producer {found.producer_id} epoch {found.producer_epoch}, "
        f"transaction.timeout.ms {found.timeout_ms:,}"
    )
    if found.started_ms is not None:
        seconds = max(SYSTEM_CLOCK.time_ms() - found.started_ms, 0) // 1000
        typer.echo(f"open for {counted(seconds, 'second')}, since {started}")
    if rows:
        show(rows, ["topic", "partition"], as_json=False)


@transactions.command("abort", epilog=examples("transactions abort orders-loader"))
def abort_id(transactional_id: Id, server: Servers = DEFAULT_SERVER) -> None:
    """Abort the open transaction of an id, so that readers of committed records can continue.

    A producer that still runs is fenced: its next call fails. Without this command the coordinator aborts
    it transaction.timeout.ms after its start.
    """
    with connected(server) as cluster:
        found = abort_transaction(cluster, transactional_id)
    typer.echo(
        f"aborted the transaction of {transactional_id} in {counted(len(found.partitions), 'partition')}",
        err=True,
    )
