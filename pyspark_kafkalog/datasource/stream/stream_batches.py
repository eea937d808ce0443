"""The batches of a stream: their limits, their ranges, and lost offsets. Pure. Limits, conditions and
messages match Spark's own Kafka connector (docs/datasource.md, "Data loss in streams").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec

from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.datasource.options.topics_and_offsets import listed
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.stream.stream_offsets import StreamOffset
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

Offsets = Mapping[TopicPartition, int]


class OffsetsLost(KafkaError):
    def __init__(self, condition: str, what: str) -> None:
        super().__init__(
            f"[KAFKA_DATA_LOSS.{condition}] {what} Some data may have been lost: aged out by retention, or "
            "the topic was deleted and created again. To go on with what is left, set the source option "
            "failOnDataLoss to false."
        )


class FixedEndLost(KafkaError):
    """With Trigger.AvailableNow: the end fixed at the query's start no longer fits the topics."""

    def __init__(self, condition: str, what: str) -> None:
        super().__init__(
            f"[{condition}_WITH_TRIGGER_AVAILABLENOW] {what} A topic was deleted, created again or "
            "truncated while the query ran; this is an error also with failOnDataLoss=false. Start the query "
            "again: it then fixes another end."
        )


def losses(
    before: StreamOffset,
    after: StreamOffset,
    earliest: Offsets,
    *,
    gone: Collection[TopicPartition],
    group: str | None,
) -> list[OffsetsLost]:
    """What was lost between two offsets. ``earliest``: first offsets of partitions new in ``after``."""
    found, start, end = [], before.offsets, after.offsets
    new = end.keys() - start.keys()
    unknown = new - earliest.keys()
    if unknown:
        what = (
            f"Failed to find initial offsets for partitions {listed(unknown)}, which may have been deleted."
        )
        found.append(OffsetsLost("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", what))
    for p in sorted(new & earliest.keys()):
        if earliest[p] != 0:
            what = f"Added partition {p} starts from {earliest[p]} instead of 0."
            found.append(OffsetsLost("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", what))
    if gone:
        condition, more = "PARTITIONS_DELETED", ""
        if group is not None:
            condition = "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT"
            more = f" (kafka.group.id is set, to {group}: another query must not use the same group.)"
        found.append(OffsetsLost(condition, f"Partitions {listed(gone)} have been deleted.{more}"))
    for p in sorted(end.keys() & start.keys()):
        if end[p] < start[p]:
            what = f"Partition {p} offset was changed from {start[p]} to {end[p]}."
            found.append(OffsetsLost("PARTITION_OFFSET_CHANGED", what))
    for topic, (old, now) in before.recreated(after).items():
        what = f"Topic {topic} was deleted and created again: its id was {old} and is now {now}."
        found.append(OffsetsLost("TOPIC_RECREATED", what))
    return found


def start_not_kept(start: Offsets, end: Offsets) -> list[OffsetsLost]:
    """The losses of a repeated first batch that would now begin after its end."""
    behind = [p for p in sorted(end.keys() & start.keys()) if end[p] < start[p]]
    what = (
        f"The first batch of this query is repeated. It ends at {[end[p] for p in behind]} in "
        f"{listed(behind)}, and startingOffsets now means {[start[p] for p in behind]}: the start of the "
        "query was not kept (streamName and offsetsPath keep it). Begin with a new checkpoint."
    )
    return [OffsetsLost("START_OF_FIRST_BATCH_NOT_KEPT", what)] if behind else []


def ranges_between(start: Offsets, end: Offsets, earliest: Offsets) -> list[OffsetRange]:
    """The ranges of ``end``'s partitions: new ones begin at ``earliest``; lost ones are left out."""
    starts = {**earliest, **start}
    return [OffsetRange(p, starts[p], end[p]) for p in sorted(end) if p in starts and end[p] > starts[p]]


def check_fixed_end(end: Offsets, fixed: Offsets, latest: Offsets) -> None:
    """Check ``end``, planned in this run, against AvailableNow's."""
    # In 0.7 a missing partition's broker is away: the partition keeps its offset.
    ended = {p for p in end if p.broker == NO_BROKER}
    expected = {p for p in fixed if p.broker == NO_BROKER}
    if ended != expected:
        raise FixedEndLost(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
            f"The batch ends in partitions {listed(ended)}, and {listed(expected)} were there when the query "
            "began.",
        )
    for p in sorted(end.keys() & fixed.keys()):
        if end[p] > fixed[p]:
            raise FixedEndLost(
                "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
                f"Partition {p} of the batch ends at {end[p]}, and ended at {fixed[p]} when the query began.",
            )
    lost = ended - latest.keys()
    if lost:
        raise FixedEndLost(
            "LOST_TOPIC_PARTITIONS_IN_END_OFFSET", f"Partitions {listed(lost)} of the batch are gone."
        )
    for p in sorted(end.keys() & latest.keys()):
        if end[p] > latest[p]:
            raise FixedEndLost(
                "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST",
                f"Partition {p} of the batch ends at {end[p]}, and its log now ends at {latest[p]}.",
            )


def share_limit(
    limit: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The ends of a batch of about ``limit`` offsets, in proportion to the unread ones, at least 1 each."""
    sizes = {p: end - starts[p] for p, end in ends.items() if end > starts[p]}
    total = float(sum(sizes.values()))
    found = dict(ends)
    for partition, size in sizes.items():
        # In floating point, like Spark's connector, so that both cut at the same offsets.
        share = limit * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        found[partition] = min(ends[partition], starts[partition] + min(whole, LONG_MAX))
    return found


def waiting_count(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Number of unread offsets. ``starts`` has every partition of ``ends``."""
    return sum(max(0, end - starts[p]) for p, end in ends.items())


class BatchLimits(msgspec.Struct, frozen=True):
    least: int | None
    most: int | None


NO_LIMITS = BatchLimits(None, None)


class Trigger:
    """*Not thread-safe.* Whether a batch begins now; none waits longer than ``max_delay_ms``."""

    def __init__(self, max_delay_ms: int, clock: Clock) -> None:
        self._max_delay_seconds = max_delay_ms / 1000
        self._clock = clock
        self._fired: float | None = None

    def fires(
        self, least: int | None, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        if least is None:
            return True
        now = self._clock.monotonic()
        waited = self._fired is None or now - self._fired >= self._max_delay_seconds
        if waited or waiting_count(starts, ends) >= least:
            self._fired = now
            return True
        return False
