from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_kafkalog.cli import terminal_output
from pyspark_kafkalog.cli.terminal_output import show

ROWS: list[dict[str, Any]] = [
    {"topic": "flights.delayed.by.weather", "partition": 0, "committed": 1234567890, "lag": 1234},
    {"topic": "t", "partition": 10, "committed": None, "lag": 0},
]
COLUMNS = ["topic", "partition", "committed", "lag"]
TOTAL = {"topic": "total", "lag": 1234}


def _shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int | None) -> str:
    monkeypatch.setattr(terminal_output, "_width", lambda: width)
    show(ROWS, COLUMNS, as_json=False, total=TOTAL)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [None, 80, 63])
def test_a_table_that_fits_has_lines_around_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int | None
) -> None:
    lines = _shown(monkeypatch, capsys, width).splitlines()
    assert lines[3].split() == "│ flights.delayed.by.weather │ 0 │ 1234567890 │ 1,234 │".split()
    assert lines[-2].replace("│", " ").split() == ["total", "1,234"]


def test_a_table_that_fits_only_without_lines_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _shown(monkeypatch, capsys, 57).splitlines()
    assert [line.split() for line in lines] == [
        ["topic", "partition", "committed", "lag"],
        ["flights.delayed.by.weather", "0", "1234567890", "1,234"],
        ["t", "10", "-", "0"],
        ["total", "1,234"],
    ]
    assert max(map(len, lines)) <= 57


def test_in_a_narrow_terminal_each_row_is_a_block_and_no_name_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = _shown(monkeypatch, capsys, 40).split("\n\n")
    assert blocks[0].splitlines() == [
        "topic      flights.delayed.by.weather",
        "partition  0",
        "committed  1234567890",
        "lag        1,234",
    ]
    assert blocks[2].splitlines() == ["topic      total", "lag        1,234"]


def test_control_characters_are_shown_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\nrow \u202e\U000e0041ü"
    show([{"group": evil}], ["group"], as_json=False)
    shown = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07\\x9b31m\\nrow \\u202e\\U000e0041ü" in shown
    assert len(shown.splitlines()) == 5
    show([{"group": evil}], [], as_json=True)
    shown = capsys.readouterr().out
    assert shown.removesuffix("\n").isprintable()
    assert json.loads(shown) == {"group": evil}
