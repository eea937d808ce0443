"""Logs that begin within a segment, as their records were deleted up to an offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME, read_segment_list
from pyspark_kafkalog.errors import OffsetOutOfRange, StorageError
from pyspark_kafkalog.formats.compression import Codec
from tests.support.log.faulty_files import FaultyFiles
from tests.support.log.logs import (
    PARTITION,
    START_MS,
    batch,
    crash,
    message_set,
    open_log,
    values,
)
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"0"))
TWO = len(batch(b"0", b"1"))


def test_a_log_begins_where_its_records_were_deleted_and_stays_so(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=2 * ONE)
    for number in range(7):
        log.append(batch(b"%d" % number))
    assert manager.delete_records(PARTITION, 3) == 3
    assert (log.start_offset, log.segment_count) == (3, 3)
    assert values(log) == [b"3", b"4", b"5", b"6"]
    with pytest.raises(OffsetOutOfRange, match=r"offset 2 is outside \[3, 7\]"):
        log.read(2, 1000, at_least_one=True)
    for clean in (True, False):
        if clean:
            manager.close()
        else:
            crash(manager)
        manager, log = open_log(tmp_path, segment_bytes=2 * ONE)
        assert (log.start_offset, log.end_offset) == (3, 7)
        assert values(log) == [b"3", b"4", b"5", b"6"]
    log.append(batch(b"7"))
    log.append(batch(b"8"))  # a new segment, and with it a new list
    crash(manager)
    _, log = open_log(tmp_path, segment_bytes=2 * ONE)
    assert log.start_offset == 3


def test_a_log_of_one_segment_whose_records_were_deleted_gets_a_list(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"0", b"1", b"2"))
    assert not (log.path / SEGMENT_LIST_NAME).exists()
    manager.delete_records(PARTITION, 2)
    crash(manager)
    _, log = open_log(tmp_path)
    assert (log.start_offset, values(log)) == (2, [b"2"])


def test_all_records_are_deleted_up_to_the_end(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, file_delete_delay_ms=0)
    log.append(batch(b"0", b"1"))
    assert manager.delete_records(PARTITION, 2) == 2
    manager.remove_deleted()
    assert (values(log), log.size_bytes) == ([], 0)
    assert [path.name for path in log.path.glob("*.kafka")] == ["00000000002.kafka"]
    assert manager.delete_records(PARTITION, 2) == 2
    crash(manager)
    _, log = open_log(tmp_path)
    assert log.append(batch(b"2")).base_offset == 2
    assert values(log) == [b"2"]


def test_a_start_never_goes_back_and_not_beyond_the_end(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"0", b"1", b"2"))
    manager.delete_records(PARTITION, 2)
    assert manager.delete_records(PARTITION, 1) == 2
    with pytest.raises(OffsetOutOfRange, match=r"offset 4 is outside \[2, 3\]"):
        manager.delete_records(PARTITION, 4)
    assert values(log) == [b"2"]


def test_retention_continues_from_a_start_within_a_segment(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = {"segment_bytes": 2 * ONE, "retention_bytes": 2 * ONE}
    manager, log = open_log(tmp_path, clock=clock, **config)
    for number in range(6):
        log.append(batch(b"%d" % number))
    manager.delete_records(PARTITION, 1)
    assert [facts.base_offset for facts in log.facts()] == [1, 2, 4]
    manager.apply_retention()
    assert log.start_offset == 4
    listed = read_segment_list(FileSystem(), log.path)
    assert listed is not None
    assert listed.start_offset == 0
    crash(manager)
    _, log = open_log(tmp_path, clock=clock, **config)
    assert (log.start_offset, values(log)) == (4, [b"4", b"5"])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [1, 2])
def test_times_are_looked_up_from_the_start_on(tmp_path: Path, magic: int, codec: Codec) -> None:
    def entries(*numbers: int, times: list[int]) -> bytearray:
        content = [b"%d" % number for number in numbers]
        if magic == 2:
            return batch(*content, timestamps=times, codec=codec)
        return message_set(*content, magic=magic, timestamps=times, codec=codec)

    manager, log = open_log(tmp_path)
    log.append(entries(0, 1, 2, 3, times=[100, 900, 200, 300]))
    log.append(entries(4, 5, times=[250, 50]))
    assert log.max_timestamp() == (900, 1)
    manager.delete_records(PARTITION, 2)
    found = [log.offset_for_timestamp(ms) for ms in (0, 201, 301)]
    assert found == [(200, 2), (300, 3), None]
    assert log.max_timestamp() == (300, 3)
    manager.delete_records(PARTITION, 4)
    assert log.max_timestamp() == (250, 4)
    manager.delete_records(PARTITION, 6)
    assert log.max_timestamp() is None
    log.append(entries(6, times=[30]))
    assert log.max_timestamp() == (30, 6)


def test_the_largest_time_may_be_in_a_later_segment(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=TWO)
    for first, times in ((0, [900, 10]), (2, [20, 30]), (4, [5, 10])):
        log.append(batch(b"%d" % first, b"%d" % (first + 1), timestamps=times))
    manager.delete_records(PARTITION, 1)
    assert log.segment_count == 3
    assert log.max_timestamp() == (30, 3)


def test_on_a_full_disk_nothing_is_deleted(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files, segment_bytes=2 * ONE)
    for number in range(5):
        log.append(batch(b"%d" % number))
    original = files.take_space

    def no_room_for_the_list(path: Path, wanted: int) -> int:
        if SEGMENT_LIST_NAME in path.name:
            raise OSError(28, "No space left on device")
        return original(path, wanted)

    files.take_space = no_room_for_the_list  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="No space left"):
        manager.delete_records(PARTITION, 3)
    assert log.start_offset == 0
    files.take_space = original  # type: ignore[method-assign]
    assert manager.delete_records(PARTITION, 3) == 3
    crash(manager)
    _, log = open_log(tmp_path, segment_bytes=2 * ONE)
    assert values(log) == [b"3", b"4"]
