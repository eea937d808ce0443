"""A log of 0.7: offsets are bytes, readers see what is on the disk, segments have no index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.offset_scheme import ByteOffsets, ReadWindow
from kafkalog_broker.log.retention import SegmentFacts, offsets_before
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.errors import CorruptMessage, MessageTooLarge, OffsetOutOfRange
from tests.support.examples import examples
from tests.support.log.logs import PARTITION, START_MS, batch, contents, crash, open_log
from tests.support.manual_clock import ManualClock
from tests.support.protocol.wire07 import EARLIEST, LATEST, entry, zipped

ONE = entry(b"one")
TWO = entry(b"two", magic=0)
LONG = entry(b"longer than a segment")


def open_first(*paths: Path, **options: Any) -> tuple[LogManager, Log]:
    return open_log(*paths, generation="0.7", **{"flush_messages": 1} | options)


def read(log: Log, offset: int, max_bytes: int = 1 << 20) -> bytes:
    return contents(log.read(offset, max_bytes, at_least_one=False))


def test_nothing_but_the_segment_is_written_beside_it(tmp_path: Path) -> None:
    manager, log = open_first(tmp_path, segment_bytes=14)
    for _ in range(5):
        log.append(ONE)
    manager.close()
    names = sorted(path.name for path in log.path.iterdir())
    assert names == [
        "00000000000.kafka", "00000000026.kafka", "00000000052.kafka", "partition.metadata", "segments.list",
    ]  # fmt: skip


def test_a_segment_is_full_when_it_is_beyond_its_size_and_not_before(tmp_path: Path) -> None:
    _, log = open_first(tmp_path, segment_bytes=2 * len(ONE))
    for _ in range(4):
        log.append(ONE)
    assert log.segment_count == 2
    assert [facts.size_bytes for facts in log.facts()] == [3 * len(ONE), len(ONE)]


def test_a_segment_grows_old_from_its_first_append_on(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    _, log = open_first(tmp_path, clock=clock, segment_ms=10_000)
    clock.advance(60)  # nothing was appended yet
    log.append(ONE)
    clock.advance(10)
    log.append(ONE)
    assert log.segment_count == 1
    clock.advance(0.001)
    log.append(ONE)
    assert log.segment_count == 2


def test_readers_see_only_what_is_on_the_disk(tmp_path: Path) -> None:
    _, log = open_first(tmp_path, flush_messages=3)
    log.append(ONE)
    assert (log.end_offset, log.readable_end) == (len(ONE), 0)
    assert read(log, 0) == b""
    with pytest.raises(OffsetOutOfRange):
        log.read(len(ONE), 100, at_least_one=False)
    log.append(ONE)
    assert log.readable_end == 0
    log.append(ONE)
    assert log.readable_end == 3 * len(ONE)
    assert read(log, 0) == 3 * ONE


def test_messages_are_counted_for_the_flush_and_not_bytes_or_sets(tmp_path: Path) -> None:
    _, log = open_first(tmp_path, flush_messages=4)
    log.append(zipped(ONE, TWO) + ONE)
    assert log.readable_end == 0
    log.append(ONE)
    assert log.readable_end == log.end_offset


def test_after_its_time_unflushed_data_can_be_read(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_first(tmp_path, clock=clock, flush_messages=500, flush_ms=3000)
    log.append(ONE)
    clock.advance(2.999)
    manager.flush_due()
    assert log.readable_end == 0
    clock.advance(0.001)
    manager.flush_due()
    assert log.readable_end == len(ONE)


def test_each_flush_tells_how_much_more_readers_see(tmp_path: Path) -> None:
    told: list[tuple[object, ...]] = []
    _, log = open_first(
        tmp_path, flush_messages=2, grown=lambda *args: told.append((*args, log.readable_end))
    )
    log.append(ONE)
    assert told == []
    log.append(TWO)
    log.append(ONE)
    log.flush()
    log.flush()
    both = len(ONE + TWO)
    assert told == [(PARTITION, both, both), (PARTITION, len(ONE), both + len(ONE))]


def test_a_flush_of_a_later_log_shows_readers_nothing_more(tmp_path: Path) -> None:
    told: list[object] = []
    _, log = open_log(tmp_path, grown=lambda *args: told.append(args))
    log.append(batch(b"x"))
    log.flush()
    assert (told, log.flushed_offset) == ([], 1)


def test_bytes_without_a_message_wait_for_one_but_not_for_the_stop(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    hollow = zipped()
    manager, log = open_first(tmp_path, clock=clock)
    log.append(hollow)
    clock.advance(100)
    manager.flush_due()
    assert (log.readable_end, log.end_offset) == (0, len(hollow))
    manager.close()
    _, log = open_first(tmp_path)
    assert log.readable_end == len(hollow)


def test_what_was_readable_before_a_crash_is_readable_after_it(tmp_path: Path) -> None:
    manager, log = open_first(tmp_path)
    log.append(ONE + TWO)
    crash(manager)  # before anything noted how far the log was on the disk
    _, log = open_first(tmp_path)
    assert log.readable_end == len(ONE + TWO)
    assert read(log, 0) == ONE + TWO


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (entry(b"x", crc=3), CorruptMessage),
        (ONE + entry(b"x", crc=3), CorruptMessage),
        (ONE[:-1], CorruptMessage),
        (entry(b"x" * 101), MessageTooLarge),
        (zipped(entry(b"x", crc=3)), CorruptMessage),
    ],
)
def test_what_is_refused_leaves_no_byte(tmp_path: Path, data: bytes, error: type[Exception]) -> None:
    _, log = open_first(tmp_path, max_message_bytes=100)
    log.append(ONE)
    with pytest.raises(error):
        log.append(data)
    assert (log.path / "00000000000.kafka").read_bytes() == ONE
    log.append(TWO)
    assert read(log, 0) == ONE + TWO


def test_an_entry_that_is_cut_at_the_end_is_left_out(tmp_path: Path) -> None:
    _, log = open_first(tmp_path)
    result = log.append(ONE + TWO[:-1])
    assert (result.last_offset, result.record_count) == (len(ONE) - 1, 1)
    assert (log.path / "00000000000.kafka").read_bytes() == ONE


def test_old_segments_go_by_the_time_of_their_files(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_first(tmp_path, clock=clock, segment_bytes=14, retention_ms=10_000)
    for _ in range(3):
        log.append(LONG)
        clock.advance(4)
    manager.apply_retention()  # 12, 8 and 4 seconds old
    assert log.start_offset == len(LONG)
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 100, at_least_one=False)
    assert read(log, len(LONG)) == LONG


def test_after_a_restart_the_files_say_how_old_they_are(tmp_path: Path) -> None:
    manager, log = open_first(tmp_path, segment_bytes=14)
    for _ in range(2):
        log.append(LONG)
    manager.close()
    os.utime(log.path / "00000000000.kafka", (START_MS / 1000 - 100, START_MS / 1000 - 100))
    manager, log = open_first(tmp_path, clock=ManualClock(START_MS), segment_bytes=14, retention_ms=90_000)
    manager.apply_retention()
    assert log.start_offset == len(LONG)


def test_a_log_that_has_lost_all_of_its_segments_continues_where_it_was(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_first(tmp_path, clock=clock, flush_messages=100, retention_ms=1000)
    log.append(ONE)
    clock.advance(60)
    manager.apply_retention()
    end = len(ONE)
    assert (log.start_offset, log.readable_end, log.end_offset) == (end, end, end)
    assert read(log, end) == b""
    assert log.append(TWO).base_offset == end


def test_bytes_before_a_segment_are_not_taken_from_it(tmp_path: Path) -> None:
    scheme = ByteOffsets(13, tmp_path / "00000000013.kafka", 4096, OpenFiles(FileSystem(), 1))
    with pytest.raises(CorruptMessage, match="bytes 5 to 12 of the log are missing"):
        scheme.cut(ReadWindow(5, 26, 100, False, 13, 26), lambda start, end, first: iter(()))


def test_a_topic_keeps_its_generation(tmp_path: Path) -> None:
    manager, log = open_first(tmp_path)
    log.append(ONE)
    manager.add_partitions(PARTITION.topic, 2)
    manager.set_overrides(PARTITION.topic, {"retention.ms": "5"})
    manager.close()
    manager, log = open_first(tmp_path)
    assert manager.topics[PARTITION.topic].generation == "0.7"
    assert read(log, 0) == ONE
    assert "generation=0.7\n" in (log.path / "partition.metadata").read_text()


# What OFFSETS answers.


def facts(*starts: tuple[int, int]) -> list[SegmentFacts]:
    return [SegmentFacts(base_offset, 1, -1, time_ms) for base_offset, time_ms in starts]


@pytest.mark.parametrize(
    ("timestamp", "max_count", "found"),
    [
        (LATEST, 99, (50, 40, 20, 0)),
        (LATEST, 2, (50, 40)),
        (LATEST, 0, ()),
        (EARLIEST, 99, (0,)),
        (EARLIEST, 0, ()),
        (-3, 5, ()),
        (99, 5, ()),
        (100, 5, (0,)),
        (250, 5, (20, 0)),
        (250, 1, (20,)),
        (999, 5, (40, 20, 0)),
        (1000, 5, (50, 40, 20, 0)),
        (1 << 62, 1, (50,)),
    ],
)
def test_offsets_are_those_of_segments_by_their_times(
    timestamp: int, max_count: int, found: tuple[int, ...]
) -> None:
    segments = facts((0, 100), (20, 200), (40, 300))
    assert offsets_before(segments, 50, 1000, timestamp, max_count) == found


def test_a_segment_that_cannot_be_read_yet_has_no_end() -> None:
    assert offsets_before(facts((0, 100)), 0, 1000, LATEST, 9) == (0,)
    assert offsets_before(facts((0, 100), (20, 200)), 20, 1000, LATEST, 9) == (20, 0)
    assert offsets_before(facts((0, 100), (20, 200)), 10, 1000, LATEST, 9) == (10, 0)


# Whatever is asked for, the bytes are those of the stream.

BODIES = st.lists(st.binary(max_size=30), min_size=1, max_size=12)


@examples(60)
@given(BODIES, st.integers(14, 60), st.data())
def test_a_reader_gets_the_bytes_of_the_stream_up_to_the_nearest_end(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], segment_bytes: int, data: st.DataObject
) -> None:
    manager, log = open_first(tmp_path_factory.mktemp("log"), segment_bytes=segment_bytes)
    messages = [entry(body) for body in bodies]
    for message in messages:
        log.append(message)
    stream = b"".join(messages)
    starts = [one.base_offset for one in log.facts()]
    offset = data.draw(st.integers(0, len(stream)))
    max_bytes = data.draw(st.integers(0, 100))
    end = min([start for start in starts if start > offset] + [len(stream), offset + max_bytes])
    assert read(log, offset, max_bytes) == stream[offset:end]
    crash(manager)
