"""``export``: Kafka's names and files, bytes as they were, all of it or nothing."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import kafkalog_broker
from kafkalog_broker.cli import main
from kafkalog_broker.disk import filesystem
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.disk.process_lock import hold_directory
from kafkalog_broker.logs.topic_store import read_partition_metadata
from pyspark_kafkalog import NewTopic, Producer, create_topics
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import encode_id
from tests.support.log.data_directories import RECORDS, cut, flip, segments, write_mixed_log
from tests.support.log.logs import START_MS, batch, open_log
from tests.support.until import until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "for kafka"


def export(source: Path, target: Path, *more: str) -> int:
    return main(["export", str(source), str(target), *more])


def nothing_left(target: Path) -> bool:
    return not [path.name for path in target.parent.iterdir() if target.name in path.name]


def rows(path: Path, layout: str) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(layout, path.read_bytes()))


def test_segments_are_copied_as_they_are_under_kafkas_names(
    partition: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(partition.parent, target) == 0
    ours = segments(partition)
    theirs = sorted((target / "my_topic-0").glob("*.log"))
    assert [path.name for path in theirs] == [f"{int(path.stem):020d}.log" for path in ours]
    assert [path.read_bytes() for path in theirs] == [path.read_bytes() for path in ours]
    size = sum(path.stat().st_size for path in ours)
    assert capsys.readouterr().out.splitlines() == [
        f"my_topic-0: offsets 0 to {RECORDS - 1}, {len(ours)} segments, {size} bytes",
        f"1 partitions, {size} bytes exported to {target}",
    ]
    assert [path.name for path in target.iterdir()] == ["my_topic-0"]


def test_the_topic_keeps_its_id_and_epochs_begin_at_the_first_offset(partition: Path, target: Path) -> None:
    metadata = read_partition_metadata(FileSystem(), partition)
    assert metadata is not None
    assert export(partition.parent, target) == 0
    found = target / "my_topic-0"
    assert (found / "partition.metadata").read_text() == f"version: 0\ntopic_id: {encode_id(metadata[0])}\n"
    assert (found / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_where_records_were_deleted_the_export_says_it_as_kafka_does(tmp_path: Path, target: Path) -> None:
    manager, log = open_log(tmp_path / "data", segment_bytes=200)
    for number in range(5):
        log.append(batch(b"%d" % number, b"%d" % number))
    first = log.facts()[1].base_offset
    manager.delete_records(log.topic_partition, first + 1)
    manager.close()
    assert export(tmp_path / "data", target) == 0
    assert (target / "log-start-offset-checkpoint").read_text() == f"0\n1\nmy_topic 0 {first + 1}\n"
    assert min(path.name for path in (target / "my_topic-0").glob("*.log")) == f"{first:020d}.log"


def test_indexes_are_kafkas(tmp_path: Path, target: Path) -> None:
    manager, log = open_log(tmp_path / "data", segment_bytes=40_000)
    times = [START_MS + 7 * number % 101 for number in range(300)]
    for time_ms in times:
        log.append(batch(b"x" * 200, b"y" * 200, timestamps=[time_ms, time_ms - 5]))
    manager.close()
    assert export(tmp_path / "data", target) == 0
    found = target / "my_topic-0"
    logs = sorted(found.glob("*.log"))
    assert len(logs) > 2
    size = log_batch_bytes = logs[0].stat().st_size // (int(logs[1].stem) // 2)
    for path in logs:
        base, count = int(path.stem), path.stat().st_size // log_batch_bytes
        # A row once more than 4096 bytes came since the last: for the batch then, by its last offset.
        step = 4096 // size + 1
        places = range(step, count, step)
        assert rows(path.with_suffix(".index"), ">ii") == [(2 * n + 1, n * size) for n in places]
        want: list[tuple[int, int]] = []
        for n in [*places, count - 1]:
            seen = times[base // 2 : base // 2 + n + 1]
            row = (max(seen), 2 * seen.index(max(seen)) + 1)
            if not want or row[0] > want[-1][0]:
                want.append(row)
        assert rows(path.with_suffix(".timeindex"), ">qi") == want


def test_message_sets_go_along_and_epochs_begin_with_the_first_batch(tmp_path: Path, target: Path) -> None:
    partition = write_mixed_log(tmp_path / "data")
    assert export(partition.parent, target) == 0
    found = target / "my_topic-0"
    logs = sorted(found.glob("*.log"))
    assert [path.read_bytes() for path in logs] == [path.read_bytes() for path in segments(partition)]
    assert (found / "leader-epoch-checkpoint").read_text() == "0\n1\n0 8\n"
    for path in logs:
        base = int(path.stem)
        walked = {f.position: f for f in frames(path.read_bytes())}
        assert all(
            walked[position].last_offset == base + relative
            for relative, position in rows(path.with_suffix(".index"), ">ii")
        )
        newest = max(frame.max_timestamp for frame in walked.values())
        first = next(frame for frame in walked.values() if frame.max_timestamp == newest)
        assert rows(path.with_suffix(".timeindex"), ">qi")[-1] == (newest, first.last_offset - base)


def test_topics_are_chosen_by_name(tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kafkalog_broker.start_broker(data_dir=tmp_path / "data") as running:
        create_topics(running.bootstrap_servers, [NewTopic("a_1", 2), NewTopic("b-1", 1), NewTopic("c", 1)])
    assert export(tmp_path / "data", target, "--topic", "a_1", "--topic", "b-1") == 0
    assert sorted(path.name for path in target.iterdir()) == ["a_1-0", "a_1-1", "b-1-0"]
    assert (target / "b-1-0" / "00000000000000000000.log").read_bytes() == b""
    assert (target / "b-1-0" / "leader-epoch-checkpoint").read_text() == "0\n0\n"
    capsys.readouterr()
    assert export(tmp_path / "data", tmp_path / "other", "--topic", "d") == 2
    assert capsys.readouterr().err == "kafkalog-broker: no topic d: there are a_1, b-1, c\n"
    assert nothing_left(tmp_path / "other")


def test_several_directories_make_one_export(tmp_path: Path, target: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    from kafkalog_broker.config.broker_config import BrokerConfig
    from kafkalog_broker.server.broker import Broker

    directories = ",".join(map(str, places))
    settings = {"log.dirs": directories, "listeners": "PLAINTEXT://127.0.0.1:0"}
    running = Broker(BrokerConfig.load(None, settings))
    running.start()
    create_topics(f"127.0.0.1:{running.port}", [NewTopic("t", 4)])
    running.stop()
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={directories}\n")
    assert export(properties, target) == 0
    assert sorted(path.name for path in target.iterdir()) == ["t-0", "t-1", "t-2", "t-3"]


@pytest.mark.parametrize("what", ["file", "full directory", "link", "inside"])
def test_a_target_that_is_not_free_is_refused_and_left_alone(
    partition: Path, target: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "file":
        target.write_text("mine")
    elif what == "full directory":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif what == "link":
        target.symlink_to(partition.parent)
    else:
        target = partition.parent / "exported"
    before = sorted(target.parent.rglob("*"))
    assert export(partition.parent, target) == 2
    assert str(target) in capsys.readouterr().err
    assert sorted(target.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("error", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EIO, "it failed")], ids=["full", "broken"]
)
@pytest.mark.parametrize("call", ["copy_file_range", "fsync", "rename"])
def test_a_disk_that_refuses_leaves_nothing(
    partition: Path, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: int, words: str, call: str,
) -> None:  # fmt: skip
    calls = []

    def refuse(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) > 2 or call == "rename":
            raise OSError(error, os.strerror(error))
        return real(*arguments)

    if call == "rename":
        monkeypatch.setattr(FileSystem, "rename", refuse)
    else:
        real = getattr(os, call)
        monkeypatch.setattr(filesystem.os, call, refuse)
    assert export(partition.parent, target) == 1
    assert words in capsys.readouterr().err
    assert calls
    assert nothing_left(target)


def test_where_the_kernel_cannot_copy_the_bytes_are_the_same(
    partition: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any) -> int:
        raise OSError(errno.EXDEV, "not between these")

    monkeypatch.setattr(filesystem.os, "copy_file_range", cannot)
    assert export(partition.parent, target) == 0
    theirs = sorted((target / "my_topic-0").glob("*.log"))
    assert [path.read_bytes() for path in theirs] == [path.read_bytes() for path in segments(partition)]


def test_what_a_killed_export_left_is_cleared_away(partition: Path, target: Path) -> None:
    staging = target.with_name(f".{target.name}.exporting")
    (staging / "half-0").mkdir(parents=True)
    (staging / "half-0" / "00000000000000000000.log").write_bytes(b"half")
    (staging / "file").write_bytes(b"")
    assert export(partition.parent, target) == 0
    assert [path.name for path in target.iterdir()] == ["my_topic-0"]
    assert not staging.exists()


def test_two_exports_to_one_target_do_not_mix(
    partition: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staging = target.with_name(f".{target.name}.exporting")
    staging.mkdir()
    (staging / "others").write_text("theirs")
    held = hold_directory(staging)
    assert export(partition.parent, target) == 1
    held.close()
    assert "another export to" in capsys.readouterr().err
    assert (staging / "others").read_text() == "theirs"


def test_a_damaged_log_is_not_exported(
    partition: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = segments(partition)[1]
    flip(second, 70)
    assert export(partition.parent, target) == 1
    assert f"{second}, byte 0" in capsys.readouterr().err
    assert nothing_left(target)
    flip(second, 70)
    second.unlink()
    assert export(partition.parent, target) == 1
    assert "should follow" in capsys.readouterr().err
    assert nothing_left(target)


def test_a_torn_tail_is_left_out_and_reported(
    partition: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = segments(partition)[-1]
    size = newest.stat().st_size
    cut(newest, -7)
    assert export(partition.parent, target) == 1, "it was closed: what is missing now is lost"
    (partition.parent / ".kafka_cleanshutdown").unlink()
    capsys.readouterr()
    assert export(partition.parent, target) == 0
    copied = target / "my_topic-0" / f"{int(newest.stem):020d}.log"
    left = size - 7 - copied.stat().st_size
    assert capsys.readouterr().err == (
        f"kafkalog-broker: my_topic-0: {left} bytes of a torn tail were left out, as a start would do\n"
    )
    assert newest.read_bytes().startswith(copied.read_bytes())
    assert main(["verify-log", str(target)]) == 0


@pytest.mark.long("a broker that is started more than once")
def test_a_running_brokers_directory_is_refused_unless_live_is_said(
    tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with kafkalog_broker.start_broker({"log.segment.bytes": 200_000}, data_dir=data) as running:
        create_topics(running.bootstrap_servers, [NewTopic("t", 1)])
        assert export(data, target) == 1
        assert f"a broker runs on {data}: stop it, or export with --live" in capsys.readouterr().err
        assert nothing_left(target)
        written, done = [], threading.Event()

        def write() -> None:
            with Producer({"bootstrap.servers": running.bootstrap_servers}) as out:
                while not done.is_set():
                    out.send("t", b"%d " % len(written) * 500)
                    written.append(None)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: sum(path.stat().st_size for path in segments(data / "t_0")) >= 1_000_000)
            assert export(data, target, "--live") == 0
        finally:
            done.set()
            writer.join()
    assert main(["verify-log", "--deep", str(target)]) == 0
    ours = b"".join(path.read_bytes() for path in segments(data / "t_0"))
    theirs = b"".join(path.read_bytes() for path in sorted((target / "t-0").glob("*.log")))
    assert len(theirs) > 100_000
    assert ours.startswith(theirs)


@pytest.mark.long("a broker that is started more than once")
def test_no_broker_starts_on_a_directory_that_is_being_exported(
    partition: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def meanwhile(self: FileSystem, path: Path) -> None:
        with pytest.raises(kafkalog_broker.embedded.BrokerNotStarted) as failure:
            kafkalog_broker.start_broker(data_dir=partition.parent)
        refused.append(str(failure.value))

    monkeypatch.setattr(FileSystem, "sync_directory", meanwhile)
    assert export(partition.parent, target) == 0
    assert refused
    assert all("in use by another broker or an export" in words for words in refused)
    with kafkalog_broker.start_broker(data_dir=partition.parent):
        pass


def test_an_interrupted_export_leaves_nothing(partition: Path, target: Path) -> None:
    code = (
        "import sys, time; from kafkalog_broker.cli import main;"
        "from kafkalog_broker.inspect import export;"
        "export.copy_bytes = lambda *_: (sys.stdout.write('copying\\n'), sys.stdout.flush(), time.sleep(99));"
        "sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "export", str(partition.parent), str(target)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "copying\n"
    assert not target.exists()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (130, "kafkalog-broker: interrupted\n")
    assert nothing_left(target)


def test_a_partitions_directory_or_an_empty_one_is_not_a_source(
    partition: Path, tmp_path: Path, target: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for source in (partition, tmp_path / "empty", tmp_path / "absent"):
        assert export(source, target) == 2
        assert nothing_left(target)


def test_a_progress_bar_is_shown_on_a_terminal_only(partition: Path, target: Path) -> None:
    code = (
        "import sys; from kafkalog_broker.cli import main; main(sys.argv[1:]);"
        "sys.exit(bool({'rich', 'typer'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", code, "export", str(partition.parent), str(target)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    leader, follower = os.openpty()
    arguments[-1] += " again"
    done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=follower, check=False)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.returncode == 1, "rich was loaded"
    assert "exporting" in shown
