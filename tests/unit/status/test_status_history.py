"""The last half hour: what is kept of it, and the short lines of the tables."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.status.page_data import status_data
from pyspark_kafkalog.status.snapshot import MOMENTS, MOST_NAMES, GroupStatus, History, Rates, Snapshot


def added(history: History, moment: int, rates: dict[str, float], lags: dict[str, int | None]) -> None:
    groups = tuple(GroupStatus(name, "Stable", 1, lag) for name, lag in lags.items())
    history.add(Snapshot(moment * 5000, "c", groups=groups), Rates({}, rates))


def test_the_busiest_topics_and_the_groups_with_the_largest_lag_are_kept() -> None:
    history, many = History(), range(MOST_NAMES + 50)
    added(history, 0, {f"t{n}": float(n) for n in many}, {f"g{n}": n for n in many})
    assert (history.topic("t50"), history.topic("t49")) == ([50.0], [None])
    assert (history.group("g50"), history.group("g49")) == ([50], [None])
    assert [(moment.rate, moment.lag) for moment in history.moments] == [(sum(many), sum(many))]


def test_a_moment_without_an_answer_is_a_gap() -> None:
    history = History()
    added(history, 0, {"t": 2.0}, {"g": 1})
    history.skip(5000)
    added(history, 2, {"t": 4.0}, {"g": None})
    found = [(moment.at_ms, moment.rate, moment.lag) for moment in history.moments]
    assert found == [(0, 2.0, 1), (5000, None, None), (10_000, 4.0, None)]
    assert history.topic("t") == [2.0, None, 4.0]


def test_short_lines_have_the_largest_value_of_each_part_and_move_without_changing() -> None:
    history = History()
    for moment in range(MOMENTS):
        added(history, moment, {"t": float(moment)}, {})
    line = history.topic("t")
    assert line == [float(n) for n in range(5, MOMENTS, 6)]
    for moment in range(MOMENTS, MOMENTS + 6):
        added(history, moment, {"t": float(moment)}, {})
    assert len(history.moments) == MOMENTS
    assert history.topic("t") == [*line[1:], MOMENTS + 5]
    added(history, MOMENTS + 6, {"t": 9999.0}, {})
    assert history.topic("t") == [*line[1:], MOMENTS + 5, 9999.0]


def test_lately_is_the_mean_of_the_last_minute() -> None:
    history = History()
    for moment in range(20):
        added(history, moment, {"old": 10.0} if moment < 8 else {"t": 6.0}, {})
    assert history.lately == {"t": 6.0}
    added(history, 20, {}, {})
    assert history.lately == {"t": 5.5}


@pytest.mark.parametrize(
    ("lag", "rate", "behind"),
    [(120, 2.0, 60.0), (7, 40.0, 0.2), (0, 0.0, 0), (5, 0.0, None), (None, 2.0, None)],
)
def test_how_long_a_group_is_behind_follows_from_its_topics_rates(
    lag: int | None, rate: float, behind: float | None
) -> None:
    history = History()
    snapshot = Snapshot(5000, "c", groups=(GroupStatus("g", "Stable", 1, lag, ("a", "b")),))
    for _ in range(3):
        history.add(snapshot, Rates({}, {"a": rate / 2, "b": rate / 2, "of others": 9.0}))
    (group,) = status_data(snapshot, Rates(), history)["groups"]["rows"]
    assert group["behind"] == behind
