"""Moves of partitions to another of ``log.dirs``."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.disk.data_directory import FUTURES_NAME
from kafkalog_broker.disk.filesystem import File, FileSystem
from kafkalog_broker.inspect.inspection import partitions_in
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.errors import ErrorCode, KafkaError, StorageError
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.cleaning import COMPACT, cleaner_of, kept, put
from tests.support.log.faulty_files import FaultyFiles, PowerCut, VolatileFiles
from tests.support.log.logs import (
    PARTITION,
    START_MS,
    TOPIC,
    batch,
    contents,
    crash,
    open_log,
    open_manager,
    read_all,
    values,
)
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"000"))


def append(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(batch(b"%03d" % log.end_offset))


def numbers(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def everything(log: Log) -> list[bytes]:
    return [contents(log.read(s.base_offset, 1 << 20, at_least_one=True)) for s in log.segments]


def where(manager: LogManager) -> list[str]:
    """The directories that have the partition."""
    return [each.path.name for each in manager.directories() if PARTITION in each.sizes]


class Queued:
    """A manager's ``run_moves`` that leaves them to the test."""

    def __init__(self) -> None:
        self.run: Callable[[], object] = lambda: None

    def __call__(self, run: Callable[[], object]) -> None:
        self.run = run


class WatchedFiles(FileSystem):
    """Calls ``opened`` with the path of each segment that a copy opens to write it."""

    def __init__(self) -> None:
        self.opened: Callable[[Path], object] = lambda _: None

    def open(self, path: Path, *, create: bool = False) -> File:
        if create and path.suffix == ".kafka":
            self.opened(path)
        return super().open(path, create=create)


@pytest.mark.parametrize("generation", ["0.7", "0.8"])
@pytest.mark.parametrize("end", [LogManager.close, crash])
def test_a_moved_partition_continues_in_the_other_directory_after_each_kind_of_stop(
    tmp_path: Path, generation: str, end: Callable[[LogManager], object]
) -> None:
    places = tmp_path / "a", tmp_path / "b"
    manager, log = open_log(*places, segment_bytes=3 * ONE, generation=generation)
    for _ in range(20):
        log.append(batch(b"v") if generation == "0.8" else v07.encode_message(b"v" * 70))
    log.flush()
    data = everything(log)
    end_offset = log.end_offset
    manager.move(PARTITION, str(places[1]))
    assert (where(manager), log.path, log.end_offset) == (["b"], places[1] / "my_topic_0", end_offset)
    assert not (places[0] / "my_topic_0").exists()
    end(manager)
    manager, log = open_log(*places, segment_bytes=3 * ONE)
    assert (where(manager), log.end_offset) == (["b"], end_offset)
    assert everything(log) == data
    assert not any(path.name.startswith(".deleted~") for path in places[0].iterdir())


def test_appends_and_reads_go_on_while_it_is_copied(tmp_path: Path) -> None:
    files, seen = WatchedFiles(), []
    manager, log = open_log(tmp_path / "a", tmp_path / "b", files=files, segment_bytes=3 * ONE)
    append(log, 10)

    def opened(path: Path) -> None:
        if path.parent.parent.name == "b" and len(seen) < 4:
            seen.append(values(log))
            (future,) = manager.directories()[1].futures.values()
            assert (future[0] % ONE, future[1] > 0) == (0, True)
            append(log, 1)

    files.opened = opened
    manager.move(PARTITION, str(tmp_path / "b"))
    assert seen == [numbers(10), numbers(11), numbers(12), numbers(13)]
    assert (where(manager), values(log)) == (["b"], numbers(14))
    append(log, 5)
    manager.close()
    manager, log = open_log(tmp_path / "a", tmp_path / "b")
    assert (values(log), manager.directories()[1].futures) == (numbers(19), {})


def test_it_moves_to_and_fro_while_threads_write_and_read(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path / "a", tmp_path / "b", segment_bytes=20 * ONE)
    count = 200
    append(log, 1)

    def read() -> None:
        position = 0
        while position < count:
            found = read_all(log, start=position)
            assert [record.value for record in found] == numbers(count)[position : position + len(found)]
            position += len(found)

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(append, log, count - 1), threads.submit(read)]
        for place in ("b", "a", "b"):
            manager.move(PARTITION, str(tmp_path / place))
            assert where(manager) == [place]
        for each in running:
            each.result()
    assert values(log) == numbers(count)


def test_what_expires_while_it_is_copied_is_not_in_the_copy(tmp_path: Path) -> None:
    files = WatchedFiles()
    manager, log = open_log(tmp_path / "a", tmp_path / "b", files=files, segment_bytes=3 * ONE)
    append(log, 10)

    def opened(path: Path) -> None:
        if path == tmp_path / "b" / "my_topic_0" / "00000000003.kafka":
            manager.delete_records(PARTITION, 4)

    files.opened = opened
    manager.move(PARTITION, str(tmp_path / "b"))
    manager.close()
    manager, log = open_log(tmp_path / "a", tmp_path / "b")
    assert (where(manager), values(log)) == (["b"], numbers(10)[4:])
    assert not (log.path / "00000000000.kafka").exists()


