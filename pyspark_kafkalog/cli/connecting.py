"""What commands that talk to a cluster have in common: the options, the connection, the partitions meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client import ClientConfig, parse_addresses
from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.definition import masked, parse_layers
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, UnknownTopicOrPartition, error_for
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.client.discovery import TopicMetadata

C = TypeVar("C", bound=ClientConfig)

_SERVER = "KAFKALOG_BOOTSTRAP_SERVER"
"""The variable that stands for --bootstrap-server."""
Servers = Annotated[
    str,
    typer.Option("--bootstrap-server", "-b", envvar=_SERVER, help="Brokers to ask, host:port,..."),
]
DEFAULT_SERVER = "127.0.0.1:9092"

_RELEASE = "KAFKALOG_BROKER_VERSION"
"""The variable that names the release of brokers before Kafka 0.10."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; again for more.")
]


def old_brokers() -> dict[str, str]:
    """The properties by which clients know of which release the brokers are, where that is told."""
    release = os.environ.get(_RELEASE, "").strip()
    return {"broker.version.fallback": release, "api.version.request": "false"} if release else {}


def client_config(cls: type[C], server: str, given: Mapping[str, object], source: str = "") -> C:
    """The properties of a client of ``server``; ``given`` are those that the command sets, by ``source``.

    Raises:
        InvalidConfig: a wrong address or property, under the name by which the user gave it.
    """
    option = _SERVER if server == os.environ.get(_SERVER) else "--bootstrap-server"
    try:
        parse_addresses(server)
    except ValueError as e:
        raise InvalidConfig(
            f"{option}: {masked(str(e))}; expected host:port,..., such as {DEFAULT_SERVER}"
        ) from None
    layers = [(_RELEASE, old_brokers()), (source, given), (option, {"bootstrap.servers": server})]
    return replace(parse_layers(cls, layers), servers_option=option)


@contextmanager
def connected(server: str) -> Iterator[Cluster]:
    """The cluster for the length of one command."""
    cluster = Cluster(client_config(ClientConfig, server, {}))
    try:
        yield cluster
    finally:
        cluster.close()


def found_topic(cluster: Cluster, name: str, *, refresh: bool = False) -> TopicMetadata:
    """What the cluster says of a topic.

    Raises:
        UnknownTopicOrPartition: it is not there.
        KafkaError: it may not be seen, or its name cannot be one.
    """
    topic = cluster.metadata([name], refresh=refresh).topics[name]
    if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise error_for(topic.error, f"topic {name!r}: {topic.error.name}")
    if not topic.partitions:
        raise UnknownTopicOrPartition(f"no topic is called {name!r} on {cluster.config.bootstrap_servers}")
    return topic


def chosen_partitions(cluster: Cluster, name: str, wanted: Sequence[int] | None) -> list[TopicPartition]:
    """The partitions of a topic, or those of them that are ``wanted``.

    Raises:
        UnknownTopicOrPartition: the topic, or one of the partitions, is not there.
    """
    have = sorted(found_topic(cluster, name).partitions)
    missing = sorted(set(wanted or ()) - set(have))
    if missing:
        raise UnknownTopicOrPartition(
            f"topic {name!r} has no partition {', '.join(map(str, missing))}; it has {have[0]} to {have[-1]}"
        )
    return [TopicPartition(name, number) for number in (sorted(set(wanted)) if wanted else have)]


def pairs(texts: Iterable[str] | None, option: str) -> list[tuple[str, str]]:
    """What a repeated option ``name=value`` says; ``option`` is its name.

    Raises:
        typer.BadParameter: a text without a name or without ``=``.
    """
    found = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{masked(text)!r} is not name=value", param_hint=option)
        found.append((name.strip(), value))
    return found


def properties(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """The same for properties, of which each has one value: the last.

    Raises:
        typer.BadParameter: as `pairs`.
    """
    return {name: value.strip() for name, value in pairs(texts, option)}


def separator_bytes(text: str) -> bytes:
    """A separator as typed in a shell, where a tab is hard to type.

    Raises:
        typer.BadParameter: it is empty, or could not be told from the end of a line.
    """
    data = text.replace("\\t", "\t").encode()
    if not data or b"\n" in data:
        raise typer.BadParameter(f"{text!r} cannot separate a key", param_hint="--key-separator")
    return data


def speaks_07(options: Mapping[str, str]) -> bool:
    """Whether options of the source say that brokers of Kafka 0.7 are meant."""
    return any(name.lower() == "protocol" and text.strip() == PROTOCOL_07 for name, text in options.items())
