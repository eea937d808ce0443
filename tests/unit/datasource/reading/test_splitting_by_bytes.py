"""Ranges are cut so that each part has about as many bytes as was asked for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.splitting import (
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


def test_an_even_log_is_cut_evenly() -> None:
    parts = cut_by_bytes(OffsetRange(P, 100, 1100), [Density(100, 10.0)], max_bytes=2500)
    assert edges(parts) == [100, 350, 600, 850, 1100]


def test_where_records_are_large_parts_have_fewer() -> None:
    samples = [Density(0, 10.0), Density(500, 90.0)]
    parts = cut_by_bytes(OffsetRange(P, 0, 1000), samples, max_bytes=10_000)
    assert edges(parts) == [0, 555, 666, 777, 888, 1000]


def test_what_is_small_enough_stays_whole() -> None:
    whole = OffsetRange(P, 5, 10)
    assert cut_by_bytes(whole, [Density(5, 10.0)], max_bytes=50) == [whole]


def test_a_record_larger_than_a_part_is_a_part() -> None:
    parts = cut_by_bytes(OffsetRange(P, 0, 3), [Density(0, 1000.0)], max_bytes=10)
    assert edges(parts) == [0, 1, 2, 3]


def test_offsets_without_records_have_no_bytes() -> None:
    samples = [Density(0, 10.0), Density(100, 0.0), Density(200, 10.0)]
    parts = cut_by_bytes(OffsetRange(P, 0, 300), samples, max_bytes=500)
    assert edges(parts) == [0, 50, 200, 250, 300]


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
