"""Whatever the ranges and limits: tasks cover them exactly, and no limit is passed."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.batch.batch_reader import plan_ranges
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.task_ranges import split_ranges
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

_sizes = st.integers(0, 60) | st.integers(0, 10**6) | st.sampled_from([2**40, 2**62])


@st.composite
def ranges(draw: st.DrawFn) -> list[OffsetRange]:
    sizes = draw(st.lists(_sizes, max_size=6))
    starts = [draw(st.integers(0, 1000)) for _ in sizes]
    pairs = enumerate(zip(starts, sizes, strict=True))
    return [OffsetRange(TopicPartition("t", i), start, start + size) for i, (start, size) in pairs]


def joined(parts: list[OffsetRange]) -> list[OffsetRange]:
    """Parts that follow each other in one partition, as one."""
    whole: list[OffsetRange] = []
    for part in parts:
        if whole and whole[-1].topic_partition == part.topic_partition and whole[-1].end == part.start:
            part = OffsetRange(part.topic_partition, whole.pop().start, part.end)
        whole.append(part)
    return whole


@given(ranges(), st.none() | st.integers(1, 40))
def test_parts_cover_the_ranges_in_order_without_gap_or_overlap(
    asked: list[OffsetRange], minimum: int | None
) -> None:
    parts = split_ranges(asked, min_partitions=minimum)
    assert all(part.size > 0 for part in parts)
    assert joined(parts) == [r for r in asked if r.size > 0]


@given(ranges(), st.integers(1, 40), st.none() | st.integers(1, 40))
def test_no_part_passes_the_limit(asked: list[OffsetRange], pieces: int, minimum: int | None) -> None:
    limit = max(1, sum(r.size for r in asked) // pieces)
    parts = split_ranges(asked, max_records=limit, min_partitions=minimum)
    assert all(0 < part.size <= limit for part in parts)
    assert joined(parts) == [r for r in asked if r.size > 0]


@given(ranges(), st.integers(1, 40))
def test_the_minimum_is_met_within_the_rounding(asked: list[OffsetRange], minimum: int) -> None:
    parts = split_ranges(asked, min_partitions=minimum)
    offsets = sum(r.size for r in asked)
    assert min(minimum, offsets) - len(asked) <= len(parts) <= minimum + len(asked)


@given(ranges(), st.integers(1, 40))
def test_a_plan_keeps_what_the_user_left_open_at_the_outer_edges_only(
    found: list[OffsetRange], minimum: int
) -> None:
    asked = [OffsetRange(r.topic_partition, EARLIEST_OFFSET, LATEST_OFFSET) for r in found]
    resolved = {r.topic_partition: (r.start, r.end) for r in found}
    plan, empty = plan_ranges(asked, resolved, partial(split_ranges, min_partitions=minimum))
    assert empty == [r for r, now in zip(asked, found, strict=True) if now.size == 0]
    for r in found:
        mine = [p for p in plan if p.topic_partition == r.topic_partition]
        if r.size == 0:
            assert mine == []
            continue
        assert (mine[0].start, mine[-1].end) == (EARLIEST_OFFSET, LATEST_OFFSET)
        inner = [p.end for p in mine[:-1]] + [p.start for p in mine[1:]]
        assert all(r.start < edge < r.end for edge in inner)
        assert [p.end for p in mine[:-1]] == [p.start for p in mine[1:]]
