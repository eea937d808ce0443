"""``kafkalog groups``: list and describe consumer groups, and reset their offsets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pyspark_kafkalog.cli.connecting import (
    DEFAULT_SERVER,
    AsJson,
    Partitions,
    Servers,
    chosen_partitions,
    connected,
)
from pyspark_kafkalog.cli.positions import (
    EARLIEST,
    FORMS,
    LATEST,
    Offset,
    Rows,
    group_rows,
    parse_position,
    resolve,
    without_tp,
)
from pyspark_kafkalog.cli.terminal_output import counted, show
from pyspark_kafkalog.client.groups import (
    GroupDescription,
    commit_offsets,
    committed_offsets,
    describe_group,
    list_groups,
)
from pyspark_kafkalog.errors import KafkaError, OffsetOutOfRange

_EXAMPLES = """\
Examples:

kafkalog groups list

kafkalog groups describe dashboard

kafkalog groups reset dashboard flights --to 2026-11-21T00:00Z --dry-run
"""

groups = typer.Typer(
    no_args_is_help=True, help="List and describe consumer groups, and reset their offsets.", epilog=_EXAMPLES
)
Group = Annotated[str, typer.Argument(help="The group.")]

_DEAD = "Dead"


@groups.command("list", epilog="Example: kafkalog groups list --json | jq -r .group")
def list_(as_json: AsJson = False, server: Servers = DEFAULT_SERVER) -> None:
    """List the groups of the cluster. Groups that only store offsets have no protocol."""
    with connected(server) as cluster:
        found = list_groups(cluster)
    rows = [{"group": g.group, "state": g.state or None, "protocol": g.protocol_type or None} for g in found]
    show(rows, ["group", "state", "protocol"], as_json=as_json)


@groups.command("describe", epilog="Example: kafkalog groups describe dashboard")
def describe(group: Group, as_json: AsJson = False, server: Servers = DEFAULT_SERVER) -> None:
    """Show a group: its state and, for each partition, committed offset, lag and client."""
    with connected(server) as cluster:
        found = describe_group(cluster, group)
        readers = {tp: member for member in found.members for tp in member.partitions}
        rows = group_rows(cluster, group, also=readers)
    if found.state == _DEAD and not rows:
        raise KafkaError(f"consumer group {group!r} does not exist on {server}")
    for row in rows:
        member = readers.get(row["tp"])
        row["member"] = member.member_id if member else None
        row["client"] = f"{member.client_id} {member.host}" if member else None
    if as_json:
        show([_document(found, without_tp(rows))], [], as_json=True)
        return
    strategy = f", assigned by {found.protocol}" if found.protocol else ""
    typer.echo(f"{group}: {found.state}, {counted(len(found.members), 'member')}{strategy}")
    for member in found.members:
        if not member.partitions:
            typer.echo(f"no partitions: {member.client_id} {member.host} ({member.member_id})")
    total = {"topic": "total", "lag": sum(row["lag"] or 0 for row in rows)}
    show(rows, ["topic", "partition", "committed", "latest", "lag", "client"], as_json=False, total=total)


def _document(found: GroupDescription, rows: Rows) -> dict[str, Any]:
    return {
        "group": found.group,
        "state": found.state,
        "protocol_type": found.protocol_type,
        "protocol": found.protocol,
        "members": [{"member": m.member_id, "client": m.client_id, "host": m.host} for m in found.members],
        "partitions": rows,
    }


@groups.command(
    "reset",
    epilog="Example: kafkalog groups reset dashboard flights --to earliest --partition 0 --dry-run",
)
def reset(
    group: Group,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    to: Annotated[str, typer.Option("--to", help=f"New position: {FORMS}.")],
    partition: Partitions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be committed.")] = False,
    as_json: AsJson = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Set the committed offsets of a group without members. A group that does not exist is created."""
    position = parse_position(to, "--to")
    with connected(server) as cluster:
        partitions = chosen_partitions(cluster, topic, partition)
        stored = committed_offsets(cluster, group, partitions)
        offsets = resolve(cluster, partitions, position)
        if isinstance(position, Offset):
            first, last = (resolve(cluster, partitions, end) for end in (EARLIEST, LATEST))
            for tp in partitions:
                if not first[tp] <= position.offset <= last[tp]:
                    raise OffsetOutOfRange(str(tp), position.offset, first[tp], last[tp])
        if not dry_run:
            commit_offsets(cluster, group, offsets)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "before": stored[tp].offset if tp in stored else None,
            "committed": offsets[tp],
        }
        for tp in partitions
    ]
    show(rows, ["topic", "partition", "before", "committed"], as_json=as_json)
    if dry_run:
        typer.echo("nothing was committed: --dry-run", err=True)
