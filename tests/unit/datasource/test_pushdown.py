"""What filters say about the offsets to read: never too little, for Spark filters again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_kafkalog.datasource.pushdown import Bounds, bounds_of
from pyspark_kafkalog.types import TopicPartition

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
NOON_MS = 1_795_348_800_000


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], Bounds()),
        ([EqualTo(("topic",), "a")], Bounds(topics=frozenset({"a"}))),
        ([In(("topic",), ("a", "b")), EqualNullSafe(("topic",), "b")], Bounds(topics=frozenset({"b"}))),
        ([In(("partition",), (1, None, 3))], Bounds(partitions=frozenset({1, 3}))),
        ([EqualTo(("partition",), 1), EqualTo(("partition",), 2)], Bounds(partitions=frozenset())),
        ([EqualTo(("PARTITION",), 1)], Bounds(partitions=frozenset({1}))),
        ([GreaterThan(("offset",), 4)], Bounds(first_offset=5)),
        ([GreaterThanOrEqual(("offset",), 4), GreaterThan(("offset",), 2)], Bounds(first_offset=4)),
        ([LessThan(("offset",), 9), LessThanOrEqual(("offset",), 7)], Bounds(end_offset=8)),
        ([LessThan(("offset",), -3)], Bounds(end_offset=0)),
        ([EqualTo(("offset",), 6)], Bounds(first_offset=6, end_offset=7)),
        ([In(("offset",), (9, 4))], Bounds(first_offset=4, end_offset=10)),
        ([GreaterThanOrEqual(("timestamp",), NOON)], Bounds(since_ms=NOON_MS)),
        ([GreaterThan(("timestamp",), NOON)], Bounds(since_ms=NOON_MS)),
        ([EqualTo(("timestamp",), NOON)], Bounds(since_ms=NOON_MS)),
    ],
)
def test_filters_bound_what_is_read(filters: list[Any], bounds: Bounds) -> None:
    assert bounds_of(filters) == bounds


@pytest.mark.parametrize(
    "filter_",
    [
        Not(EqualTo(("partition",), 1)),
        IsNotNull(("offset",)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("offset",), None),
        EqualTo(("value",), b"x"),
        GreaterThan(("partition",), 1),
        LessThan(("timestamp",), NOON),
        EqualTo(("headers", "partition"), 1),
    ],
)
def test_what_bounds_nothing_is_passed_over(filter_: Any) -> None:
    assert bounds_of([filter_]) == Bounds()


def test_a_time_between_two_milliseconds_is_bounded_by_the_earlier() -> None:
    between = NOON + timedelta(microseconds=1_999)
    assert bounds_of([GreaterThan(("timestamp",), between)]) == Bounds(since_ms=NOON_MS + 1)


def test_a_millisecond_that_no_float_has_exactly_is_that_millisecond() -> None:
    time = datetime(1970, 1, 1, 0, 0, 1, 7000, tzinfo=timezone.utc)
    assert bounds_of([GreaterThanOrEqual(("timestamp",), time)]) == Bounds(since_ms=1007)


def test_a_time_before_the_epoch_bounds_nothing_for_records_without_a_time_are_of_minus_one() -> None:
    before = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    for filter_ in (GreaterThan(("timestamp",), datetime(1960, 1, 1)), EqualTo(("timestamp",), before)):
        assert bounds_of([filter_]) == Bounds()
    assert bounds_of([GreaterThanOrEqual(("timestamp",), before + timedelta(milliseconds=1))]).since_ms == 0


def test_a_partition_is_admitted_by_topic_and_number() -> None:
    bounds = Bounds(topics=frozenset({"a"}), partitions=frozenset({0, 2}))
    admitted = [
        str(p)
        for p in (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
        if bounds.admits(p)
    ]
    assert admitted == ["a-0"]
