"""``dump-log``, ``verify-log`` and ``export`` where topics are of Kafka 0.7."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog_broker
from kafkalog_broker.cli import main
from pyspark_kafkalog import NewTopic, create_topics
from tests.support.log.data_directories import ENTRIES_07, MESSAGES_07, flip, segments, write_log07
from tests.support.log.logs import crash_all
from tests.support.protocol.wire07 import Wire07, entry, produce, zipped
from tests.support.until import until

BOTH = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    try:
        return write_log07(tmp_path / "data")
    finally:
        crash_all()


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A file that lies alone: a plain message, two in a set, one with a wrong checksum."""
    path = tmp_path / "00000000100.kafka"
    path.write_bytes(
        entry(b"plain", magic=0)
        + zipped(entry(b"one"), entry(b"\xff\x00"))
        + entry(b"line\nbreak \x1b", crc=1)
        + entry(b"")
    )
    return path


def dumped(capsys: pytest.CaptureFixture[str], *arguments: Path | str, code: int = 0) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["dump-log", "--json", *map(str, arguments)]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def of_kind(lines: list[dict[str, Any]], kind: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(line[name] for name in names) for line in lines if line["kind"] == kind]


def test_entries_and_their_messages_are_shown_as_json(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = dumped(capsys, "--generation", "0.7", "--records", segment, code=1)
    assert [line["kind"] for line in lines] == [
        "file", "entry", "message", "entry", "message", "message", "entry", "message", "entry", "message",
    ]  # fmt: skip
    entries = of_kind(lines, "entry", "offset", "position", "magic", "compresscodec", "isvalid")
    second, third = 114, entries[2][0]
    assert entries == [
        (100, 0, 0, "none", True), (second, 14, 1, "gzip", True),
        (third, third - 100, 1, "none", False), (third + 22, third - 78, 1, "none", True),
    ]  # fmt: skip
    assert of_kind(lines, "message", "offset", "nextOffset", "valueSize", "value") == [
        (100, second, 5, "plain"),
        (second, second, 3, "one"),
        (second, third, 2, {"base64": base64.b64encode(b"\xff\x00").decode()}),
        (third, third + 22, 12, "line\nbreak \x1b"),
        (third + 22, third + 32, 0, ""),
    ]
    assert of_kind(lines, "entry", "nextOffset", "size", "payloadsize", "crc")[2:] == [
        (third + 22, 22, 12, 1), (third + 32, 10, 0, 0),
    ]  # fmt: skip


def test_a_lone_segment_is_what_the_user_says_and_not_what_it_looks_like(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = dumped(capsys, segment, code=1)
    assert [line["kind"] for line in lines] == ["file", "damage"]
    capsys.readouterr()
    assert main(["verify-log", str(segment)]) == 1
    assert "; there is no batch of generation 0.8\n" in capsys.readouterr().out
    flip_back = segment.read_bytes().replace(entry(b"line\nbreak \x1b", crc=1), entry(b"fine"))
    segment.write_bytes(flip_back)
    assert main(["verify-log", "--deep", "--generation", "0.7", str(segment)]) == 0
    assert "4 entries, 5 messages, 1 segments" in capsys.readouterr().out
    assert main(["dump-log", "--generation", "0.9", str(segment)]) == 2
    assert "generation=0.9 is not allowed; allowed: 0.8 or 0.7" in capsys.readouterr().err


def test_the_directory_tells_the_generation(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (partition.parent, partition):
        lines = dumped(capsys, "--records", place)
        assert len(of_kind(lines, "entry")) == ENTRIES_07
        assert len(of_kind(lines, "message")) == MESSAGES_07
        assert of_kind(lines, "damage") == []
    copied = shutil.copytree(partition, partition.parent.parent / "elsewhere_0")
    lines = dumped(capsys, "--generation", "0.8", segments(copied)[0])
    assert {line["kind"] for line in lines} == {"file", "entry"}


def test_sound_and_damaged_logs_are_reported(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(path.stat().st_size for path in segments(partition))
    count = len(segments(partition))
    for arguments, known in (([], ""), (["--deep"], f" {MESSAGES_07} messages,")):
        assert main(["verify-log", *arguments, str(partition.parent)]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"my_topic_0: offsets 0 to {size - 1}, {ENTRIES_07} entries,{known} {count} segments,"
            f" {size} bytes: sound",
            f"1 logs checked, {size} bytes: sound",
        ]
    first = segments(partition)[0]
    flip(first, 12)
    for place in (partition.parent, partition, first):
        assert main(["verify-log", str(place)]) == 1
        assert f"damage: {first}, byte 0: wrong checksum of the entry" in capsys.readouterr().out


def test_logs_of_a_broker_that_runs_and_stops_are_checked_and_only_later_topics_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, target = tmp_path / "data", tmp_path / "for kafka"
    settings = {"listeners": BOTH, "log.flush.interval": 1, "num.partitions": 1}
    with kafkalog_broker.start_broker(settings, data_dir=data) as running:
        create_topics(running.bootstrap_servers, [NewTopic("modern", 1)])
        with Wire07(running.port_of("KAFKA07")) as wire:
            wire.send(produce("té", 0, entry(b"one") + zipped(entry(b"two"), entry(b"three"))))
            until(lambda: any(path.stat().st_size for path in segments(data / "t%C3%A9_0")))
        assert main(["verify-log", "--deep", str(data)]) == 0
        assert "t%C3%A9_0: offsets 0 to " in capsys.readouterr().out
    assert main(["verify-log", "--deep", str(data)]) == 0
    assert "2 entries, 3 messages, 1 segments" in capsys.readouterr().out
    for arguments in ([], ["--topic", "té"], ["--topic", "té", "--topic", "modern"]):
        assert main(["export", str(data), str(target), *arguments]) == 2
        assert capsys.readouterr().err == (
            "kafkalog-broker: cannot export 'té' of Kafka 0.7: Apache Kafka's tools and brokers do not read"
            " such logs; name the topics to export, without these, with --topic\n"
        )
        assert not target.exists()
    assert main(["export", str(data), str(target), "--topic", "modern"]) == 0
    assert [path.name for path in target.iterdir()] == ["modern-0"]
