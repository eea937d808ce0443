from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.disk.filesystem import OsFileSystem
from broker.transaction.producer_ids import BLOCK_SIZE, FILE_NAME, ProducerIds
from pyspark_kafkalog.errors import StorageError


class BrokenFiles(OsFileSystem):
    """A disk on which nothing can be renamed in the directories named."""

    def __init__(self, *broken: Path) -> None:
        self._broken = broken

    def rename(self, source: Path, target: Path) -> None:
        if target.parent in self._broken:
            raise OSError(28, "No space left on device")
        super().rename(source, target)


def test_ids_are_given_out_in_order(tmp_path: Path) -> None:
    ids = ProducerIds([tmp_path], OsFileSystem())
    assert [ids.next() for _ in range(3)] == [0, 1, 2]


def test_no_id_comes_twice_over_any_number_of_restarts(tmp_path: Path) -> None:
    seen = []
    for _ in range(4):
        ids = ProducerIds([tmp_path], OsFileSystem())
        seen += [ids.next() for _ in range(5)]
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

    assert ProducerIds([tmp_path], OsFileSystem()).next() == 0
    ids = ProducerIds([tmp_path], OsFileSystem(), take)
    ids.prepare()
    ids.prepare()
    assert asked == [BLOCK_SIZE], "one block is reserved, not two"
    assert [ids.next() for _ in range(BLOCK_SIZE)] == list(range(5000, 5000 + BLOCK_SIZE))
    assert ids.next() == 9000
    assert (tmp_path / FILE_NAME).read_text() == str(9000 + BLOCK_SIZE)
    ids = ProducerIds([tmp_path], OsFileSystem(), take)
    assert ids.next() == 12_000
    assert asked == [BLOCK_SIZE, 5000 + BLOCK_SIZE, 9000 + BLOCK_SIZE]


def test_where_no_block_can_be_taken_beforehand_who_asks_is_told(tmp_path: Path) -> None:
    def take(at_least: int, count: int) -> int:
        raise StorageError("away")

    ids = ProducerIds([tmp_path], OsFileSystem(), take)
    ids.prepare()
    with pytest.raises(StorageError, match="away"):
        ids.next()


def test_a_block_is_followed_by_the_next(tmp_path: Path) -> None:
    ids = ProducerIds([tmp_path], OsFileSystem())
    assert [ids.next() for _ in range(2 * BLOCK_SIZE + 1)] == list(range(2 * BLOCK_SIZE + 1))
    assert (tmp_path / FILE_NAME).read_text() == str(3 * BLOCK_SIZE)


def test_threads_share_without_doubles(tmp_path: Path) -> None:
    ids = ProducerIds([tmp_path], OsFileSystem())
    got: list[int] = []

    def take() -> None:
        got.extend(ids.next() for _ in range(700))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(2800))


@pytest.mark.parametrize("content", [b"", b"12x", b"-5", str((1 << 63) - 1).encode()])
def test_a_damaged_file_is_refused_rather_than_started_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StorageError, match=r"producer\.ids"):
        ProducerIds([tmp_path], OsFileSystem()).next()


def test_no_id_is_given_out_that_could_not_be_reserved(tmp_path: Path) -> None:
    ids = ProducerIds([tmp_path], BrokenFiles(tmp_path))
    with pytest.raises(StorageError, match="cannot be reserved"):
        ids.next()
    assert ProducerIds([tmp_path], OsFileSystem()).next() == 0


def two_directories(tmp_path: Path) -> tuple[Path, Path]:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    return one, two


def test_directories_may_be_added_and_reordered(tmp_path: Path) -> None:
    one, two = two_directories(tmp_path)
    seen = []
    for directories in ([one], [two, one], [two], [one, two]):
        ids = ProducerIds(directories, OsFileSystem())
        seen += [ids.next() for _ in range(3)]
    assert len(set(seen)) == len(seen)


def test_a_directory_that_fails_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = two_directories(tmp_path)
    first = ProducerIds([one, two], OsFileSystem()).next()
    second = ProducerIds([one, two], BrokenFiles(one)).next()
    assert f"{one / FILE_NAME}: producer ids are not noted there" in caplog.text
    third = ProducerIds([one, two], OsFileSystem()).next()
    assert (first, second, third) == (0, BLOCK_SIZE, 2 * BLOCK_SIZE)
