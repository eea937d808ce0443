"""What a start says and does when segments are not as the log left them, after a stop and after SIGKILL."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.disk.data_directory import RECOVERY_POINTS_NAME
from kafkalog_broker.disk.filesystem import FileSystem, ReadOnlyFiles
from kafkalog_broker.inspect.contents import read_contents
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.recovery import STRAY_NAME
from kafkalog_broker.log.segment_list import (
    SEGMENT_LIST_NAME,
    FullSegment,
    SegmentList,
    read_segment_list,
    write_segment_list,
)
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, OffsetOutOfRange, StorageError
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.data_directories import checked, damages
from tests.support.log.logs import (
    PARTITION,
    START_MS,
    TOPIC,
    batch,
    contents,
    crash,
    crash_all,
    open_log,
    open_manager,
    values,
)
from tests.support.manual_clock import ManualClock
from tests.support.protocol.wire07 import entry

ONE = len(batch(b"00"))
CONFIG: dict[str, Any] = {"segment_bytes": 3 * ONE, "index_interval_bytes": ONE, "flush_ms": 1000}
"""Three batches of one record in a segment: 0, 3, 6 and 9, the last one with two."""
END = 11
WHOLE = [b"%02d" % number for number in range(END)]


def write(directory: Path, *, clean: bool, flushed: bool = True, **config: Any) -> Path:
    """A log of four segments: stopped, or killed after a flush; returns the partition's directory."""
    clock = ManualClock(START_MS)
    manager, log = open_log(directory, clock=clock, **{**CONFIG, **config})
    for value in WHOLE:
        log.append(batch(value))
    if flushed:
        clock.advance(2)
        manager.flush_due()
    if clean:
        manager.close()
    else:
        crash(manager)
    return log.path


def segment(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:011d}.kafka"


