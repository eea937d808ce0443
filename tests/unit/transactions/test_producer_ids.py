from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.transactions.producer_ids import BLOCK_SIZE, FILE_NAME, NoProducerId, ProducerIds
from pyspark_kafkalog.errors import ErrorCode, StorageError

Take = Callable[[int, int], int]


class BrokenFiles(FileSystem):
    """A disk on which nothing can be renamed in the directories named."""

    def __init__(self, *broken: Path) -> None:
        self._broken = broken

    def rename(self, source: Path, target: Path) -> None:
        if target.parent in self._broken:
            raise OSError(28, "No space left on device")
        super().rename(source, target)


def made(*directories: Path, files: FileSystem | None = None, take: Take | None = None) -> ProducerIds:
    """Reserves in the thread that asks."""
    return ProducerIds(directories, files or FileSystem(), take, run=lambda work: work())


def next_of(ids: ProducerIds) -> int:
    """As a request gets it: reserved first where none is at hand."""
    for _ in range(10):  # others may have had the whole block by then
        try:
            return ids.next()
        except NoProducerId:
            reserved = threading.Event()
            ids.reserve(reserved.set)
            assert reserved.wait(60)
    return ids.next()


def test_no_id_comes_twice_over_any_number_of_restarts(tmp_path: Path) -> None:
    seen = []
    for _ in range(4):
        ids = made(tmp_path)
        seen += [next_of(ids) for _ in range(5)]
    assert len(set(seen)) == len(seen) == 20
    assert seen[5] == BLOCK_SIZE


def test_blocks_of_a_cluster_are_taken_where_all_brokers_take_them_but_none_that_was_used_here(
    tmp_path: Path,
) -> None:
    asked: list[int] = []
    given = iter((5000, 9000, 12_000))

    def take(at_least: int, count: int) -> int:
        asked.append(at_least)
        assert count == BLOCK_SIZE
        return next(given)

    assert next_of(made(tmp_path)) == 0
    ids = made(tmp_path, take=take)
    ids.prepare()
    ids.prepare()
    assert asked == [BLOCK_SIZE], "one block is reserved, not two"
    assert [ids.next() for _ in range(BLOCK_SIZE)] == list(range(5000, 5000 + BLOCK_SIZE))
    assert ids.next() == 9000
    assert (tmp_path / FILE_NAME).read_text() == str(9000 + BLOCK_SIZE)
    ids = made(tmp_path, take=take)
    assert next_of(ids) == 12_000
    assert asked == [BLOCK_SIZE, 5000 + BLOCK_SIZE, 9000 + BLOCK_SIZE]


def test_the_next_block_is_reserved_when_half_of_one_is_left(tmp_path: Path) -> None:
    asked: list[int] = []

    def take(at_least: int, _count: int) -> int:
        asked.append(at_least)
        return at_least

    ids = made(tmp_path, take=take)
    for _ in range(BLOCK_SIZE // 2 - 1):
        next_of(ids)
    assert asked == [0]
    ids.next()
    assert asked == [0, BLOCK_SIZE]
    for _ in range(BLOCK_SIZE):
        ids.next()
    assert asked == [0, BLOCK_SIZE, 2 * BLOCK_SIZE]


def test_where_no_block_can_be_taken_every_client_is_to_ask_again(tmp_path: Path) -> None:
    is_away = True

    def take(at_least: int, _count: int) -> int:
        if is_away:
            raise StorageError("ZooKeeper is away")
        return at_least

    ids = made(tmp_path, take=take)
    ids.prepare()
    with pytest.raises(NoProducerId, match="ZooKeeper is away") as refused:
        ids.next()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    is_away = False
    ids.reserve()
    assert ids.next() == 0


def test_nobody_waits_while_a_block_is_reserved_and_all_who_asked_hear_of_it(tmp_path: Path) -> None:
    begun, goes_on, heard = threading.Event(), threading.Event(), threading.Semaphore(0)

    def take(at_least: int, _count: int) -> int:
        begun.set()
        assert goes_on.wait(60)
        return at_least

    ids = ProducerIds([tmp_path], FileSystem(), take)
    for _ in range(3):
        ids.reserve(heard.release)
    assert begun.wait(60)
    with pytest.raises(NoProducerId, match="not reserved yet"):
        ids.next()
    goes_on.set()
    for _ in range(3):
        assert heard.acquire(timeout=60)
    ids.reserve(heard.release)
    assert heard.acquire(blocking=False), "one is reserved: there is nothing to wait for"
    assert ids.next() == 0


def test_a_block_is_followed_by_the_next(tmp_path: Path) -> None:
    ids = made(tmp_path)
    assert [next_of(ids) for _ in range(2 * BLOCK_SIZE + 1)] == list(range(2 * BLOCK_SIZE + 1))
    assert (tmp_path / FILE_NAME).read_text() == str(3 * BLOCK_SIZE)


def test_threads_share_without_doubles(tmp_path: Path) -> None:
    ids = ProducerIds([tmp_path], FileSystem())
    got: list[int] = []

    def take() -> None:
        got.extend(next_of(ids) for _ in range(700))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(2800))


@pytest.mark.parametrize("content", [b"", b"12x", b"-5", str((1 << 63) - 1).encode()])
def test_a_damaged_file_is_refused_rather_than_started_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(NoProducerId, match=r"producer\.ids"):
        next_of(made(tmp_path))


def test_no_id_is_given_out_that_could_not_be_reserved(tmp_path: Path) -> None:
    ids = made(tmp_path, files=BrokenFiles(tmp_path))
    with pytest.raises(NoProducerId, match="cannot be reserved"):
        next_of(ids)
    assert next_of(made(tmp_path)) == 0


def two_directories(tmp_path: Path) -> tuple[Path, Path]:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    return one, two


def test_directories_may_be_added_and_reordered(tmp_path: Path) -> None:
    one, two = two_directories(tmp_path)
    seen = []
    for directories in ([one], [two, one], [two], [one, two]):
        ids = made(*directories)
        seen += [next_of(ids) for _ in range(3)]
    assert len(set(seen)) == len(seen)


def test_a_directory_that_fails_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = two_directories(tmp_path)
    first = next_of(made(one, two))
    second = next_of(made(one, two, files=BrokenFiles(one)))
    assert f"{one / FILE_NAME}: producer ids are not noted there" in caplog.text
    third = next_of(made(one, two))
    assert (first, second, third) == (0, BLOCK_SIZE, 2 * BLOCK_SIZE)
