"""Lines R1-R13 of the checklist: which tasks come out of which offset ranges."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from pyspark_kafkalog.datasource.batch.batch_reader import plan_ranges
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.task_ranges import split_at, split_ranges
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

Bounds = list[tuple[int, int]]


def _ranges(bounds: Bounds) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", i), *b) for i, b in enumerate(bounds)]


def _split(bounds: Bounds, **limits: int) -> Bounds:
    return [(r.start, r.end) for r in split_ranges(_ranges(bounds), **limits)]


def test_r1_without_a_minimum_each_range_is_one_task() -> None:
    assert _split([(1, 5), (1, 21)]) == [(1, 5), (1, 21)]
    ranges = split_ranges(_ranges([(1, 5), (1, 21)]), min_partitions=2)
    assert [r.topic_partition.partition for r in ranges] == [0, 1]


def test_r2_empty_and_negative_ranges_are_dropped() -> None:
    assert _split([(1, 1), (7, 5), (1, 5)]) == [(1, 5)]
    assert _split([]) == []


@pytest.mark.parametrize(
    ("bounds", "minimum", "expected"),
    [
        pytest.param([(1, 5)], 4, [(1, 2), (2, 3), (3, 4), (4, 5)], id="R3 one to four"),
        pytest.param([(1, 5), (1, 21)], 4, [(1, 5), (1, 7), (7, 14), (14, 21)], id="R4 skew"),
        pytest.param([(1, 1), (1, 21)], 4, [(1, 6), (6, 11), (11, 16), (16, 21)], id="R5 empty and the rest"),
        pytest.param(
            [(1, 2), (1, 1001)], 4, [(1, 2), (1, 334), (334, 667), (667, 1001)], id="R6 very skewed"
        ),
        pytest.param(
            [(0, 15), (0, 11), (0, 1)],
            14,
            [*pairwise([0, 2, 4, 6, 8, 10, 12, 15]), *pairwise([0, 1, 3, 5, 7, 9, 11]), (0, 1)],
            id="15 / 26 * 13 is below 7.5 in binary fractions",
        ),
        pytest.param([(1, 5), (1, 21)], 1, [(1, 5), (1, 21)], id="R7 fewer asked than there are"),
        pytest.param([(1, 11)], 3, [(1, 4), (4, 7), (7, 11)], id="R8 rest goes to the last"),
        pytest.param(
            [(0, 10), (0, 10), (0, 1)],
            6,
            [(0, 3), (3, 6), (6, 10), (0, 3), (3, 6), (6, 10), (0, 1)],
            id="R9 no offset is dropped",
        ),
        pytest.param(
            [(0, 10_000), (0, 15_000), (0, 20_000)],
            9,
            [(a, a + 5000) for n in (2, 3, 4) for a in range(0, 5000 * n, 5000)],
            id="R10 in proportion",
        ),
        pytest.param(
            [(0, 500), (0, 12_000), (0, 15_001)],
            6,
            [(0, 500), (0, 6000), (6000, 12_000), (0, 5000), (5000, 10_000), (10_000, 15_001)],
            id="R11 small unsplit and large",
        ),
        pytest.param(
            [(0, 1), (0, 1), (0, 10_000)],
            6,
            [(0, 1), (0, 1), (0, 2500), (2500, 5000), (5000, 7500), (7500, 10_000)],
            id="R11 two tiny ones and one large",
        ),
    ],
)
def test_r3_to_r11_ranges_are_split_as_sparks_connector_splits_them(
    bounds: Bounds, minimum: int, expected: Bounds
) -> None:
    assert _split(bounds, min_partitions=minimum) == expected


def test_parts_of_one_partition_stay_whole_together() -> None:
    limits = {"max_records": 2, "min_partitions": 7}
    assert _split([(0, 3), (0, 4)], **limits) == [(0, 1), (1, 3), (0, 1), (1, 2), (2, 3), (3, 4)]


def test_max_records_is_applied_before_the_minimum() -> None:
    assert _split([(0, 10)], max_records=4) == [(0, 3), (3, 6), (6, 10)]
    assert _split([(0, 10)], max_records=4, min_partitions=2) == [(0, 3), (3, 6), (6, 10)]
    assert _split([(0, 10)], max_records=5, min_partitions=4) == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_ranges_of_any_size_do_not_lose_precision() -> None:
    huge = 2**62 - 1  # no number of floating point
    parts = _split([(0, huge), (0, 1)], min_partitions=5)
    assert (len(parts), parts[-1]) == (5, (0, 1))
    assert parts[0][0] == 0
    assert parts[-2][1] == huge


def test_r13_the_outer_parts_keep_their_placeholders() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    asked = [OffsetRange(a, EARLIEST_OFFSET, LATEST_OFFSET), OffsetRange(b, 3, LATEST_OFFSET)]
    planned, empty = plan_ranges(asked, {a: (0, 30), b: (3, 4)}, partial(split_ranges, min_partitions=4))
    assert empty == []
    assert planned == [
        OffsetRange(a, EARLIEST_OFFSET, 10),
        OffsetRange(a, 10, 20),
        OffsetRange(a, 20, LATEST_OFFSET),
        OffsetRange(b, 3, LATEST_OFFSET),
    ]


def test_a_partition_that_is_empty_when_it_is_planned_stays_open_if_its_end_is_latest() -> None:
    a, b, c = (TopicPartition("t", n) for n in range(3))
    asked = [OffsetRange(a, EARLIEST_OFFSET, LATEST_OFFSET), OffsetRange(b, EARLIEST_OFFSET, 5)]
    asked.append(OffsetRange(c, 5, LATEST_OFFSET))
    assert plan_ranges(asked, dict.fromkeys((a, b, c), (5, 5)), split_ranges) == ([], [asked[0], asked[2]])


@pytest.mark.parametrize(
    ("allowed", "minimum", "expected"),
    [
        pytest.param([100, 80, 50, 20, 0], 2, [(0, 50), (50, 100)], id="at the cut"),
        pytest.param([100, 90, 60, 30, 0], 2, [(0, 60), (60, 100)], id="at the nearest"),
        pytest.param([100, 99, 0], 4, [(0, 99), (99, 100)], id="one place for three cuts"),
        pytest.param([100, 0], 4, [(0, 100)], id="nowhere"),
        pytest.param([200, 150, 100, 0, -50], 4, [(0, 100)], id="only outside"),
        pytest.param([100, 50, 0], None, [(0, 100)], id="not asked for"),
    ],
)
def test_ranges_are_cut_where_it_is_allowed(
    allowed: list[int], minimum: int | None, expected: Bounds
) -> None:
    partition = TopicPartition("t", 0, 1)
    parts = split_at([OffsetRange(partition, 0, 100)], {partition: allowed}, min_partitions=minimum)
    assert [(r.start, r.end) for r in parts] == expected
    assert {r.topic_partition for r in parts} == {partition}


def test_cuts_of_one_partition_are_not_another_s() -> None:
    first, second = TopicPartition("t", 0, 1), TopicPartition("t", 0, 2)
    ranges = [OffsetRange(first, 0, 100), OffsetRange(second, 0, 100), OffsetRange(first, 100, 100)]
    parts = split_at(ranges, {first: [50], second: [40, 60]}, min_partitions=4)
    assert [(r.topic_partition.broker, r.start, r.end) for r in parts] == [
        (1, 0, 50), (1, 50, 100), (2, 0, 40), (2, 40, 100),
    ]  # fmt: skip