def flip(path: Path, byte: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@dataclass(frozen=True)
class Case:
    """One damage: what a start says is missing, and where the log begins under ``truncate``."""

    harm: Callable[[Path], None]
    missing: str
    start: int


def remove(*bases: int) -> Callable[[Path], None]:
    def unlink(path: Path) -> None:
        for base in bases:
            segment(path, base).unlink()

    return unlink


CASES = {
    "the first deleted": Case(remove(0), "offsets 0 to 2 are missing: 00000000000.kafka is not there", 3),
    "a middle one deleted": Case(remove(3), "offsets 3 to 5 are missing: 00000000003.kafka is not there", 6),
    "the last one deleted": Case(
        remove(9), "offsets 9 to 10 are missing: 00000000009.kafka is not there", 11
    ),
    "the last two deleted": Case(
        remove(6, 9), "offsets 6 to 8 are missing: 00000000006.kafka is not there", 11
    ),
    "a middle one emptied": Case(
        lambda path: cut(segment(path, 3), 0),
        "offsets 3 to 5 are missing: 00000000003.kafka has 0 bytes, it had 210", 6,
    ),
    "the first one emptied": Case(
        lambda path: cut(segment(path, 0), 0),
        "offsets 0 to 2 are missing: 00000000000.kafka has 0 bytes, it had 210", 3,
    ),
    "the last one emptied": Case(
        lambda path: cut(segment(path, 9), 0), "offsets 9 to 10 are missing: 00000000009.kafka ends", 11
    ),
    "a middle one cut in its middle": Case(
        lambda path: cut(segment(path, 6), ONE + 20),
        "offsets 6 to 8 are missing: 00000000006.kafka has 90 bytes, it had 210", 9,
    ),
    "the last one cut in its middle": Case(
        lambda path: cut(segment(path, 9), ONE + 20), "offset 10 is missing: 00000000009.kafka, byte 70", 11
    ),
    "the last one cut between two batches": Case(
        lambda path: cut(segment(path, 9), ONE), "offset 10 is missing: 00000000009.kafka ends", 11
    ),
    "all deleted": Case(remove(0, 3, 6, 9), "offsets 0 to 2 are missing: 00000000000.kafka is not there", 11),
    "the directory deleted": Case(shutil.rmtree, "offsets 0 to 10 are missing: the directory", 11),
}  # fmt: skip


def assert_verify_log_finds_it(path: Path, case: Case) -> None:
    if list(path.glob("*.kafka")):
        told = "; ".join(what for _, _, what in damages(checked(path)))
        assert case.missing.split(": ")[0] in told or ("byte 70" in case.missing and "cannot be read" in told)
    else:
        (finding,) = read_contents(path.parent, ReadOnlyFiles()).findings
        assert finding.damage
        assert "is missing" in finding.what


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "SIGKILL"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_partition_with_missing_data_is_offline_and_its_files_stay_as_they_are(
    tmp_path: Path, case: Case, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, clean=clean)
    case.harm(path)
    assert_verify_log_finds_it(path, case)
    before = snapshot(path)
    for _ in range(2):  # what the stop noted is used up by the first start, and known to the second
        manager = open_manager(tmp_path, **CONFIG)
        with pytest.raises(StorageError) as e:
            manager.log(PARTITION)
        assert f"my_topic-0 is offline: {case.missing}" in str(e.value)
        assert str(path) not in str(e.value)
        (line,) = [r.getMessage() for r in caplog.records if r.name == "kafkalog_broker.logs.startup"]
        assert line.startswith(f"my_topic-0 is offline: {case.missing}")
        assert f"put the files back into {path}, or start it with log.missing.segments=truncate" in line
        assert snapshot(path) == before
        caplog.clear()
        crash(manager)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "SIGKILL"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_truncate_the_log_continues_after_what_is_missing_and_removes_nothing(
    tmp_path: Path, case: Case, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, clean=clean)
    case.harm(path)
    left = (
        {name: data for name, data in snapshot(path).items() if name.endswith(".kafka")}
        if path.exists()
        else {}
    )
    manager, log = open_log(tmp_path, truncate_missing=True, **CONFIG)
    assert (log.start_offset, log.end_offset) == (case.start, END)
    assert values(log) == WHOLE[case.start :]
    with pytest.raises(OffsetOutOfRange):
        log.read(case.start - 1, 1000, at_least_one=True)
    assert log.append(batch(b"11")).base_offset == END
    now = snapshot(path)
    for name, data in left.items():
        kept = now.get(name, b"") if int(name[:11]) >= case.start else now[f"{STRAY_NAME}/{name}"]
        assert kept.startswith(data)
    crash(manager)
    for kill in (True, False):  # and nothing is missing any more
        manager, log = open_log(tmp_path, **CONFIG)
        assert values(log) == [*WHOLE[case.start :], b"11"]
        crash(manager) if kill else manager.close()
    assert damages(checked(path)) == []


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "SIGKILL"])
@pytest.mark.parametrize("base", [3, 6])
@pytest.mark.parametrize("lost", ["no list", "a garbled list", "half a list"])
def test_without_the_list_a_hole_is_seen_by_comparing_the_segments(
    tmp_path: Path, base: int, lost: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, clean=clean)
    listed = path / SEGMENT_LIST_NAME
    if lost == "no list":
        listed.unlink()
    elif lost == "half a list":
        cut(listed, 40)
    else:
        flip(listed, 30, 2)
    segment(path, base).unlink()
    manager = open_manager(tmp_path, **CONFIG)
    with pytest.raises(
        StorageError, match=f"offsets {base} to {base + 2} are missing: .*{base - 3}.kafka ends before"
    ):
        manager.log(PARTITION)
    said = any("segments.list is damaged" in r.getMessage() for r in caplog.records)
    assert said is (lost != "no list")


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "SIGKILL"])
@pytest.mark.parametrize("lost", ["no list", "a garbled list"])
def test_a_log_without_its_list_starts_as_it_was_and_gets_a_new_one(
    tmp_path: Path, lost: str, clean: bool
) -> None:
    path = write(tmp_path, clean=clean)
    before = read_segment_list(FileSystem(), path)
    (path / SEGMENT_LIST_NAME).write_bytes(b"rubbish") if lost != "no list" else (
        path / SEGMENT_LIST_NAME
    ).unlink()
    _, log = open_log(tmp_path, **CONFIG)
    assert values(log) == WHOLE
    assert read_segment_list(FileSystem(), path) == before
    assert before == SegmentList(
        (FullSegment(0, 3, 3 * ONE), FullSegment(3, 6, 3 * ONE), FullSegment(6, 9, 3 * ONE)), 9
    )


