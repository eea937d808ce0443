from __future__ import annotations

from kafkalog_broker.logs.offset_records import CommittedOffset, OffsetKey, PendingOffsets
from pyspark_kafkalog.types import TopicPartition

KEY, OTHER = OffsetKey("g", TopicPartition("t", 0)), OffsetKey("g", TopicPartition("t", 1))
ONE, TWO = CommittedOffset(1), CommittedOffset(2)


def test_what_is_pending_counts_once_it_is_committed() -> None:
    pending = PendingOffsets()
    pending.add(7, 10, {KEY: ONE})
    pending.add(8, 11, {OTHER: TWO})
    assert pending.of(KEY) == [ONE]
    assert pending.end(7, commit=True) == {KEY: ONE}
    assert (pending.of(KEY), pending.of(OTHER)) == ([], [TWO])
    assert pending.end(8, commit=False) == pending.end(8, commit=True) == {}


def test_a_later_record_overtakes_what_is_pending_but_it_stays_unstable() -> None:
    pending = PendingOffsets()
    pending.add(7, 10, {KEY: ONE})
    pending.overtake([KEY], 9)
    pending.overtake([KEY], 11)
    assert pending.of(KEY) == [ONE]
    assert pending.end(7, commit=True) == {}


def test_the_later_record_of_two_transactions_wins_whichever_commits_first() -> None:
    for order in ((7, 8), (8, 7)):
        pending = PendingOffsets()
        pending.add(7, 10, {KEY: ONE})
        pending.add(8, 11, {KEY: TWO})
        stored = {}
        for producer in order:
            stored.update(pending.end(producer, commit=True))
        assert stored == {KEY: TWO}
