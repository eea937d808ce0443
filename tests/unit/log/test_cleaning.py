"""What the cleaner leaves of a log."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.cleaning.run import CleanedFile, clean
from kafkalog_broker.logs.cleaner import LogCleaner
from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.formats.bad_batches import record, sealed
from tests.support.log.cleaning import COMPACT, Kept, cleaner_of, committed, kept, keyed, put, whole
from tests.support.log.data_directories import overwrite
from tests.support.log.logs import START_MS, open_log
from tests.support.manual_clock import ManualClock
from tests.support.until import until

DAY_MS = 86_400_000


def test_a_reader_of_a_segment_that_is_replaced_continues(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    put(log, *((b"k", b"value %d" % n) for n in range(20)))
    piece = log.read(0, 1 << 20, at_least_one=True)
    old = log.segments[:-1]
    frames_of = [list(segment.frames(0)) for segment in old]
    data = piece.read()
    cleaner_of(manager, clock).run()
    assert piece.read() == data
    assert [list(segment.frames(0)) for segment in old] == frames_of
    for segment in old:
        held = segment.slice(segment.base_offset, log.end_offset, 1 << 20, at_least_one=True)
        assert held is not None
        assert len(held.read()) == segment.size
        held.close()
    piece.close()


def test_a_tombstone_goes_in_the_cleaning_after_its_horizon(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    cleaner = cleaner_of(manager, clock)
    put(log, (b"gone", b"value"), (b"gone", None), *((b"k", b"value %d" % n) for n in range(12)))
    cleaner.run()
    tombstone = next(frames(memoryview(whole(log)), start_offset=0))
    header = read_header(whole(log), tombstone.position)
    assert (header.base_offset, header.has_delete_horizon) == (1, True)
    assert header.base_timestamp == START_MS + DAY_MS
    assert header.max_timestamp == START_MS
    assert kept(log)[0] == Kept(1, b"gone", None)
    clock.advance(DAY_MS / 1000 - 1)
    put(log, *((b"k", b"value %d" % n) for n in range(12)))
    cleaner.run()
    assert kept(log)[0] == Kept(1, b"gone", None)
    clock.advance(1)
    put(log, *((b"k", b"value %d" % n) for n in range(12)))
    cleaner.run()
    assert {r.key for r in kept(log)} == {b"k"}


def test_a_value_of_any_negative_length_is_a_tombstone(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    null = record(key=b"gone", value=None, value_length=-2)
    log.append(bytearray(sealed(null, 1, Codec.NONE, timestamp=START_MS)))
    put(log, *((b"k", b"value %d" % n) for n in range(12)))
    cleaner_of(manager, clock).run()
    assert kept(log)[0] == Kept(0, b"gone", None)
    assert read_header(whole(log), 0).has_delete_horizon


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_what_changes_keeps_codec_offsets_and_sequences(tmp_path: Path, codec: Codec) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    pairs = [(b"k%d" % (n % 8), b"value %d " % n * 9) for n in range(12)]
    log.append(keyed(*pairs, codec=codec, producer_id=7, producer_epoch=1, base_sequence=0))
    log.append(keyed(*pairs, codec=codec, producer_id=7, producer_epoch=1, base_sequence=12))
    put(log, *((b"other", b"x" * 100) for _ in range(6)))
    cleaner_of(manager, clock).run()
    data = whole(log)
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.record_count) == (12, 23, 8)
    assert (header.codec, header.base_sequence, header.last_sequence) == (codec, 12, 23)
    assert [r.offset for r in kept(log)][:8] == list(range(16, 24))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_message_sets_stay_in_their_format(tmp_path: Path, magic: int, codec: Codec) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    for number in range(10):
        records = [NewRecord(b"v%d" % (3 * number + n), b"k%d" % n, START_MS) for n in range(3)]
        log.append(bytearray(encode_set(records[: 1 + number % 3], magic=magic, codec=codec)))
    grows = log.segments[-1].base_offset
    last = {r.key: r for r in kept(log) if r.offset < grows}
    rest = [r for r in kept(log) if r.offset >= grows]
    cleaner_of(manager, clock).run()
    assert kept(log) == sorted(last.values()) + rest
    data = whole(log)
    assert {data[f.position + 16] for f in frames(memoryview(data), start_offset=0)} == {magic}


def test_aborted_data_goes_at_once_and_markers_when_their_horizon_has_passed(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    cleaner = cleaner_of(manager, clock)
    for producer_id, commit in ((1, False), (2, True)):
        fields = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
        log.append(keyed((b"t%d" % producer_id, b"in it"), base_sequence=0, **fields))
        log.append(keyed((b"k", b"old"), base_sequence=1, **fields))
        log.end_transaction(producer_id, 0, commit=commit)

    def more() -> list[tuple[int, int, bool]]:
        """The entries below offset 6 when the log was cleaned once more."""
        put(log, *((b"k", b"v%d" % n) for n in range(12)), (b"t2", b"v"), *((b"k", b"v"),) * 4)
        cleaner.run()
        data = whole(log)
        found = [read_header(data, f.position) for f in frames(memoryview(data), start_offset=0)]
        return [(h.base_offset, h.record_count, h.has_delete_horizon) for h in found if h.base_offset < 6]

    # Both producers are known: their last batches stay without records, and so do the markers.
    assert more() == [(1, 0, False), (2, 1, False), (4, 0, False), (5, 1, False)]
    assert committed(log)[b"k"] == b"v"
    assert b"t1" not in committed(log)
    clock.advance(DAY_MS / 1000)
    manager.expire_producers()
    assert more() == [(2, 1, False), (5, 1, False)]  # the batches go, as the producers are forgotten
    assert more() == [(2, 1, True), (5, 1, True)]
    clock.advance(DAY_MS / 1000)
    assert more() == []


def test_what_is_young_and_what_an_open_transaction_holds_is_not_cleaned(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, min_compaction_lag_ms=1000, **COMPACT)
    cleaner = cleaner_of(manager, clock)
    put(log, *((b"k", b"value %d" % n) for n in range(12)))
    cleaner.run()
    assert log.cleaned_offset == 0
    clock.advance(1)
    log.append(keyed((b"k", b"open"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    put(log, *((b"k", b"value %d" % n) for n in range(12)))
    clock.advance(1)
    cleaner.run()
    assert 0 < log.cleaned_offset <= 12 == log.last_stable_offset
    log.end_transaction(1, 0, commit=True)
    cleaner.run()
    assert log.cleaned_offset == log.segments[-1].base_offset


def test_a_small_dirty_share_waits_until_it_is_old(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = COMPACT | {"min_cleanable_dirty_ratio": 0.5, "max_compaction_lag_ms": 60_000}
    manager, log = open_log(tmp_path, clock=clock, **config)
    cleaner = cleaner_of(manager, clock)
    put(log, *((b"key %d" % n, b"value") for n in range(40)))
    cleaner.run()
    first = log.cleaned_offset
    assert first == log.segments[-1].base_offset
    put(log, *((b"key %d" % n, b"value") for n in range(8)))
    cleaner.run()
    assert log.cleaned_offset == first
    clock.advance(61)
    cleaner.run()
    assert log.cleaned_offset > first


def test_a_cleaning_that_waits_for_its_rate_continues_when_the_rate_rises(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    put(log, *((b"k", b"value %d" % n) for n in range(20)))
    began = Event()

    def tell(*job: Any) -> Generator[CleanedFile, None, None]:
        began.set()
        yield from clean(*job)

    slow = 1e-9  # the first bytes take years
    cleaner = LogCleaner(
        manager, clock, FileSystem(), memory_bytes=1 << 20, bytes_per_second=slow, clean=tell
    )
    working = Thread(target=cleaner.run)
    working.start()
    until(began.is_set)
    cleaner.configure(1 << 20, 1e12)
    until(lambda: not working.is_alive())
    assert kept(log)[0].offset > 0


def test_a_damaged_segment_is_not_cleaned_and_the_other_logs_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **COMPACT)
    manager.create_topic("other", uuid.uuid4(), 1, {})
    other = manager.log(TopicPartition("other", 0))
    for each in (log, other):
        put(each, *((b"k", b"value %d" % n) for n in range(20)))
    overwrite(log.segments[0].path, 70, b"x")
    before = log.segments
    cleaner_of(manager, clock).run()
    assert log.segments == before
    assert other.cleaned_offset > 0
    assert "my_topic-0 is not cleaned any more: batch at offset 0: CRC-32C" in caplog.text
    assert not [path for path in log.path.iterdir() if "-" in path.name]
