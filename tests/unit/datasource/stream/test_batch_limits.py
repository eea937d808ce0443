"""How much one batch takes: the numbers of Spark's own connector."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.datasource.stream.stream_batches import Trigger, share_limit, waiting_count
from pyspark_kafkalog.types import TopicPartition
from tests.support.manual_clock import ManualClock

P = [TopicPartition("t", n) for n in range(4)]
LONG_MAX = 2**63 - 1


def shared(limit: int, *ranges: tuple[int, int]) -> list[int]:
    starts = {P[i]: start for i, (start, _) in enumerate(ranges)}
    ends = {P[i]: end for i, (_, end) in enumerate(ranges)}
    return list(share_limit(limit, starts, ends).values())


@pytest.mark.parametrize(
    ("limit", "ranges", "expected"),
    [
        (10, [(0, 101), (0, 11), (0, 1)], [8, 1, 1]),  # S8: 8 of 101, 1 of 11, 1 of 1
        (10, [(8, 101), (1, 11), (1, 1)], [17, 2, 1]),
        (6, [(0, 10), (0, 5)], [4, 2]),
        (100, [(0, 10), (0, 5)], [10, 5]),
        (1, [(0, 9), (0, 9)], [1, 1]),  # nobody is starved, so it may be a few more
        (5, [(3, 3), (0, 50)], [3, 5]),
        (5, [(9, 4), (0, 50)], [4, 5]),  # an end before its start is kept: that is told elsewhere
        (5, [(2, 2)], [2]),
        (LONG_MAX, [(0, 10), (0, 5)], [10, 5]),  # S7
        (LONG_MAX, [(0, LONG_MAX), (0, LONG_MAX)], [LONG_MAX // 2 + 1, LONG_MAX // 2 + 1]),
        (LONG_MAX, [(5, LONG_MAX)], [LONG_MAX]),
    ],
)
def test_s7_and_s8_a_limit_is_shared_by_what_waits(
    limit: int, ranges: list[tuple[int, int]], expected: list[int]
) -> None:
    assert shared(limit, *ranges) == expected


def test_what_waits_is_counted_without_partitions_that_went_back() -> None:
    assert waiting_count({P[0]: 3, P[1]: 9}, {P[0]: 10, P[1]: 4}) == 7


def fires(trigger: Trigger, count: int, least: int | None = 5) -> bool:
    return trigger.fires(least, {P[0]: 0}, {P[0]: count})


def test_s10_the_first_batch_fires_and_the_next_waits_until_there_is_enough() -> None:
    trigger = Trigger(900_000, ManualClock())
    assert [fires(trigger, count) for count in (1, 1, 4, 5, 4, 6)] == [True, False, False, True, False, True]


def test_s11_a_delay_forces_a_small_batch() -> None:
    clock = ManualClock()
    trigger = Trigger(1000, clock)
    assert fires(trigger, 1)
    clock.advance(0.999)
    assert not fires(trigger, 1)
    clock.advance(0.001)
    assert fires(trigger, 1)
    assert not fires(trigger, 1)


def test_without_a_least_count_every_trigger_fires() -> None:
    trigger = Trigger(1000, ManualClock())
    assert [fires(trigger, 0, least=None) for _ in range(3)] == [True, True, True]
