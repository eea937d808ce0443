"""Where in a partition: what a user may write for it, and which offset that is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition

FORMS = "earliest, latest, an offset, -N (N before the end), timestamp:MS or an ISO 8601 time"
"""For help texts and for errors."""

_WORDS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_TIMESTAMP = "timestamp:"
_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Offset:
    """The same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Back:
    """So many offsets before the end, but not before the beginning."""

    count: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after a time in milliseconds, or one of ListOffsets' words for the two ends."""

    timestamp_ms: int


Position = Offset | Back | Time

EARLIEST, LATEST = Time(EARLIEST_TIMESTAMP), Time(LATEST_TIMESTAMP)


def parse_position(text: str, option: str) -> Position:
    """What `FORMS` says. A time without a zone is in UTC.

    Raises:
        InvalidConfig: none of them.
    """
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
    raise InvalidConfig(f"{option}: {text!r} is no position; allowed: {FORMS}")


def parse_time(text: str) -> int | None:
    """Milliseconds since the epoch of ``timestamp:MS`` or of an ISO 8601 time; None if it is neither."""
    if text.startswith(_TIMESTAMP):
        digits = text.removeprefix(_TIMESTAMP)
        plain = digits.isascii() and digits.isdecimal() and int(digits) <= _MAX_INT64
        return int(digits) if plain else None
    try:
        # Before Python 3.11 it does not know the Z.
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    # In whole numbers: a float would lose milliseconds. Upwards, for "at or after".
    return -(-((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) // 1000)


def resolve(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    position: Position,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """The offset of ``position`` in each partition; the end where no record is that late.

    Of a time brokers before 0.10.1 tell an earlier one: see `list_offsets`.

    Raises:
        KafkaError: the cluster could not be asked.
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
    # Under read_committed a record found by its time may lie behind the last that may be seen.
    return {tp: ends[tp] if tp in late else found[tp] for tp in partitions}