def test_what_is_compacted_while_it_is_copied_is_compacted_in_the_copy(tmp_path: Path) -> None:
    files, clock = WatchedFiles(), ManualClock(START_MS)
    manager, log = open_log(tmp_path / "a", tmp_path / "b", files=files, clock=clock, **COMPACT)
    for number in range(30):
        put(log, (b"k%d" % (number % 3), b"%d" % number))
    last = log.segments[-1].path.name

    def opened(path: Path) -> None:
        if path == tmp_path / "b" / "my_topic_0" / last:
            cleaner_of(manager, clock).run()

    files.opened = opened
    manager.move(PARTITION, str(tmp_path / "b"))
    found = kept(log)
    assert [each.value for each in found][-3:] == [b"27", b"28", b"29"]
    assert len(found) < 15
    assert log.path == tmp_path / "b" / "my_topic_0"
    crash(manager)
    assert kept(open_log(tmp_path / "a", tmp_path / "b", **COMPACT)[1]) == found


def test_producers_and_aborted_transactions_move_too(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path / "a", tmp_path / "b", segment_bytes=4 * ONE)

    def sent(sequence: int, producer: int = 7) -> bytearray:
        fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        return batch(b"x", transactional=producer == 8, **fields)

    for sequence in range(3):
        log.append(sent(sequence, 8))
    log.end_transaction(8, 0, commit=False)
    for sequence in range(5):
        log.append(sent(sequence))
    for _ in range(2):
        manager.move(PARTITION, str(tmp_path / "b"))
        assert log.append(sent(4)).duplicate
        found = log.read(0, 1 << 20, at_least_one=True, committed_only=True)
        assert [(each.producer_id, each.first_offset) for each in found.aborted] == [(8, 0)]
        found.close()
        crash(manager)
        manager, log = open_log(tmp_path / "a", tmp_path / "b", segment_bytes=4 * ONE)


def _volatile(tmp_path: Path) -> tuple[VolatileFiles, LogManager, Log]:
    root = tmp_path / "disk"
    root.mkdir()
    files = VolatileFiles(root)
    manager, log = open_log(root / "a", root / "b", files=files, segment_bytes=3 * ONE)
    append(log, 10)
    log.flush()
    append(log, 2)
    return files, manager, log


