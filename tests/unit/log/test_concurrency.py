from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafkalog_broker.disk.filesystem import File, FileSystem
from kafkalog_broker.log.log import Log
from pyspark_kafkalog.errors import UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.cleaning import COMPACT, cleaner_of, put
from tests.support.log.logs import PARTITION, START_MS, TOPIC, batch, open_log, read_all, values
from tests.support.manual_clock import ManualClock


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _run(*works: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_appends_of_many_threads_each_get_their_own_offsets(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=2000, flush_messages=7, index_interval_bytes=100)
    given: dict[int, bytes] = {}

    def write(name: int) -> None:
        for number in range(100):
            values = [b"%d/%d/%d" % (name, number, n) for n in range(3)]
            result = log.append(batch(*values))
            for offset, value in zip(range(result.base_offset, result.last_offset + 1), values, strict=True):
                given[offset] = value

    def maintain() -> None:
        for _ in range(30):
            manager.flush_due()
            log.flush()

    _run(*(partial(write, name) for name in range(4)), maintain)
    assert sorted(given) == list(range(1200))
    assert {r.offset: r.value for r in read_all(log)} == given


def test_readers_of_a_log_that_has_just_been_opened_load_its_indexes_once(tmp_path: Path) -> None:
    config = {"segment_bytes": 1000, "index_interval_bytes": 50}
    manager, log = open_log(tmp_path, **config)
    for number in range(100):
        log.append(batch(b"%d" % number))
    manager.close()
    for path in list(log.path.glob("*index"))[::2]:
        path.unlink()
    manager, log = open_log(tmp_path, **config)
    found: list[list[bytes | None]] = []

    def read() -> None:
        found.append([r.value for r in read_all(log, max_bytes=300)][:100])

    def write() -> None:
        for number in range(100, 120):
            log.append(batch(b"%d" % number))

    _run(read, read, read, write)
    assert found == [[b"%d" % number for number in range(100)]] * 3


@pytest.mark.long("threads that race")
def test_topics_may_be_made_and_deleted_while_others_are_used(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, file_delete_delay_ms=0)
    stop = threading.Event()

    def churn() -> None:
        try:
            for _ in range(20):
                manager.create_topic("other", uuid4(), 2, {})
                manager.log(TopicPartition("other", 1)).append(batch(b"new"))
                manager.delete_topic("other")
        finally:
            stop.set()

    def use_other() -> None:
        while not stop.is_set():
            try:
                other = manager.log(TopicPartition("other", 1))
                other.append(batch(b"x"))
                assert {r.value for r in read_all(other)} <= {b"x", b"new"}
            except UnknownTopicOrPartition:
                continue

    def use() -> None:
        while not stop.is_set():
            log.append(batch(b"y"))
            manager.flush_due()

    _run(churn, use_other, use)
    assert {r.value for r in read_all(log)} <= {b"y"}
    assert list(manager.topics) == ["my_topic"]


def test_a_partition_that_is_deleted_during_the_look_up_is_unknown_not_offline(tmp_path: Path) -> None:
    manager, _ = open_log(tmp_path, file_delete_delay_ms=0)
    manager.create_topic("other", uuid4(), 1, {})

    class DeletedMeanwhile(dict[TopicPartition, Log]):
        def get(self, key: TopicPartition, default: Any = None) -> Any:  # type: ignore[override]
            manager.delete_topic(key.topic)
            return manager.logs.get(key, default)

    manager.logs = DeletedMeanwhile(manager.logs)
    with pytest.raises(UnknownTopicOrPartition, match="other-0 does not exist"):
        manager.log(TopicPartition("other", 0))


class _Meanwhile(FileSystem):
    """Calls ``work`` once, just before a file of the topic's partition is opened."""

    work: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool = False) -> File:
        work = self.work
        if work is not None and path.parent.name == "my_topic_0":
            self.work = None
            work()
        return super().open(path, create=create)


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.read(0, 1 << 20, at_least_one=True),
        lambda log: log.offset_for_timestamp(START_MS),
        lambda log: log.max_timestamp(),
    ],
    ids=["read", "offset_for_timestamp", "max_timestamp"],
)
def test_a_topic_deleted_while_it_is_read_is_unknown_and_its_successor_is_not_read(
    tmp_path: Path, use: Callable[[Log], object], again: bool
) -> None:
    """Nor is the data directory taken offline because the file has gone."""
    files = _Meanwhile()
    manager, log = open_log(tmp_path, files=files, file_delete_delay_ms=0)
    log.append(batch(b"old"))
    manager.open_files.forget(log.segments[0].path)

    def delete() -> None:
        manager.delete_topic(TOPIC)
        if again:
            manager.create_topic(TOPIC, uuid4(), 1, {})
            manager.log(PARTITION).append(batch(b"new", b"new"))

    files.work = delete
    with pytest.raises(UnknownTopicOrPartition, match="my_topic-0 was deleted"):
        use(log)
    assert manager.directories()[0].online
    assert not again or values(manager.log(PARTITION)) == [b"new", b"new"]


def test_a_topic_deleted_while_it_is_cleaned_takes_no_directory_offline(tmp_path: Path) -> None:
    files = _Meanwhile()
    manager, log = open_log(tmp_path, files=files, file_delete_delay_ms=0, **COMPACT)
    for _ in range(9):
        put(log, (b"key", b"old"))
    manager.close()
    manager, _ = open_log(tmp_path, files=files, file_delete_delay_ms=0, **COMPACT)
    files.work = lambda: manager.delete_topic(TOPIC)
    cleaner_of(manager, ManualClock(START_MS), files).run()
    assert files.work is None
    assert manager.directories()[0].online
