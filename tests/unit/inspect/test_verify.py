"""What `verify-log` calls sound, torn and damaged, and where it says it is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from kafkalog_broker.disk.data_directory import CLEAN_SHUTDOWN_NAME
from kafkalog_broker.disk.filesystem import FileSystem, ReadOnlyFiles
from kafkalog_broker.inspect.contents import Finding, read_contents
from kafkalog_broker.inspect.verify import PartitionReport
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME, read_segment_list, write_segment_list
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord
from tests.support.log.data_directories import (
    RECORDS,
    checked,
    cut,
    damages,
    flip,
    overwrite,
    segments,
    write_log,
)
from tests.support.log.logs import batch, crash, open_log

FILES = ReadOnlyFiles()


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """The partition's directory of a broker that has stopped."""
    return write_log(tmp_path / "data")


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The partition's directory of a broker that was killed."""
    return write_log(tmp_path / "data", clean=False)


def notes(report: PartitionReport) -> list[str]:
    return [str(finding) for finding in report.findings if not finding.damage]


@pytest.mark.parametrize("deep", [False, True])
def test_a_log_that_was_closed_is_sound(clean: Path, deep: bool) -> None:
    report = checked(clean, deep=deep)
    assert report.findings == []
    assert (report.start_offset, report.end_offset, report.record_count) == (0, RECORDS, RECORDS)
    assert report.entry_count == RECORDS // 2
    assert report.segment_count == len(segments(clean)) >= 3
    assert report.size_bytes == sum(path.stat().st_size for path in segments(clean))


def test_a_log_begins_where_its_records_were_deleted(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path / "data")
    log.append(batch(b"0", b"1", b"2", b"3"))
    manager.delete_records(log.topic_partition, 3)
    crash(manager)
    report = checked(log.path)
    assert (report.findings, report.start_offset, report.end_offset) == ([], 3, 4)
    segments(log.path)[0].write_bytes(b"")
    assert [what for _, _, what in damages(checked(log.path))] == [
        "offsets 0 to 2 are missing at its end: they had been forced to the disk"
    ]


@pytest.mark.parametrize("left", [1, 30, 61, 90])
def test_a_torn_tail_is_not_damage_and_the_next_start_cuts_it_where_the_note_says(
    crashed: Path, left: int
) -> None:
    newest = segments(crashed)[-1]
    size = newest.stat().st_size
    whole = encode_batch([NewRecord(b"lost " * 20)], base_offset=RECORDS)
    newest.write_bytes(newest.read_bytes() + whole[:left])
    report = checked(crashed)
    assert report.sound
    (note,) = notes(report)
    assert note.startswith(f"note: {newest}, byte {size}: torn tail: {left} bytes")
    assert f"cuts it off at offset {RECORDS}" in note
    manager, log = open_log(crashed.parent)
    assert log.end_offset == RECORDS
    manager.close()
    assert checked(crashed).findings == []


def test_an_end_that_is_cut_short_after_a_clean_stop_is_damage(clean: Path) -> None:
    newest = segments(clean)[-1]
    cut(newest, -5)
    ((name, position, what),) = damages(checked(clean))
    assert name == newest.name
    assert position is not None
    assert newest.stat().st_size - 120 < position < newest.stat().st_size
    assert "the broker had closed this log" in what


def test_an_end_that_had_been_forced_to_the_disk_cannot_be_torn(tmp_path: Path) -> None:
    path = write_log(tmp_path / "data", clean=False)
    manager, log = open_log(path.parent)
    log.flush()
    manager.flush_due()
    crash(manager)
    cut(segments(path)[-1], -5)
    ((_, _, what),) = damages(checked(path))
    assert f"offsets up to {RECORDS - 1} had been forced to the disk" in what


def test_a_flipped_bit_in_the_middle_names_the_batch_and_what_is_missing(crashed: Path) -> None:
    second = segments(crashed)[1]
    flip(second, 80)
    first = int(second.stem)
    ((name, position, what),) = damages(checked(crashed))
    assert (name, position) == (second.name, 0)
    assert what.startswith(f"wrong checksum of the batch with offsets {first} to {first + 1}")
    assert what.endswith(f"offsets {first} to {first + 1} are missing")


