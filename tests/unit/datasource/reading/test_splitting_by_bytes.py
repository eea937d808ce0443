"""Ranges are cut so that each part has about as many bytes as was asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.task_ranges import (
    SAMPLES,
    SAMPLES_IN_ALL,
    Density,
    by_partition,
    cut_by_bytes,
    places,
)
from pyspark_kafkalog.types import TopicPartition

P = TopicPartition("t", 0)


def edges(parts: list[OffsetRange]) -> list[int]:
    assert all(a.end == b.start for a, b in pairwise(parts))
    return [parts[0].start, *(part.end for part in parts)]


@pytest.mark.parametrize(
    ("samples", "max_bytes", "expected"),
    [
        pytest.param([(100, 10)], 2500, [100, 350, 600, 850, 1100], id="an even log evenly"),
        pytest.param([(0, 10), (500, 90)], 10_000, [0, 555, 666, 777, 888, 1000], id="fewer large records"),
        pytest.param([(5, 10)], 50, [5, 10], id="what is small enough stays whole"),
        pytest.param([(0, 1000)], 10, [0, 1, 2, 3], id="a record larger than a part"),
        pytest.param([(0, 10), (100, 0), (200, 10)], 500, [0, 50, 200, 250, 300], id="no records, no bytes"),
    ],
)
def test_a_range_is_cut_where_its_bytes_are(
    samples: list[tuple[int, float]], max_bytes: int, expected: list[int]
) -> None:
    whole = OffsetRange(P, expected[0], expected[-1])
    assert edges(cut_by_bytes(whole, [Density(*one) for one in samples], max_bytes)) == expected


def test_nothing_known_cuts_nothing() -> None:
    whole = OffsetRange(P, 0, 9)
    assert cut_by_bytes(whole, [], max_bytes=1) == [whole]
    assert cut_by_bytes(OffsetRange(P, 9, 9), [], max_bytes=1) == []


def test_a_range_is_looked_at_from_its_beginning_on() -> None:
    assert places(OffsetRange(P, 10, 13), ranges=1) == [10, 11, 12]
    assert places(OffsetRange(P, 0, 1600), ranges=1) == list(range(0, 1600, 1600 // SAMPLES))


def test_of_many_partitions_each_is_looked_at_in_fewer_places() -> None:
    many = [OffsetRange(TopicPartition("t", n), 0, 1000) for n in range(200)]
    looked = by_partition([*many, OffsetRange(TopicPartition("t", 200), 7, 7)])
    assert len(looked) == 200
    assert {len(offsets) for offsets in looked.values()} == {SAMPLES_IN_ALL // 200}


@given(
    st.integers(0, 50), st.integers(1, 400), st.lists(st.floats(0, 1e6), min_size=1, max_size=6),
    st.integers(1, 10**7),
)  # fmt: skip
def test_parts_tile_the_range(start: int, size: int, densities: list[float], max_bytes: int) -> None:
    whole = OffsetRange(P, start, start + size)
    count = min(len(densities), size)
    samples = [Density(start + size * i // count, densities[i]) for i in range(count)]
    parts = cut_by_bytes(whole, samples, max_bytes)
    assert edges(parts)[0] == start
    assert edges(parts)[-1] == start + size
    assert all(part.size > 0 for part in parts)
