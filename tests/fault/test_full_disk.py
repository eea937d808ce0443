"""A full disk refuses what does not fit, keeps what was acknowledged, and goes on when there is room."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.disk.data_directory import PassingError
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import BySize
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.topic_store import TopicStore
from pyspark_kafkalog.errors import StorageError, TopicAlreadyExists
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.cleaning import cleaner_of, committed, keyed, put
from tests.support.log.faulty_files import FaultyFiles
from tests.support.log.logs import (
    FIRST,
    PARTITION,
    START_MS,
    TOPIC,
    batch,
    crash,
    open_log,
    open_manager,
    values,
)
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"0"))


@pytest.mark.parametrize("space", [0, 1, 61, ONE - 1, ONE, ONE + 1, 2 * ONE - 1, 2 * ONE])
def test_an_append_that_does_not_fit_leaves_nothing_at_whatever_byte_the_disk_is_full(
    tmp_path: Path, space: int
) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    files.space_bytes = space
    request = batch(b"1") + batch(b"2")
    if space < len(request):
        with pytest.raises(StorageError, match=r"no space left"):
            log.append(request)
        assert (log.end_offset, log.size_bytes) == (1, ONE)
        assert (log.path / f"{FIRST}.kafka").stat().st_size == ONE
        assert values(log) == [b"0"]
        files.space_bytes = None
        request = batch(b"1") + batch(b"2")
    assert log.append(request).base_offset == 1
    assert values(log) == [b"0", b"1", b"2"]
    files.space_bytes = None
    crash(manager)
    _, log = open_log(tmp_path)
    assert values(log) == [b"0", b"1", b"2"]


def test_a_full_disk_is_an_error_in_the_log_once_in_ten_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, clock = FaultyFiles(), ManualClock(START_MS)
    _, log = open_log(tmp_path, files=files, clock=clock)
    data = batch(b"0")

    def refused(times: int) -> list[str]:
        files.space_bytes = 0
        caplog.clear()
        for _ in range(times):
            with pytest.raises(StorageError):
                log.append(bytearray(data))
        return [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]

    (line,) = refused(3)
    assert f"{tmp_path}: appending {len(data)} bytes to partition my_topic-0 failed: [Errno 28]" in line
    assert "more since" not in line
    clock.advance(9.9)
    assert refused(2) == []
    clock.advance(0.1)
    (line,) = refused(1)
    assert line.endswith("(and 4 more since the last such line)")
    files.space_bytes = None
    assert log.append(data).base_offset == 0


def test_a_smaller_batch_after_one_that_did_not_fit_is_followed_by_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    files.space_bytes = 400
    with pytest.raises(StorageError):
        log.append(batch(b"x" * 1000))
    files.space_bytes = ONE
    log.append(batch(b"0"))
    assert (log.path / f"{FIRST}.kafka").stat().st_size == ONE
    crash(manager)
    _, log = open_log(tmp_path)
    assert values(log) == [b"0"]


def test_a_disk_too_full_for_a_new_segment_keeps_the_old_one_going(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files, segment_bytes=ONE)
    log.append(batch(b"0"))
    files.space_bytes = 0
    for _ in range(3):
        with pytest.raises(StorageError):
            log.append(batch(b"1"))
    assert (log.segment_count, log.end_offset) == (1, 1)
    files.space_bytes = None
    log.append(batch(b"1"))
    assert (log.segment_count, values(log)) == (2, [b"0", b"1"])


@pytest.mark.parametrize("space", [ONE, ONE + 10, ONE + 30])
def test_a_disk_too_full_for_indexes_and_snapshots_takes_the_records_all_the_same(
    tmp_path: Path, space: int
) -> None:
    files = FaultyFiles()
    config = {"segment_bytes": 3 * ONE, "index_interval_bytes": 0}
    manager, log = open_log(tmp_path, files=files, **config)
    for number in range(3):
        log.append(batch(b"%d" % number, producer_id=1, producer_epoch=0, base_sequence=number))
    files.space_bytes = 10**9
    original = files.take_space

    def only_records(path: Path, wanted: int) -> int:
        if path.suffix != ".kafka":
            raise OSError(28, "No space left on device")
        return original(path, wanted)

    files.take_space = only_records  # type: ignore[method-assign]
    files.space_bytes = space
    log.append(batch(b"3", producer_id=1, producer_epoch=0, base_sequence=3))
    assert values(log, max_bytes=1) == [b"0", b"1", b"2", b"3"]
    files.space_bytes = None
    manager.flush_due()
    crash(manager)
    manager, log = open_log(tmp_path, **config)
    assert values(log, max_bytes=1) == [b"0", b"1", b"2", b"3"]
    assert log.append(batch(b"3", producer_id=1, producer_epoch=0, base_sequence=3)).duplicate


@pytest.mark.parametrize("space", [0, 1, 20, 60, 100, 150, 200, 230])
def test_a_topic_that_does_not_fit_is_not_made_and_leaves_nothing(tmp_path: Path, space: int) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    manager.create_topic("t", uuid4(), 1, {})
    files.space_bytes = space
    with pytest.raises(StorageError):
        manager.create_topic("u", uuid4(), 3, {})
    with pytest.raises(StorageError):
        manager.add_partitions("t", 4)
    with pytest.raises(StorageError):
        manager.set_overrides(
            "t", {"retention.ms": "5", "max.message.bytes": "1000", "segment.bytes": "100000"}
        )
    assert sorted(manager.topics) == ["t"]
    assert manager.topics["t"].partitions == (0,)
    assert manager.topics["t"].overrides == {}
    assert sorted(p.name for p in tmp_path.glob("*_*")) == ["t_0"]
    files.space_bytes = None
    manager.create_topic("u", uuid4(), 3, {})
    manager.add_partitions("t", 4)
    crash(manager)
    manager = open_manager(tmp_path)
    assert {name: len(topic.partitions) for name, topic in manager.topics.items()} == {"t": 4, "u": 3}


def test_a_stop_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    files.space_bytes = 0
    manager.close()
    _, log = open_log(tmp_path)
    assert values(log) == [b"0"]


def test_a_start_on_a_full_disk_serves_what_is_there(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"0"))
    manager.close()
    files = FaultyFiles()
    files.space_bytes = 0
    _, log = open_log(tmp_path, files=files)
    assert values(log) == [b"0"]
    with pytest.raises(StorageError):
        log.append(batch(b"1"))
    files.space_bytes = None
    log.append(batch(b"1"))
    assert values(log) == [b"0", b"1"]


@pytest.mark.parametrize("longest", [1, 7, 61, 1000])
def test_short_writes_are_continued(tmp_path: Path, longest: int) -> None:
    files = FaultyFiles()
    files.longest_write = longest
    manager, log = open_log(tmp_path, files=files, segment_bytes=500, index_interval_bytes=0)
    for number in range(12):
        log.append(batch(b"%d" % number))
    assert values(log) == [b"%d" % number for number in range(12)]
    manager.close()
    _, log = open_log(tmp_path)
    assert values(log) == [b"%d" % number for number in range(12)]


# --- full at each call, and then there is room again

LACKS = pytest.mark.parametrize(
    "error",
    [
        pytest.param(errno.ENOSPC, id="no space"),
        pytest.param(errno.EMFILE, id="no descriptor", marks=pytest.mark.long("fails at every call")),
    ],
)
LASTING = pytest.mark.parametrize(
    "lasting",
    [
        pytest.param(True, id="lasting"),
        pytest.param(False, id="once", marks=pytest.mark.long("fails at every call")),
    ],
)
CONFIG = {"segment_bytes": 2 * ONE, "index_interval_bytes": ONE, "max_open_files": 1}


class Acknowledged:
    """A log's records as they were acknowledged, by offset; the value of each is its offset."""

    def __init__(self) -> None:
        self.start = self.end = 0

    def append(self, log: Log, count: int) -> None:
        for _ in range(count):
            with suppress(PassingError):
                assert log.append(batch(b"%d" % self.end)).base_offset == self.end
                self.end += 1

    def check(self, log: Log) -> None:
        assert (log.start_offset, log.end_offset) == (self.start, self.end)
        assert values(log) == [b"%d" % offset for offset in range(self.start, self.end)]


