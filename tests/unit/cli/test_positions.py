from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.cli.arguments import (
    EARLIEST,
    LATEST,
    Back,
    Offset,
    Position,
    Time,
    offsets_in_file,
    parse_position,
    parse_time,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition


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
def test_an_invalid_position_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        InvalidConfig, match=r"--to: '.*' is not a position; allowed: earliest, latest, an off"
    ):
        parse_position(text, "--to")


def test_milliseconds_of_a_time_are_exact() -> None:
    assert parse_time("2026-11-21T18:00:00.123Z") == 1_795_284_000_123
    assert parse_time("1970-01-01T00:00:00Z") == 0
    assert parse_time("1969-12-31T23:59:59.999Z") is None, "-1 would be the end of the log"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\xef\xbb\xbfclicks,0,12\r\n\nclicks,2-1,9223372036854775807\n", {
            TopicPartition("clicks", 0): 12, TopicPartition("clicks", 1, 2): 9223372036854775807,
        }),
        (b'"a,b",0,1\ng,clicks,0,5\nother,clicks,1,6\n', {
            TopicPartition("a,b", 0): 1, TopicPartition("clicks", 0): 5,
        }),
    ],
)  # fmt: skip
def test_offsets_are_read_from_a_file(
    content: bytes, found: dict[TopicPartition, int], tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    assert offsets_in_file(tmp_path / "x.csv", "g") == found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"clicks,0,-2\n", r"line 1: 'clicks,0,-2' is not topic,partition,offset.*an offset is 0 or more"),
        (b"clicks,0,1\nclicks,1,1_0\n", "line 2: 'clicks,1,1_0' is not"),
        (b"clicks,1-2-0,1\n", "line 1"),
        (b",0,1\n", "line 1"),
        (b"clicks,0,9223372036854775808\n", "line 1"),
        (b"topic,partition,offset\n", "there is no header line"),
        (b"clicks,0,1\nclicks,0,2\n", "line 2: clicks-0 is listed twice"),
        (b"\n", "has no offsets"),
        ("clicks,0,1".encode("utf-16"), "is not a CSV file in UTF-8"),
    ],
)
def test_what_is_no_offset_in_a_file_is_refused_with_its_line(
    content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InvalidConfig, match=said):
        offsets_in_file(tmp_path / "x.csv")
