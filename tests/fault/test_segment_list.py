"""A crash between any two steps with which segments are begun, deleted and moved aside: nothing that is there
is missed, and nothing that was on the disk is gone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.recovery import STRAY_NAME
from kafkalog_broker.log.retention import BySize
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME, read_segment_list
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.errors import StorageError
from tests.support.log.faulty_files import FaultyFiles, PowerCut, VolatileFiles
from tests.support.log.logs import START_MS, batch, crash, open_log, values
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"000"))
CONFIG: dict[str, Any] = {"segment_bytes": 2 * ONE, "index_interval_bytes": ONE}


def append(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(batch(b"%03d" % log.end_offset))


def roll(_manager: LogManager, log: Log) -> None:
    append(log, 3)
    log.flush()


def retire(_manager: LogManager, log: Log) -> None:
    for path in log.retire(BySize(2 * ONE), START_MS):
        FileSystem().remove(path)


def retire_all(_manager: LogManager, log: Log) -> None:
    log.retire(BySize(0), START_MS)
    append(log, 3)


def delete_some(manager: LogManager, log: Log) -> None:
    manager.delete_records(log.topic_partition, 3)
    append(log, 3)
    assert log.start_offset == 3


def delete_all(manager: LogManager, log: Log) -> None:
    append(log, 1)
    manager.delete_records(log.topic_partition, 8)
    append(log, 3)
    manager.remove_deleted()


def whole(log: Log) -> bool:
    return values(log) == [b"%03d" % number for number in range(log.start_offset, log.end_offset)]


def on_disk(root: Path) -> tuple[VolatileFiles, LogManager, Log]:
    """A log of seven records, which were flushed, in four segments."""
    root.mkdir()
    clock, files = ManualClock(START_MS), VolatileFiles(root)
    manager, log = open_log(root, clock=clock, files=files, **CONFIG)
    append(log, 7)
    clock.advance(10)
    manager.flush_due()
    return files, manager, log


STARTS = {delete_some: 3, delete_all: 8}
"""Where a log begins after a deletion of records; before it the log begins at 0."""


def interrupted(
    directory: Path, act: Callable[[LogManager, Log], None]
) -> Iterator[tuple[Path, VolatileFiles, int, int]]:
    """The disk after so many calls of ``act`` on such a log, from none to all: its directory, itself, and the
    offsets up to which it was flushed and appended to.
    """
    for step in count():
        root = directory / f"step {step}"
        files, manager, log = on_disk(root)
        files.stop_after = step
        done = False
        with contextlib.suppress(PowerCut):
            act(manager, log)
            done = True
        ends = log.flushed_offset, log.end_offset
        crash(manager)
        yield root, files, *ends
        if done:
            assert step > 5
            return


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize("act", [roll, retire, retire_all, delete_some, delete_all])
def test_after_a_power_cut_or_a_kill_the_log_is_there_as_far_as_it_was_on_the_disk(
    tmp_path: Path, act: Callable[[LogManager, Log], None]
) -> None:
    for root, files, flushed, end in interrupted(tmp_path, act):
        for name, chance in (("synced", None), ("torn", random.Random(1))):
            after = root.with_name(f"{root.name} {name}")
            files.power_cut(after, chance)
            check_started(after, act, flushed, end + 3)
        log = check_started(root, act, end, end + 3)  # a killed broker finds every segment
        assert not (log.path / STRAY_NAME).exists()


def check_started(root: Path, act: Callable[[LogManager, Log], None], least: int, most: int) -> Log:
    for _ in range(2):
        manager, log = open_log(root, **CONFIG)
        assert whole(log)
        assert least <= log.end_offset <= most
        assert act not in STARTS or log.start_offset in (0, STARTS[act])
        append(log, 1)
        crash(manager)
    return log


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "power cut"])
def test_a_start_that_continues_after_a_hole_may_be_interrupted_anywhere(
    tmp_path: Path, power_cut: bool
) -> None:
    done = False
    for step in count():
        root = tmp_path / f"{step} before"
        files, manager, log = on_disk(root)
        crash(manager)
        files.remove(log.path / "00000000002.kafka")
        files.sync_directory(log.path)
        files.stop_after = step
        with contextlib.suppress(PowerCut):
            manager, _ = open_log(root, files=files, truncate_missing=True, **CONFIG)
            done = True
            crash(manager)
        if power_cut:
            files.power_cut(tmp_path / f"{step} after")
            root = tmp_path / f"{step} after"
        manager, log = open_log(root, truncate_missing=True, **CONFIG)
        assert (log.start_offset, log.end_offset) == (4, 7)
        assert whole(log)
        # Once or, when the power went between two directories, twice.
        assert "00000000000.kafka" in [p.name for p in (log.path / STRAY_NAME).iterdir()]
        crash(manager)
        manager, log = open_log(root, **CONFIG)
        assert whole(log)
        crash(manager)
        if done:
            assert step > 5
            break


@pytest.mark.parametrize("offset", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("seed", [None, 1])
def test_what_was_deleted_when_that_was_answered_stays_deleted_after_a_power_cut(
    tmp_path: Path, offset: int, seed: int | None
) -> None:
    files, manager, log = on_disk(tmp_path / "disk")
    append(log, 1)
    manager.delete_records(log.topic_partition, offset)
    files.power_cut(tmp_path / "after", None if seed is None else random.Random(seed))
    crash(manager)
    manager, log = open_log(tmp_path / "after", **CONFIG)
    assert (log.start_offset, log.end_offset) == (offset, 8)
    assert whole(log)


def test_a_full_disk_stops_neither_new_segments_nor_deletion_for_the_lists_sake(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = open_log(tmp_path, files=files, **CONFIG)
    append(log, 4)
    original = files.take_space

    def no_room_for_the_list(path: Path, wanted: int) -> int:
        if SEGMENT_LIST_NAME in path.name:
            raise OSError(28, "No space left on device")
        return original(path, wanted)

    files.take_space = no_room_for_the_list  # type: ignore[method-assign]
    append(log, 3)
    listed = read_segment_list(FileSystem(), log.path)
    assert listed is not None
    assert (log.segment_count, listed.active) == (4, 2)
    manager.close()
    manager, log = open_log(tmp_path, **CONFIG)
    assert whole(log)
    files = FaultyFiles()
    crash(manager)
    manager, log = open_log(tmp_path, files=files, **CONFIG)
    original = files.take_space
    files.take_space = no_room_for_the_list  # type: ignore[method-assign]
    retire(manager, log)
    assert log.start_offset == 4
    assert read_segment_list(FileSystem(), log.path) is None
    crash(manager)
    manager, log = open_log(tmp_path, **CONFIG)
    assert (log.start_offset, log.end_offset) == (4, 7)
    listed = read_segment_list(FileSystem(), log.path)
    assert listed is not None
    assert listed.active == 6


def test_a_list_that_is_older_than_the_newest_segments_misses_none_of_them(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, **CONFIG)
    append(log, 4)
    listed = (log.path / SEGMENT_LIST_NAME).read_bytes()
    append(log, 5)
    clock.advance(10)
    manager.flush_due()
    crash(manager)
    (log.path / SEGMENT_LIST_NAME).write_bytes(listed)
    manager, log = open_log(tmp_path, **CONFIG)
    assert (whole(log), log.end_offset) == (True, 9)
    crash(manager)
    (log.path / SEGMENT_LIST_NAME).write_bytes(listed)
    (log.path / "00000000004.kafka").unlink()
    with pytest.raises(StorageError, match="offsets 4 to 5 are missing"):
        open_log(tmp_path, **CONFIG)
