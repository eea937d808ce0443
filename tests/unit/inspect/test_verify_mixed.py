"""What `verify-log` finds in a log with entries of v0, v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.scan import Damage, scan
from pyspark_kafkalog.formats.legacy import assign_entry, read_entry
from pyspark_kafkalog.formats.message_set import frames
from tests.support.log.data_directories import (
    MIXED_ENTRIES,
    MIXED_RECORDS,
    checked,
    damages,
    flip,
    segments,
    write_mixed_log,
)
from tests.support.log.logs import open_log, read_all


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write_mixed_log(tmp_path / "data")


def places(segment: Path, *, magic: int | None = None, packed: bool = False) -> list[int]:
    """Where entries of one format begin, or all."""
    data = segment.read_bytes()
    found = []
    for frame in frames(data):
        at = frame.position
        if magic is None or (data[at + 16] == magic and bool(data[at + 17]) is packed):
            found.append(at)
    return found


@pytest.mark.parametrize(("deep", "records"), [(False, None), (True, MIXED_RECORDS)])
def test_a_log_that_was_closed_is_sound(clean: Path, deep: bool, records: int | None) -> None:
    report = checked(clean, deep=deep)
    assert report.findings == []
    assert (report.start_offset, report.end_offset) == (0, MIXED_RECORDS)
    assert (report.entry_count, report.record_count) == (MIXED_ENTRIES, records)
    assert report.segment_count == len(segments(clean)) >= 3


def test_indexes_that_were_rebuilt_are_those_of_the_appends(clean: Path) -> None:
    built = {path: path.read_bytes() for path in clean.glob("*index")}
    assert any(len(data) > 60 for data in built.values())
    for path in built:
        path.unlink()
    manager, log = open_log(clean.parent, segment_bytes=2000, index_interval_bytes=200)
    read_all(log, max_bytes=100)
    assert log.max_timestamp() is not None
    manager.close()
    assert {path: path.read_bytes() for path in clean.glob("*index")} == built
    assert checked(clean).findings == []


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_a_flipped_bit_names_the_entry(clean: Path, magic: int, packed: bool) -> None:
    second = segments(clean)[1]
    place = places(second, magic=magic, packed=packed)[1]
    flip(second, place + 40)
    ((name, position, what),) = damages(checked(clean))
    assert (name, position) == (second.name, place)
    offset = read_entry(second.read_bytes(), place).offset
    assert what.startswith(f"wrong checksum of the batch with offsets {offset} to {offset}: ")


def test_a_gap_before_a_compressed_set_shows_although_only_opening_it_tells(tmp_path: Path) -> None:
    path = write_mixed_log(tmp_path / "data", clean=False)
    newest = segments(path)[-1]
    sets = places(newest, magic=1, packed=True)
    data = bytearray(newest.read_bytes()[: sets[-1]])
    entry = bytearray(newest.read_bytes()[sets[-1] : places(newest)[places(newest).index(sets[-1]) + 1]])
    offset = read_entry(entry).offset
    assign_entry(entry, 0, offset=offset + 10)
    newest.write_bytes(data + entry)
    for deep in (False, True):
        ((_, position, what),) = damages(checked(path, deep=deep))
        assert (position, what) == (sets[-1], f"offsets {offset - 2} to {offset + 7} are missing")


def test_an_offset_that_no_set_can_reach_is_reported_and_cut_off(tmp_path: Path) -> None:
    path = write_mixed_log(tmp_path / "data", clean=False)
    newest = segments(path)[-1]
    place = places(newest, magic=0, packed=True)[-1]
    flip(newest, place + 1)  # no checksum covers it
    expected = read_entry(newest.read_bytes(), place).offset
    found = damages(checked(path))
    assert [position for _, position, _ in found] == [place]
    manager, log = open_log(path.parent)
    assert log.end_offset < MIXED_RECORDS < expected
    assert newest.stat().st_size == place
    manager.close()
    assert checked(path, deep=True).findings == []


@pytest.mark.long("many megabytes")
def test_zeros_and_small_numbers_after_damage_cost_no_long_search(tmp_path: Path) -> None:
    path = tmp_path / "00000000000.kafka"
    # As a table of numbers looks: offsets and lengths that may be, magic 0 everywhere.
    path.write_bytes(b"\xff" * 30 + b"\0\0\0\0\0\0\0\x01\0\x03\0\0" * 50_000)
    file = FileSystem().open(path)
    try:
        (found,) = list(scan(file, path.stat().st_size, 0))
    finally:
        file.close()
    assert isinstance(found, Damage)
