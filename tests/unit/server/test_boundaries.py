"""Where entries of a 0.7 log begin: found from anywhere, remembered sparsely, within an allowance."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import BySize
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.server.log_access import Allowance
from kafkalog_broker.server.view07 import SPACING_BYTES, Boundaries
from pyspark_kafkalog.errors import CorruptMessage, OffsetOutOfRange
from tests.support.log.logs import crash_all, open_log
from tests.support.protocol.wire07 import entry

PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def _no_manager_outlives_its_test() -> Iterator[None]:
    yield
    crash_all()


def filled(path: Path, sizes: list[int], segment_bytes: int = 300_000) -> tuple[LogManager, Log, list[int]]:
    """A log of entries with payloads of these sizes, and where they begin."""
    manager, log = open_log(path, generation="0.7", segment_bytes=segment_bytes)
    starts = []
    for size in sizes:
        starts.append(log.end_offset)
        log.append(entry(bytes(size)))
    log.flush()
    return manager, log, starts


def test_every_byte_leads_to_the_entry_that_holds_it(tmp_path: Path) -> None:
    sizes = [0, 1, 3, 200_000, 7, 0, 70_000, 5, 130_000, 9, 9, 9]
    _, log, starts = filled(tmp_path, sizes)
    assert log.segment_count == 2
    for boundaries in (Boundaries(), Boundaries(max_rows=1)):
        for start, size in zip(starts, sizes, strict=True):
            for offset in {start, start + 1, start + 9, start + 9 + size}:
                assert boundaries.find(log, offset, Allowance()) == start


def test_a_walk_is_remembered_so_that_the_next_one_is_short(tmp_path: Path) -> None:
    _, log, starts = filled(tmp_path, [90] * 20_000, segment_bytes=1 << 30)
    boundaries = Boundaries()
    cold = Allowance(PLENTY)
    assert boundaries.find(log, starts[-1] + 5, cold) == starts[-1]
    assert PLENTY - cold._left > 0.9 * starts[-1] / 8
    assert len(boundaries) == pytest.approx(starts[-1] / SPACING_BYTES, abs=2)
    for start in random.Random(7).sample(starts, 50):
        warm = Allowance(PLENTY)
        assert boundaries.find(log, start + 50, warm) == start
        assert PLENTY - warm._left <= 3 * SPACING_BYTES / 8


def test_a_walk_stops_with_its_allowance_and_the_next_continues_from_there(tmp_path: Path) -> None:
    _, log, starts = filled(tmp_path, [90] * 20_000, segment_bytes=1 << 30)
    boundaries = Boundaries()
    found = [boundaries.find(log, starts[-1], Allowance(500_000 // 8)) for _ in range(5)]
    assert found == [None, None, None, starts[-1], starts[-1]]


def test_long_entries_are_passed_over_and_not_read(tmp_path: Path) -> None:
    _, log, starts = filled(tmp_path, [900_000] * 10, segment_bytes=1 << 30)
    allowance = Allowance(PLENTY)
    assert Boundaries().find(log, starts[-1] + 100, allowance) == starts[-1]
    assert PLENTY - allowance._left < 2 * SPACING_BYTES / 8


def test_the_rows_are_bounded_and_the_log_asked_about_longest_ago_goes_first(tmp_path: Path) -> None:
    logs = [filled(tmp_path / name, [10])[1] for name in "abc"]
    boundaries = Boundaries(max_rows=20)
    for number in range(8):
        for log in logs[:2]:
            boundaries.note(log, number * SPACING_BYTES)
    assert len(boundaries) == 16
    for number in range(5):
        boundaries.note(logs[2], number * SPACING_BYTES)
    assert len(boundaries) == 13
    for number in range(5, 40):
        boundaries.note(logs[2], number * SPACING_BYTES)
        assert len(boundaries) <= 20


def test_positions_closer_than_the_spacing_take_no_rows(tmp_path: Path) -> None:
    _, log, _ = filled(tmp_path, [10])
    boundaries = Boundaries()
    for offset in (0, 10, SPACING_BYTES - 1, SPACING_BYTES, SPACING_BYTES, SPACING_BYTES + 1, 20):
        boundaries.note(log, offset)
    assert len(boundaries) == 2


def test_what_retention_removes_is_forgotten(tmp_path: Path) -> None:
    _, log, starts = filled(tmp_path, [100_000] * 12)
    boundaries = Boundaries()
    for start in starts:
        boundaries.find(log, start, Allowance())
        boundaries.note(log, start)
    assert len(boundaries) == 12
    log.retire(BySize(250_000), 0)
    assert log.start_offset > 0
    left = [start for start in starts if start >= log.start_offset]
    assert boundaries.find(log, left[-1] + 1, Allowance()) == left[-1]
    assert len(boundaries) == len(left)
    with pytest.raises(OffsetOutOfRange):
        boundaries.find(log, 5, Allowance())


def test_a_file_that_was_damaged_is_said_to_be(tmp_path: Path) -> None:
    _, log, starts = filled(tmp_path, [50] * 10)
    path = log.path / "00000000000.kafka"
    data = bytearray(path.read_bytes())
    data[starts[3] : starts[3] + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    boundaries = Boundaries()
    assert boundaries.find(log, starts[2] + 1, Allowance()) == starts[2]
    with pytest.raises(CorruptMessage, match=f"from offset 0 on: no message begins at byte {starts[3]}"):
        boundaries.find(log, starts[4], Allowance())
    path.write_bytes(data[: starts[2] + 2])
    with pytest.raises(CorruptMessage, match="ends before byte"):
        boundaries.find(log, starts[8], Allowance())
