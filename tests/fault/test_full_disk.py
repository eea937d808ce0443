"""A full disk refuses what does not fit, keeps what was acknowledged, and goes on when there is room."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from pyspark_kafkalog.errors import StorageError
from tests.support.log.faulty_files import FaultyFiles
from tests.support.log.logs import FIRST, START_MS, batch, crash, open_log, open_manager, values
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"0"))


@pytest.mark.parametrize("space", [0, 1, 61, ONE - 1, ONE, ONE + 1, 2 * ONE - 1, 2 * ONE])
def test_an_append_that_does_not_fit_leaves_nothing_at_whatever_byte_the_disk_is_full(
    tmp_path: Path, space: int
) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    files.space_bytes = space
    request = batch(b"1") + batch(b"2")
    if space < len(request):
        with pytest.raises(StorageError, match=r"no space left"):
            log.append(request)
        assert (log.end_offset, log.size_bytes) == (1, ONE)
        assert (log.path / f"{FIRST}.kafka").stat().st_size == ONE
        assert values(log) == [b"0"]
        files.space_bytes = None
        request = batch(b"1") + batch(b"2")
    assert log.append(request).base_offset == 1
    assert values(log) == [b"0", b"1", b"2"]
    files.space_bytes = None
    crash(manager)
    _, log = open_log(tmp_path)
    assert values(log) == [b"0", b"1", b"2"]


def test_a_full_disk_is_an_error_in_the_log_once_in_ten_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, clock = FaultyFiles(), ManualClock(START_MS)
    _, log = open_log(tmp_path, files=files, clock=clock)
    data = batch(b"0")

    def refused(times: int) -> list[str]:
        files.space_bytes = 0
        caplog.clear()
        for _ in range(times):
            with pytest.raises(StorageError):
                log.append(bytearray(data))
        return [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]

    (line,) = refused(3)
    assert f"{tmp_path}: appending {len(data)} bytes to partition my_topic-0 failed: [Errno 28]" in line
    assert "more since" not in line
    clock.advance(9.9)
    assert refused(2) == []
    clock.advance(0.1)
    (line,) = refused(1)
    assert line.endswith("(and 4 more since the last such line)")
    files.space_bytes = None
    assert log.append(data).base_offset == 0


def test_a_smaller_batch_after_one_that_did_not_fit_is_followed_by_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    files.space_bytes = 400
    with pytest.raises(StorageError):
        log.append(batch(b"x" * 1000))
    files.space_bytes = ONE
    log.append(batch(b"0"))
    assert (log.path / f"{FIRST}.kafka").stat().st_size == ONE
    crash(manager)
    _, log = open_log(tmp_path)
    assert values(log) == [b"0"]


def test_a_disk_too_full_for_a_new_segment_keeps_the_old_one_going(tmp_path: Path) -> None:
    files = FaultyFiles()
    _, log = open_log(tmp_path, files=files, segment_bytes=ONE)
    log.append(batch(b"0"))
    files.space_bytes = 0
    for _ in range(3):
        with pytest.raises(StorageError):
            log.append(batch(b"1"))
    assert (log.segment_count, log.end_offset) == (1, 1)
    files.space_bytes = None
    log.append(batch(b"1"))
    assert (log.segment_count, values(log)) == (2, [b"0", b"1"])


@pytest.mark.parametrize("space", [ONE, ONE + 10, ONE + 30])
def test_a_disk_too_full_for_indexes_and_snapshots_takes_the_records_all_the_same(
    tmp_path: Path, space: int
) -> None:
    files = FaultyFiles()
    config = {"segment_bytes": 3 * ONE, "index_interval_bytes": 0}
    manager, log = open_log(tmp_path, files=files, **config)
    for number in range(3):
        log.append(batch(b"%d" % number, producer_id=1, producer_epoch=0, base_sequence=number))
    files.space_bytes = 10**9
    original = files.take_space

    def only_records(path: Path, wanted: int) -> int:
        if path.suffix != ".kafka":
            raise OSError(28, "No space left on device")
        return original(path, wanted)

    files.take_space = only_records  # type: ignore[method-assign]
    files.space_bytes = space
    log.append(batch(b"3", producer_id=1, producer_epoch=0, base_sequence=3))
    assert values(log, max_bytes=1) == [b"0", b"1", b"2", b"3"]
    files.space_bytes = None
    manager.flush_due()
    crash(manager)
    manager, log = open_log(tmp_path, **config)
    assert values(log, max_bytes=1) == [b"0", b"1", b"2", b"3"]
    assert log.append(batch(b"3", producer_id=1, producer_epoch=0, base_sequence=3)).duplicate


@pytest.mark.parametrize("space", [0, 1, 20, 60, 100, 150, 200, 230])
def test_a_topic_that_does_not_fit_is_not_made_and_leaves_nothing(tmp_path: Path, space: int) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    manager.create_topic("t", uuid4(), 1, {})
    files.space_bytes = space
    with pytest.raises(StorageError):
        manager.create_topic("u", uuid4(), 3, {})
    with pytest.raises(StorageError):
        manager.add_partitions("t", 4)
    with pytest.raises(StorageError):
        manager.set_overrides(
            "t", {"retention.ms": "5", "max.message.bytes": "1000", "segment.bytes": "100000"}
        )
    assert sorted(manager.topics) == ["t"]
    assert manager.topics["t"].partitions == (0,)
    assert manager.topics["t"].overrides == {}
    assert sorted(p.name for p in tmp_path.glob("*_*")) == ["t_0"]
    files.space_bytes = None
    manager.create_topic("u", uuid4(), 3, {})
    manager.add_partitions("t", 4)
    crash(manager)
    manager = open_manager(tmp_path)
    assert {name: len(topic.partitions) for name, topic in manager.topics.items()} == {"t": 4, "u": 3}


def test_a_stop_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files)
    log.append(batch(b"0"))
    files.space_bytes = 0
    manager.close()
    _, log = open_log(tmp_path)
    assert values(log) == [b"0"]


def test_a_start_on_a_full_disk_serves_what_is_there(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"0"))
    manager.close()
    files = FaultyFiles()
    files.space_bytes = 0
    _, log = open_log(tmp_path, files=files)
    assert values(log) == [b"0"]
    with pytest.raises(StorageError):
        log.append(batch(b"1"))
    files.space_bytes = None
    log.append(batch(b"1"))
    assert values(log) == [b"0", b"1"]


@pytest.mark.parametrize("longest", [1, 7, 61, 1000])
def test_short_writes_are_continued(tmp_path: Path, longest: int) -> None:
    files = FaultyFiles()
    files.longest_write = longest
    manager, log = open_log(tmp_path, files=files, segment_bytes=500, index_interval_bytes=0)
    for number in range(12):
        log.append(batch(b"%d" % number))
    assert values(log) == [b"%d" % number for number in range(12)]
    manager.close()
    _, log = open_log(tmp_path)
    assert values(log) == [b"%d" % number for number in range(12)]
