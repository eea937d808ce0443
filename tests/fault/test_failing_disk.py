"""A disk that fails takes its directory offline: no fsync is tried twice, no doubtful data is served."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.disk.data_directory import PassingError
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.log.logs import START_MS, TOPIC, batch, crash, open_log, open_manager, values
from tests.support.manual_clock import ManualClock


def _segment(path: Path) -> bool:
    return path.suffix == ".kafka"


def test_a_failed_sync_takes_the_directory_offline_and_is_not_repeated(tmp_path: Path) -> None:
    clock, files = ManualClock(START_MS), FaultyFiles()
    manager = open_manager(tmp_path / "a", tmp_path / "b", clock=clock, files=files, flush_ms=1000)
    manager.create_topic(TOPIC, uuid4(), 4, {})
    logs = [manager.log(TopicPartition(TOPIC, number)) for number in range(4)]
    for log in logs:
        log.append(batch(b"0"))
    files.sync_fails = lambda path: _segment(path) and path.is_relative_to(tmp_path / "a")
    files.synced.clear()
    clock.advance(1)
    manager.flush_due()
    lost = [log for log in logs if log.path.is_relative_to(tmp_path / "a")]
    kept = [log for log in logs if log not in lost]
    assert (len(lost), len(kept)) == (2, 2)
    assert len([path for path in files.synced if path.is_relative_to(tmp_path / "a") and _segment(path)]) == 1
    for log in lost:
        for use in (
            partial(log.append, batch(b"1")),
            partial(log.read, 0, 1000, at_least_one=True),
            log.flush,
            partial(log.offset_for_timestamp, 0),
        ):
            with pytest.raises(StorageError, match="is offline: syncing"):
                use()
    for log in kept:
        log.append(batch(b"1"))
        assert values(log) == [b"0", b"1"]
    files.sync_fails = lambda path: False
    files.synced.clear()
    clock.advance(1)
    manager.flush_due()
    manager.apply_retention()
    manager.close()
    assert not [path for path in files.synced if path.is_relative_to(tmp_path / "a")]
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    manager = open_manager(tmp_path / "a", tmp_path / "b")
    found = [values(manager.log(TopicPartition(TOPIC, number))) for number in range(4)]
    assert sorted(map(len, found)) == [1, 1, 2, 2]


def test_a_producer_that_waits_for_the_disk_gets_an_error_when_the_sync_fails(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files, flush_messages=1)
    files.sync_fails = _segment
    with pytest.raises(StorageError, match="syncing"):
        log.append(batch(b"0"))
    files.sync_fails = lambda path: False
    with pytest.raises(StorageError, match="offline"):
        log.append(batch(b"0"))


@pytest.mark.parametrize("failing", ["write_fails", "truncate_fails"])
def test_a_failed_write_takes_the_directory_offline_and_what_was_acknowledged_is_there_later(
    tmp_path: Path, failing: str
) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    if failing == "truncate_fails":
        files.space_bytes = 10  # half an append stays in the file
    setattr(files, failing, _segment)
    with pytest.raises(StorageError, match="is offline"):
        log.append(batch(b"1"))
    setattr(files, failing, lambda path: False)
    files.space_bytes = None
    with pytest.raises(StorageError, match="is offline"):
        log.append(batch(b"1"))
    manager.close()
    _, log = open_log(tmp_path)
    assert values(log) == [b"0"]


def test_a_name_that_cannot_be_made_durable_takes_the_directory_offline(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files, segment_bytes=14)
    log.append(batch(b"0"))
    files.sync_fails = lambda path: path == log.path
    with pytest.raises(StorageError, match="is offline"):
        log.append(batch(b"1"))


def test_new_topics_go_to_the_directories_that_work(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path / "a", tmp_path / "b", files=files)
    manager.create_topic("t", uuid4(), 2, {})
    files.write_fails = lambda path: _segment(path) and path.is_relative_to(tmp_path / "a")
    failed = 0
    for number in range(2):
        try:
            manager.log(TopicPartition("t", number)).append(batch(b"0"))
        except StorageError:
            failed += 1
    assert failed == 1
    manager.create_topic("u", uuid4(), 2, {})
    for number in range(2):
        assert manager.log(TopicPartition("u", number)).path.is_relative_to(tmp_path / "b")
    files.write_fails = _segment
    for number in range(2):
        with pytest.raises(StorageError):
            manager.log(TopicPartition("u", number)).append(batch(b"0"))
    with pytest.raises(StorageError, match=r"none of log\.dirs"):
        manager.create_topic("v", uuid4(), 1, {})


@pytest.mark.parametrize("what", ["opened", "scanned"])
def test_a_directory_that_does_not_work_at_the_start_is_left_out(tmp_path: Path, what: str) -> None:
    manager = open_manager(tmp_path / "a", tmp_path / "b")
    manager.create_topic("t", uuid4(), 2, {})
    for number in range(2):
        manager.log(TopicPartition("t", number)).append(batch(b"%d" % number))
    manager.close()
    files = FaultyFiles()
    inside = tmp_path / "b" if what == "opened" else next((tmp_path / "b").glob("t_*"))
    files.open_fails = lambda path: path.is_relative_to(inside)
    manager = open_manager(tmp_path / "a", tmp_path / "b", files=files)
    served = []
    for number in range(2):
        try:
            served += values(manager.log(TopicPartition("t", number)))
        except StorageError:
            continue
    assert len(served) == 1
    manager.close()
    manager = open_manager(tmp_path / "a", tmp_path / "b")
    assert [values(manager.log(TopicPartition("t", number))) for number in range(2)] == [[b"0"], [b"1"]]


def test_without_any_directory_that_works_there_is_no_start(tmp_path: Path) -> None:
    open_manager(tmp_path).close()
    files = FaultyFiles()
    files.open_fails = lambda path: True
    with pytest.raises(StorageError):
        open_manager(tmp_path, files=files)
    manager, log = open_log(tmp_path)
    log.append(batch(b"0"))
    crash(manager)


@pytest.mark.parametrize("where", [lambda path: _segment(path), lambda path: path.suffix == ".index"])
def test_a_file_that_cannot_be_read_takes_the_directory_offline(
    tmp_path: Path, where: Callable[[Path], bool]
) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"0"))
    manager.close()
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    files.open_fails = where
    with pytest.raises(StorageError, match=r"reading 00000000000\.kafka failed"):
        log.read(0, 1000, at_least_one=True)


def test_a_record_that_cannot_be_written_leaves_the_topic_to_the_next_start(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    files.write_fails = lambda path: path.parent.name == ".topics"
    with pytest.raises(StorageError):
        manager.create_topic("t", uuid4(), 2, {})
    assert manager.topics == {}
    manager.close()
    assert open_manager(tmp_path).topics == {}
    assert list(tmp_path.glob("t_*")) == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_record_that_cannot_be_synced_takes_its_directory_offline_even_if_the_disk_says_full(
    tmp_path: Path, error: int
) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)

    def fails(path: Path) -> bool:
        if path.name == ".topics":
            raise OSError(error, "sync fails")
        return False

    files.sync_fails = fails
    with pytest.raises(StorageError, match="is offline"):
        manager.create_topic("t", uuid4(), 2, {})
    assert manager.topics == {}
    with pytest.raises(StorageError, match="can be used"):
        manager.create_topic("t", uuid4(), 2, {})


def test_a_sync_that_finds_no_descriptor_is_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files, max_open_files=1)
    log.append(batch(b"0"))

    def no_descriptor(path: Path) -> bool:
        raise OSError(errno.EMFILE, "too many open files")

    files.sync_fails = no_descriptor
    with pytest.raises(StorageError, match="too many open files"):
        log.flush()
    files.sync_fails = lambda path: False
    log.flush()
    assert log.flushed_offset == 1


def test_a_list_that_no_descriptor_was_left_for_is_synced_with_the_next_flush(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files, segment_bytes=14)
    log.append(batch(b"0"))
    log.append(batch(b"1"))
    files.pass_after(0, errno.EMFILE)  # the segments are open
    with pytest.raises(PassingError, match=r"segments\.list"):
        log.flush()
    files.pass_after(None)
    files.synced.clear()
    log.flush()
    assert log.path / "segments.list" in files.synced


def test_an_append_that_finds_no_descriptor_leaves_the_directory_online(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    log._tools.pool.forget(log.segments[0].path)
    files.pass_after(0, errno.EMFILE)
    with pytest.raises(PassingError, match="Too many open files"):
        log.append(batch(b"1"))
    files.pass_after(None)
    assert log.append(batch(b"1")).base_offset == 1


def test_the_rest_of_an_append_that_cannot_be_cut_off_is_cut_before_the_next_one(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    files.pass_after(1, errno.ENOSPC)
    files.longest_write = 80
    with pytest.raises(PassingError):
        log.append(batch(b"x" * 100))
    segment = log.segments[0]
    assert segment.path.stat().st_size > segment.size
    files.pass_after(None)
    log.append(batch(b"1"))
    assert segment.path.stat().st_size == segment.size
    crash(manager)
    _, log = open_log(tmp_path)
    assert values(log) == [b"0", b"1"]


def test_a_property_that_is_no_longer_known_stops_the_start_and_names_its_topic(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", uuid4(), 1, {"retention.ms": "5"})
    manager.close()
    record = tmp_path / ".topics" / "t.topic"
    record.write_text(record.read_text().replace("retention.ms", "retention.centuries"))
    with pytest.raises(InvalidConfig, match=r"t: topic: unknown property retention\.centuries"):
        open_manager(tmp_path)
