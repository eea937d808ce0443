"""Shared by commands: options, the connection, partitions and positions as users write them."""

from __future__ import annotations

import csv
import inspect
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, parse_iso_time
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import masked, parse_layers
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidConfig,
    KafkaError,
    UnknownTopicOrPartition,
    error_for,
    reason,
)
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_BROKER,
    PROTOCOL_07,
    IsolationLevel,
    TopicPartition,
    parse_addresses,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.client.discovery import TopicMetadata

C = TypeVar("C", bound=ClientConfig)
F = TypeVar("F", bound=Callable[..., Any])

_SERVER, _SERVERS = "KAFKALOG_BOOTSTRAP_SERVER", "bootstrap.servers"
Servers = Annotated[
    str, typer.Option("--bootstrap-server", "-b", envvar=_SERVER, help="Brokers to start with: host:port,...")
]
DEFAULT_SERVER = "127.0.0.1:9092"
_COMMAND_CONFIG = "KAFKALOG_COMMAND_CONFIG"
_CommandConfig = Annotated[
    Path | None,
    typer.Option(envvar=_COMMAND_CONFIG, help="File of client properties, also bootstrap.servers."),
]
_properties_file: ContextVar[Path | None] = ContextVar("command_config", default=None)

_RELEASE = "KAFKALOG_BROKER_VERSION"  # environment variable with the version of brokers before Kafka 0.10

_COMPLETION_SECONDS = 3.0
"""What a user waits for after the Tab key, at most."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
]


def examples(*commands: str, text: str = "") -> str:
    """Epilog of a command; ``kafkalog`` may be left out of commands, and ``text`` follows them."""
    lines = [line if "kafkalog " in line else f"kafkalog {line}" for line in commands]
    lines = [f"Example: {lines[0]}"] if len(lines) == 1 else ["Examples:", *lines]
    return "\n\n".join([*lines, *([text] if text else [])])


class ClusterCommands(typer.Typer):
    """Adds --command-config to commands with a ``server``; `client_config` reads it."""

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
    def run(*args: Any, context: typer.Context, command_config: Path | None = None, **kwargs: Any) -> Any:
        token = _properties_file.set(command_config)
        try:
            source = context.get_parameter_source("server")
            if source is not None and source.name == "DEFAULT":
                kwargs["server"] = command_properties().get(_SERVERS, kwargs["server"])
            return command(*args, **kwargs)
        finally:
            _properties_file.reset(token)

    added = {"context": typer.Context, "command_config": _CommandConfig}
    parameters = [
        *signature.parameters.values(),
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter(
            "command_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_CommandConfig
        ),
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **added}
    return run  # type: ignore[return-value]


def command_properties() -> dict[str, str]:
    file = _properties_file.get()
    return load_properties(file) if file is not None else {}


def old_brokers() -> dict[str, str]:
    release = os.environ.get(_RELEASE, "").strip()
    return {"broker.version.fallback": release, "api.version.request": "false"} if release else {}


def client_config(cls: type[C], server: str, given: Mapping[str, object], source: str = "") -> C:
    """`InvalidConfig` names the option or variable that was set."""
    from_file = command_properties()
    option = _SERVER if server == os.environ.get(_SERVER) else "--bootstrap-server"
    if server == from_file.get(_SERVERS):
        option = f"{_SERVERS} in {_properties_file.get()}"
    try:
        parse_addresses(server)
    except ValueError as e:
        raise InvalidConfig(
            f"{option}: {masked(str(e))}; expected host:port,..., such as {DEFAULT_SERVER}"
        ) from None
    layers: list[tuple[str, Mapping[str, object]]] = [
        (_RELEASE, old_brokers()),
        (str(_properties_file.get()), from_file),
        (source, given),
        (option, {_SERVERS: server}),
    ]
    return replace(parse_layers(cls, layers), servers_option=option)


@contextmanager
def connected(server: str) -> Iterator[Cluster]:
    with closing(Cluster(client_config(ClientConfig, server, {}))) as cluster:
        yield cluster


def topic_names(context: typer.Context) -> list[str]:
    """For a shell's completion; none rather than an error."""
    return _completions(context, lambda cluster, deadline: cluster.metadata(None, deadline=deadline).topics)


