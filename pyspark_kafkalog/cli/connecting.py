"""Shared by the commands that talk to a cluster: common options, the connection, the choice of partitions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client import ClientConfig, parse_addresses
from pyspark_kafkalog.config.client07 import PROTOCOL_07
from pyspark_kafkalog.config.definition import masked, parse_layers
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, UnknownTopicOrPartition, error_for
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.client.discovery import TopicMetadata

C = TypeVar("C", bound=ClientConfig)
F = TypeVar("F", bound=Callable[..., Any])

_SERVER = "KAFKALOG_BOOTSTRAP_SERVER"
"""Environment variable of --bootstrap-server."""
Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", "-b", envvar=_SERVER, help="Brokers to connect to first, host:port,..."
    ),
]
DEFAULT_SERVER = "127.0.0.1:9092"

_COMMAND_CONFIG = "KAFKALOG_COMMAND_CONFIG"
"""Environment variable of --command-config."""
_CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar=_COMMAND_CONFIG,
        help="File with the client's properties, such as security.protocol and sasl.*.",
    ),
]
_properties_file: ContextVar[Path | None] = ContextVar("command_config", default=None)

_RELEASE = "KAFKALOG_BROKER_VERSION"
"""Environment variable with the version of brokers before Kafka 0.10."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
]


class ClusterCommands(typer.Typer):
    """Commands of which those with a ``server`` also have --command-config, which `client_config` reads."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[F], F]:
        register = super().command(*args, **kwargs)

        def registered(command: F) -> F:
            register(_with_command_config(command))
            return command

        return registered


def _with_command_config(command: F) -> F:
    signature = inspect.signature(command, eval_str=True)
    if "server" not in signature.parameters:
        return command

    @wraps(command)
    def run(*args: Any, command_config: Path | None = None, **kwargs: Any) -> Any:
        token = _properties_file.set(command_config)
        try:
            return command(*args, **kwargs)
        finally:
            _properties_file.reset(token)

    added = inspect.Parameter(
        "command_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_CommandConfig
    )
    parameters = [*signature.parameters.values(), added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "command_config": _CommandConfig}
    return run  # type: ignore[return-value]


def command_properties() -> dict[str, str]:
    """The properties of the file that --command-config names; empty without it."""
    file = _properties_file.get()
    return load_properties(file) if file is not None else {}


def old_brokers() -> dict[str, str]:
    """Client properties for the broker version in KAFKALOG_BROKER_VERSION; empty if it is not set."""
    release = os.environ.get(_RELEASE, "").strip()
    return {"broker.version.fallback": release, "api.version.request": "false"} if release else {}


def client_config(cls: type[C], server: str, given: Mapping[str, object], source: str = "") -> C:
    """The configuration of a client of ``server``; ``source`` names the ``given`` properties in errors.

    `InvalidConfig` names the option or variable that the user set.
    """
    option = _SERVER if server == os.environ.get(_SERVER) else "--bootstrap-server"
    try:
        parse_addresses(server)
    except ValueError as e:
        raise InvalidConfig(
            f"{option}: {masked(str(e))}; expected host:port,..., such as {DEFAULT_SERVER}"
        ) from None
    layers: list[tuple[str, Mapping[str, object]]] = [
        (_RELEASE, old_brokers()),
        (str(_properties_file.get()), command_properties()),
        (source, given),
        (option, {"bootstrap.servers": server}),
    ]
    return replace(parse_layers(cls, layers), servers_option=option)


@contextmanager
def connected(server: str) -> Iterator[Cluster]:
    """A `Cluster` that is closed at the end of the block."""
    cluster = Cluster(client_config(ClientConfig, server, {}))
    try:
        yield cluster
    finally:
        cluster.close()


def found_topic(cluster: Cluster, name: str, *, refresh: bool = False) -> TopicMetadata:
    """A topic's metadata; raises `KafkaError` if it does not exist or cannot be described."""
    topic = cluster.metadata([name], refresh=refresh).topics[name]
    if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise error_for(topic.error, f"topic {name!r}: {topic.error.name}")
    if not topic.partitions:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist on {cluster.config.bootstrap_servers}")
    return topic


def chosen_partitions(cluster: Cluster, name: str, wanted: Sequence[int] | None) -> list[TopicPartition]:
    """The partitions of a topic, or only the ``wanted`` ones, all of which must exist."""
    have = sorted(found_topic(cluster, name).partitions)
    missing = sorted(set(wanted or ()) - set(have))
    if missing:
        raise UnknownTopicOrPartition(
            f"topic {name!r} has no partition {', '.join(map(str, missing))}; it has {have[0]} to {have[-1]}"
        )
    return [TopicPartition(name, number) for number in (sorted(set(wanted)) if wanted else have)]


def pairs(texts: Iterable[str] | None, option: str) -> list[tuple[str, str]]:
    """Parse the values of a repeated option of the form ``name=value``; ``option`` is its name for errors."""
    found = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{masked(text)!r} is not name=value", param_hint=option)
        found.append((name.strip(), value))
    return found


def properties(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """As `pairs`, as a dictionary: the last value of a name wins."""
    return {name: value.strip() for name, value in pairs(texts, option)}


def separator_bytes(text: str) -> bytes:
    """The key separator, with backslash-t for a tab; it may neither be empty nor hold a line break."""
    data = text.replace("\\t", "\t").encode()
    if not data or b"\n" in data:
        raise typer.BadParameter(f"{text!r} cannot be a key separator", param_hint="--key-separator")
    return data


def speaks_07(options: Mapping[str, str]) -> bool:
    """Whether options of the Spark source select Kafka 0.7."""
    return any(name.lower() == "protocol" and text.strip() == PROTOCOL_07 for name, text in options.items())
