"""The lag that a listener tells, from what Spark reports of a batch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.datasource.stream.lag_listener import LagListener, SourceLag, lag_between
from pyspark_kafkalog.datasource.stream.stream_offsets import StreamOffset, encode_offsets
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

P = [TopicPartition("t", n) for n in range(3)]


def text(*offsets: int) -> str:
    return json.dumps(encode_offsets(StreamOffset(dict(zip(P, offsets, strict=False)))))


def event(*sources: tuple[str | None, str | None], name: str | None = None, batch: int = 4) -> Any:
    told = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources]
    return SimpleNamespace(progress=SimpleNamespace(id="q", name=name, batchId=batch, sources=told))


def test_s35_the_lag_is_what_is_there_and_not_read() -> None:
    listener = kafkalog.LagListener()
    listener.onQueryProgress(event((text(5, 7), text(10, 7))))
    assert listener.lags() == [SourceLag("q", None, 4, 0, 0, 5, 2.5)]
    listener.onQueryProgress(event((text(10, 7), text(10, 7)), batch=5))
    assert listener.lags() == [SourceLag("q", None, 5, 0, 0, 0, 0.0)]


def test_s36_corner_cases() -> None:
    at = {P[0]: 5}
    assert lag_between(at, None) is None
    assert lag_between(at, {}) is None
    assert lag_between({}, {P[0]: 3, P[1]: 0}) == (0, 3, 1.5)  # not begun: counts whole
    assert lag_between({P[0]: 5, P[1]: 9}, {P[0]: 6}) == (1, 1, 1.0)  # deleted since
    assert lag_between({P[0]: 5}, {P[0]: 2}) == (0, 0, 0.0)  # made anew since


@pytest.mark.parametrize("latest", [None, "null", "", "{}", "no json"])
def test_s37_before_the_first_latest_offset_there_is_no_lag(latest: str | None) -> None:
    listener = LagListener()
    listener.onQueryProgress(event((text(5), latest), (None, None)))
    assert listener.lags() == []


def test_sources_of_others_are_passed_over_and_ours_counted_by_their_place() -> None:
    listener = LagListener()
    of_kafka = '{"t":{"0":1}}'
    listener.onQueryProgress(event(("7", "9"), (of_kafka, of_kafka), (text(1), text(2))))
    assert [(lag.source, lag.max_offsets_behind) for lag in listener.lags()] == [(2, 1)]


def test_only_queries_of_a_name_if_one_is_given_and_a_callback_may_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[SourceLag] = []

    def on_lag(lag: SourceLag) -> None:
        seen.append(lag)
        raise ValueError("mine")

    listener = LagListener(on_lag, query="mine")
    listener.onQueryProgress(event((text(1), text(2)), name="other"))
    assert seen == []
    listener.onQueryProgress(event((text(1), text(2)), name="mine"))
    assert seen == listener.lags()
    assert caplog.messages == ["on_lag failed"]


def test_a_listener_that_commits_needs_a_group() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
    with pytest.raises(InvalidConfig, match=r"commit needs kafka\.group\.id"):
        LagListener(commit=options)
