"""Plans a batch: the range of each partition, resolved and cut into tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import check_order
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange, SourceCluster
from pyspark_kafkalog.datasource.reading.start_positions import locate, locate_start
from pyspark_kafkalog.types import TopicPartition

Bounds: TypeAlias = Mapping[TopicPartition, tuple[int, int]]


def plan_batch(
    options: BatchOptions, cluster: SourceCluster, partitions: Sequence[TopicPartition]
) -> list[OffsetRange]:
    """The ranges of the tasks that read ``partitions``; the tasks resolve placeholders."""
    asked = asked_ranges(options, cluster, partitions)
    if not options.divides(len(partitions)):
        return asked
    return plan_ranges(asked, bounds_now(cluster, asked), cluster.split)


def asked_ranges(
    options: BatchOptions, cluster: SourceCluster, partitions: Sequence[TopicPartition]
) -> list[OffsetRange]:
    """A range for each of ``partitions``, in their order; placeholders stay.

    Raises `InvalidConfig` if start or end does not match the partitions, or the end is before the start.
    """
    starts = locate_start(options, cluster, partitions)
    ends = locate(options.end, partitions, look_up=cluster.offsets, missing_is_latest=True)
    check_order(starts, ends, resolved=False)
    return [OffsetRange(p, starts[p], ends[p]) for p in partitions]


def bounds_now(cluster: SourceCluster, asked: Sequence[OffsetRange]) -> Bounds:
    """The ranges' current offsets. Raises `InvalidConfig` if one ends before it starts."""
    # Starts first: records written meanwhile only make a range longer.
    first = cluster.resolve({r.topic_partition: r.start for r in asked})
    last = cluster.resolve({r.topic_partition: r.end for r in asked})
    check_order(first, last, resolved=True)
    return {r.topic_partition: (first[r.topic_partition], last[r.topic_partition]) for r in asked}


def plan_ranges(
    asked: Sequence[OffsetRange],
    resolved: Bounds,
    split: Callable[[Sequence[OffsetRange]], Sequence[OffsetRange]],
) -> list[OffsetRange]:
    """The tasks of a split batch, whose ends may still be open.

    ``asked`` has the user's ranges, with placeholders; ``resolved`` their current offsets; ``split`` cuts
    ranges of numbers. The outermost parts of a partition keep its placeholders, so that a task binds "latest"
    when it runs and the same DataFrame, run again, sees new records.
    """
    sized = [OffsetRange(r.topic_partition, *resolved[r.topic_partition]) for r in asked]
    parts: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for part in split(sized):
        parts[part.topic_partition].append(part)
    planned: list[OffsetRange] = []
    for r in asked:
        cut = parts.get(r.topic_partition)
        if not cut:
            continue
        cut[0] = replace(cut[0], start=r.start)
        cut[-1] = replace(cut[-1], end=r.end)
        planned += cut
    return planned
