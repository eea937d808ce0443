"""Positions in a partition as a user writes them, the offsets they stand for, and the lag behind the end."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets, list_groups
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.clock import parse_iso_time
from pyspark_kafkalog.errors import InvalidConfig, KafkaError, UnsupportedVersion
from pyspark_kafkalog.status.snapshot import offsets_behind
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_BROKER,
    IsolationLevel,
    TopicPartition,
)

FORMS = "earliest, latest, an offset, -N (N before the end), timestamp:MS or an ISO 8601 time since 1970"
"""The forms that `parse_position` takes, for help texts and errors."""

_WORDS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_TIMESTAMP = "timestamp:"
_MAX_INT64 = (1 << 63) - 1

Rows = list[dict[str, Any]]
"""Each row has its partition under ``tp``, which is not printed."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Back:
    """``count`` offsets before the end, but not before the first offset."""

    count: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after a time in milliseconds; or ListOffsets' -2 (earliest) or -1 (latest)."""

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
    """Milliseconds since the epoch of ``timestamp:MS`` or of an ISO 8601 time; None if it is neither, or
    before 1970: brokers give negative times other meanings.
    """
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
    """The offset of ``position`` in each partition; the end if no record is that late.

    For a time, brokers before 0.10.1 may answer with an earlier offset: see `list_offsets`.
    """
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


def group_rows(cluster: Cluster, group: str, also: Iterable[TopicPartition] = ()) -> Rows:
    """A row for each partition of the topics in which ``group`` has committed offsets, and for ``also``."""
    stored = stored_offsets(cluster, group)
    known = [*stored, *also]
    rows = partition_rows(cluster, {tp.topic for tp in known}, known)
    for row in rows:
        row["committed"], row["lag"] = behind(stored.get(row["tp"]), row)
    return rows


def partition_rows(cluster: Cluster, topics: Collection[str], known: Iterable[TopicPartition]) -> Rows:
    """A row for each partition of ``topics``; ``known`` ones are included even if they no longer exist."""
    seen = cluster.metadata(sorted(topics)).topics
    there = [TopicPartition(name, number) for name in sorted(topics) for number in seen[name].partitions]
    gone = {tp for tp in known if tp.topic in topics} - set(there)
    first, last = resolve(cluster, there, EARLIEST), resolve(cluster, there, LATEST)
    return [
        {
            "tp": tp,
            "topic": tp.topic,
            "partition": tp.partition,
            "earliest": first.get(tp),
            "latest": last.get(tp),
        }
        for tp in sorted({*there, *gone})
    ]


def behind(position: int | None, row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Position and lag; the lag is None if the partition no longer exists."""
    if row["latest"] is None:
        return position, None
    return position, offsets_behind(position, row["earliest"], row["latest"])


def stored_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """All offsets that a group has committed."""
    return {tp: found.offset for tp, found in committed_offsets(cluster, group).items()}


def check_group(cluster: Cluster, group: str) -> None:
    """Raise `KafkaError` unless the group exists; for groups that have committed nothing."""
    try:
        if group in {found.group for found in list_groups(cluster)}:
            return
    except UnsupportedVersion:  # brokers before 0.9 cannot list groups
        return
    raise KafkaError(f"consumer group {group!r} does not exist on {cluster.config.bootstrap_servers}")


def without_tp(rows: Rows) -> Rows:
    """The rows without the field that is not printed."""
    return [{name: value for name, value in row.items() if name != "tp"} for row in rows]


_PARTITION = re.compile(r"(?:([0-9]{1,10})-)?([0-9]{1,10})")
_OFFSET = re.compile(r"[0-9]{1,19}")


def offsets_in_file(path: Path, group: str | None = None) -> dict[TopicPartition, int]:
    """The offsets in a file with lines ``topic,partition,offset``, as of `groups reset --csv`.

    kafka-consumer-groups.sh may name the group first. A partition of 0.7 is ``broker-partition``.

    Lines of another group than ``group`` are left out; with None the file must have no groups.

    Raises:
        InvalidConfig: a line is something else, a partition is there twice, or nothing is there.
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
