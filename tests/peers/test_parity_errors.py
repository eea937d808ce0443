"""Wrong options: both connectors refuse the same, with the same words in what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.datasource.both_connectors import OURS, THEIRS, Both, ParityTopic, failure, load, read
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.foreign.foreign_face import messages

FIRST = messages()[0].timestamp


@pytest.fixture(scope="module")
def two(apache_kafka: ApacheKafka) -> ParityTopic:
    """Ten records in partition 0, five in 1."""
    topic = ParityTopic.make(apache_kafka.bootstrap_servers, "parity-errors", 2)
    topic.add(0, messages(10))
    topic.add(1, messages(5))
    return topic


Given = Callable[[ParityTopic], dict[str, object]]
LATE = FIRST + 10**6


CASES: dict[str, tuple[Given, str]] = {
    "s73 nothing assigned": (
        lambda t: {"subscribe": None, "assign": ""},
        "No topicpartitions to assign as specified value",
    ),
    "s73 JSON that is none": (
        lambda t: {"startingOffsets": "{t:1}"},
        r'Expected .*\{"topicA":\{"0":23,"1":-1\}.*got .?\{t:1\}',
    ),
    "b13 a start after the last record": (
        lambda t: {"startingTimestamp": str(LATE)},
        "No offset matched from request of topic-partition .*-[01] and timestamp " + str(LATE),
    ),
    "b22 a start after an end by time": (
        lambda t: {"startingOffsets": t.offsets(p0=9, p1=0), "endingTimestamp": str(FIRST + 14)},
        "(specified|resolved) start offset 9 is greater than the (resolved )?end offset 2 for",
    ),
    "r17 an isolation level": (
        lambda t: {"kafka.isolation.level": "read_some"},
        "(?i)isolation.*read_some|read_some.*isolation",
    ),
    "r16 a topic that is not there": (
        lambda t: {"subscribe": t.name + "-not", "fetchOffset.numRetries": "1"},
        "(?i)does not exist|UnknownTopicOrPartition|does not host this topic",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_both_refuse_in_the_same_words(both_at_kafka: Both, two: ParityTopic, case: str) -> None:
    given, words = CASES[case]
    both_at_kafka.fail(words, **{"subscribe": two.name, **given(two)})


def test_an_empty_assignment_is_refused_by_ours_only(both_at_kafka: Both) -> None:
    assert read(both_at_kafka.spark, THEIRS, both_at_kafka.servers, {"assign": "{}"}).rows == []
    text = failure(both_at_kafka.spark, OURS, both_at_kafka.servers, {"assign": "{}"})
    assert "No topicpartitions to assign" in text


def test_a_name_that_is_not_an_option_is_refused_by_ours_only(both_at_kafka: Both, two: ParityTopic) -> None:
    options = {"subscribe": two.name, "startingOffset": "latest"}
    assert len(read(both_at_kafka.spark, THEIRS, both_at_kafka.servers, options).rows) == 15
    assert "startingOffsets" in failure(both_at_kafka.spark, OURS, both_at_kafka.servers, options)


def test_columns_are_chosen_by_a_schema_with_ours_only(both_at_kafka: Both, two: ParityTopic) -> None:
    reader = both_at_kafka.spark.read.format(THEIRS).schema("offset bigint")
    options = {"kafka.bootstrap.servers": both_at_kafka.servers, "subscribe": two.name}
    with pytest.raises(Exception, match="USER_SPECIFIED_AND_ACTUAL_SCHEMA_MISMATCH"):
        reader.options(**options).load().count()
    ours = both_at_kafka.spark.read.format(OURS).schema("offset bigint").options(**options).load()
    assert sorted(row.offset for row in ours.collect()) == sorted([*range(10), *range(5)])


def test_options_of_streams_mean_nothing_to_a_batch(both_at_kafka: Both, two: ParityTopic) -> None:
    limits = {"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "5s"}
    assert len(both_at_kafka.read(subscribe=two.name, **limits).rows) == 15


def test_the_schema_is_the_same(both_at_kafka: Both, two: ParityTopic) -> None:
    for headers in ("false", "true"):
        options = {"subscribe": two.name, "includeHeaders": headers}
        theirs, ours = (
            load(both_at_kafka.spark, source, both_at_kafka.servers, options) for source in (THEIRS, OURS)
        )
        assert ours.schema == theirs.schema
