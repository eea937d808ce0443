from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.offset_scheme import LogicalOffsets, ReadWindow
from kafkalog_broker.log.segment import base_offset_of, segment_name
from pyspark_kafkalog.formats.base import Frame
from tests.support.log.logs import START_MS, batch, open_log, open_manager, read_all, values
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"0"))


def _names(path: Path) -> list[str]:
    return sorted(p.name for p in path.glob("*.kafka"))


def test_segments_are_named_by_their_first_offset_with_eleven_digits_at_least() -> None:
    assert segment_name(0) == "00000000000.kafka"
    assert segment_name(12_345_678_901) == "12345678901.kafka"
    assert segment_name(123_456_789_012) == "123456789012.kafka"


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000.kafka", 0),
        ("00000000000000000042.kafka", 42),
        ("123456789012.kafka", 123_456_789_012),
        ("7.kafka", 7),
        (".kafka", None),
        ("00000000000.index", None),
        ("-1.kafka", None),
        ("1_0.kafka", None),
        ("٣.kafka", None),
        ("00000000000.kafka.deleted", None),
    ],
)
def test_segment_names_are_read_as_numbers(name: str, offset: int | None) -> None:
    assert base_offset_of(name) == offset


def test_a_partition_s_directory_is_named_by_topic_and_number(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    assert log.path == tmp_path / "my_topic_0"
    assert sorted(p.name for p in log.path.iterdir()) == ["00000000000.kafka", "partition.metadata"]


def test_a_segment_is_followed_by_a_new_one_before_it_would_grow_too_large(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, segment_bytes=2 * ONE)
    for number in range(5):
        log.append(batch(b"%d" % number))
    assert _names(log.path) == ["00000000000.kafka", "00000000002.kafka", "00000000004.kafka"]
    assert values(log) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_segment_is_too_old_by_the_time_of_its_first_record(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, segment_ms=1000)
    log.append(batch(b"0", timestamps=[START_MS - 2000]))
    log.append(batch(b"1", timestamps=[START_MS - 1000]))
    assert log.segment_count == 1
    log.append(batch(b"2", timestamps=[START_MS - 999]))
    assert _names(log.path) == ["00000000000.kafka", "00000000002.kafka"]


def test_the_time_of_the_first_record_is_known_after_a_restart(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_ms=1000)
    log.append(batch(b"0", timestamps=[START_MS - 2000]))
    manager.close()
    _, log = open_log(tmp_path, segment_ms=1000)
    log.append(batch(b"1", timestamps=[START_MS - 999]))
    assert log.segment_count == 2


def test_without_timestamps_a_segment_s_age_counts_from_when_it_was_begun(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    _, log = open_log(tmp_path, clock=clock, segment_ms=1000)
    log.append(batch(b"0", timestamps=[-1]))
    clock.advance(1)
    log.append(batch(b"1", timestamps=[-1]))
    assert log.segment_count == 1
    clock.advance(0.001)
    log.append(batch(b"2", timestamps=[-1]))
    assert log.segment_count == 2


def test_a_full_index_begins_a_new_segment(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, index_interval_bytes=0, segment_index_bytes=40)
    for number in range(12):
        log.append(batch(b"%d" % number, timestamps=[START_MS + number]))
    assert log.segment_count > 1
    assert all(p.stat().st_size <= 40 + 24 for p in log.path.glob("*.index"))
    assert len(read_all(log)) == 12


def test_offsets_beyond_what_an_index_row_holds_begin_a_new_segment(tmp_path: Path) -> None:
    scheme = LogicalOffsets(0, tmp_path / "0.kafka", 4096, OpenFiles(FileSystem(), 1))
    assert scheme.has_room(100, 2**31 - 1, 1 << 20)
    assert not scheme.has_room(100, 2**31, 1 << 20)
    assert not scheme.has_room(2**31, 5, 1 << 20)


def test_a_read_near_the_end_begins_near_its_offset(tmp_path: Path) -> None:
    scheme = LogicalOffsets(1000, tmp_path / "1000.kafka", 4096, OpenFiles(FileSystem(), 1))
    begun: dict[int, tuple[int, int]] = {}

    def frames(start: int, _: int, first: int) -> Iterator[Frame]:
        begun[wanted.offset] = (start, first)
        return iter(
            [Frame((wanted.offset - 1000) * 100, 100, wanted.offset, wanted.offset, wanted.offset + 1, -1)]
        )

    for number in range(60):
        scheme.on_append(number * 100, 100, 1000 + number, -1)
    for offset in (1010, 1045, 1059):
        wanted = ReadWindow(offset, 1060, 1 << 20, True, 6000, 1060)
        assert scheme.cut(wanted, frames) == ((offset - 1000) * 100, 6000)
    # The last row is at byte 4200; since then, steps of 256 bytes are known.
    assert begun == {1010: (0, 1000), 1045: (4400, 1044), 1059: (5900, 1059)}


def test_names_of_any_width_are_taken_in_numeric_order(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=2 * ONE)
    for number in range(5):
        log.append(batch(b"%d" % number))
    manager.close()
    (log.path / "00000000002.kafka").rename(log.path / "00000000000000000002.kafka")
    (log.path / "00000000004.kafka").rename(log.path / "4.kafka")
    manager = open_manager(tmp_path, segment_bytes=2 * ONE)
    log = manager.log(log.topic_partition)
    assert values(log) == [b"0", b"1", b"2", b"3", b"4"]
    log.append(batch(b"5"))
    log.append(batch(b"6"))
    assert (log.path / "00000000006.kafka").exists()
    assert values(log)[-2:] == [b"5", b"6"]
