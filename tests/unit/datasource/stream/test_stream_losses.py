"""What is lost between the start and the end of a batch, and what is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange
from pyspark_kafkalog.datasource.stream.stream_batches import (
    FixedEndLost,
    check_fixed_end,
    losses,
    ranges_between,
)
from pyspark_kafkalog.datasource.stream.stream_offsets import StreamOffset
from pyspark_kafkalog.types import TopicPartition

P = [TopicPartition("t", n) for n in range(4)]
B = TopicPartition("t", 0, 1)
E = "END_OFFSET"


def told(start: Any, end: Any, earliest: Mapping[TopicPartition, int] = {}, **more: Any) -> list[str]:
    before, after = (o if isinstance(o, StreamOffset) else StreamOffset(o) for o in (start, end))
    gone = before.offsets.keys() - after.offsets.keys()
    found = losses(before, after, earliest, **{"gone": gone, "group": None, **more})
    return [str(loss).split(" Some data may")[0] for loss in found]


def test_nothing_is_lost_where_offsets_grow_and_partitions_are_new() -> None:
    assert told({P[0]: 1}, {P[0]: 1, P[1]: 4}, {P[1]: 0}) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            told({}, {P[0]: 3, P[1]: 2}, {P[1]: 0}),
            "[KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS] Failed to find initial offsets for "
            "partitions [t-0], which may have been deleted.",
        ),
        (
            told({}, {P[0]: 3}, {P[0]: 2}),
            "[KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] Added partition t-0 starts "
            "from 2 instead of 0.",
        ),
        (
            told({P[0]: 1, P[1]: 1}, {P[1]: 1}),
            "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions [t-0] have been deleted.",
        ),
        (
            told({P[0]: 1}, {}, group="g"),
            "[KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT] Partitions [t-0] have been "
            "deleted. (kafka.group.id is set, to g: another query must not use the same group.)",
        ),
        (
            told({P[0]: 2}, {P[0]: 1}),
            "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Partition t-0 offset was changed from 2 to 1.",
        ),
        (
            told(StreamOffset({P[0]: 2}, {"t": "a", "u": "c"}), StreamOffset({P[0]: 2}, {"t": "b"})),
            "[KAFKA_DATA_LOSS.TOPIC_RECREATED] Topic t was deleted and created again: its id was a and is "
            "now b.",
        ),
    ],
)
def test_each_loss_has_the_condition_that_sparks_connector_names(found: list[str], expected: str) -> None:
    assert found == [expected]


def test_lost_and_empty_ranges_are_not_read_and_new_ones_from_their_beginning() -> None:
    start, end = {P[0]: 5, P[1]: 9, P[2]: 4}, {P[0]: 8, P[1]: 3, P[2]: 4, P[3]: 6}
    assert ranges_between(start, end, {P[3]: 2}) == [OffsetRange(P[0], 5, 8), OffsetRange(P[3], 2, 6)]
    assert ranges_between(start, end, {}) == [OffsetRange(P[0], 5, 8)]


@pytest.mark.parametrize(
    ("end", "fixed", "latest", "condition"),
    [
        ({P[0]: 1}, {P[0]: 1, P[1]: 1}, {P[0]: 1}, f"MISMATCHED_TOPIC_PARTITIONS_BETWEEN_{E}_AND_PREFETCHED"),
        ({P[0]: 2}, {P[0]: 1}, {P[0]: 2}, f"{E}_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED"),
        ({P[0]: 1, P[1]: 1}, {P[0]: 1, P[1]: 1}, {P[0]: 1}, f"LOST_TOPIC_PARTITIONS_IN_{E}"),
        ({P[0]: 5}, {P[0]: 5}, {P[0]: 3}, f"{E}_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST"),
    ],
)  # fmt: skip
def test_an_end_that_was_fixed_is_held_against_the_topics(
    end: Any, fixed: Any, latest: Any, condition: str
) -> None:
    with pytest.raises(FixedEndLost, match=rf"^\[{condition}_WITH_TRIGGER_AVAILABLENOW\]"):
        check_fixed_end(end, fixed, latest)


def test_partitions_of_a_broker_of_the_first_generation_may_be_away() -> None:
    check_fixed_end({B: 100}, {}, {})
