"""``verify-log`` as its users call it: places, words and exit codes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import kafkalog_broker
from kafkalog_broker.cli import main
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.inspect.inspection import SegmentPlace, segments_in
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME, SegmentList, read_segment_list
from pyspark_kafkalog import NewTopic, Producer, create_topics
from tests.support.log.data_directories import RECORDS, cut, flip, segments
from tests.support.until import until


def verify(*places: Path | str) -> int:
    return main(["verify-log", *map(str, places)])


def test_a_sound_directory_is_reported_log_by_log(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(partition.parent) == 0
    size = sum(path.stat().st_size for path in segments(partition))
    told = f"{RECORDS // 2} batches, {RECORDS} records, {len(segments(partition))} segments, {size} bytes"
    assert capsys.readouterr().out.splitlines() == [
        f"my_topic_0: offsets 0 to {RECORDS - 1}, {told}: sound",
        f"1 logs checked, {size} bytes: sound",
    ]


def test_damage_is_reported_with_file_and_byte(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = segments(partition)[0]
    flip(first, 70)
    for place in (partition.parent, partition, first):
        assert verify(place) == 1
        told = capsys.readouterr().out
        assert "DAMAGED" in told
        assert f"damage: {first}, byte 0: wrong checksum of the batch with offsets 0 to 1" in told
        assert "damaged: 1 findings" in told
    assert verify("--deep", segments(partition)[1]) == 0


def test_a_torn_tail_is_a_note(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (partition.parent / ".kafka_cleanshutdown").unlink()
    newest = segments(partition)[-1]
    cut(newest, -3)
    for place in (partition.parent, partition, newest):
        assert verify(place) == 0
        told = capsys.readouterr().out
        assert "torn tail" in told
        assert "sound, 1 notes" in told


def test_the_properties_file_names_the_directories(partition: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={partition.parent}\n")
    assert verify(properties) == 0
    flip(segments(partition)[1], 70)
    assert verify(properties) == 1


def test_what_is_nothing_to_check_is_misuse(
    partition: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "empty", partition / "partition.metadata"):
        assert verify(place) == 2
        said = capsys.readouterr().err
        assert said.startswith("kafkalog-broker: ")
        assert str(place) in said
    assert verify(segments(partition)[0].with_suffix(".index")) == 2


def test_it_finds_a_log_sound_that_is_being_written(tmp_path: Path) -> None:
    with kafkalog_broker.start_broker({"log.segment.bytes": 20_000}, data_dir=tmp_path / "data") as running:
        create_topics(running.bootstrap_servers, [NewTopic("t", 1)])
        done = threading.Event()

        def write() -> None:
            with Producer({"bootstrap.servers": running.bootstrap_servers, "batch.size": 10_000}) as out:
                while not done.wait(0.01):  # a new segment about ten times in a second
                    out.send("t", b"x" * 2000)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for count in (2, 4, 6):  # of whole segments: it is written to all the time
                until(lambda least=count: len(segments(tmp_path / "data" / "t_0")) > least)
                assert verify(tmp_path / "data") == 0
        finally:
            done.set()
            writer.join()


def test_a_list_of_segments_that_is_begun_meanwhile_is_not_damage(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = partition / SEGMENT_LIST_NAME, read_segment_list
    content = path.read_bytes()

    def not_there_yet(directory: Path, files: FileSystem) -> list[SegmentPlace]:
        path.unlink(missing_ok=True)  # before each look: damage is looked at a second time
        return segments_in(directory, files)

    def read_then_begun(files: FileSystem, directory: Path) -> SegmentList | None:
        found = read(files, directory)
        path.write_bytes(content)
        return found

    monkeypatch.setattr("kafkalog_broker.inspect.verify.segments_in", not_there_yet)
    monkeypatch.setattr("kafkalog_broker.inspect.inspection.read_segment_list", read_then_begun)
    assert verify(partition.parent) == 0
