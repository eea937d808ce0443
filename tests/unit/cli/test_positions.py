from __future__ import annotations

import pytest

from pyspark_kafkalog.cli.positions import (
    EARLIEST,
    LATEST,
    Back,
    Offset,
    Position,
    Time,
    parse_position,
    parse_time,
)
from pyspark_kafkalog.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("Latest", LATEST),
        ("0", Offset(0)),
        ("9223372036854775807", Offset(9223372036854775807)),
        ("-10", Back(10)),
        ("timestamp:1700000000000", Time(1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Time(1_700_000_000_000)),
        ("2023-11-14T22:13:20.5", Time(1_700_000_000_500)),
        ("2023-11-14T23:13+01:00", Time(1_699_999_980_000)),
        ("2023-11-14", Time(1_699_920_000_000)),
        ("2023-11-14T22:13:20.000001", Time(1_700_000_000_001)),
    ],
)
def test_every_form_of_a_position_is_understood(text: str, position: Position) -> None:
    assert parse_position(text, "--from") == position


@pytest.mark.parametrize(
    "text", ["", "soon", "--3", "1.5", "9223372036854775808", "timestamp:", "timestamp:-1", "2023-13-01", "²"]
)
def test_what_is_no_position_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        InvalidConfig, match=r"--to: '.*' is not a position; allowed: earliest, latest, an off"
    ):
        parse_position(text, "--to")


def test_milliseconds_of_a_time_are_exact() -> None:
    assert parse_time("2026-11-21T18:00:00.123Z") == 1_795_284_000_123
    assert parse_time("1969-12-31T23:59:59.999Z") == -1
