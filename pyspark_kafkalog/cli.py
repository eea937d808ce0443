"""The command line of the connector: ``kafkalog``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.errors import InvalidConfig, KafkaError, UnknownTopicOrPartition
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Look after a Kafka cluster's topics from the command line.",
    epilog="Exit codes: 0 done, 1 the cluster said no or could not be reached, 2 the command was wrong.",
)
topics = typer.Typer(
    no_args_is_help=True,
    help="Make, list, describe and delete topics.",
    epilog="Example: kafkalog topics create flights --partitions 4 --config retention.ms=86400000",
)
app.add_typer(topics, name="topics")

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", "-b", envvar="KAFKALOG_BOOTSTRAP_SERVER", help="Brokers to ask, host:port,..."
    ),
]
Name = Annotated[str, typer.Argument(help="The topic.")]
DEFAULT_SERVER = "127.0.0.1:9092"


@app.callback()
def _main() -> None:
    # With one group of commands typer would leave its name out; there will be more.
    pass


@topics.command("create")
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many; the broker's default if left out.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="A property of the topic, name=value.")] = None,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Make a topic."""
    configs = dict(_property(text) for text in config or ())
    admin.create_topics(server, [admin.NewTopic(name, partitions or -1, configs=configs)])
    typer.echo(f"created {name}")


@topics.command("list")
def list_topics(
    server: Servers = DEFAULT_SERVER,
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own topics too.")] = False,
) -> None:
    """List the topics, one a line, with their numbers of partitions."""
    with _cluster(server) as (_, metadata):
        for name, topic in sorted(metadata.topics.items()):
            if internal or not topic.is_internal:
                typer.echo(f"{name}\t{len(topic.partitions)}")


@topics.command("describe")
def describe(name: Name, server: Servers = DEFAULT_SERVER) -> None:
    """Show a topic: its id, its own properties, and where each partition begins and ends."""
    with _cluster(server) as (cluster, metadata):
        topic = metadata.topics.get(name)
        if topic is None or not topic.partitions:
            raise UnknownTopicOrPartition(f"no topic is called {name!r} on {server}")
        partitions = [TopicPartition(name, number) for number in sorted(topic.partitions)]
        first = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        last = list_offsets(cluster, dict.fromkeys(partitions, LATEST_TIMESTAMP))
        configs = admin.describe_configs(cluster, topic=name)
    own = ", ".join(f"{key}={entry.value}" for key, entry in configs.items() if not entry.is_default)
    typer.echo(f"{name}  id {topic.topic_id}  {own or 'no properties of its own'}")
    table = Table("partition", "leader", "earliest", "latest", "offsets")
    for tp in partitions:
        begin, end = first[tp].offset, last[tp].offset
        leader = topic.partitions[tp.partition].leader
        table.add_row(str(tp.partition), str(leader), str(begin), str(end), f"{end - begin:,}")
    Console(soft_wrap=True).print(table)


@topics.command("delete")
def delete(
    names: Annotated[list[str], typer.Argument(help="The topics.")],
    server: Servers = DEFAULT_SERVER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete topics with all their data."""
    if not yes:
        typer.confirm(f"Delete {', '.join(names)} with all data?", abort=True)
    admin.delete_topics(server, names)
    typer.echo(f"deleted {', '.join(names)}")


@contextmanager
def _cluster(server: str) -> Iterator[tuple[Cluster, ClusterMetadata]]:
    """The cluster and all its topics, as they are now."""
    cluster = Cluster(ClientConfig(bootstrap_servers=server))
    try:
        yield cluster, cluster.metadata(None)
    finally:
        cluster.close()


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--config")
    return name.strip(), value.strip()


def main() -> None:
    """The console script: one line and an exit code for whatever goes wrong."""
    try:
        app()
    except KafkaError as e:
        typer.echo(f"kafkalog: {e}", err=True)
        sys.exit(2 if isinstance(e, InvalidConfig) else 1)


if __name__ == "__main__":
    main()
