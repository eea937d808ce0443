"""The options of streams, and what is said of wrong ones (in words known from Spark's connector)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions, StreamOptions
from pyspark_kafkalog.datasource.options.read_options import (
    parse_batch_options,
    parse_either_options,
    parse_stream_options,
)
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    EARLIEST,
    LATEST,
    GlobalTimestamp,
    SpecificOffsets,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}


def parsed(**options: str) -> StreamOptions:
    return parse_stream_options({**GIVEN, **options})


def test_a_stream_begins_at_latest_and_has_no_limits() -> None:
    options = parsed()
    assert options.start == LATEST
    assert (options.max_offsets, options.min_offsets, options.max_delay_ms) == (None, None, 900_000)
    assert (options.commits_group, options.start_place) == (False, None)


def test_s7_a_limit_may_be_the_largest_long() -> None:
    assert parsed(maxOffsetsPerTrigger=str(2**63 - 1)).max_offsets == 2**63 - 1
    with pytest.raises(InvalidConfig, match="maxOffsetsPerTrigger must be positive"):
        parsed(maxOffsetsPerTrigger=str(2**63))


def test_s24_and_s25_group_options_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    options = parsed(groupIdPrefix="mine", **{"kafka.group.id": "forced"})
    assert options.group_id == "forced"
    assert caplog.messages == []


@pytest.mark.parametrize("value", ["a", "1.0", "0", "-1", ""])
@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger"])
def test_s32_counts_are_whole_numbers_above_zero(option: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{option} must be positive; got '{value}'"):
        parsed(**{option: value})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
        ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
        ({"subscribe": ""}, "No topics to subscribe to"),
        ({"assign": '{"t":[0]}'}, "Only one of the following options can be specified for Kafka source"),
        ({"startingTimestamp": "soon"}, "Expected a single long value, got soon"),
        ({"startingOffsets": "then"}, 'startingOffsets is "earliest", "latest"'),
        (
            {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            r"The value of minOffsetPerTrigger\(20\) is higher than the maxOffsetsPerTrigger\(15\).",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is a time such as 100ms"),
        ({"kafka.isolation.level": "sometimes"}, "kafka.isolation.level is one of"),
        ({"commitOffsets": "stage"}, "commitOffsets=stage has no meaning in a stream"),
        ({"commitOffsets": "group"}, "commitOffsets=group needs kafka.group.id"),
        ({"loadName": "l", "offsetsPath": "/tmp"}, "loadName has no meaning in a stream"),
        ({"between": "start,commit:3"}, "between has no meaning in a stream"),
        ({"asOf": "2026-01-01"}, "asOf has no meaning in a stream"),
        ({"startingOffsets": "commit:3"}, "startingOffsets=commit:N is for batches"),
        ({"streamName": "s"}, "streamName is given and offsetsPath is not"),
        ({"offsetsPath": "/tmp"}, "offsetsPath is given and streamName is not"),
        ({"streamName": "a/b", "offsetsPath": "/tmp"}, "streamName is up to 200 letters"),
        ({"streamName": "s", "offsetsPath": "tmp"}, "a relative path"),
        ({"maxOffsetPerTrigger": "1"}, "Did you mean 'maxOffsetsPerTrigger'"),
    ],
)
def test_s73_wrong_options_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parsed(**options)


@pytest.mark.parametrize(
    "option",
    [
        "kafka.auto.offset.reset", "kafka.key.deserializer", "kafka.value.deserializer",
        "kafka.enable.auto.commit", "kafka.interceptor.classes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["any value", "earliest", ""])
def test_s74_some_kafka_options_are_refused_whatever_their_value(option: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"Kafka option '{option}' is not supported"):
        parsed(**{option: value})


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earLiEst", EARLIEST),
        ("laTest", LATEST),
        ('{"t":"eArLiEst"}', SpecificOffsets({}, {"t": -2})),
        ('{"t":{"0":-1}}', SpecificOffsets({TopicPartition("t", 0): -1})),
    ],
)
def test_s75_words_are_read_in_any_case(text: str, start: object) -> None:
    assert parsed(startingOffsets=text).start == start


def test_s76_names_are_read_in_any_case() -> None:
    options = parse_stream_options(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "127.0.0.1:9092",
            "Subscribe": "t",
            "STARTINGTIMESTAMP": "7",
            "maxoffsetspertrigger": "5",
            "MINOFFSETSPERTRIGGER": "3",
        }
    )
    assert options.start == GlobalTimestamp(7)
    assert (options.min_offsets, options.max_offsets) == (3, 5)


@pytest.mark.parametrize(
    ("text", "expected"), [("15m", 900_000), ("250ms", 250), ("30 s", 30_000), ("2H", 7_200_000), ("70", 70)]
)
def test_a_delay_is_a_time_with_a_unit(text: str, expected: int) -> None:
    assert parsed(maxTriggerDelay=text).max_delay_ms == expected


@pytest.mark.parametrize("option", ["minOffsetsPerTrigger", "maxOffsetsPerTrigger"])
def test_bytes_of_the_first_generation_cannot_be_counted(option: str) -> None:
    of_07 = {"protocol": "0.7", "zookeeper.connect": "127.0.0.1:2181", "subscribe": "t"}
    assert parse_stream_options(of_07).v07 is not None
    with pytest.raises(InvalidConfig, match=f"{option} has no meaning with protocol=0.7"):
        parse_stream_options({**of_07, option: "5"})


def test_a_start_is_kept_in_a_directory_under_a_name(tmp_path: Path) -> None:
    options = parsed(streamName="clicks", offsetsPath=str(tmp_path))
    assert options.start_place == (str(tmp_path), "clicks")


def test_what_means_nothing_in_a_stream_or_a_batch_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    parse_batch_options({**GIVEN, "maxOffsetsPerTrigger": "5", "topic": "t"})
    assert "option maxOffsetsPerTrigger has no meaning in a batch read and is ignored" in caplog.messages
    assert "option topic has no meaning in a read and is ignored" in caplog.messages


def test_the_schema_depends_on_options_for_a_batch_and_for_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert isinstance(parse_either_options({**GIVEN, "endingOffsets": "latest"}), BatchOptions)
    assert isinstance(parse_either_options({**GIVEN, "startingOffsets": "latest"}), StreamOptions)
    assert isinstance(parse_either_options({**GIVEN, "minOffsetsPerTrigger": "5"}), StreamOptions)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "nonsense"}, "columns are some of"),
        (
            {"startingOffsets": "latest", "endingOffsets": "earliest"},
            "starting offset can't be latest for batch",
        ),
        (
            {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1", "startingOffsets": "latest"},
            "The value of minOffsetPerTrigger",
        ),
    ],
)
def test_options_that_are_right_for_neither_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse_either_options({**GIVEN, **options})