Act = Callable[[LogManager, Log, Acknowledged], None]


def roll(manager: LogManager, log: Log, acked: Acknowledged) -> None:
    for _ in range(2):
        acked.append(log, 2)
        with suppress(PassingError):
            log.flush()


def retire(manager: LogManager, log: Log, acked: Acknowledged) -> None:
    with suppress(PassingError):
        log.retire(BySize(2 * ONE), START_MS)
    acked.start = log.start_offset
    acked.append(log, 3)


def delete_records(manager: LogManager, log: Log, acked: Acknowledged) -> None:
    with suppress(PassingError):
        manager.delete_records(PARTITION, 3)
        acked.start = 3
    acked.append(log, 3)


def stop(manager: LogManager, log: Log, acked: Acknowledged) -> None:
    manager.close()


@LACKS
@LASTING
@pytest.mark.parametrize("act", [roll, retire, delete_records, stop])
def test_wherever_there_is_no_room_what_was_acknowledged_is_read_when_there_is_again(
    tmp_path: Path, act: Act, lasting: bool, error: int
) -> None:
    for calls in count():
        files, acked = FaultyFiles(syncs=False), Acknowledged()
        manager, log = open_log(tmp_path / f"{calls}", files=files, **CONFIG)
        acked.append(log, 3)
        log.flush()
        acked.append(log, 2)
        files.pass_after(calls, error, lasting=lasting)
        act(manager, log, acked)
        refused = files.refused_count
        files.pass_after(None)
        if act is stop:
            manager, log = open_log(tmp_path / f"{calls}", files=files, **CONFIG)
        acked.check(log)
        acked.append(log, 3)
        log.flush()
        acked.check(log)
        crash(manager)
        manager, log = open_log(tmp_path / f"{calls}", files=files, **CONFIG)
        acked.check(log)
        crash(manager)
        if not refused:
            assert calls > 3
            break


