"""``kafkalog top``: what a screen shows of a cluster."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from pyspark_kafkalog.cli.dashboard import _keep_showing, lines_of
from pyspark_kafkalog.errors import ConnectionLost
from pyspark_kafkalog.status.snapshot import (
    GroupStatus,
    PartitionStatus,
    Rates,
    Snapshot,
    TopicStatus,
    rates_between,
)
from tests.unit.status.test_status_server import NOW


def test_the_busiest_topics_and_the_groups_with_the_largest_lag_come_first() -> None:
    views = TopicStatus("views", (PartitionStatus(0, 1, 0, 23),))
    later = replace(NOW, at_ms=12_000, topics=(NOW.topics[0], views), problems=("sizes: refused",))
    lines = [line.split() for line in lines_of(later, rates_between(NOW, later), rows=100)]
    assert " ".join(lines[0][1:]) == "cluster c<1> 1 broker, 2 AWAY, 2 topics, 3 partitions, 1 OFFLINE"
    assert lines[1] == ["!", "sizes:", "refused"]
    start = lines.index(["TOPIC", "PARTITIONS", "OFFSETS", "SIZE", "PER", "SECOND"])
    assert lines[start + 1] == ["views", "1", "23", "-", "10"]
    assert lines[start + 2][:3] + lines[start + 2][-1:] == ["clicks", "2", "7", "0"]
    start = lines.index(["GROUP", "STATE", "MEMBERS", "LAG"])
    assert lines[start + 1 : start + 3] == [["g", "Stable", "2", "7"], ["far", "Empty", "0", "-"]]
    assert lines[-1] == ["nightly", "4", "2026-11-23T01:15:00", "2", "pending"]


def test_without_a_look_before_there_are_no_rates_and_a_small_screen_has_fewer_rows() -> None:
    many = replace(NOW, topics=tuple(TopicStatus(f"t{n}", ()) for n in range(100)), problems=())
    lines = lines_of(many, Rates(), rows=20, columns=80)
    assert len(lines) <= 21
    assert max(len(line) for line in lines[2:]) <= 80
    assert lines[3].split()[-1] == "-"


def test_a_name_that_does_not_fit_shows_that_it_goes_on() -> None:
    names = ("x" * 40, "y" * 41)
    lines = lines_of(replace(NOW, topics=tuple(TopicStatus(name, ()) for name in names)), Rates(), rows=50)
    assert {line.split()[0] for line in lines if line.startswith(("x", "y"))} == {"x" * 40, f"{'y' * 39}…"}


def test_a_cluster_that_has_stopped_answering_is_said_above_what_was_known() -> None:
    lines = lines_of(NOW, Rates(), rows=50, failure="connection refused")
    assert lines[0].startswith("NO ANSWER since ")
    assert lines[0].endswith(", trying again: connection refused")
    assert "cluster c<1>" in lines[1]


def test_control_characters_of_names_are_shown_as_escapes() -> None:
    group = GroupStatus("\x1b]0;owned\x07\nFAKE\x9b\u202e", "Empty", 0, 3)
    lines = lines_of(replace(NOW, groups=(group,), problems=("a\tb",)), Rates(), rows=50)
    assert all(line.isprintable() for line in lines)
    assert "! a\\tb" in lines
    (line,) = [line for line in lines if "owned" in line]
    assert line.split() == ["\\x1b]0;owned\\x07\\nFAKE\\x9b\\u202e", "Empty", "0", "3"]


def test_top_keeps_trying_and_shows_what_it_knew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    views = TopicStatus("views", (PartitionStatus(0, 1, 0, 53),))
    later = replace(NOW, at_ms=20_000, topics=(views,))
    answers: list[Snapshot | Exception] = [ConnectionLost("refused"), ConnectionLost("refused"), later]

    class Answers:
        def take(self) -> Snapshot:
            if not answers:
                raise KeyboardInterrupt
            if isinstance(answers[0], Exception):
                raise answers.pop(0)
            return answers.pop(0)

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(KeyboardInterrupt):
        _keep_showing(Answers(), NOW, 2.0)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "cluster c<1>" in line]) == 4
    (first, second) = [line for line in lines if line.startswith("NO ANSWER since ")]
    assert first == second
    assert first.endswith(": refused")
    assert [line.split()[-1] for line in lines if line.startswith("views")] == ["-", "-", "-", "5"]


def test_top_gives_the_client_its_warnings_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = logging.getLogger("pyspark_kafkalog.client.discovery")

    class Warns:
        def take(self) -> Snapshot:
            client.warning("while the screen is shown")
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(KeyboardInterrupt):
        _keep_showing(Warns(), NOW, 2.0)  # type: ignore[arg-type]
    client.warning("afterwards")
    assert [record.message for record in caplog.records] == ["afterwards"]
