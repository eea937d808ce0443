"""Batch reads by Spark's own connector and by ours: the same options, the same rows in the same tasks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from tests.support.datasource.both_connectors import (
    OURS,
    THEIRS,
    Both,
    ParityTopic,
    at_kafka,
    at_our_broker,
    failure,
    load,
    read,
)
from tests.support.foreign.foreign_face import CODECS, Message, messages

_numbers = itertools.count()
FIRST = messages()[0].timestamp
LOST = r"[Cc]ould not read (records in offset|offsets) \[0, "
STEP = 7
"""Between the times of two records."""


def told(text: str, timestamp: int = FIRST) -> Message:
    return Message(text.encode(), None, timestamp, ())


@pytest.fixture(scope="module")
def four(servers_of_each: str) -> ParityTopic:
    """60 records in partition 0, in 1 the next 31, none in 2, one in 3: of every codec, key, header."""
    topic = ParityTopic.make(servers_of_each, f"parity-four-{next(_numbers)}", 4)
    sent = messages(92)
    for codec, start in zip(CODECS, range(0, 60, 12), strict=True):
        topic.add(0, sent[start : start + 12], codec)
    topic.add(1, sent[60:91], "lz4")
    topic.add(3, sent[91:])
    return topic


Given = Callable[[ParityTopic], dict[str, object]]

CASES: dict[str, tuple[Given, int]] = {
    "b1 by default": (lambda t: {}, 92),
    "b3 placeholders and numbers": (
        lambda t: {
            "startingOffsets": t.offsets(p0=-2, p1=4, p2=0, p3=-2),
            "endingOffsets": t.offsets(p0=3, p1=-1, p2=-1, p3=1),
        },
        3 + 27 + 1,
    ),
    "b3 empty ranges": (
        lambda t: {
            "startingOffsets": t.offsets(p0=5, p1=31, p2=0, p3=1),
            "endingOffsets": t.offsets(p0=5, p1=31, p2=0, p3=1),
        },
        0,
    ),
    "b6 headers": (lambda t: {"includeHeaders": "true"}, 92),
    "b7 times on both sides": (
        lambda t: {
            "startingOffsetsByTimestamp": t.offsets(p0=FIRST + 20 * STEP, p1=FIRST, p2=FIRST, p3=FIRST),
            "startingOffsetsByTimestampStrategy": "latest",
            "endingOffsetsByTimestamp": t.offsets(
                p0=FIRST + 50 * STEP, p1=FIRST + 70 * STEP + 1, p2=FIRST, p3=FIRST + 10**9
            ),
        },
        30 + 11 + 1,
    ),
    "b12 one time for all": (
        lambda t: {
            "startingTimestamp": str(FIRST + 59 * STEP),
            "startingOffsetsByTimestampStrategy": "latest",
            "endingTimestamp": str(FIRST + 91 * STEP),
        },
        1 + 31,
    ),
    "b15 the global time wins": (
        lambda t: {
            "startingTimestamp": str(FIRST + 30 * STEP),
            "startingOffsetsByTimestampStrategy": "latest",
            "startingOffsetsByTimestamp": t.offsets(p0=FIRST, p1=FIRST, p2=FIRST, p3=FIRST),
            "startingOffsets": t.offsets(p0=0, p1=0, p2=0, p3=0),
        },
        30 + 31 + 1,
    ),
    "r both": (lambda t: {"maxRecordsPerPartition": "25", "minPartitions": "12"}, 92),
    "pattern": (lambda t: {"subscribe": None, "subscribePattern": t.name[:-2] + ".*"}, 92),
    "s75 words and names in any case": (
        lambda t: {"STARTINGOFFSETS": "earLiEst", "endingoffsets": "laTest", "IncludeHeaders": "TRUE"},
        92,
    ),
    "committed only, of a topic without transactions": (
        lambda t: {"kafka.isolation.level": "read_committed"},
        92,
    ),
    "a group's name": (lambda t: {"kafka.group.id": "parity", "groupIdPrefix": "other"}, 92),
}


OF_THE_BROKER = (
    "b1 by default",
    "b3 placeholders and numbers",
    "b6 headers",
    "b7 times on both sides",
    "b12 one time for all",
    "pattern",
    "committed only, of a topic without transactions",
)
"""Those for which it matters what the broker answers: the rest is arithmetic, and words."""


@at_kafka
@pytest.mark.parametrize("case", CASES)
def test_both_read_the_same(both: Both, four: ParityTopic, case: str) -> None:
    given, count = CASES[case]
    answer = both.read(**{"subscribe": four.name, **given(four)})
    assert len(answer.rows) == count


@at_our_broker
@pytest.mark.parametrize("case", OF_THE_BROKER)
def test_both_read_the_same_of_our_broker(both: Both, four: ParityTopic, case: str) -> None:
    test_both_read_the_same(both, four, case)


@at_kafka
@pytest.mark.parametrize("form", ["startingOffsets", "endingOffsets"])
def test_a_whole_topic_may_be_named_with_ours_only(both: Both, four: ParityTopic, form: str) -> None:
    words = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    options = {"subscribe": four.name, form: json.dumps({four.name: words[form]})}
    assert "Expected e.g." in failure(both.spark, THEIRS, both.servers, options)
    assert len(read(both.spark, OURS, both.servers, options).rows) == 92


@at_kafka
def test_records_per_task_are_limited_without_min_partitions_by_ours_only(
    both: Both, four: ParityTopic
) -> None:
    theirs, ours = both.each(subscribe=four.name, maxRecordsPerPartition="7")
    assert ours.rows == theirs.rows
    assert max(map(len, ours.tasks)) == 7
    assert max(map(len, theirs.tasks)) == 60, "Spark's connector has mended this: see docs/migration.md"
    both.read(subscribe=four.name, maxRecordsPerPartition="7", minPartitions="5")


def test_b5_and_s80_what_was_deleted_is_missed_where_it_was_named(
    both_at_kafka: Both, topic_name: str
) -> None:
    both = both_at_kafka
    topic = ParityTopic.make(both.servers, topic_name, 2)
    topic.add(0, messages(30))
    topic.add(1, messages(10))
    frames = [load(both.spark, source, both.servers, {"subscribe": topic_name}) for source in (THEIRS, OURS)]
    assert [frame.count() for frame in frames] == [40, 40]
    topic.delete_before(p0=12)
    assert [frame.count() for frame in frames] == [28, 28]
    assert both.read(subscribe=topic_name).rows[0].offset == 12
    from_zero = {"subscribe": topic_name, "startingOffsets": topic.offsets(p0=0, p1=0)}
    left = both.read(**from_zero, failOnDataLoss="false")
    assert [len(task) for task in left.tasks] == [18, 10]
    both.fail(LOST, **from_zero)
    gone = {"endingOffsets": topic.offsets(p0=7, p1=2)}
    assert len(both.read(**from_zero, **gone, failOnDataLoss="false").rows) == 2
    both.fail(LOST, **from_zero, **gone)


ISOLATION = ("read_committed", "read_uncommitted")


@pytest.mark.parametrize("isolation", ISOLATION)
def test_b18_and_s27_markers_and_aborted_records_wherever_they_are(
    both_at_kafka: Both, topic_name: str, isolation: str
) -> None:
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 5)
    sent = messages(40)
    topic.add_transactions(
        (0, sent[:10], True), (0, sent[10:20], False), (0, sent[20:30], True)
    )  # in the middle
    topic.add_transactions((1, sent[:5], False), (1, sent[5:10], True))  # first
    topic.add_transactions((2, sent[:5], True), (2, sent[5:10], False))  # last
    topic.add_transactions((3, sent[:5], False))  # nothing else
    topic.add(4, sent[:3])
    topic.add_transactions((4, sent[3:6], True), codec="zstd")
    counts = {"read_committed": 20 + 5 + 5 + 6, "read_uncommitted": 30 + 10 + 10 + 5 + 6}
    options = {"subscribe": topic_name, "includeHeaders": "true", "kafka.isolation.level": isolation}
    assert len(both_at_kafka.read(**options).rows) == counts[isolation]
    assert len(both_at_kafka.read(**options, minPartitions="12").rows) == counts[isolation]
    # From a marker to a marker, and behind each.
    inside = {
        "startingOffsets": topic.offsets(p0=10, p1=5, p2=5, p3=5, p4=3),
        "endingOffsets": topic.offsets(p0=32, p1=-1, p2=11, p3=6, p4=7),
    }
    both_at_kafka.read(**options, **inside)


@pytest.mark.parametrize("isolation", ISOLATION)
def test_b18_the_end_is_the_last_stable_offset_for_those_who_read_committed(
    both_at_kafka: Both, topic_name: str, isolation: str
) -> None:
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 1)
    topic.add(0, messages(4))
    topic.leave_open(0, messages(1))
    topic.add(0, messages(2))
    found = both_at_kafka.read(subscribe=topic_name, **{"kafka.isolation.level": isolation})
    assert len(found.rows) == (4 if isolation == "read_committed" else 7)
    topic.close()


def test_what_compaction_has_left_and_no_offset_of_a_gap_is_lost(
    both_at_kafka: Both, topic_name: str
) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
    topic = ParityTopic.make(both_at_kafka.servers, topic_name, 1, settings)
    keys = [f"only {n}" if n % 10 == 3 else f"key {n % 5}" for n in range(100)]
    sent = [Message(f"{n}".encode(), key.encode(), FIRST + n, ()) for n, key in enumerate(keys)]
    topic.add(0, sent, "lz4")
    # Later by more than a segment may hold: the rest is in a segment of its own, and may be compacted.
    topic.add(0, [Message(b"100", b"last", FIRST + 10**6, ())])
    topic.await_compaction(0, sent[0])
    kept = sorted({key: n for n, key in enumerate([*keys, "last"])}.values())
    assert len(kept) == 16
    everything = {"subscribe": topic_name}
    for options in ({}, {"startingOffsets": topic.offsets(p0=0)}, {"minPartitions": 7}):
        assert [row.offset for row in both_at_kafka.read(**everything, **options).rows] == kept
    gap = {"startingOffsets": topic.offsets(p0=14), "endingOffsets": topic.offsets(p0=62)}
    assert [row.offset for row in both_at_kafka.read(**everything, **gap).rows] == [23, 33, 43, 53]
    empty = {"startingOffsets": topic.offsets(p0=14), "endingOffsets": topic.offsets(p0=20)}
    assert both_at_kafka.read(**everything, **empty).rows == []


def test_large_values_and_many_batches(both: Both, topic_name: str) -> None:
    topic = ParityTopic.make(both.servers, topic_name, 1)
    topic.add(0, [told(f"{n} " * n, FIRST + n) for n in range(700)], "zstd")
    assert len(both.read(subscribe=topic_name, **{"kafka.max.partition.fetch.bytes": "20000"}).rows) == 700
