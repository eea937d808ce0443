"""A crash at any call of a cleaning leaves a whole log with the same last values."""

from __future__ import annotations

import contextlib
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.log.cleaning.run import CLEANED_SUFFIX
from kafkalog_broker.log.cleaning.swap import SWAP_SUFFIX
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.recovery import STRAY_NAME
from pyspark_kafkalog.errors import StorageError
from tests.support.log.cleaning import cleaner_of, committed, kept, keyed, put, whole
from tests.support.log.data_directories import checked, damages
from tests.support.log.faulty_files import FaultyFiles, PowerCut, VolatileFiles
from tests.support.log.logs import START_MS, crash, open_log
from tests.support.manual_clock import ManualClock

CONFIG: dict[str, Any] = {
    "cleanup_policy": ("compact",),
    "segment_bytes": 700,
    "index_interval_bytes": 100,
    "min_cleanable_dirty_ratio": 0.0,
}


def fill(log: Log, start: int) -> None:
    """Some keys again and again, an aborted transaction and one that is committed."""
    for number in range(start, start + 14):
        put(log, (b"k%d" % (number % 4), b"%03d" % number))
        if number % 6 == 3:
            batch = keyed((b"k1", b"aborted"), producer_id=number, producer_epoch=0, base_sequence=0,
                          transactional=True)  # fmt: skip
            log.append(batch)
            log.end_transaction(number, 0, commit=number % 12 == 3)


def prepared(root: Path, files: Any, clock: ManualClock) -> tuple[Any, Log]:
    """A log that was cleaned once, and has grown since."""
    manager, log = open_log(root, clock=clock, files=files, **CONFIG)
    fill(log, 0)
    cleaner_of(manager, clock, files).run()
    fill(log, 14)
    clock.advance(10)
    manager.flush_due()
    return manager, log


def check(
    after: Path, clock: ManualClock, values: dict[bytes | None, bytes | None], end: int, *, torn: bool = False
) -> None:
    """``torn``: what was not synced may be there in part, which `verify-log` says."""
    (partition,) = after.glob("my_topic*")
    if not torn:
        found = damages(checked(partition, torn=True))  # indexes are not synced
        assert [each for each in found if not each[0].endswith("index")] == []
    manager, log = open_log(after, clock=clock, **CONFIG)
    assert committed(log) == values
    assert (log.start_offset, log.end_offset, log.last_stable_offset) == (0, end, end)
    names = [path.name for path in log.path.iterdir()]
    assert not [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) or name == STRAY_NAME]
    assert not [name for name in names if "-" in name]
    # It goes on: later values, another cleaning, a restart.
    put(log, (b"k0", b"new"))
    cleaner_of(manager, clock).run()
    assert committed(log) == values | {b"k0": b"new"}
    manager.close()
    manager, log = open_log(after, clock=clock, **CONFIG)
    assert committed(log) == values | {b"k0": b"new"}
    crash(manager)


@pytest.mark.long("the disk fails at every call")
def test_a_power_cut_at_any_call_leaves_a_whole_log(tmp_path: Path) -> None:
    for number in count():
        root = tmp_path / f"disk {number}"
        root.mkdir()
        clock, files = ManualClock(START_MS), VolatileFiles(root)
        manager, log = prepared(root, files, clock)
        values, end = committed(log), log.end_offset
        files.stop_after = number
        ended = False
        with contextlib.suppress(PowerCut):
            cleaner_of(manager, clock, files).run()
            ended = files.stop_after > 0
        files.stop_after = None
        crash(manager)
        for torn in (False, True):
            after = tmp_path / f"after {number} {torn}"
            files.power_cut(after, random.Random(1000 + number) if torn else None)
            check(after, clock, values, end, torn=torn)
        if ended:
            break
    assert number > 30


def test_a_power_cut_while_a_start_finishes_a_swap(tmp_path: Path) -> None:
    """The start is cut as well, at each of its calls."""
    clock = ManualClock(START_MS)
    interrupted = 0
    for number in range(0, 100, 4):
        root = tmp_path / f"disk {number}"
        root.mkdir()
        files = VolatileFiles(root)
        manager, log = prepared(root, files, clock)
        values, end = committed(log), log.end_offset
        files.stop_after = number
        with contextlib.suppress(PowerCut):
            cleaner_of(manager, clock, files).run()
        files.stop_after = None
        decided = [path.name for path in log.path.iterdir() if path.name.endswith(SWAP_SUFFIX)]
        crash(manager)
        if not decided:
            continue
        interrupted += 1
        for step in range(0, 12, 2):
            files.stop_after = step
            with contextlib.suppress(PowerCut):
                manager, _ = open_log(root, clock=clock, files=files, **CONFIG)
                crash(manager)
            files.stop_after = None
            torn = step % 4 == 0
            after = tmp_path / f"after {number} {step}"
            files.power_cut(after, random.Random(number + step) if torn else None)
            check(after, clock, values, end, torn=torn)
    assert interrupted > 3


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize("what", ["write_fails", "sync_fails", "open_fails", "truncate_fails"])
def test_a_disk_that_fails_leaves_a_whole_log(tmp_path: Path, what: str) -> None:
    failures = 0
    for number in range(25):
        root = tmp_path / f"{number}"
        clock, files = ManualClock(START_MS), FaultyFiles()
        manager, log = prepared(root, files, clock)
        values, end = committed(log), log.end_offset
        calls = count()
        setattr(files, what, lambda _path, n=number, calls=calls: next(calls) == n)
        cleaner_of(manager, clock, files).run()
        failures += next(calls) > number
        setattr(files, what, lambda _path: False)
        if log.directory.online:
            assert committed(log) == values
        else:
            with pytest.raises(StorageError):
                log.append(keyed((b"k", b"v")))
        crash(manager)
        check(root, clock, values, end)
    assert failures > 2


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    for space in range(0, 6000, 600):
        root = tmp_path / f"{space}"
        clock, files = ManualClock(START_MS), FaultyFiles()
        manager, log = prepared(root, files, clock)
        values, end = committed(log), log.end_offset
        files.space_bytes = space
        cleaner = cleaner_of(manager, clock, files)
        cleaner.run()
        assert log.directory.online
        assert committed(log) == values
        files.space_bytes = None
        cleaner.run()
        assert log.cleaned_offset == log.segments[-1].base_offset
        assert committed(log) == values
        assert {r.key for r in kept(log)} == {b"k0", b"k1", b"k2", b"k3"}
        assert whole(log)
        crash(manager)
        check(root, clock, values, end)
