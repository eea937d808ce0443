"""Cuts the ranges of a read into tasks, by offsets like Spark's ``KafkaOffsetRangeCalculator``
(docs/datasource.md, "Tasks"), or by bytes: brokers do not report a log's bytes, so a few places are sampled,
and each sample's density is assumed up to the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import floor

import msgspec
from msgspec.structs import replace

from pyspark_kafkalog.client.connection import Connection, Ticket
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.errors import CorruptMessage, ErrorCode, error_for, reason
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pyspark_kafkalog.types import TopicPartition


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The tasks' ranges, in order; empty ones are dropped. No part may hold more than ``max_records``
    offsets; then the large ones are cut into about ``min_partitions`` parts in all.
    """
    parts = [r for r in ranges if r.size > 0]
    if max_records is not None:
        parts = [p for r in parts for p in _cut(r, -(-r.size // max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    return _split_to_minimum(parts, min_partitions)


def _split_to_minimum(ranges: Sequence[OffsetRange], minimum: int) -> list[OffsetRange]:
    total = sum(r.size for r in ranges)
    # Small ranges stay whole and leave the sum, so that the large ones share the remaining tasks; so does
    # every other range of their partition, which exists if maxRecordsPerPartition has cut it.
    small = [r for r in ranges if _share(r.size, total, minimum) == 1]
    whole = {r.topic_partition for r in small}
    left_size, left_minimum = total - sum(r.size for r in small), max(1, minimum - len(small))
    parts: list[OffsetRange] = []
    for r in ranges:
        parts += _cut(r, 1 if r.topic_partition in whole else _share(r.size, left_size, left_minimum))
    return parts


def _cut(r: OffsetRange, count: int) -> list[OffsetRange]:
    parts, start = [], r.start
    for parts_left in range(min(count, r.size), 0, -1):
        end = start + (r.end - start) // parts_left
        parts.append(replace(r, start=start, end=end))
        start = end
    return parts


def _share(size: int, total: int, tasks: int) -> int:
    """The share of ``tasks`` for ``size`` of ``total`` offsets; in binary fractions, like Spark."""
    return max(1, floor(size / total * tasks + 0.5))


def split_at(
    ranges: Sequence[OffsetRange],
    allowed: Mapping[TopicPartition, Sequence[int]],
    *,
    min_partitions: int | None = None,
    max_size: int | None = None,
) -> list[OffsetRange]:
    """Like `split_ranges`, each cut moved to the nearest ``allowed`` offset; so there may be fewer parts."""
    parts: list[OffsetRange] = []
    ideal = split_ranges(ranges, min_partitions=min_partitions, max_records=max_size)
    for r in ranges:
        if r.size <= 0:
            continue
        between = [offset for offset in allowed.get(r.topic_partition, ()) if r.start < offset < r.end]
        starts = (p.start for p in ideal if p.topic_partition == r.topic_partition)
        wanted = [start for start in starts if r.start < start < r.end]
        cuts = {min(between, key=lambda at: abs(at - cut)) for cut in wanted} if between else set()
        edges = [r.start, *sorted(cuts), r.end]
        parts += [replace(r, start=start, end=end) for start, end in pairwise(edges)]
    return parts


SAMPLES = 16
"""Places in one range. Each costs a fetch of `SAMPLE_BYTES`, or of one batch if that is larger."""
SAMPLES_IN_ALL = 512
"""Places in one plan: with very many partitions each gets fewer."""
SAMPLE_BYTES = 32 << 10


class Density(msgspec.Struct, frozen=True):
    """``bytes_per_offset`` from ``offset`` on, compressed as in the log."""

    offset: int
    bytes_per_offset: float


def places(r: OffsetRange, *, ranges: int) -> list[int]:
    """The offsets to sample in one of ``ranges`` ranges: evenly spread, the first is its start."""
    count = min(SAMPLES, max(1, SAMPLES_IN_ALL // max(1, ranges)), r.size)
    return [r.start + r.size * i // count for i in range(count)]


def cut_by_bytes(r: OffsetRange, samples: Sequence[Density], max_bytes: int) -> list[OffsetRange]:
    """The fewest about equal parts of at most ``max_bytes``; without ``samples`` the range stays whole."""
    if not samples or r.size <= 0:
        return [r] if r.size > 0 else []
    edges, before = _bytes_before(r, samples)
    parts = min(r.size, max(1, -int(-before[-1] // max_bytes)))
    cuts = sorted({_offset_at(before[-1] * i / parts, edges, before) for i in range(1, parts)})
    inside = [cut for cut in cuts if r.start < cut < r.end]
    return [replace(r, start=start, end=end) for start, end in pairwise([r.start, *inside, r.end])]


def bytes_in(r: OffsetRange, samples: Sequence[Density]) -> float:
    """Estimated bytes of a range with at least one sample, the first at its start."""
    return _bytes_before(r, samples)[1][-1]


def end_of_bytes(r: OffsetRange, samples: Sequence[Density], count: float) -> int:
    """The offset after about the first ``count`` bytes of a range; never its start."""
    edges, before = _bytes_before(r, samples)
    return max(r.start + 1, _offset_at(count, edges, before)) if count < before[-1] else r.end


def _bytes_before(r: OffsetRange, samples: Sequence[Density]) -> tuple[list[int], list[float]]:
    edges = [s.offset for s in samples] + [r.end]
    sizes = [(b - a) * s.bytes_per_offset for (a, b), s in zip(pairwise(edges), samples, strict=True)]
    return edges, [0.0, *accumulate(sizes)]


def _offset_at(wanted: float, edges: Sequence[int], before: Sequence[float]) -> int:
    i = min(bisect_right(before, wanted), len(before) - 1) - 1
    length = before[i + 1] - before[i]
    share = (wanted - before[i]) / length if length else 0.0
    return edges[i] + int(share * (edges[i + 1] - edges[i]))


def by_partition(ranges: Sequence[OffsetRange]) -> dict[TopicPartition, list[int]]:
    asked = [r for r in ranges if r.size > 0]
    return {r.topic_partition: places(r, ranges=len(asked)) for r in asked}


_CONSUMER = -1
_IN_FLIGHT = 8
_PASSED_OVER = (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)


def split_by_bytes(cluster: Cluster, ranges: Sequence[OffsetRange], max_bytes: int) -> list[OffsetRange]:
    samples = sample(cluster, by_partition(ranges))
    return [part for r in ranges for part in cut_by_bytes(r, samples.get(r.topic_partition, []), max_bytes)]


def sample(
    cluster: Cluster, asked: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, list[Density]]:
    """The logs' density at these offsets, in order; the first sample also covers the offsets before it."""
    found: dict[TopicPartition, list[Density]] = {}
    for partition, offset, answer in _answers(cluster, asked):
        density = _density(offset, answer)
        if density is not None:
            found.setdefault(partition, []).append(density)
    for partition, samples in found.items():
        samples[0] = Density(asked[partition][0], samples[0].bytes_per_offset)
    return found


def _answers(
    cluster: Cluster, asked: Mapping[TopicPartition, Sequence[int]]
) -> Iterator[tuple[TopicPartition, int, memoryview]]:
    # One request per place: with several partitions in one, only the first may exceed its limit by a batch.
    flying: deque[tuple[TopicPartition, int, Connection, Ticket]] = deque()
    for partition, offsets in asked.items():
        leader = cluster.leader(partition)
        for offset in offsets:
            connection = cluster.connection(leader.node_id)
            request = _request(partition, offset, leader.epoch)
            flying.append((partition, offset, connection, connection.send(request)))
            if len(flying) >= _IN_FLIGHT:
                yield _received(*flying.popleft())
    while flying:
        yield _received(*flying.popleft())


def _request(partition: TopicPartition, offset: int, epoch: int) -> FetchRequest:
    wanted = FetchPartition(
        partition=partition.partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        partition_max_bytes=SAMPLE_BYTES,
    )
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=SAMPLE_BYTES,
        topics=(FetchTopic(topic=partition.topic, partitions=(wanted,)),),
    )


def _received(
    partition: TopicPartition, offset: int, connection: Connection, ticket: Ticket
) -> tuple[TopicPartition, int, memoryview]:
    answer: FetchResponse = connection.receive(ticket)
    parts = [part for topic in answer.responses for part in topic.partitions]
    errors = [answer.error_code, *(part.error_code for part in parts)]
    for code in errors:
        if code not in _PASSED_OVER:
            why = reason(code, "Read", topic=partition.topic)
            raise error_for(code, f"{connection.peer}: a sample of {partition}, offset {offset}: {why}")
    records = parts[0].records if parts else None
    return partition, offset, memoryview(records or b"")


def _density(offset: int, data: memoryview) -> Density | None:
    """Bytes of the whole entries over their offsets, including a gap after ``offset``."""
    try:
        frames = list(message_set.frames(data))
    except CorruptMessage:
        return None  # no estimate; the task that reads it reports the error
    if len(frames) > 1 and not frames[0].first_is_known:
        offset = frames.pop(0).next_offset
    if not frames:
        return None
    first = frames[0].first_offset if frames[0].first_is_known else offset
    size = sum(frame.size for frame in frames)
    return Density(offset, size / max(1, frames[-1].next_offset - min(first, offset)))


def fair_shares(limit: int, sizes: Sequence[int]) -> list[int]:
    """Parts in proportion to ``sizes``, ``limit`` at most in all, and at least 1 while that allows it."""
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
    shares = fair_shares(limit, [max(0, r.size) for r in ranges])
    return [replace(r, end=r.start + share) for r, share in zip(ranges, shares, strict=True)]


def cap_bytes(
    ranges: Sequence[OffsetRange], samples: Mapping[TopicPartition, Sequence[Density]], limit: int
) -> list[OffsetRange]:
    """The ranges' beginnings, of about ``limit`` bytes in all; without samples at the mean density."""
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
    """Like `cap_offsets`, but ends at the last ``allowed`` offset within the share, or else the first."""
    capped = []
    for r, ideal in zip(ranges, cap_offsets(ranges, limit), strict=True):
        ends = sorted({r.end, *(at for at in allowed.get(r.topic_partition, ()) if r.start < at < r.end)})
        within = [at for at in ends if at <= ideal.end]
        first = ends[0] if ideal.size > 0 else r.start
        capped.append(replace(r, end=within[-1] if within else first) if r.size > 0 else r)
    return capped