def group_names(context: typer.Context) -> list[str]:
    """As `topic_names`."""
    from pyspark_kafkalog.client.groups import list_groups

    return _completions(
        context, lambda cluster, deadline: (each.group for each in list_groups(cluster, deadline=deadline))
    )


def _completions(context: typer.Context, find: Callable[[Cluster, Deadline], Iterable[str]]) -> list[str]:
    token = _properties_file.set(context.params.get("command_config"))
    logging.disable()
    try:
        source = context.get_parameter_source("server")
        server = context.params.get("server")
        if server is None or source is None or source.name == "DEFAULT":
            server = command_properties().get(_SERVERS, server or DEFAULT_SERVER)
        with connected(server) as cluster:
            return sorted(find(cluster, Deadline.after(_COMPLETION_SECONDS, SYSTEM_CLOCK)))
    except (KafkaError, OSError):
        return []
    finally:
        logging.disable(logging.NOTSET)
        _properties_file.reset(token)


Topic = Annotated[str, typer.Argument(help="The topic.", autocompletion=topic_names)]


def found_topic(cluster: Cluster, name: str, *, refresh: bool = False) -> TopicMetadata:
    """Raises `KafkaError` if it does not exist or cannot be described."""
    topic = cluster.metadata([name], refresh=refresh).topics[name]
    if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise error_for(topic.error, f"topic {name!r}: {reason(topic.error, 'Describe', topic=name)}")
    if not topic.partitions:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist on {cluster.config.bootstrap_servers}")
    return topic


def chosen_partitions(cluster: Cluster, name: str, wanted: Sequence[int] | None) -> list[TopicPartition]:
    """All, or the ``wanted`` ones, which must exist."""
    have = sorted(found_topic(cluster, name).partitions)
    missing = sorted(set(wanted or ()) - set(have))
    if missing:
        raise UnknownTopicOrPartition(
            f"topic {name!r} has no partition {', '.join(map(str, missing))}; it has {have[0]} to {have[-1]}"
        )
    return [TopicPartition(name, number) for number in (sorted(set(wanted)) if wanted else have)]


def pairs(texts: Iterable[str] | None, option: str) -> list[tuple[str, str]]:
    """``option`` is its name for errors."""
    found = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{masked(text)!r} is not name=value", param_hint=option)
        found.append((name.strip(), value))
    return found


