"""Which task reads which offsets: the arithmetic of Spark's own Kafka connector. Pure.

The rules are those of its ``KafkaOffsetRangeCalculator`` (docs/datasource.md, "Tasks"), so that a job moved
here from ``format("kafka")`` gets the same tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark_kafkalog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition.

    Before they are resolved, ``start`` may be `EARLIEST_OFFSET` and ``end`` `LATEST_OFFSET`; ``size`` has a
    meaning for resolved ranges only.
    """

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Offsets in the range; records may be fewer, after compaction or with transactions."""
        return self.end - self.start


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut resolved ranges into the tasks' ranges; empty ones are dropped, order is kept.

    First no part may hold more than ``max_records`` offsets; then, where there are still fewer than
    ``min_partitions``, the large ones are cut so that about so many parts come out. It is a hint: rounding
    may give one part more, and a range is never cut into parts of nothing.
    """
    parts = [r for r in ranges if r.size > 0]
    if max_records is not None:
        parts = [p for r in parts for p in _cut(r, -(-r.size // max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    return _split_to_minimum(parts, min_partitions)


def _split_to_minimum(ranges: Sequence[OffsetRange], minimum: int) -> list[OffsetRange]:
    total = sum(r.size for r in ranges)
    # Small ranges stay whole and leave the sum, so that the large ones get the tasks that are left.
    whole = {i for i, r in enumerate(ranges) if max(1, _round_half_up(r.size * minimum, total)) == 1}
    left_size = total - sum(ranges[i].size for i in whole)
    left_minimum = minimum - len(whole)
    parts: list[OffsetRange] = []
    for i, r in enumerate(ranges):
        count = 1 if i in whole else max(1, _round_half_up(r.size * left_minimum, left_size))
        parts += _cut(r, count)
    return parts


def _cut(r: OffsetRange, count: int) -> list[OffsetRange]:
    """``count`` parts, none of them empty; what does not divide goes to the later ones."""
    parts, start = [], r.start
    for parts_left in range(min(count, r.size), 0, -1):
        end = start + (r.end - start) // parts_left
        parts.append(replace(r, start=start, end=end))
        start = end
    return parts


def _round_half_up(numerator: int, denominator: int) -> int:
    """``numerator / denominator`` to the nearest whole number, a half upwards; exact for any size."""
    return (2 * numerator + denominator) // (2 * denominator)


def split_at(
    ranges: Sequence[OffsetRange],
    allowed: Mapping[TopicPartition, Sequence[int]],
    *,
    min_partitions: int | None = None,
    max_size: int | None = None,
) -> list[OffsetRange]:
    """Cut resolved ranges as `split_ranges`, where no part is to be larger than ``max_size``, each cut at the
    nearest ``allowed`` offset of its partition.

    Parts that have no such offset between them stay together, so fewer may come out than asked for.
    """
    parts: list[OffsetRange] = []
    ideal = split_ranges(ranges, min_partitions=min_partitions, max_records=max_size)
    for r in ranges:
        if r.size <= 0:
            continue
        between = [offset for offset in allowed.get(r.topic_partition, ()) if r.start < offset < r.end]
        wanted = [
            p.start for p in ideal if p.topic_partition == r.topic_partition and r.start < p.start < r.end
        ]
        cuts = {min(between, key=lambda at: abs(at - cut)) for cut in wanted} if between else set()
        edges = [r.start, *sorted(cuts), r.end]
        parts += [replace(r, start=start, end=end) for start, end in pairwise(edges)]
    return parts


def plan_ranges(
    asked: Sequence[OffsetRange],
    resolved: Mapping[TopicPartition, tuple[int, int]],
    split: Callable[[Sequence[OffsetRange]], Sequence[OffsetRange]],
) -> list[OffsetRange]:
    """The tasks of a batch that is to be split, whose ends may still be open.

    ``asked`` holds what the user said, placeholders included; ``resolved`` the numbers they stand for now.
    ``split`` cuts ranges of numbers. Sizes come from the numbers; the outermost parts of a partition keep its
    placeholders, so that a task binds "latest" when it runs and the same DataFrame, run again, sees new
    records.
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
