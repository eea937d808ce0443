"""Which loads, and which offsets, are meant by a commit, two of them, or a time."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.datasource.batch.load_planning import read_again
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.topics_and_offsets import Assign, Committed, SpecificOffsets
from pyspark_kafkalog.errors import InvalidConfig, LoadError, TopicRecreated
from pyspark_kafkalog.ledger.history import (
    HistoryRange,
    last_commit,
    parse_as_of,
    parse_between,
    ranges_of,
)
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.ledger.plans import P0, P1, facts, loaded
from tests.support.manual_clock import ManualClock


@pytest.fixture
def ledger(three_loads: Ledger) -> Ledger:
    return three_loads


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-21T18:00:00Z", 1795284000000), ("2026-11-21T19:00:00.5+01:00", 1795284000500),
        ("2026-11-21 18:00", 1795284000000), (" 1795284000000 ", 1795284000000),
    ],
)  # fmt: skip
def test_a_time_is_iso_8601_or_milliseconds(text: str, time_ms: int) -> None:
    assert parse_as_of(text) == HistoryRange(as_of_ms=time_ms)


@pytest.mark.parametrize("text", ["yesterday", "", "-5", "commit:3"])
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"asOf is .* it must be a time"):
        parse_as_of(text)


def test_between_names_two_commits_in_order() -> None:
    assert parse_between("commit:30, Commit:0037") == HistoryRange(30, 37)
    assert parse_between("start,commit:1") == HistoryRange(0, 1)
    for text in ("commit:37,commit:30", "commit:1", "1,2", "commit:1,commit:2,commit:3", "commit:0,commit:1"):
        with pytest.raises(InvalidConfig):
            parse_between(text)


def test_the_offsets_between_two_commits_are_those_that_the_loads_read(ledger: Ledger) -> None:
    assert ranges_of(ledger, HistoryRange(1, 3)) == {P0: (10, 15), P1: (3, 8)}
    assert ranges_of(ledger, HistoryRange(2, 3)) == {P0: (12, 15), P1: (6, 8)}
    assert ranges_of(ledger, HistoryRange(0, 1)) == {P0: (0, 10)}
    for former in (HistoryRange(1, 4), HistoryRange(4, None)):
        with pytest.raises(LoadError, match="has no commit 4; the newest is 3"):
            ranges_of(ledger, former)


def test_a_time_means_the_newest_commit_not_after_it(ledger: Ledger) -> None:
    times = {commit.number: parse_as_of(commit.created).as_of_ms or 0 for commit in ledger.history()}
    moments = [times[2] + late for late in (-1, 0, 1, 59_999, 60_000)]
    assert [last_commit(ledger, HistoryRange(as_of_ms=at)) for at in moments] == [1, 2, 2, 2, 3]
    assert ranges_of(ledger, HistoryRange(as_of_ms=times[2])) == {P0: (0, 12), P1: (3, 6)}
    with pytest.raises(LoadError, match=r"has no commit from 20.* or earlier"):
        last_commit(ledger, HistoryRange(as_of_ms=times[1] - 1))


def test_what_was_rewound_over_or_recreated_between_is_reported(ledger: Ledger, clock: ManualClock) -> None:
    ledger.rewind(1, "run")
    assert [c.number for c in ledger.lineage()] == [1, 4]
    assert [c.number for c in ledger.lineage(3)] == [1, 2, 3]
    with pytest.raises(LoadError, match="was at 15 after commit 3 and at 10 after 4"):
        ranges_of(ledger, HistoryRange(3, 4))
    other = {P0: facts(0, 40, topic_id="AAAAAAAAAAAAAAAAAAAAAA")}
    loaded(ledger, other, on_topic_recreated="earliest")
    with pytest.raises(TopicRecreated, match="clicks-0 was deleted and created again between commits 1"):
        ranges_of(ledger, HistoryRange(1, 5))


def options(**given: str) -> BatchOptions:
    return parse_batch_options(
        {
            "kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks", "loadName": "flights",
            "offsetsPath": "/lake", **given,
        }
    )  # fmt: skip


def former_of(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, **given: str) -> BatchOptions:
    asked = options(**given)
    assert asked.load is not None
    assert asked.load.looks_back
    monkeypatch.setattr(Ledger, "at", lambda *_: ledger)
    return read_again(asked, asked.load)


def test_a_read_of_former_loads_is_one_of_plain_offsets(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = former_of(ledger, monkeypatch, between="commit:1,commit:3")
    assert (found.subscription, found.load) == (Assign((P0, P1)), None)
    assert found.start == SpecificOffsets({P0: 10, P1: 3})
    assert found.end == SpecificOffsets({P0: 15, P1: 8})


def test_a_read_from_a_commit_on_begins_there_and_ends_as_asked(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = former_of(ledger, monkeypatch, startingOffsets="commit:2")
    assert found.start == Committed(2, {P0: 12, P1: 6})
    assert (found.end, found.subscription) == (options().end, options().subscription)
    with pytest.raises(
        InvalidConfig, match="load 'flights' read clicks then, and none of it is subscribed to"
    ):
        former_of(ledger, monkeypatch, between="commit:1,commit:3", subscribe="other")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"between": "commit:1,commit:2", "asOf": "1"}, "between and asOf say different things"),
        (
            {"asOf": "1", "endingOffsets": "latest"},
            "asOf says which offsets are read, so leave endingOffsets",
        ),
        ({"asOf": "1", "commitOffsets": "stage"}, "leave commitOffsets=stage out"),
        ({"startingOffsets": "commit:x"}, "startingOffsets is .*it must be a commit"),
        ({"startingOffsets": "commit:1", "commitOffsets": "stage"}, "are no load"),
    ],
)
def test_former_loads_are_read_and_not_loaded(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        options(**given)
    without = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks"}
    with pytest.raises(InvalidConfig, match="asOf has no meaning without loadName"):
        parse_batch_options({**without, "asOf": "1"})