@LACKS
@LASTING
def test_wherever_a_cleaning_finds_no_room_the_log_keeps_its_last_values_and_is_cleaned_later(
    tmp_path: Path, lasting: bool, error: int
) -> None:
    for calls in count():
        files, clock = FaultyFiles(syncs=False), ManualClock(START_MS)
        config = {"cleanup_policy": ("compact",), "segment_bytes": 300, "min_cleanable_dirty_ratio": 0.0}
        manager, log = open_log(tmp_path / f"{calls}", files=files, clock=clock, **config)
        for number in range(8):
            put(log, (b"k%d" % (number % 3), b"%d" % number))
        log.flush()
        last, cleaner = committed(log), cleaner_of(manager, clock, files)
        files.pass_after(calls, error, lasting=lasting)
        cleaner.run()
        refused = files.refused_count
        if error == errno.ENOSPC:
            assert committed(log) == last
        with suppress(PassingError):  # what is half done must not come back
            manager.delete_records(PARTITION, 1)
        files.pass_after(None)
        assert committed(log) == last
        cleaner.run()
        clean = committed(log), log.size_bytes
        assert clean[0] == last
        assert log.cleaned_offset == log.segments[-1].base_offset
        put(log, (b"k0", b"new"))
        crash(manager)
        manager, log = open_log(tmp_path / f"{calls}", clock=clock, **config)
        assert committed(log) == last | {b"k0": b"new"}
        assert not [path.name for path in log.path.iterdir() if path.suffix in (".swap", ".cleaned")]
        crash(manager)
        if not refused:
            assert calls > 5
            break


