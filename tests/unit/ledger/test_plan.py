from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafkalog.errors import DamagedRecord, LoadError, OffsetsAgedOut, TopicRecreated
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.plan import (
    UNKNOWN,
    Plan,
    PlannedPartition,
    PlannedRange,
    Position,
)
from pyspark_kafkalog.ledger.records import decode, encode
from pyspark_kafkalog.types import TopicPartition
from tests.support.ledger.plans import P0, P1, TOPIC_ID, facts, plan_of, position


def after(*positions: Position) -> Commit:
    return Commit(3, 2, "00", "", "job", "run", positions, 0, 0)


def planned(plan: Plan, key: TopicPartition = P0) -> PlannedPartition:
    return next(p for p in plan.partitions if p.key == key)


def test_the_first_load_begins_where_configured_and_ends_at_the_end() -> None:
    plan = plan_of({P1: facts(0, 4), P0: facts(2, 12)}, first_starts={P0: 5, P1: 0})
    assert plan.partitions == (
        PlannedPartition(
            "clicks", 0, TOPIC_ID, 1, "broker-1:9092", 3, 5, 12, 2, 12, "first load", ((5, 8), (8, 12))
        ),
        PlannedPartition(
            "clicks", 1, TOPIC_ID, 1, "broker-1:9092", 3, 0, 4, 0, 4, "first load", ((0, 2), (2, 4))
        ),
    )
    assert plan.ranges == tuple(
        PlannedRange("clicks", p, TOPIC_ID, start, end)
        for p, start, end in [(0, 5, 8), (0, 8, 12), (1, 0, 2), (1, 2, 4)]
    )
    assert plan.positions == {P0: position(P0, 12), P1: position(P1, 4)}
    assert (plan.number, plan.parent) == (1, 0)


def test_a_later_load_begins_where_the_commit_ended_whatever_the_first_start_says() -> None:
    plan = plan_of({P0: facts(0, 20)}, after(position(P0, 12)), first_starts={P0: 0})
    assert (plan.number, plan.parent) == (4, 3)
    assert (planned(plan).start, planned(plan).end, planned(plan).reason) == (12, 20, "")


def test_where_nothing_is_new_the_plan_has_no_ranges() -> None:
    assert plan_of({P0: facts(0, 12)}, after(position(P0, 12))).ranges == ()
    assert plan_of({P0: facts(0, 0)}).ranges == ()
    assert plan_of({}, None).ranges == ()


def test_a_partition_with_nothing_new_is_in_the_plan_without_ranges() -> None:
    plan = plan_of({P0: facts(0, 12), P1: facts(0, 9)}, after(position(P0, 12), position(P1, 4)))
    assert (planned(plan).start, planned(plan).end, planned(plan).ranges) == (12, 12, ())


def test_a_new_partition_begins_at_its_earliest_offset() -> None:
    plan = plan_of({P0: facts(0, 12), P1: facts(3, 9)}, after(position(P0, 12)), first_starts={P0: 0, P1: 8})
    assert (planned(plan, P1).start, planned(plan, P1).end, planned(plan, P1).reason) == (
        3,
        9,
        "new partition",
    )


def test_a_partition_that_is_not_subscribed_to_keeps_its_position() -> None:
    plan = plan_of({P0: facts(0, 20)}, after(position(P0, 12), position(P1, 4)))
    assert planned(plan, P1) == PlannedPartition(
        "clicks", 1, TOPIC_ID, 1, "broker-1:9092", UNKNOWN, 4, 4, UNKNOWN, UNKNOWN, "not subscribed", ()
    )
    assert plan.positions[P1] == position(P1, 4)


def test_an_end_before_the_position_reads_nothing_and_keeps_it() -> None:
    plan = plan_of(
        {P0: facts(0, 20), P1: facts(0, 9)}, after(position(P0, 12), position(P1, 4)), ends={P0: 7, P1: 9}
    )
    assert (planned(plan).start, planned(plan).end, planned(plan).reason) == (12, 12, "asked to end at 7")


RECREATED = [
    (
        {P0: facts(0, 20, topic_id="another"), P1: facts(0, 9)},
        f"clicks-0: topic id {TOPIC_ID} is now another",
    ),
    ({P0: facts(0, 7), P1: facts(0, 9)}, "clicks-0: position 12 is beyond the end of the log, 7"),
]


