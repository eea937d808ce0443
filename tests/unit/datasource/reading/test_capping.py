"""How much of each partition a limited load reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.task_ranges import Density, cap_at, cap_bytes, fair_shares
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
SIZES = st.lists(st.integers(0, 1 << 62), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("limit", "sizes", "shares"),
    [
        (100, [10, 0, 20], [10, 0, 20]), (10, [300, 100], [7, 3]), (4, [1, 1_000_000, 0], [1, 3, 0]),
        (1, [2, 3, 3], [0, 1, 0]), (2, [2, 3, 3], [0, 1, 1]), (3, [1, 1, 1, 1], [1, 1, 1, 0]),
    ],
)  # fmt: skip
def test_shares_are_in_proportion_and_the_limit_holds(
    limit: int, sizes: list[int], shares: list[int]
) -> None:
    assert fair_shares(limit, sizes) == shares


@given(st.integers(1, 1 << 62), SIZES)
def test_shares_use_up_the_limit_and_no_partition_is_starved(limit: int, sizes: list[int]) -> None:
    shares = fair_shares(limit, sizes)
    assert sum(shares) == min(limit, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    if limit >= sum(size > 0 for size in sizes):
        assert all((share > 0) == (size > 0) for share, size in zip(shares, sizes, strict=True))


def test_bytes_are_shared_by_what_the_samples_say() -> None:
    ranges = [OffsetRange(P0, 100, 200), OffsetRange(P1, 0, 1000), OffsetRange(P2, 5, 5)]
    samples = {P0: [Density(100, 10.0), Density(150, 30.0)], P1: [Density(0, 2.0)]}
    half = cap_bytes(ranges, samples, 2000)  # of 2,000 and 2,000
    assert [(r.start, r.end) for r in half] == [(100, 166), (0, 500), (5, 5)]
    assert cap_bytes(ranges, samples, 4000) == ranges
    assert [r.size for r in cap_bytes(ranges, samples, 1)] == [1, 0, 0]


def test_a_partition_without_samples_counts_as_dense_as_the_others() -> None:
    ranges = [OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100)]
    assert [r.size for r in cap_bytes(ranges, {P0: [Density(0, 10.0)]}, 1000)] == [50, 50]
    assert cap_bytes(ranges, {}, 10) == ranges


def test_where_records_begin_only_at_some_offsets_a_share_ends_there_and_never_at_its_start() -> None:
    ranges = [OffsetRange(P0, 0, 1000), OffsetRange(P1, 0, 1000)]
    capped = cap_at(ranges, {P0: [0, 300, 600, 1000], P1: [0, 700]}, 1000)
    assert [(r.start, r.end) for r in capped] == [(0, 300), (0, 700)]
    assert [r.size for r in cap_at(ranges, {P0: [600]}, 1)] == [600, 0]


def test_limits_of_loads_are_refused_where_they_mean_nothing() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    with pytest.raises(InvalidConfig, match="maxRecordsPerLoad has no meaning without loadName"):
        parse_batch_options({**given, "maxRecordsPerLoad": "5"})
    old = {"protocol": "0.7", "zk.connect": "z:1", "subscribe": "t", "loadName": "a", "offsetsPath": "/a"}
    with pytest.raises(InvalidConfig, match=r"maxRecordsPerLoad has no meaning with protocol=0\.7"):
        parse_batch_options({**old, "maxRecordsPerLoad": "5"})
    options = parse_batch_options({**old, "maxBytesPerLoad": "5"})
    assert options.load is not None
    assert (options.load.max_records, options.load.max_bytes) == (None, 5)
