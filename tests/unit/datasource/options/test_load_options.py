"""Which options make a load, and what is said where they do not go together."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.datasource.options.option_definitions import LoadOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    EARLIEST,
    GlobalTimestamp,
    GroupOffsets,
    OffsetFiles,
)
from pyspark_kafkalog.errors import InvalidConfig

READ = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
LOAD = {"loadName": "flights", "offsetsPath": "/lake/offsets"}


def test_only_a_load_name_makes_a_load_and_alone_it_commits_nothing() -> None:
    options = parse_batch_options(READ)
    assert (options.load, options.group_id) == (None, None)
    assert parse_batch_options({**READ, "commitOffsets": "none"}).load is None
    load = parse_batch_options({**READ, **LOAD}).load
    assert load == LoadOptions("flights", "/lake/offsets", "none", "replay", "fail", None)
    assert not load.commits
    load = parse_batch_options({**READ, **LOAD, "loadPlan": "00000042"}).load
    assert load is not None
    assert load.plan == 42


def test_every_option_of_a_load_is_read_in_any_case() -> None:
    given = {
        "LOADNAME": " flights ",
        "offsetspath": "/lake/offsets",
        "CommitOffsets": "Group",
        "onPendingPlan": "DISCARD",
        "onTopicRecreated": "Skip",
        "kafka.group.id": "lag",
    }
    options = parse_batch_options({**READ, **given})
    assert options.load == LoadOptions("flights", "/lake/offsets", "group", "discard", "skip", None)
    assert options.load.commits
    assert options.group_id == "lag"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loadName": "x"}, "loadName is given and offsetsPath is not"),
        ({"offsetsPath": "/x"}, "offsetsPath is given and loadName is not"),
        ({"loadName": " ", "offsetsPath": "/x"}, "loadName is empty: give loadName, a name, and offsetsPath"),
        ({"loadName": "x", "offsetsPath": ""}, "offsetsPath is empty"),
        ({"loadName": "x", "offsetsPath": "lake/offsets"}, "offsetsPath is 'lake/offsets', a relative path"),
        ({"loadName": "a/b", "offsetsPath": "/x"}, "a/b"),
        ({"loadName": "..", "offsetsPath": "/x"}, ".."),
        ({"commitOffsets": "stage"}, "commitOffsets=stage needs loadName, the name of the load, and offsets"),
        ({"commitOffsets": "group", "kafka.group.id": "g"}, "commitOffsets=group needs loadName"),
        ({**LOAD, "commitOffsets": "group"}, "commitOffsets=group needs kafka.group.id"),
        ({"commitToken": "t"}, "commitToken has no meaning without loadName and offsetsPath"),
        ({**LOAD, "commitToken": "t"}, "commitToken is given with commitOffsets=stage or group, as kafkalog"),
        ({**LOAD, "commitOffsets": "yes"}, "commitOffsets is one of none, stage, group; got 'yes'"),
        ({**LOAD, "onPendingPlan": "ask"}, "onPendingPlan is one of replay, fail, discard; got 'ask'"),
        ({**LOAD, "onTopicRecreated": "x"}, "onTopicRecreated is one of fail, earliest, skip; got 'x'"),
        ({"onPendingPlan": "fail"}, "onPendingPlan has no meaning without loadName and offsetsPath"),
        ({"onTopicRecreated": "skip"}, "onTopicRecreated has no meaning without loadName"),
        ({**LOAD, "loadRun": "r1"}, "loadRun is up to 64 letters, digits and"),
        ({**LOAD, "loadPlan": "3", "loadRun": "../x"}, "got '../x'"),
        ({"loadPlan": "3"}, "loadPlan has no meaning without loadName"),
        ({**LOAD, "loadPlan": "0"}, "loadPlan is the number of a plan, 1 to 99999999; got '0'"),
        ({**LOAD, "loadPlan": "-1"}, "got '-1'"),
        ({**LOAD, "loadPlan": "100000000"}, "got '100000000'"),
        (
            {**LOAD, "loadPlan": "3", "commitOffsets": "stage"},
            "loadPlan=3 reads a plan that kafkalog.load() com",
        ),
        ({"startingOffsets": "group"}, "startingOffsets=group needs kafka.group.id"),
        ({"startingOffsets": "group", "kafka.group.id": " "}, "startingOffsets=group needs kafka.group.id"),
        ({"startingOffsets": "file:"}, "startingOffsets=file:<directory> lacks the directory"),
        (
            {"startingOffsets": "grupp"},
            'is "earliest", "latest", "group", "file:<directory>", "commit:<number>" or',
        ),
        ({"endingOffsets": "group"}, 'endingOffsets is "earliest", "latest" or JSON like'),
        ({"kafka.enable.auto.commit": "true"}, "commitOffsets=stage, with loadName and offsetsPath"),
    ],
)
def test_conflicting_options_are_reported_with_what_is_allowed(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_batch_options({**READ, **given})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("group", GroupOffsets()),
        (" GROUP ", GroupOffsets()),
        ("file:/lake/offsets", OffsetFiles("/lake/offsets")),
        ("file:///lake/offsets", OffsetFiles("/lake/offsets")),
        ("FILE:relative/to/here", OffsetFiles("relative/to/here")),
        ("earliest", EARLIEST),
    ],
)
def test_a_read_may_start_at_a_group_or_at_files(text: str, expected: object) -> None:
    options = parse_batch_options({**READ, "kafka.group.id": "g", "startingOffsets": text})
    assert options.start == expected


def test_a_starting_time_beats_a_group() -> None:
    options = parse_batch_options({**READ, "startingOffsets": "group", "startingTimestamp": "5"})
    assert options.start == GlobalTimestamp(5)