@pytest.mark.parametrize(("known", "told"), RECREATED)
def test_a_recreated_topic_is_refused_and_says_what_can_be_done(known: Any, told: str) -> None:
    with pytest.raises(TopicRecreated, match=f"{told}. onTopicRecreated=earliest reads .* another loadName"):
        plan_of(known, after(position(P0, 12), position(P1, 4)))


@pytest.mark.parametrize(("known", "told"), RECREATED)
def test_a_recreated_topic_is_read_from_its_beginning_where_that_is_asked_for(known: Any, told: str) -> None:
    plan = plan_of(known, after(position(P0, 12), position(P1, 4)), on_topic_recreated="earliest")
    assert (planned(plan).start, planned(plan).end) == (0, known[P0].latest)
    assert planned(plan).reason == "topic recreated: position 12 given up"
    assert planned(plan).topic_id == known[P0].topic_id


@pytest.mark.parametrize(("known", "told"), RECREATED)
def test_a_recreated_topic_that_is_skipped_keeps_position_and_id_and_is_seen_again(
    known: Any, told: str
) -> None:
    plan = plan_of(known, after(position(P0, 12), position(P1, 4)), on_topic_recreated="skip")
    assert (planned(plan).start, planned(plan).end, planned(plan).ranges) == (12, 12, ())
    assert planned(plan).reason == "topic recreated: skipped"
    with pytest.raises(TopicRecreated):
        plan_of(known, after(*plan.positions.values()))


def test_where_brokers_tell_no_topic_ids_only_the_end_of_the_log_counts() -> None:
    plan = plan_of({P0: facts(0, 20, topic_id="")}, after(position(P0, 12)))
    assert planned(plan).start == 12
    assert planned(plan_of({P0: facts(0, 20)}, after(position(P0, 12, topic_id="")))).topic_id == TOPIC_ID


def test_offsets_that_aged_out_are_refused_with_their_number() -> None:
    with pytest.raises(
        OffsetsAgedOut, match=r"^8 offsets were .*: clicks-0: 8 offsets, \[12, 20\)\. failOnDataLoss=false"
    ):
        plan_of({P0: facts(20, 30)}, after(position(P0, 12)))


def test_offsets_that_aged_out_are_noted_where_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of({P0: facts(20, 30)}, after(position(P0, 12)), fail_on_data_loss=False)
    assert (planned(plan).start, planned(plan).end, planned(plan).reason) == (20, 30, "8 offsets aged out")
    assert "8 offsets were deleted before they were loaded: clicks-0" in caplog.text


def test_a_message_names_a_few_partitions_and_counts_the_rest() -> None:
    keys = [TopicPartition("clicks", i) for i in range(9)]
    with pytest.raises(OffsetsAgedOut, match=r"^9 offsets .*clicks-4: 1 offsets, \[0, 1\); and 4 more\."):
        plan_of({key: facts(1, 5) for key in keys}, after(*(position(key, 0) for key in keys)))


@pytest.mark.parametrize(("start", "warned"), [(1004, True), (1005, False), (1100, False)])
def test_a_position_close_to_the_beginning_of_the_log_is_warned_about(
    caplog: pytest.LogCaptureFixture, start: int, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        plan_of({P0: facts(1000, 1100), P1: facts(0, 9)}, after(position(P0, start), position(P1, 0)))
    assert (
        "retention will soon delete unread offsets, load more often: clicks-0: position" in caplog.text
    ) is warned
    assert "clicks-1" not in caplog.text


def test_a_split_that_leaves_offsets_out_is_refused() -> None:
    with pytest.raises(LoadError, match=r"clicks-0: the ranges .* do not tile \[0, 12\)"):
        plan_of({P0: facts(0, 12)}, split=lambda ranges: [(P0, 0, 5), (P0, 6, 12)])


@pytest.mark.parametrize("ranges", [((0, 5),), ((0, 5), (6, 12)), (), ((0, 13),), ((1, 12),)])
def test_a_plan_whose_ranges_do_not_tile_or_with_a_partition_twice_is_damaged_though_it_is_sealed(
    ranges: Any,
) -> None:
    plan = plan_of({P0: facts(0, 12)})
    wrong = replace(plan, partitions=(replace(plan.partitions[0], ranges=ranges),))
    with pytest.raises(DamagedRecord, match=r"here, partitions\[0\]: the ranges .* do not tile \[0, 12\)"):
        decode(Plan, encode(wrong), "here")
    with pytest.raises(DamagedRecord, match="not in order, or one appears twice"):
        decode(Plan, encode(replace(plan, partitions=plan.partitions * 2)), "here")
