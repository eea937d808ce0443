"""What a starting or ending position means for the partitions there are (checklist B, R14-R18)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    EARLIEST,
    LATEST,
    GlobalTimestamp,
    OffsetLimit,
    PartitionTimestamps,
    SpecificOffsets,
    check_batch_edges,
    check_order,
)
from pyspark_kafkalog.datasource.reading.start_positions import locate
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

T0, T1, S0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("s", 0)


def _locate(limit: OffsetLimit, *, missing_is_latest: bool = False) -> Mapping[TopicPartition, int]:
    """Partitions t-0, t-1 and s-0; times are found at twice their number, up to 100."""

    def look_up(asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return {p: ms * 2 if ms <= 100 else -1 for p, ms in asked.items()}

    return locate(limit, [T1, T0, S0], look_up=look_up, missing_is_latest=missing_is_latest)


def test_r14_edges_and_specific_offsets_are_kept_as_they_are() -> None:
    assert _locate(EARLIEST) == {S0: -2, T0: -2, T1: -2}
    assert _locate(LATEST) == {S0: -1, T0: -1, T1: -1}
    assert _locate(SpecificOffsets({T0: 5, T1: -2, S0: 0})) == {S0: 0, T0: 5, T1: -2}


def test_r15_a_whole_topic_may_stand_for_its_partitions() -> None:
    assert _locate(SpecificOffsets({S0: 3}, {"t": -2})) == {S0: 3, T0: -2, T1: -2}


@pytest.mark.parametrize(
    ("limit", "condition", "facts"),
    [
        (SpecificOffsets({T0: 5, T1: 5}), "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "Not named: [s-0]"),
        (
            SpecificOffsets({T0: 5, T1: 5, S0: 1, TopicPartition("t", 2): 1}),
            "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            "Not read: [t-2]",
        ),
        (
            SpecificOffsets({S0: 1, T0: 3}, {"t": -2}),
            "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            "Not read: [t-0]",
        ),
        (
            SpecificOffsets({T0: 5, T1: 5, S0: 1}, {"u": -2}),
            "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            "Named: ['u']",
        ),
        (PartitionTimestamps({T0: 5}), "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED", "[s-0, t-1]"),
    ],
)
def test_r18_partitions_named_must_be_those_read(limit: OffsetLimit, condition: str, facts: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        _locate(limit)
    assert condition in str(raised.value)
    assert facts in str(raised.value)


def test_timestamps_are_looked_up_once_for_all_partitions() -> None:
    assert _locate(GlobalTimestamp(7)) == {S0: 14, T0: 14, T1: 14}
    assert _locate(PartitionTimestamps({T0: 1, T1: 2, S0: 3})) == {S0: 6, T0: 2, T1: 4}


def test_b13_a_starting_time_after_the_last_record_is_an_error() -> None:
    with pytest.raises(
        InvalidConfig, match="No offset matched from request of topic-partition t-1 and timest"
    ):
        _locate(PartitionTimestamps({T0: 1, T1: 101, S0: 3}))


def test_b14_an_ending_time_after_the_last_record_means_latest() -> None:
    located = _locate(PartitionTimestamps({T0: 1, T1: 101, S0: 3}), missing_is_latest=True)
    assert located == {S0: 6, T0: 2, T1: -1}


def test_b20_start_and_end_must_have_the_same_partitions() -> None:
    with pytest.raises(InvalidConfig, match=r"should have the same topic-partitions.*\[t-0\].*\[t-0, t-1\]"):
        check_order({T0: 1}, {T0: 2, T1: 2}, resolved=False)


@pytest.mark.parametrize(
    ("resolved", "words"),
    [
        (False, "The specified start offset 3 is greater than the end offset 1 for topic t partition"),
        (True, "The resolved start offset 3 is greater than the resolved end offset 1 for topic t partition"),
    ],
)
def test_b21_and_b22_a_start_after_its_end_is_reported_with_both(resolved: bool, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        check_order({T0: 3}, {T0: 1}, resolved=resolved)


def test_times_of_one_partition_must_be_in_order_too() -> None:
    later, earlier = PartitionTimestamps({T0: 5, T1: 7}), PartitionTimestamps({T0: 5, T1: 6})
    check_batch_edges(earlier, later)
    check_batch_edges(GlobalTimestamp(8), earlier)
    words = "The specified start timestamp 7 is greater than the end timestamp 6 for topic t partition 1"
    with pytest.raises(InvalidConfig, match=words):
        check_batch_edges(later, earlier)
    with pytest.raises(InvalidConfig, match=r"should have the same topic-partitions.*\[t-0\]"):
        check_batch_edges(earlier, PartitionTimestamps({T0: 9}))


def test_placeholders_are_not_compared() -> None:
    check_order({T0: 3, T1: -2}, {T0: -1, T1: 0}, resolved=False)
    check_order({T0: 3}, {T0: 3}, resolved=True)
