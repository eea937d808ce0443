"""How many bytes of log lie between two offsets, from a few samples of it: ``maxBytesPerPartition``. Pure.

A broker tells where a log begins and ends in offsets, not in bytes. So the log is looked at in a few places,
and between two of them it is taken to be as dense as it was at the first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.types import TopicPartition

SAMPLES = 16
"""Places in one range. Each costs a fetch of `SAMPLE_BYTES`, or of one batch where that is larger."""
SAMPLES_IN_ALL = 512
"""Places in one plan: of very many partitions each is looked at in fewer."""
SAMPLE_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Density:
    """``bytes_per_offset`` from ``offset`` on; as the log has them, compressed."""

    offset: int
    bytes_per_offset: float


def places(r: OffsetRange, *, ranges: int) -> list[int]:
    """Where to look at a range that is one of so many: evenly spread, its beginning among them."""
    count = min(SAMPLES, max(1, SAMPLES_IN_ALL // max(1, ranges)), r.size)
    return [r.start + r.size * i // count for i in range(count)]


def cut_by_bytes(r: OffsetRange, samples: Sequence[Density], max_bytes: int) -> list[OffsetRange]:
    """Parts of about the same number of bytes, the fewest of which none is above ``max_bytes`` as far as the
    samples tell. A part has an offset at least, so one huge record is a part.

    ``samples`` are in the order of their offsets, the first at the range's start. Without any, the range
    stays whole.
    """
    if not samples or r.size <= 0:
        return [r] if r.size > 0 else []
    edges = [s.offset for s in samples] + [r.end]
    sizes = [(b - a) * s.bytes_per_offset for (a, b), s in zip(pairwise(edges), samples, strict=True)]
    before = [0.0, *accumulate(sizes)]
    parts = min(r.size, max(1, -int(-before[-1] // max_bytes)))
    cuts = sorted({_offset_at(before[-1] * i / parts, edges, before) for i in range(1, parts)})
    inside = [cut for cut in cuts if r.start < cut < r.end]
    return [replace(r, start=start, end=end) for start, end in pairwise([r.start, *inside, r.end])]


def _offset_at(wanted: float, edges: Sequence[int], before: Sequence[float]) -> int:
    """The offset before which lie ``wanted`` bytes of the range."""
    i = min(bisect_right(before, wanted), len(before) - 1) - 1
    length = before[i + 1] - before[i]
    share = (wanted - before[i]) / length if length else 0.0
    return edges[i] + int(share * (edges[i + 1] - edges[i]))


def by_partition(ranges: Sequence[OffsetRange]) -> dict[TopicPartition, list[int]]:
    """Where to look at each partition; empty ranges are not looked at."""
    asked = [r for r in ranges if r.size > 0]
    return {r.topic_partition: places(r, ranges=len(asked)) for r in asked}
