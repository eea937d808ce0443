from __future__ import annotations

import errno
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kafkalog_broker.disk import filesystem
from kafkalog_broker.disk.filesystem import (
    FileSystem,
    OpenFile,
    OpenFiles,
    read_file,
    replace_file,
    write_all,
)
from tests.support.log.faulty_files import FaultyFiles


def _paths(tmp_path: Path, count: int) -> list[Path]:
    paths = [tmp_path / f"{number}.kafka" for number in range(count)]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def test_the_files_used_last_stay_open_and_the_others_are_closed(tmp_path: Path) -> None:
    files = FaultyFiles()
    pool = OpenFiles(files, 3)
    paths = _paths(tmp_path, 10)
    for path in [*paths, paths[7]]:
        pool.release(pool.acquire(path))
    assert (len(pool), files.open_count, files.most_open) == (3, 3, 4)
    assert list(pool._unused) == [paths[8], paths[9], paths[7]]
    pool.close()
    assert files.open_count == 0


def test_a_file_in_use_is_not_closed_however_many_there_are(tmp_path: Path) -> None:
    files = FaultyFiles()
    pool = OpenFiles(files, 2)
    held = [pool.acquire(path) for path in _paths(tmp_path, 6)]
    assert files.open_count == 6
    for entry in held:
        assert entry.file.read_at(0, 100) == entry.path.name.encode()
        pool.release(entry)
    assert (files.open_count, pool.in_use) == (2, 0)
    assert files.most_open == 6


def test_a_lease_costs_the_same_however_many_files_are_in_use(tmp_path: Path) -> None:
    """Counted in steps of the interpreter: above ``max_open`` each lease once looked at every open file."""
    pool = OpenFiles(FaultyFiles(), 2)
    paths = _paths(tmp_path, 400)

    def steps(some: list[Path]) -> int:
        count = 0

        def one_more(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal count
            count += frame.f_code.co_filename == filesystem.__file__
            return one_more

        before = sys.gettrace()
        sys.settrace(one_more)
        try:
            held.extend(pool.acquire(path) for path in some)
        finally:
            sys.settrace(before)
        return count

    held: list[OpenFile] = []
    first = steps(paths[:100])
    assert steps(paths[300:]) <= 2 * first
    assert pool.in_use == 200


def test_a_forgotten_file_lives_until_its_last_user_is_done(tmp_path: Path) -> None:
    files = FaultyFiles()
    pool = OpenFiles(files, 2)
    (path,) = _paths(tmp_path, 1)
    first, second = pool.acquire(path), pool.acquire(path)
    assert first is second
    path.unlink()
    pool.forget(path)
    pool.forget(path)
    with pytest.raises(FileNotFoundError):
        pool.acquire(path)
    pool.release(first)
    assert second.file.read_at(0, 100) == b"0.kafka"
    pool.release(second)
    assert files.open_count == 0


def test_a_new_file_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    pool = OpenFiles(FileSystem(), 2)
    (path,) = _paths(tmp_path, 1)
    old = pool.acquire(path)
    path.unlink()
    path.write_bytes(b"new")
    pool.forget(path)
    new = pool.acquire(path)
    assert (old.file.read_at(0, 9), new.file.read_at(0, 9)) == (b"0.kafka", b"new")


def test_when_the_process_has_no_descriptor_left_idle_files_are_closed(tmp_path: Path) -> None:
    class Scarce(FaultyFiles):
        def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
            if self.open_count >= 4:
                raise OSError(errno.EMFILE, "too many open files")
            return super().open(path, create=create)

    pool = OpenFiles(Scarce(), 100)
    paths = _paths(tmp_path, 9)
    held = pool.acquire(paths[0])
    for path in paths[1:]:
        pool.release(pool.acquire(path))
    assert held.file.read_at(0, 9) == b"0.kafka"
    several = [pool.acquire(path) for path in paths[1:4]]
    with pytest.raises(OSError, match="too many open files"):
        pool.acquire(paths[5])
    assert len(several) == 3


def test_at_least_one_file_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="at least one"):
        OpenFiles(FileSystem(), 0)


def test_short_writes_are_continued_and_a_disk_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.longest_write = 3
    file = files.open(tmp_path / "f", create=True)
    write_all(file, 2, b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"\0\x000123456789"

    class Stuck:
        def write_at(self, position: int, data: object) -> int:
            return 0

    with pytest.raises(OSError, match="no more bytes"):
        write_all(Stuck(), 0, b"x")  # type: ignore[arg-type]
    file.close()


def test_a_replaced_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    files = FaultyFiles()
    path = tmp_path / "meta.properties"
    replace_file(files, path, b"old", durable=True)
    assert files.synced == [tmp_path / ".meta.properties.tmp", tmp_path]
    files.space_bytes = 2
    with pytest.raises(OSError, match="no space"):
        replace_file(files, path, b"newer", durable=True)
    assert read_file(files, path) == b"old"
    files.space_bytes = None
    replace_file(files, path, b"new", durable=False)
    assert read_file(files, path) == b"new"
    assert len(files.synced) == 2