@pytest.mark.parametrize("lost", ["removed", "garbled"])
def test_without_recovery_points_full_segments_are_missed_all_the_same(tmp_path: Path, lost: str) -> None:
    path = write(tmp_path, clean=False)
    points = tmp_path / RECOVERY_POINTS_NAME
    points.unlink() if lost == "removed" else flip(points, 15, 1)
    manager, log = open_log(tmp_path, **CONFIG)
    assert values(log) == WHOLE
    crash(manager)
    segment(path, 3).unlink()
    with pytest.raises(StorageError, match="offsets 3 to 5 are missing"):
        open_log(tmp_path, **CONFIG)


def test_a_newest_segment_of_which_nothing_was_on_the_disk_is_reported_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, clean=False, flushed=False)
    segment(path, 9).unlink()
    _, log = open_log(tmp_path, **CONFIG)
    assert values(log) == WHOLE[:9]
    assert any(
        "00000000009.kafka, which was begun before the crash, is missing" in r.getMessage()
        for r in caplog.records
    )


def test_only_the_partition_with_missing_data_is_offline(tmp_path: Path) -> None:
    path = write(tmp_path, clean=True)
    manager = open_manager(tmp_path, **CONFIG)
    manager.add_partitions(TOPIC, 2)
    manager.log(TopicPartition(TOPIC, 1)).append(batch(b"x"))
    manager.close()
    segment(path, 3).unlink()
    manager = open_manager(tmp_path, **CONFIG)
    assert values(manager.log(TopicPartition(TOPIC, 1))) == [b"x"]
    with pytest.raises(StorageError):
        manager.log(PARTITION)
    manager.apply_retention()
    manager.flush_due()
    manager.close()  # a clean stop does not forget it
    manager = open_manager(tmp_path, **CONFIG)
    with pytest.raises(StorageError, match="offsets 3 to 5 are missing"):
        manager.log(PARTITION)
    manager.delete_topic(TOPIC)
    assert not path.exists()
    manager.close()
    assert open_manager(tmp_path, **CONFIG).topics == {}


def test_files_that_are_put_back_bring_the_partition_back(tmp_path: Path) -> None:
    path = write(tmp_path, clean=True)
    copy = segment(path, 9).read_bytes()
    segment(path, 9).unlink()
    for _ in range(2):
        with pytest.raises(StorageError):
            open_log(tmp_path, **CONFIG)
        crash_all()
    segment(path, 9).write_bytes(copy)
    _, log = open_log(tmp_path, **CONFIG)
    assert values(log) == WHOLE


def test_a_log_with_one_segment_has_no_list_and_one_that_lost_it_is_offline(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"0", b"1"))
    manager.close()
    assert sorted(p.suffix for p in log.path.iterdir()) == [
        ".index",
        ".kafka",
        ".metadata",
        ".snapshot",
        ".timeindex",
    ]
    segment(log.path, 0).unlink()
    with pytest.raises(StorageError, match="offsets 0 to 1 are missing: no segment is there"):
        open_log(tmp_path)
    crash_all()
    manager, log = open_log(tmp_path, truncate_missing=True)
    assert (log.start_offset, log.end_offset) == (2, 2)


def test_stray_files_of_one_name_do_not_replace_each_other(tmp_path: Path) -> None:
    path = write(tmp_path, clean=True)
    for number in range(3):
        segment(path, 1).write_bytes(b"%d" % number)  # in no list: somebody put it there
        manager, log = open_log(tmp_path, **CONFIG)
        assert values(log) == WHOLE
        manager.close()
    assert snapshot(path / STRAY_NAME) == {
        "00000000001.kafka": b"0", "00000000001.kafka.1": b"1", "00000000001.kafka.2": b"2",
    }  # fmt: skip


# Damage that is there and can be passed.


