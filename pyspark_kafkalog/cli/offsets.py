"""``kafkalog offsets``: first and end offsets of a topic's partitions, or the offsets at a time."""

from __future__ import annotations

from datetime import datetime, timezone
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
from pyspark_kafkalog.cli.positions import EARLIEST, LATEST, check_group, parse_time, resolve
from pyspark_kafkalog.cli.terminal_output import show
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.status.snapshot import offsets_behind
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)

_WORDS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "newest": MAX_TIMESTAMP}

OFFSETS_EPILOG = """\
Examples:

kafkalog offsets flights

kafkalog offsets flights --time 2026-11-21T06:00Z

kafkalog offsets flights --group dashboard --json
"""


def offsets(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    time: Annotated[
        str | None,
        typer.Option(
            help="Show the first record at or after this time, in milliseconds or ISO 8601 (by default UTC); "
            "or earliest, latest, newest (the record with the latest time)."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Also show this group's committed offsets and lag.")
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
        if asked is not None:
            rows, columns = _at(cluster, partitions, asked, isolation), ["partition", "offset", "time"]
        else:
            rows, columns = (
                _ends(cluster, partitions, isolation),
                ["partition", "earliest", "latest", "offsets"],
            )
        if group is not None:
            _add_group(cluster, group, rows, isolation)
            columns += ["committed", "lag"]
    total: dict[str, Any] = {"partition": "total"}
    for column in ("offsets", "lag"):
        if column in columns:
            total[column] = sum(row[column] for row in rows)
    show(rows, columns, as_json=as_json, total=total if len(total) > 1 else None)


def _time(text: str) -> int:
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    found = parse_time(f"timestamp:{word}" if word.isdecimal() else text.strip())
    if found is None:
        raise InvalidConfig(
            f"--time: {text!r} is not a time; allowed: earliest, latest, newest, milliseconds or ISO 8601"
        )
    return found


def _ends(
    cluster: Cluster, partitions: list[TopicPartition], isolation: IsolationLevel
) -> list[dict[str, Any]]:
    first = resolve(cluster, partitions, EARLIEST, isolation=isolation)
    last = resolve(cluster, partitions, LATEST, isolation=isolation)
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "earliest": first[tp],
            "latest": last[tp],
            "offsets": last[tp] - first[tp],
        }
        for tp in partitions
    ]


def _at(
    cluster: Cluster, partitions: list[TopicPartition], timestamp: int, isolation: IsolationLevel
) -> list[dict[str, Any]]:
    """The answer of ListOffsets; None if no record is that late."""
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
    """Milliseconds as ISO 8601; None if negative or beyond the calendar."""
    try:
        time = datetime.fromtimestamp(timestamp // 1000, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03}Z" if timestamp >= 0 else None


def _add_group(cluster: Cluster, group: str, rows: list[dict[str, Any]], isolation: IsolationLevel) -> None:
    partitions = [TopicPartition(row["topic"], row["partition"]) for row in rows]
    stored = committed_offsets(cluster, group, partitions)
    if not stored:
        check_group(cluster, group)
    first = resolve(cluster, partitions, EARLIEST, isolation=isolation)
    last = resolve(cluster, partitions, LATEST, isolation=isolation)
    for tp, row in zip(partitions, rows, strict=True):
        row["group"] = group
        row["committed"] = stored[tp].offset if tp in stored else None
        row["lag"] = offsets_behind(row["committed"], first[tp], last[tp])