@LACKS
@LASTING
def test_wherever_a_deletion_finds_no_room_it_is_finished_when_there_is_again(
    tmp_path: Path, lasting: bool, error: int
) -> None:
    for calls in count():
        files = FaultyFiles(syncs=False)
        manager, log = open_log(tmp_path / f"{calls}", files=files)
        log.append(batch(b"old"))
        files.pass_after(calls, error, lasting=lasting)
        with suppress(PassingError):
            manager.delete_topic(TOPIC)
        refused = files.refused_count
        if (deleted := TOPIC not in manager.topics) and list((tmp_path / f"{calls}" / ".topics").iterdir()):
            with pytest.raises(TopicAlreadyExists):
                manager.create_topic(TOPIC, uuid4(), 1, {})
        files.pass_after(None)
        manager.remove_deleted()
        if not deleted:
            assert values(log) == [b"old"]
            manager.delete_topic(TOPIC)
        manager.create_topic(TOPIC, uuid4(), 1, {})
        manager.log(PARTITION).append(batch(b"new"))
        crash(manager)
        manager, log = open_log(tmp_path / f"{calls}")
        assert values(log) == [b"new"]
        crash(manager)
        if not refused:
            assert calls > 3
            break


STARTED = {"segment_bytes": 2 * ONE + 20, "index_interval_bytes": ONE}
NAMES = ("rolled", "torn", "cleaned", "new", "ending")


def left_by_a_kill(root: Path) -> None:
    """A data directory whose start has to write to each topic."""
    files, clock = FaultyFiles(syncs=False), ManualClock(START_MS)
    manager = open_manager(root, files=files, clock=clock, **STARTED)
    for name in NAMES:
        overrides = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        manager.create_topic(name, uuid4(), 1, overrides if name == "cleaned" else {})
        for number in range(5):
            manager.log(TopicPartition(name, 0)).append(keyed((b"k%d" % (number % 2), b"%d" % number)))
    files.rename_fails = lambda source: source.suffix == ".swap"
    cleaner_of(manager, clock, files).run()
    assert list((root / "cleaned_0").glob("*.swap"))
    crash(manager)
    TopicStore(root, FileSystem()).put("ending", manager.topics["ending"], deleting=True)
    (root / "rolled_0" / SEGMENT_LIST_NAME).unlink()
    torn = sorted((root / "torn_0").glob("*.kafka"))[-2]
    torn.write_bytes(torn.read_bytes()[:-1])
    shutil.rmtree(root / "new_0")
    (root / ".deleted~1").mkdir()
    (root / ".deleted~1" / "file").touch()


def read_topics(manager: LogManager) -> dict[str, list[bytes | None]]:
    return {name: values(manager.log(TopicPartition(name, 0))) for name in sorted(manager.topics)}


@LASTING
@LACKS
def test_wherever_a_start_finds_no_room_every_partition_is_there_when_there_is_again(
    tmp_path: Path, lasting: bool, error: int
) -> None:
    left = tmp_path / "left"
    left_by_a_kill(left)
    shutil.copytree(left, tmp_path / "whole")
    expected = read_topics(open_manager(tmp_path / "whole", **STARTED))
    assert {name: len(found) for name, found in expected.items()} == {
        "rolled": 5, "torn": 3, "cleaned": 3, "new": 0
    }  # fmt: skip
    for calls in count():
        root, files = tmp_path / f"{calls}", FaultyFiles(syncs=False)
        shutil.copytree(left, root)
        files.pass_after(calls, error, lasting=lasting)
        try:
            manager, begun = open_manager(root, files=files, **STARTED), True
        except PassingError:  # the directory itself cannot be read: it is not left out in silence
            begun = False
        refused = files.refused_count
        files.pass_after(None)
        if not begun:
            manager = open_manager(root, files=files, **STARTED)
        for _ in range(2):
            manager.reopen()
            manager.remove_deleted()
            assert read_topics(manager) == expected
            for name in expected:
                manager.log(TopicPartition(name, 0)).append(keyed((b"k", b"more")))
                expected = {**expected, name: [*expected[name], b"more"]}
            crash(manager)
            manager = open_manager(root, files=files, **STARTED)
        assert sorted(path.name for path in root.glob("*_0")) == [f"{name}_0" for name in sorted(expected)]
        assert not list(root.glob(".deleted*"))
        crash(manager)
        expected = {name: found[:-2] for name, found in expected.items()}
        assert begun or error == errno.EMFILE
        if not refused:
            assert calls > 10
            break
