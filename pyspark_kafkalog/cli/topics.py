"""``kafkalog topics``: create, list, describe, alter and delete topics, and their records."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    ClusterCommands,
    Servers,
    connected,
    examples,
    found_topic,
    pairs,
    properties,
    topic_names,
)
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.errors import InvalidConfig, UnsupportedVersion
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition, encode_id

topics = ClusterCommands(
    name="topics",
    no_args_is_help=True,
    help="Create, list, describe, alter and delete topics.",
    epilog=examples(
        "topics create flights --partitions 4",
        "topics describe flights",
        "topics alter flights --config retention.ms=86400000",
        "topics delete flights flights-copy",
    ),
)
Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=topic_names)]
Configs = Annotated[list[str] | None, typer.Option(help="Topic property, name=value; may be repeated.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_REPLICAS_MAX = 2**15 - 1  # the replication factor is an int16 in the request


@topics.command(
    "create", epilog=examples("topics create flights --partitions 4 --config retention.ms=86400000")
)
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions; default: the broker's.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            min=1, max=_REPLICAS_MAX, help="Copies per partition; default: the broker's, 1 before Kafka 2.4."
        ),
    ] = None,
    config: Configs = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Create a topic."""
    configs = properties(config, "--config")
    with connected(server) as cluster:
        topic = admin.NewTopic(name, partitions or -1, replication_factor or -1, configs)
        admin.create_topics(cluster, [topic])
    typer.echo(f"created {name}")


@topics.command("list", epilog=examples("topics list --internal"))
def list_topics(
    server: Servers = DEFAULT_SERVER,
    internal: Annotated[bool, typer.Option("--internal", help="Include Kafka's internal topics.")] = False,
) -> None:
    """List the topics, one per line, with the number of partitions."""
    with connected(server) as cluster:
        for name, topic in sorted(cluster.metadata(None).topics.items()):
            if internal or not topic.is_internal:
                typer.echo(f"{name}\t{len(topic.partitions)}")


@topics.command("describe", epilog=examples("topics describe flights"))
def describe(name: Name, server: Servers = DEFAULT_SERVER) -> None:
    """Show a topic: its id, the properties set for it, and the first and end offset of each partition."""
    with connected(server) as cluster:
        topic = found_topic(cluster, name)
        partitions = [TopicPartition(name, number) for number in sorted(topic.partitions)]
        first = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        last = list_offsets(cluster, dict.fromkeys(partitions, LATEST_TIMESTAMP))
        own = _own_properties(cluster, name)
    number = f"id {encode_id(topic.topic_id)}" if topic.topic_id.int else "no id"
    typer.echo(f"{name}  {number}  {own}")
    table = Table("partition", "leader", "earliest", "latest", "offsets")
    for tp in partitions:
        begin, end = first[tp].offset, last[tp].offset
        leader = topic.partitions[tp.partition].leader
        table.add_row(str(tp.partition), str(leader), str(begin), str(end), f"{end - begin:,}")
    Console(soft_wrap=True).print(table)


def _own_properties(cluster: Cluster, name: str) -> str:
    try:
        configs = admin.describe_configs(cluster, topic=name)
    except UnsupportedVersion:
        return "properties unknown: this broker is too old to report them"
    own = ", ".join(f"{key}={entry.value}" for key, entry in configs.items() if not entry.is_default)
    return own or "no topic properties"


@topics.command(
    "alter", epilog=examples("topics alter flights --config retention.ms=60000 --delete-config segment.bytes")
)
def alter(
    name: Name,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(help="Topic property to reset to the broker's value; may be repeated.")
    ] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="New, larger number of partitions.")] = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Change a topic's properties, or add partitions to it."""
    configs = properties(config, "--config")
    if not (configs or delete_config or partitions):
        raise InvalidConfig("nothing to change: give --config, --delete-config or --partitions")
    with connected(server) as cluster:
        if configs or delete_config:
            admin.alter_topic_configs(cluster, name, set=configs, delete=delete_config or ())
        if partitions:
            admin.create_partitions(cluster, {name: partitions})
    typer.echo(f"altered {name}")


@topics.command("delete", epilog=examples("topics delete flights flights-copy --yes"))
def delete(
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="The topics.", autocompletion=topic_names)
    ],
    server: Servers = DEFAULT_SERVER,
    yes: Yes = False,
) -> None:
    """Delete topics with all their data."""
    if not yes:
        typer.confirm(f"Delete {', '.join(names)} with all data?", abort=True)
    with connected(server) as cluster:
        admin.delete_topics(cluster, names)
    typer.echo(f"deleted {', '.join(names)}")


_THE_END = "end"


@topics.command(
    "delete-records", epilog=examples("topics delete-records flights --before 0=1000 --before 1=end --yes")
)
def delete_records(
    name: Name,
    before: Annotated[
        list[str], typer.Option(help="PARTITION=OFFSET, or end: delete what is before; may be repeated.")
    ],
    server: Servers = DEFAULT_SERVER,
    yes: Yes = False,
) -> None:
    """Delete the records of partitions before an offset."""
    wanted = {}
    for partition, offset in pairs(before, "--before"):
        if not partition.isdecimal() or not (offset.isdecimal() or offset == _THE_END):
            raise InvalidConfig(f"--before {partition}={offset} is not PARTITION=OFFSET: use 0=1000 or 0=end")
        wanted[TopicPartition(name, int(partition))] = -1 if offset == _THE_END else int(offset)
    if not yes:
        typer.confirm(f"Delete records of {', '.join(map(str, wanted))}?", abort=True)
    with connected(server) as cluster:
        found_topic(cluster, name)
        begins = admin.delete_records(cluster, wanted)
    for tp, begin in sorted(begins.items()):
        typer.echo(f"{tp} begins at offset {begin}")
