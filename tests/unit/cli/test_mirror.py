from __future__ import annotations

import io
import sys
from typing import cast

import pytest

from pyspark_kafkalog.classic.mirror import Mirror, SourceProgress
from pyspark_kafkalog.cli import terminal_output
from pyspark_kafkalog.cli.services import _Rate, _status
from pyspark_kafkalog.cli.terminal_output import status_line
from tests.support.manual_clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Running:
    lost_count = 0

    def progress(self) -> list[SourceProgress]:
        return [SourceProgress("east", 1200, 4500, 3, 17), SourceProgress("west", 1, 1, 1, None)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


def test_the_rate_is_that_of_the_last_seconds(clock: ManualClock) -> None:
    rate = _Rate()
    assert rate.of(0) == 0
    clock.advance(2)
    assert rate.of(1000) == 500
    clock.advance(2)
    assert rate.of(1000) == 250
    clock.advance(4)
    assert rate.of(1600) == 150, "what was there four seconds ago counts, what was before does not"


def test_each_source_reports_what_came_and_what_is_left(clock: ManualClock) -> None:
    running, rate = Running(), _Rate()
    expected = (
        "east: 1,200 messages, 4.5 kB, 3 partitions, lag 17; "
        "west: 1 message, 1 byte, 1 partition, lag unknown"
    )
    assert _status(cast(Mirror, running), rate) == f"0 messages/s; {expected}"
    running.lost_count = 2
    assert _status(cast(Mirror, running), rate) == f"0 messages/s, 2 messages not delivered; {expected}"


def test_a_status_is_redrawn_on_a_terminal_and_elsewhere_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def drawn(error: io.StringIO, *, quiet: bool = False) -> str:
        monkeypatch.setattr(sys, "stderr", error)
        with status_line(quiet=quiet) as show:
            for text in ("one", "two", "three"):
                show(text)
                clock.advance(terminal_output._LINE_SECONDS / 2)
        return error.getvalue()

    assert drawn(Terminal(), quiet=True) == ""
    assert drawn(io.StringIO()) == "three\n"
    shown = drawn(Terminal())
    assert all(text in shown for text in ("one", "two", "three"))