def test_damage_below_the_recovery_point_is_not_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, clean=False, segment_bytes=1 << 20)
    first = segment(path, 0)
    flip(first, 4 * ONE + 65, 0)
    before = first.read_bytes()
    manager, log = open_log(tmp_path, **CONFIG)
    assert (log.start_offset, log.end_offset) == (0, END)
    assert first.read_bytes() == before
    assert values(log, start=5, max_bytes=1) == WHOLE[5:]
    assert any(
        "0000.kafka, byte 280: " in r.getMessage() and r.levelno == logging.ERROR for r in caplog.records
    )
    assert log.append(batch(b"11")).base_offset == END
    assert segment(path, END).stat().st_size == ONE
    crash(manager)
    _, log = open_log(tmp_path, **CONFIG)
    assert values(log, start=5, max_bytes=1) == [*WHOLE[5:], b"11"]


def test_a_damaged_length_below_the_recovery_point_is_corrupt_there_and_nowhere_else(tmp_path: Path) -> None:
    path = write(tmp_path, clean=False, segment_bytes=1 << 20)
    flip(segment(path, 0), 4 * ONE + 8, 5)
    _, log = open_log(tmp_path, **CONFIG)
    with pytest.raises(CorruptMessage):
        log.read(4, 1, at_least_one=True)
    assert contents(log.read(3, 1, at_least_one=True)) != b""
    assert values(log, start=5, max_bytes=1) == WHOLE[5:]


def test_damage_above_the_recovery_point_is_cut_off_and_what_follows_moved_aside(tmp_path: Path) -> None:
    path = write(tmp_path, clean=False, flushed=False)
    flip(segment(path, 3), ONE + 65, 0)
    tail = {base: segment(path, base).read_bytes() for base in (6, 9)}
    _, log = open_log(tmp_path, **CONFIG)
    assert values(log) == WHOLE[:4]
    assert {base: (path / STRAY_NAME / segment(path, base).name).read_bytes() for base in (6, 9)} == tail
    assert log.append(batch(b"next")).base_offset == 4


# Logs of 0.7.


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "SIGKILL"])
@pytest.mark.parametrize("with_list", [True, False])
@pytest.mark.parametrize(("base", "start"), [(28, 56), (56, 70)])
def test_bytes_of_the_first_generation_are_missed_too(
    tmp_path: Path, clean: bool, with_list: bool, base: int, start: int
) -> None:
    message = bytearray(entry(b"xxxx"))
    manager, log = open_log(tmp_path, generation="0.7", segment_bytes=len(message), flush_messages=1)
    assert len(message) == 14
    for _ in range(5):
        log.append(message)
    manager.flush_due()
    path = log.path
    manager.close() if clean else crash(manager)
    assert sorted(int(p.stem) for p in path.glob("*.kafka")) == [0, 28, 56]
    if not with_list:
        (path / SEGMENT_LIST_NAME).unlink()
    segment(path, base).unlink()
    with pytest.raises(StorageError, match=f"offsets {base} to {start - 1} are missing"):
        open_log(tmp_path)
    crash_all()
    manager, log = open_log(tmp_path, truncate_missing=True)
    assert (log.start_offset, log.end_offset) == (start, 70)
    assert log.append(message).base_offset == 70


def _reads(manager: LogManager) -> list[bytes | None] | type[KafkaError]:
    try:
        log: Log = manager.log(PARTITION)
        return values(log)
    except KafkaError as e:
        return type(e)


def test_a_write_of_the_list_by_a_cleaner_is_what_a_start_goes_by(tmp_path: Path) -> None:
    path = write(tmp_path, clean=True)
    listed = read_segment_list(FileSystem(), path)
    assert listed is not None
    segment(path, 3).unlink()
    assert _reads(open_manager(tmp_path, **CONFIG)) is StorageError
    crash_all()
    full = tuple(each for each in listed.full if each.base_offset != 3)
    write_segment_list(FileSystem(), path, SegmentList(full, listed.active, cleaned_offset=6))
    assert _reads(open_manager(tmp_path, **CONFIG)) == WHOLE[:3] + WHOLE[6:]
