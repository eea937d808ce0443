"""``kafkalog top``: what a screen shows of a cluster."""

from __future__ import annotations

from dataclasses import replace

from pyspark_kafkalog.cli.dashboard import lines_of
from pyspark_kafkalog.status.snapshot import PartitionStatus, TopicStatus
from tests.unit.status.test_status_server import NOW


def test_the_busiest_topics_and_the_groups_that_are_behind_come_first() -> None:
    views = TopicStatus("views", (PartitionStatus(0, 1, 0, 23),))
    later = replace(NOW, at_ms=12_000, topics=(NOW.topics[0], views), problems=("sizes: refused",))
    lines = [line.split() for line in lines_of(later, NOW, rows=100)]
    assert lines[0][1:] == [
        "cluster",
        "c<1>",
        "1",
        "broker,",
        "2",
        "topics,",
        "3",
        "partitions,",
        "1",
        "OFFLINE",
    ]
    assert lines[1] == ["!", "sizes:", "refused"]
    start = lines.index(["TOPIC", "PARTITIONS", "OFFSETS", "SIZE", "PER", "SECOND"])
    assert lines[start + 1] == ["views", "1", "23", "-", "10"]
    assert lines[start + 2][:3] + lines[start + 2][-1:] == ["clicks", "2", "7", "0"]
    start = lines.index(["GROUP", "STATE", "MEMBERS", "LAG"])
    assert lines[start + 1 : start + 3] == [["g", "Stable", "2", "7"], ["far", "Empty", "0", "-"]]
    assert lines[-1] == ["nightly", "4", "2026-11-23T01:15:00.000Z", "2", "pending"]


def test_without_a_look_before_there_are_no_rates_and_a_small_screen_has_fewer_rows() -> None:
    many = replace(NOW, topics=tuple(TopicStatus(f"t{n}", ()) for n in range(100)), problems=())
    lines = lines_of(many, None, rows=20)
    assert len(lines) <= 21
    assert lines[3].split()[-1] == "-"