def test_every_damaged_place_is_reported(clean: Path) -> None:
    first, second, *_, newest = segments(clean)
    flip(first, 70)
    overwrite(second, 300, bytes(200))
    flip(newest, newest.stat().st_size - 1)
    found = damages(checked(clean))
    assert [name for name, _, _ in found] == [first.name, second.name, newest.name]


def test_a_segment_that_is_gone_leaves_a_gap(clean: Path) -> None:
    gone, following = segments(clean)[1:3]
    gone.unlink()
    told = f"offsets {int(gone.stem)} to {int(following.stem) - 1} are missing"
    assert damages(checked(clean)) == [(gone.name, None, f"{told}: {gone.name} is not there")]
    (clean / SEGMENT_LIST_NAME).unlink()  # as in a directory of an older broker
    assert damages(checked(clean)) == [(following.name, None, told)]


def test_a_segment_under_a_wrong_name_is_reported(clean: Path) -> None:
    second = segments(clean)[1]
    wrong = second.with_name(f"{int(second.stem) - 1:011d}.kafka")
    second.rename(wrong)
    report = checked(clean)
    assert damages(report)[0][0] == second.name
    assert notes(report)[0].startswith(f"note: {wrong}: it is not part of the log")
    (clean / SEGMENT_LIST_NAME).unlink()
    found = damages(checked(clean))
    assert found[0][0] == wrong.name
    assert "named by offset" in found[0][2]


def test_a_segment_cut_in_the_middle_of_the_log_is_damage_even_after_a_crash(crashed: Path) -> None:
    first = segments(crashed)[0]
    cut(first, -1)
    found = damages(checked(crashed))
    assert found[0][0] == first.name
    assert "segments follow" in found[0][2]


def test_offsets_that_go_back_are_damage(crashed: Path) -> None:
    newest = segments(crashed)[-1]
    size = newest.stat().st_size
    newest.write_bytes(newest.read_bytes() + encode_batch([NewRecord(b"x")], base_offset=RECORDS - 1))
    assert damages(checked(crashed)) == [
        (newest.name, size, f"a batch with offset {RECORDS - 1} where offset {RECORDS} should follow")
    ]


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("cleaned_offset", [0, RECORDS + 5, RECORDS + 6])
def test_only_where_a_cleaner_was_there_may_be_gaps(crashed: Path, policy: str, cleaned_offset: int) -> None:
    record = crashed.parent / ".topics" / "my_topic.topic"
    record.write_text(record.read_text() + f"config.cleanup.policy={policy}\n")
    listed = read_segment_list(FILES, crashed)
    assert listed is not None
    write_segment_list(FileSystem(), crashed, replace(listed, cleaned_offset=cleaned_offset))
    newest = segments(crashed)[-1]
    later = encode_batch([NewRecord(b"x")], base_offset=RECORDS + 5)
    newest.write_bytes(newest.read_bytes() + later)
    assert checked(crashed).sound is (cleaned_offset > RECORDS + 5)
    said = [finding.what for finding in checked(crashed, deep=True).findings if not finding.damage]
    assert said == [
        f"compacted up to offset {cleaned_offset - 1}: a record that is gone, or a batch whose offset was "
        "changed, cannot be told there from what the cleaner has removed"
    ] * (cleaned_offset > 0)  # fmt: skip


