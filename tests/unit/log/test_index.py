from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.log.filesystem import OsFileSystem
from broker.log.index import OFFSET_ROW, SparseIndex
from broker.log.open_files import OpenFiles
from tests.support.logs import FIRST, START_MS, batch, crash, open_log, read_all

CONFIG = {"index_interval_bytes": 200, "segment_bytes": 2000}


def _index(tmp_path: Path) -> SparseIndex:
    files = OsFileSystem()
    return SparseIndex(tmp_path / "x.index", OFFSET_ROW, files, OpenFiles(files, 4))


@pytest.mark.parametrize("saved", [False, True])
def test_the_last_row_at_or_below_a_value_is_found_in_memory_and_in_the_file(
    tmp_path: Path, saved: bool
) -> None:
    index = _index(tmp_path)
    rows = [(number * 10, number * 7) for number in range(50)]
    for row in rows:
        index.add(*row)
    if saved:
        index.save(0, 1000, keep=False)
        with pytest.raises(ValueError, match="finished"):
            index.add(1000, 1000)
    for value in range(-3, 520):
        wanted = max((row for row in rows if row[0] <= value), default=None)
        assert index.last_at_most(value) == wanted
        by_position = max((row for row in rows if row[1] <= value), default=None)
        assert index.last_at_most(value, column=1) == by_position
    assert (len(index), index.last()) == (50, (490, 343))


def test_an_index_is_taken_only_for_the_segment_it_was_made_for(tmp_path: Path) -> None:
    index = _index(tmp_path)
    index.add(5, 50)
    index.save(100, 1000, keep=True)
    assert _index(tmp_path).load(100, 1000, keep=True)
    assert not _index(tmp_path).load(101, 1000, keep=True)
    assert not _index(tmp_path).load(100, 999, keep=True)


def test_any_change_to_an_index_file_is_seen(tmp_path: Path) -> None:
    index = _index(tmp_path)
    for number in range(4):
        index.add(number * 10, number * 7)
    index.save(100, 1000, keep=True)
    good = index.path.read_bytes()
    for position in range(len(good)):
        index.path.write_bytes(good[:position])
        assert not _index(tmp_path).load(100, 1000, keep=True)
        index.path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert not _index(tmp_path).load(100, 1000, keep=True)
    index.path.write_bytes(good + b"\0")
    assert not _index(tmp_path).load(100, 1000, keep=True)
    index.path.write_bytes(good)
    assert _index(tmp_path).load(100, 1000, keep=True)


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\xff" * 8)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    other = next(p for p in sorted(path.parent.glob("*" + path.suffix)) if p != path)
    shutil.copy(other, path)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", [_remove, _cut, _zero, _grow, _empty, _foreign])
def test_harmed_indexes_are_rebuilt_from_their_segments(
    tmp_path: Path, harm: Callable[[Path], None], suffix: str, clean: bool
) -> None:
    manager, log = open_log(tmp_path, **CONFIG)
    for number in range(60):
        log.append(batch(b"%02d" % number * 10, timestamps=[START_MS + number * 7 % 61]))
    everything = read_all(log)
    assert log.segment_count > 2
    if clean:
        manager.close()
    else:
        log.flush()
        manager.flush_due()
        crash(manager)
    for path in sorted(log.path.glob("*" + suffix)):
        harm(path)
    manager, log = open_log(tmp_path, **CONFIG)
    assert read_all(log, max_bytes=500) == everything
    for ms in range(START_MS, START_MS + 62):
        wanted = next(((r.timestamp, r.offset) for r in everything if r.timestamp >= ms), None)
        assert log.offset_for_timestamp(ms) == wanted
    log.append(batch(b"more"))
    assert len(read_all(log)) == 61
    manager.close()
    assert (log.path / f"{FIRST}{suffix}").stat().st_size > 24


def test_an_index_is_not_read_before_it_is_needed(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, **CONFIG)
    for number in range(60):
        log.append(batch(b"%02d" % number * 10))
    manager.close()
    manager, log = open_log(tmp_path, **CONFIG)
    assert len(manager._pool) == 0
