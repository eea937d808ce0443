"""What lies between two snapshots, and what a group has still to read."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.status.snapshot import (
    PartitionStatus,
    Rates,
    Snapshot,
    TopicStatus,
    by_partition,
    lag_of,
    magnitude,
    rates_between,
)
from pyspark_kafkalog.types import TopicPartition


def flights(at_ms: int, *partitions: PartitionStatus) -> Snapshot:
    return Snapshot(at_ms, "c", topics=(TopicStatus("flights", partitions),))


BEFORE = flights(0, PartitionStatus(0, 1, 0, 1000), PartitionStatus(1, -1))


def test_rates_are_counted_for_each_partition() -> None:
    before = flights(0, PartitionStatus(0, 1, 0, 1000), PartitionStatus(1, 1, 0, 50))
    now = flights(5000, PartitionStatus(0, 1, 900, 1010), PartitionStatus(1, 1, 0, 50))
    rates = rates_between(before, now)
    assert rates == Rates({"flights": {0: 2.0, 1: 0.0}}, {"flights": 2.0})
    assert rates.total == 2.0


def test_an_owner_that_returns_did_not_write_what_it_has() -> None:
    now = flights(2000, PartitionStatus(0, 1, 0, 1010), PartitionStatus(1, 2, 0, 5_000_000_000))
    assert rates_between(BEFORE, now) == Rates({"flights": {0: 5.0}}, {"flights": 5.0})


def test_a_new_owner_that_begins_far_above_did_not_write_up_to_there() -> None:
    before = flights(0, PartitionStatus(0, 1, 0, 1010))
    far = 1_795_630_951_825
    now = flights(2000, PartitionStatus(0, 2, far, far))
    assert rates_between(before, now).partitions == {"flights": {0: 0.0}}
    later = flights(4000, PartitionStatus(0, 2, far, far + 8))
    assert rates_between(now, later).total == 4.0


@pytest.mark.parametrize(
    "now",
    [
        flights(5000, PartitionStatus(0, 1, 0, 3)),  # the topic was made new
        flights(5000, PartitionStatus(0, -1)),
        flights(0, PartitionStatus(0, 1, 0, 1010)),  # the clock stands still
        flights(-5, PartitionStatus(0, 1, 0, 1010)),
        Snapshot(5000, "c"),
    ],
)
def test_what_cannot_be_compared_has_no_rate(now: Snapshot) -> None:
    assert rates_between(BEFORE, now) == Rates()
    assert rates_between(BEFORE, now).total is None
    assert rates_between(None, now) == Rates()


KNOWN = by_partition(
    [
        TopicStatus("t", (PartitionStatus(0, 1, 90, 100), PartitionStatus(1, 1, 0, 7))),
        TopicStatus("away", (PartitionStatus(0, -1),)),
    ]
)


@pytest.mark.parametrize(
    ("positions", "lag"),
    [
        ({("t", 0): 95, ("t", 1): 0}, 12),
        ({("t", 0): 0}, 10),  # what was deleted cannot be read
        ({("t", 1): 9}, 0),
        ({("t", 0): 95, ("away", 0): 1}, None),
        ({("t", 2): 0}, None),
        ({}, None),
    ],
)
def test_the_lag_is_what_is_left_to_read(positions: dict[tuple[str, int], int], lag: int | None) -> None:
    assert lag_of({TopicPartition(*where): at for where, at in positions.items()}, KNOWN) == lag


def test_values_of_about_the_same_size_keep_their_order() -> None:
    values = [None, 0, 0.9, 5, 4, 7000, 6000, 9000]
    ordered = sorted(range(len(values)), key=lambda n: magnitude(values[n]))
    assert [values[n] for n in ordered] == [9000, 7000, 6000, 5, 4, 0, 0.9, None]
