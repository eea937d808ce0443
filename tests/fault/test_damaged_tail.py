"""What a crash can do to the end of a log, beyond what property/log/test_recovery.py draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.segment_list import FullSegment, SegmentList, write_segment_list
from kafkalog_broker.log.walk import SegmentCheck
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.batch import V2Format
from pyspark_kafkalog.formats.compression import Codec
from tests.support.log.logs import FIRST, START_MS, batch, crash, open_log, read_all, values
from tests.support.manual_clock import ManualClock

FIRST_BATCH = (b"first", b"second")
LAST_BATCH = (b"third", b"fourth", b"fifth")


def _crashed_log(path: Path) -> tuple[Path, bytes, int]:
    """The segment of a log of two batches after a crash, its bytes, and where the second batch begins."""
    manager, log = open_log(path)
    log.append(batch(*FIRST_BATCH))
    log.append(batch(*LAST_BATCH, timestamps=[START_MS + n for n in range(3)], codec=Codec.GZIP))
    segment = log.path / f"{FIRST}.kafka"
    data = segment.read_bytes()
    crash(manager)
    return segment, data, len(batch(*FIRST_BATCH))


def _recovers_to(path: Path, wanted: tuple[bytes, ...], size: int, segment: Path) -> None:
    """The log is cut to ``wanted``, goes on from there, and is the same after another crash."""
    manager, log = open_log(path)
    assert values(log) == list(wanted)
    assert segment.stat().st_size == size
    assert log.append(batch(b"next")).base_offset == len(wanted)
    crash(manager)
    manager, log = open_log(path)
    assert values(log) == [*wanted, b"next"]
    crash(manager)


def test_a_flipped_bit_in_what_the_checksum_covers_is_found(tmp_path: Path) -> None:
    segment, data, second = _crashed_log(tmp_path)
    for position in range(second + 16, len(data), 5):
        segment.write_bytes(data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :])
        _recovers_to(tmp_path, FIRST_BATCH, second, segment)


def test_a_nonsense_length_takes_no_memory(tmp_path: Path) -> None:
    segment, data, _ = _crashed_log(tmp_path)
    huge = bytearray(batch(b"x"))
    huge[8:12] = (2**31 - 1).to_bytes(4, "big")
    segment.write_bytes(data + huge)
    _recovers_to(tmp_path, FIRST_BATCH + LAST_BATCH, len(data), segment)


def test_segments_after_a_cut_are_moved_aside(tmp_path: Path) -> None:
    one = len(batch(b"0"))
    manager, log = open_log(tmp_path, segment_bytes=2 * one)
    for number in range(7):
        log.append(batch(b"%d" % number))
    crash(manager)
    damaged = log.path / "00000000002.kafka"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    manager, log = open_log(tmp_path, segment_bytes=2 * one)
    assert values(log) == [b"0", b"1", b"2"]
    assert sorted(p.name for p in log.path.glob("*.kafka*")) == ["00000000000.kafka", "00000000002.kafka"]
    assert sorted(p.name for p in log.path.glob("stray/*.kafka")) == [
        "00000000004.kafka",
        "00000000006.kafka",
    ]
    for number in range(3, 9):
        log.append(batch(b"%d" % number))
    crash(manager)
    manager, log = open_log(tmp_path, segment_bytes=2 * one)
    assert values(log) == [b"%d" % number for number in range(9)]


def test_a_cleaned_log_may_have_gaps_below_where_the_cleaner_was(tmp_path: Path) -> None:
    one = len(batch(b"0"))
    config = {"segment_bytes": 2 * one}
    manager, log = open_log(tmp_path, **config)
    for number in range(7):
        log.append(batch(b"%d" % number))
    crash(manager)
    # What a cleaner does to superseded records: a file that is shorter, one that is gone, and a new list.
    first = log.path / "00000000000.kafka"
    first.write_bytes(first.read_bytes()[one:])
    (log.path / "00000000002.kafka").unlink()
    full = (FullSegment(0, 2, one), FullSegment(4, 6, 2 * one))
    write_segment_list(FileSystem(), log.path, SegmentList(full, 6, cleaned_offset=4))
    manager, log = open_log(tmp_path, **config)
    assert [(r.offset, r.value) for r in read_all(log)] == [(n, b"%d" % n) for n in (1, 4, 5, 6)]
    assert read_all(log, start=2)[0].offset == 4
    crash(manager)
    second = log.path / "00000000004.kafka"
    second.write_bytes(second.read_bytes()[one:])  # no gap is legal there
    _, log = open_log(tmp_path, **config)
    assert (log.start_offset, log.end_offset) == (0, 4)


def test_damage_is_distinguished_from_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(bytes(batch(b"0")))
    file = FileSystem().open(tmp_path / "segment")
    frames: list[Frame] = []
    found = SegmentCheck(file, V2Format(), 69, 0, frames.append, gaps_allowed=False).run()
    assert (found.size, found.next_offset, found.fault) == (69, 1, None)
    file.close()
    with pytest.raises(OSError):
        SegmentCheck(file, V2Format(), 69, 0, frames.append, gaps_allowed=False).run()


def test_producers_are_replayed_from_what_survived(tmp_path: Path) -> None:
    def numbered(sequence: int) -> bytearray:
        return batch(b"%d" % sequence, producer_id=3, producer_epoch=0, base_sequence=sequence)

    manager, log = open_log(tmp_path)
    for sequence in range(3):
        log.append(numbered(sequence))
    crash(manager)
    segment = log.path / f"{FIRST}.kafka"
    segment.write_bytes(segment.read_bytes()[:-1])
    _, log = open_log(tmp_path)
    assert log.append(numbered(1)).duplicate
    assert not log.append(numbered(2)).duplicate
    assert values(log) == [b"0", b"1", b"2"]


def test_damage_in_the_middle_of_synced_data_fails_its_readers_only(
    tmp_path: Path,
) -> None:
    config = {"segment_bytes": 4 * len(batch(b"0")), "flush_ms": 0, "retention_ms": 1000}
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **config)
    for number in range(10):
        log.append(batch(b"%d" % number))
    manager.flush_due()
    crash(manager)
    rotten = log.path / f"{FIRST}.kafka"
    data = bytearray(rotten.read_bytes())
    data[len(data) // 4 + 8 : len(data) // 4 + 12] = b"\xff" * 4  # the second batch's length
    rotten.write_bytes(data)
    for path in log.path.glob("*.snapshot"):
        path.unlink()
    for path in log.path.glob("*index"):
        path.unlink()
    manager, log = open_log(tmp_path, clock=clock, **config)
    assert (log.start_offset, log.end_offset) == (0, 10)
    with pytest.raises(CorruptMessage):
        log.read(2, 1000, at_least_one=True)
    with pytest.raises(CorruptMessage):
        log.offset_for_timestamp(START_MS)
    assert values(log, start=4) == [b"%d" % number for number in range(4, 10)]
    log.append(batch(b"10"))
    manager.apply_retention()
    assert log.start_offset == 0
    clock.set_time_ms(rotten.stat().st_mtime_ns // 1_000_000 + 1_001)  # its records' times are unknown
    manager.apply_retention()
    assert (log.start_offset, log.end_offset) == (11, 11)
