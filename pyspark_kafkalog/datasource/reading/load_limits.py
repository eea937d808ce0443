"""Limits of a load, ``maxRecordsPerLoad`` and ``maxBytesPerLoad``, shared among partitions.

Each partition's share is in proportion to its unread offsets, so that partitions advance together in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.task_ranges import Density, bytes_in, end_of_bytes
from pyspark_kafkalog.types import TopicPartition


def fair_shares(limit: int, sizes: Sequence[int]) -> list[int]:
    """Parts of ``sizes`` that add up to ``limit``, or everything if that is less.

    Each is in proportion to its size, and at least 1 while the limit allows it; the largest come first.
    """
    total = sum(sizes)
    if total <= limit:
        return list(sizes)
    largest = sorted((i for i, size in enumerate(sizes) if size > 0), key=lambda i: (-sizes[i], i))[:limit]
    shares = [0] * len(sizes)
    left, rest = limit - len(largest), sum(sizes[i] - 1 for i in largest)
    remainders = []
    for i in largest:
        more, remainder = divmod(left * (sizes[i] - 1), rest) if rest else (0, 0)
        shares[i] = 1 + more
        remainders.append((-remainder, i))
    for _, i in sorted(remainders)[: limit - sum(shares)]:
        shares[i] += 1
    return shares


def cap_offsets(ranges: Sequence[OffsetRange], limit: int) -> list[OffsetRange]:
    """The beginnings of the ranges, with ``limit`` offsets in all."""
    shares = fair_shares(limit, [max(0, r.size) for r in ranges])
    return [replace(r, end=r.start + share) for r, share in zip(ranges, shares, strict=True)]


def cap_bytes(
    ranges: Sequence[OffsetRange], samples: Mapping[TopicPartition, Sequence[Density]], limit: int
) -> list[OffsetRange]:
    """The beginnings of the ranges, with about ``limit`` bytes in all, and at least one offset per share.

    A range without samples gets the others' mean density; without any sample the ranges stay whole.
    """
    known = [r for r in ranges if samples.get(r.topic_partition)]
    if not known:
        return list(ranges)
    size = sum(bytes_in(r, samples[r.topic_partition]) for r in known)
    mean = size / max(1, sum(r.size for r in known))
    dense = {r.topic_partition: samples.get(r.topic_partition) or [Density(r.start, mean)] for r in ranges}
    sizes = [max(1, round(bytes_in(r, dense[r.topic_partition]))) if r.size > 0 else 0 for r in ranges]
    return [
        replace(r, end=end_of_bytes(r, dense[r.topic_partition], share) if share else r.start)
        for r, share in zip(ranges, fair_shares(limit, sizes), strict=True)
    ]


def cap_at(
    ranges: Sequence[OffsetRange], allowed: Mapping[TopicPartition, Sequence[int]], limit: int
) -> list[OffsetRange]:
    """Like `cap_offsets`, but a range ends only at its end or at an ``allowed`` offset of its partition.

    It ends at the last one within its share, or else at the first.
    """
    capped = []
    for r, ideal in zip(ranges, cap_offsets(ranges, limit), strict=True):
        ends = sorted({r.end, *(at for at in allowed.get(r.topic_partition, ()) if r.start < at < r.end)})
        within = [at for at in ends if at <= ideal.end]
        first = ends[0] if ideal.size > 0 else r.start
        capped.append(replace(r, end=within[-1] if within else first) if r.size > 0 else r)
    return capped
