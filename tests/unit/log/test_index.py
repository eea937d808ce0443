from __future__ import annotations

from pathlib import Path

from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.offset_scheme import SparseIndex
from tests.support.log.logs import START_MS, batch, open_log, read_all

CONFIG = {"index_interval_bytes": 200, "segment_bytes": 2000}


def _index(tmp_path: Path) -> SparseIndex:
    return SparseIndex(tmp_path / "x.index", "qi", OpenFiles(FileSystem(), 4))


def test_the_last_row_at_or_below_a_value_is_found(tmp_path: Path) -> None:
    index = _index(tmp_path)
    assert (index.last(), index.row_at(5), index.second_up_to(5)) == (None, None, None)
    rows = [(number * 10, number * 7) for number in range(50)]
    for row in rows:
        index.add(*row)
    for value in range(-3, 520):
        assert index.row_at(value) == max((row for row in rows if row[0] <= value), default=None)
        assert index.second_up_to(value) == max((row[1] for row in rows if row[1] <= value), default=None)
    assert (len(index), index.last(), index.size_bytes) == (50, (490, 343), 600)


def test_an_index_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    index = _index(tmp_path)
    for row in ((5, 50), (1 << 40, 2**31 - 1)):
        index.add(*row)
    index.save(100, 1000)
    columns = "0000000000000005" + "0000010000000000" + "00000032" + "7fffffff"
    assert index.path.read_bytes()[:24].hex() == columns
    other = _index(tmp_path)
    assert other.load(100, 1000)
    assert (other.last(), other.row_at(5)) == ((1 << 40, 2**31 - 1), (5, 50))


def test_an_index_is_taken_only_for_the_segment_it_was_made_for(tmp_path: Path) -> None:
    index = _index(tmp_path)
    index.add(5, 50)
    index.save(100, 1000)
    assert _index(tmp_path).load(100, 1000)
    assert not _index(tmp_path).load(101, 1000)
    assert not _index(tmp_path).load(100, 999)


def test_any_change_to_an_index_file_is_seen(tmp_path: Path) -> None:
    index = _index(tmp_path)
    for number in range(4):
        index.add(number * 10, number * 7)
    index.save(100, 1000)
    good = index.path.read_bytes()
    for position in range(len(good)):
        index.path.write_bytes(good[:position])
        assert not _index(tmp_path).load(100, 1000)
        index.path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert not _index(tmp_path).load(100, 1000)
    index.path.write_bytes(good + b"\0")
    assert not _index(tmp_path).load(100, 1000)
    index.path.write_bytes(good)
    assert _index(tmp_path).load(100, 1000)


def test_an_index_is_not_read_before_it_is_needed(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, **CONFIG)
    for number in range(60):
        log.append(batch(b"%02d" % number * 10))
    manager.close()
    manager, log = open_log(tmp_path, **CONFIG)
    assert len(manager.open_files) == 0


def test_the_memory_of_indexes_is_bounded_and_they_come_back_when_they_are_needed(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, **CONFIG)
    for number in range(120):
        log.append(batch(b"%03d" % number * 10, timestamps=[START_MS + number]))
    manager.close()
    manager, log = open_log(tmp_path, **CONFIG)
    schemes = manager._tools["0.8"].schemes
    schemes._max_bytes = 300
    everything = read_all(log, max_bytes=200)
    assert len(everything) == 120
    assert schemes._used_bytes <= 300
    full = log.segments[:-1]
    assert 0 < sum(segment._scheme is not None for segment in full) < len(full)
    assert sum(segment._scheme.memory_bytes for segment in full if segment._scheme) == schemes._used_bytes
    assert read_all(log, max_bytes=200) == everything
    assert log.offset_for_timestamp(START_MS + 3) == (START_MS + 3, 3)
    assert log.max_timestamp() == (START_MS + 119, 119)