@pytest.mark.parametrize(("decided", "place"), [(False, "a"), (True, "b")])
def test_a_kill_leaves_it_where_the_rename_of_the_original_says(
    tmp_path: Path, decided: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, manager, log = _volatile(tmp_path)
    rename = files.rename

    def killed(source: Path, target: Path) -> None:
        if target.name.startswith(".deleted~") and decided:
            rename(source, target)
        if target.name.startswith(".deleted~"):
            files.stop_after = 0
        rename(source, target)

    monkeypatch.setattr(files, "rename", killed)
    manager.move(PARTITION, str(tmp_path / "disk" / "b"))
    crash(manager)
    places = [tmp_path / "disk" / name for name in "ab"]
    manager, log = open_log(*places, run_moves=Queued())
    assert (where(manager), values(log)) == ([place], numbers(12))
    assert [path for each in places for path in each.glob(".deleted~*")] == []


@pytest.mark.long("the broker is killed at every call")
@pytest.mark.parametrize("power", [False, True])
def test_a_kill_at_any_moment_leaves_it_whole_in_one_directory(tmp_path: Path, power: bool) -> None:
    found_in = set()
    chance = random.Random("moves")
    for calls in range(10_000):
        (place := tmp_path / str(calls)).mkdir()
        files, manager, log = _volatile(place)
        files.stop_after = calls
        try:
            manager.move(PARTITION, str(place / "disk" / "b"))
            append(log, 1)
            manager.close()
            break
        except PowerCut:
            after = place / "disk"
            if power:
                after = place / "after"
                files.power_cut(after, chance if calls % 2 else None)
        finally:
            crash(manager)
        manager, log = open_log(after / "a", after / "b", segment_bytes=3 * ONE)
        left = values(log)
        assert left == numbers(len(left))
        assert len(left) >= (10 if power else 12), calls
        found_in.add(*where(manager))
        append(log, 1)
        manager.close()
        shutil.rmtree(place)
    assert calls > 40
    assert found_in == {"a", "b"}


def test_a_move_that_a_stop_interrupts_begins_again(tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    queued = Queued()
    manager, log = open_log(*places, run_moves=queued)
    append(log, 3)
    manager.move(PARTITION, str(places[1]))
    assert manager.directories()[1].futures == {PARTITION: (0, 3)}
    manager.close()
    manager, log = open_log(*places, run_moves=queued)
    assert (where(manager), manager.directories()[1].futures) == (["a"], {PARTITION: (0, 3)})
    queued.run()
    assert (where(manager), values(log)) == (["b"], numbers(3))


def test_half_a_copy_is_not_served_while_the_disk_of_the_original_cannot_be_read(tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    files = WatchedFiles()
    manager, log = open_log(*places, files=files, segment_bytes=3 * ONE)
    manager.set_overrides(TOPIC, {})
    append(log, 8)
    copied = places[1] / "my_topic_0" / "00000000003.kafka"

    def opened(path: Path) -> None:
        if path == copied:
            manager.stop_moves()

    files.opened = opened
    manager.move(PARTITION, str(places[1]))
    manager.close()
    assert copied.exists()
    assert partitions_in(places[1], FileSystem()) == []
    shutil.move(places[0] / ".topics" / "my_topic.topic", places[1] / ".topics")
    broken = FaultyFiles()
    broken.open_fails = lambda path: path == places[0]
    manager = open_manager(*places, files=broken)
    with pytest.raises(StorageError, match="directory is offline"):
        manager.log(PARTITION)
    crash(manager)
    manager, log = open_log(*places)
    assert (where(manager), values(log)) == (["b"], numbers(8))


def test_another_directory_ends_the_move_and_the_same_one_too(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abc"]
    queued = Queued()
    manager, log = open_log(*places, run_moves=queued)
    append(log, 3)
    manager.move(PARTITION, str(places[1]))
    manager.move(PARTITION, str(places[2]))
    futures = [{**each.futures} for each in manager.directories()]
    assert futures == [{}, {}, {PARTITION: (0, 3)}]
    manager.move(PARTITION, str(places[0]))
    assert [{**each.futures} for each in manager.directories()] == [{}, {}, {}]
    queued.run()
    assert (where(manager), values(log)) == (["a"], numbers(3))
    assert not any((place / "my_topic_0").exists() for place in places[1:])


def test_a_topic_can_be_deleted_and_made_again_while_it_is_moved(tmp_path: Path) -> None:
    queued = Queued()
    files = WatchedFiles()
    manager, log = open_log(tmp_path / "a", tmp_path / "b", run_moves=queued, files=files)
    append(log, 3)
    manager.move(PARTITION, str(tmp_path / "b"))
    manager.delete_topic(TOPIC)
    manager.create_topic(TOPIC, uuid4(), 2)
    queued.run()
    assert values(manager.log(PARTITION)) == []
    assert manager.log(TopicPartition(TOPIC, 1)).path.parent == tmp_path / "b"

    def opened(_path: Path) -> None:
        files.opened = lambda _: None
        deleting.start()
        while manager.topics:
            pass

    deleting = threading.Thread(target=lambda: manager.delete_topic(TOPIC))
    append(manager.log(PARTITION), 3)
    manager.move(PARTITION, str(tmp_path / "b"))
    files.opened = opened
    queued.run()
    deleting.join()
    assert not (tmp_path / "b" / "my_topic_0").exists()
    assert manager.topics == {}


@pytest.mark.parametrize("fails", ["copy", "decision"])
def test_a_move_that_fails_leaves_the_partition_where_it_is(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path / "a", tmp_path / "b", files=files, segment_bytes=3 * ONE)
    append(log, 10)
    target = tmp_path / "b" / "my_topic_0"
    if fails == "copy":
        files.sync_fails = lambda path: path == target / "00000000003.kafka"
    else:
        real = files.rename

        def rename(source: Path, new: Path) -> None:
            if new.name.startswith(".deleted~"):
                raise OSError("no")
            real(source, new)

        monkeypatch.setattr(files, "rename", rename)
    manager.move(PARTITION, str(tmp_path / "b"))
    append(log, 1)
    assert (where(manager), values(log), target.exists()) == (["a"], numbers(11), False)
    files.sync_fails = lambda path: False
    monkeypatch.undo()
    manager.move(PARTITION, str(tmp_path / "b"))
    append(log, 1)
    assert (where(manager), values(log)) == (["b"], numbers(12))
    assert b"my_topic_0" not in (tmp_path / "b" / FUTURES_NAME).read_bytes()


def test_a_directory_that_is_not_one_of_log_dirs_is_refused(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path / "a", tmp_path / "b", files=files)

    def code(place: str, partition: TopicPartition = PARTITION) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            manager.move(partition, str(tmp_path / place))
        return raised.value.code

    assert code("c") == ErrorCode.LOG_DIR_NOT_FOUND
    assert code("c", TopicPartition(TOPIC, 9)) == ErrorCode.LOG_DIR_NOT_FOUND
    assert code("b", TopicPartition(TOPIC, 9)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    other = next(each for each in manager._directories if each is not log.directory)
    other.failed("a test", OSError("no"))
    assert code("b") == ErrorCode.KAFKA_STORAGE_ERROR
    manager.move(PARTITION, str(tmp_path / "a"))
    assert where(manager) == ["a"]