def test_records_that_contradict_their_header_are_found_when_looked_at(crashed: Path) -> None:
    from pyspark_kafkalog.formats.batch import seal_batch

    lying = seal_batch(
        b"\x7f" * 40, attributes=0, last_offset_delta=0, base_timestamp=0, max_timestamp=0, record_count=1,
        base_offset=RECORDS,
    )  # fmt: skip
    newest = segments(crashed)[-1]
    size = newest.stat().st_size
    newest.write_bytes(newest.read_bytes() + lying)
    assert checked(crashed).sound
    ((_, position, _),) = damages(checked(crashed, deep=True))
    assert position == size


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    ("harm", "is_damage", "what"),
    [
        (remove, False, "is missing"),
        (lambda path: cut(path, -10), True, "does not end as an index does"),
        (lambda path: flip(path, 1), True, "its checksum is"),
    ],
    ids=["removed", "cut", "flipped"],
)
def test_an_index_that_is_not_whole_is_reported(
    clean: Path, suffix: str, harm: Callable[[Path], None], is_damage: bool, what: str
) -> None:
    index = segments(clean)[0].with_suffix(suffix)
    harm(index)
    (found,) = checked(clean).findings
    assert (found.path, found.damage) == (index, is_damage)
    assert what in found.what


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_leads_astray_is_damage(clean: Path, suffix: str) -> None:
    from kafkalog_broker.disk.filesystem import OpenFiles
    from kafkalog_broker.log.offset_scheme import OFFSET_COLUMNS, TIME_COLUMNS, SparseIndex, parse_index

    index = segments(clean)[0].with_suffix(suffix)
    columns = OFFSET_COLUMNS if suffix == ".index" else TIME_COLUMNS
    was = parse_index(index.read_bytes(), columns)
    other = SparseIndex(index, columns, OpenFiles(FileSystem(), 1))
    rows = list(zip(was.first, was.second, strict=True))
    for number, (first, second) in enumerate(rows):
        other.add(first + (number == len(rows) - 1), second)
    other.save(was.base_offset, was.segment_size)
    (found,) = checked(clean).findings
    assert (found.path, found.damage) == (index, True)
    assert re.match("1 rows lead to no batch, the first .* at ", found.what)


def test_an_index_of_another_segment_is_damage(clean: Path) -> None:
    first, second = (path.with_suffix(".index") for path in segments(clean)[:2])
    shutil.copy(second, first)
    assert [(f.path, f.damage) for f in checked(clean).findings] == [(first, True)]


def test_looking_changes_nothing(crashed: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in crashed.parent.rglob("*")}
    checked(crashed, deep=True)
    assert {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in crashed.parent.rglob("*")
    } == before


# What a directory says of its logs.


def about(directory: Path) -> list[Finding]:
    return list(read_contents(directory, FILES).findings)


def test_a_record_of_a_topic_that_cannot_be_read_is_damage(clean: Path) -> None:
    record = clean.parent / ".topics" / "my_topic.topic"
    record.write_text("partitions=1\n")
    found = about(clean.parent)
    assert (found[0].path, found[0].damage) == (record, True)
    assert "is not a topic's record" in found[0].what


def test_a_partition_that_is_gone_is_damage_only_where_it_was_known_to_be(clean: Path) -> None:
    shutil.rmtree(clean)
    assert [(f.path, f.damage) for f in about(clean.parent)] == [(clean, True)]
    (clean.parent / CLEAN_SHUTDOWN_NAME).unlink()
    assert [(f.path, f.damage) for f in about(clean.parent)] == [(clean, False)]


def test_a_partition_of_another_topic_is_damage(clean: Path) -> None:
    metadata = clean / "partition.metadata"
    metadata.write_text(re.sub("topic.id=.*", "topic.id=AAAAAAAAAAAAAAAAAAAAAA", metadata.read_text()))
    assert [(f.path, f.damage) for f in about(clean.parent)] == [(metadata, True)]


def test_what_the_next_start_mends_is_a_note(clean: Path) -> None:
    (clean / "partition.metadata").unlink()
    stray = clean.with_name("stray_0")
    stray.mkdir()
    (stray / "00000000000.kafka").write_bytes(b"")
    assert [(f.path.name, f.damage) for f in about(clean.parent)] == [
        ("partition.metadata", False), ("stray_0", False),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [CLEAN_SHUTDOWN_NAME, "meta.properties"])
def test_a_torn_file_of_the_directory_is_damage(clean: Path, name: str) -> None:
    path = clean.parent / name
    cut(path, 10)
    assert [(f.path, f.damage) for f in about(clean.parent)] == [(path, True)]
