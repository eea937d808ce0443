"""Ranges are cut into the tasks that Spark's own calculator makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.reading.task_ranges import split_ranges
from pyspark_kafkalog.types import TopicPartition
from tests.support.examples import examples

_CASES = 60
_OPTIONS = {"min_partitions": "minPartitions", "max_records": "maxRecordsPerPartition"}
_LIMITS = st.none() | st.integers(1, 30)
_RANGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60) | st.integers(0, 10**12)), max_size=7)


def _cut(ranges: list[OffsetRange], **limits: int | None) -> list[tuple[int, int, int]]:
    return [(r.topic_partition.partition, r.start, r.end) for r in split_ranges(ranges, **limits)]


def _cut_by_spark(jvm: Any, ranges: list[OffsetRange], **limits: int | None) -> list[tuple[int, int, int]]:
    theirs = jvm.org.apache.spark.sql.kafka010
    as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    options = jvm.java.util.HashMap()
    for name, limit in limits.items():
        if limit is not None:
            options.put(_OPTIONS[name], str(limit))
    given_to = jvm.java.util.ArrayList()
    for r in ranges:
        tp = jvm.org.apache.kafka.common.TopicPartition("t", r.topic_partition.partition)
        given_to.add(theirs.KafkaOffsetRange(tp, r.start, r.end, jvm.scala.Option.empty()))
    calculator = theirs.KafkaOffsetRangeCalculator.apply(
        jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
    )
    nowhere = as_scala(jvm.java.util.ArrayList()).toSeq()
    found = calculator.getRanges(as_scala(given_to).toSeq(), nowhere)
    parts = [found.apply(i) for i in range(found.size())]
    return [(p.topicPartition().partition(), p.fromOffset(), p.untilOffset()) for p in parts]


def test_tasks_are_those_of_sparks_connector(spark: Any, connector: list[Path]) -> None:
    if not connector:
        pytest.skip("Spark's Kafka connector is not here")

    @examples(_CASES)
    @given(_RANGES, _LIMITS, _LIMITS)
    @example([(0, 15), (0, 11), (0, 1)], 14, None)  # 15 / 26 * 13 is less than 7.5 in binary fractions
    @example([(0, 3), (0, 4)], 7, 2)  # a part that stays whole keeps the others of its partition whole
    def check(bounds: list[tuple[int, int]], minimum: int | None, limit: int | None) -> None:
        ranges = [OffsetRange(TopicPartition("t", n), a, a + size) for n, (a, size) in enumerate(bounds)]
        if limit is not None and any(r.size > 100 * limit for r in ranges):
            limit *= 10**11
        limits = {"min_partitions": minimum, "max_records": limit}
        assert _cut(ranges, **limits) == _cut_by_spark(spark._jvm, ranges, **limits)

    check()