def properties(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    return {name: value.strip() for name, value in pairs(texts, option)}


def separator_bytes(text: str) -> bytes:
    """A backslash-t is a tab."""
    data = text.replace("\\t", "\t").encode()
    if not data or b"\n" in data:
        raise typer.BadParameter(f"{text!r} cannot be a key separator", param_hint="--key-separator")
    return data


def speaks_07(options: Mapping[str, str]) -> bool:
    return any(name.lower() == "protocol" and text.strip() == PROTOCOL_07 for name, text in options.items())


FORMS = "earliest, latest, an offset, -N (N before the end), timestamp:MS or an ISO 8601 time since 1970"

_WORDS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_TIMESTAMP = "timestamp:"
_MAX_INT64 = (1 << 63) - 1


class Offset(msgspec.Struct, frozen=True):
    offset: int


class Back(msgspec.Struct, frozen=True):
    count: int


class Time(msgspec.Struct, frozen=True):
    """The first record at or after a time in milliseconds; -2 is earliest, -1 latest, as in ListOffsets."""

    timestamp_ms: int


Position = Offset | Back | Time

EARLIEST, LATEST = Time(EARLIEST_TIMESTAMP), Time(LATEST_TIMESTAMP)


def parse_position(text: str, option: str) -> Position:
    """Parse any of `FORMS`; a time without a zone is UTC."""
    word = text.strip()
    if word.lower() in _WORDS:
        return Time(_WORDS[word.lower()])
    number = word.removeprefix("-")
    if number.isascii() and number.isdecimal():
        count = int(number)
        if count <= _MAX_INT64:
            return Back(count) if word.startswith("-") else Offset(count)
    elif (time := parse_time(word)) is not None:
        return Time(time)
    raise InvalidConfig(f"{option}: {text!r} is not a position; allowed: {FORMS}")


def parse_time(text: str) -> int | None:
    """Milliseconds of ``timestamp:MS`` or an ISO 8601 time; None for others and before 1970."""
    if text.startswith(_TIMESTAMP):
        digits = text.removeprefix(_TIMESTAMP)
        plain = digits.isascii() and digits.isdecimal() and int(digits) <= _MAX_INT64
        return int(digits) if plain else None
    try:
        since = parse_iso_time(text) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    except ValueError:
        return None
    # Integers, because a float would lose milliseconds; rounded up, for "at or after".
    time_ms = -(-((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) // 1000)
    return time_ms if time_ms >= 0 else None


def resolve(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    position: Position,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """The offset of ``position`` per partition; the end if no record is that late. See `list_offsets`."""
    if isinstance(position, Offset):
        return dict.fromkeys(partitions, position.offset)

    def offsets(timestamp: int) -> Mapping[TopicPartition, int]:
        asked = dict.fromkeys(partitions, timestamp)
        found = list_offsets(cluster, asked, isolation=isolation, by_segment=True)
        return {tp: one.offset for tp, one in found.items()}

    if isinstance(position, Back):
        first, last = offsets(EARLIEST_TIMESTAMP), offsets(LATEST_TIMESTAMP)
        return {tp: max(first[tp], last[tp] - position.count) for tp in partitions}
    found = offsets(position.timestamp_ms)
    late = [tp for tp in partitions if found[tp] < 0]
    ends = offsets(LATEST_TIMESTAMP) if late else {}
    # Under read_committed, the offset found for a time may be after the last stable offset.
    return {tp: ends[tp] if tp in late else found[tp] for tp in partitions}


_PARTITION = re.compile(r"(?:([0-9]{1,10})-)?([0-9]{1,10})")
_OFFSET = re.compile(r"[0-9]{1,19}")


def offsets_in_file(path: Path, group: str | None = None) -> dict[TopicPartition, int]:
    """Read lines ``topic,partition,offset``, or with a group first; skips groups other than ``group``.

    A 0.7 partition is ``broker-partition``. Raises `InvalidConfig`, also for an empty result.
    """
    found: dict[TopicPartition, int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as e:
        raise InvalidConfig(f"{path} is not a CSV file in UTF-8: {e}") from None
    for number, row in enumerate(rows, start=1):
        grouped = len(row) == 4 and group is not None
        if not row or (grouped and row[0] != group):
            continue
        tp, offset = _offset_in(row[1:] if grouped else row, f"{path}, line {number}")
        if tp in found:
            raise InvalidConfig(f"{path}, line {number}: {tp} is listed twice")
        found[tp] = offset
    if not found:
        raise InvalidConfig(f"{path} has no offsets" + (f" of group {group!r}" if group else ""))
    return found


def _offset_in(row: list[str], where: str) -> tuple[TopicPartition, int]:
    if len(row) == 3 and row[0] and (partition := _PARTITION.fullmatch(row[1])) and _OFFSET.fullmatch(row[2]):
        broker, number = partition.groups()
        tp = TopicPartition(row[0], int(number), NO_BROKER if broker is None else int(broker))
        if int(row[2]) <= _MAX_INT64:
            return tp, int(row[2])
    raise InvalidConfig(
        f"{where}: {','.join(row)!r} is not topic,partition,offset, such as flights,0,1200; an offset is 0 "
        "or more, and there is no header line"
    )


_DURATIONS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str, option: str) -> int:
    """``7d``, ``12h``, ``30m`` or ``60s`` in milliseconds."""
    found = quantity(text.strip(), _DURATIONS_MS)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration; give a number and s, m, h or d: 7d, 12h, 60s", param_hint=option
        )
    return found


def quantity(text: str, units: Mapping[str, int]) -> int | None:
    """A whole number with one of the units; None for other texts."""
    parts = re.fullmatch(rf"([0-9]{{1,6}})\s*({'|'.join(units)})", text)
    return None if parts is None else int(parts[1]) * units[parts[2]]
