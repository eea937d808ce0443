"""What `verify-log` calls sound, torn and damaged in a log of 0.7, and how it knows that it is one."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import ReadOnlyFiles
from kafkalog_broker.inspect.contents import read_contents
from kafkalog_broker.inspect.inspection import inspection_of
from kafkalog_broker.inspect.verify import verify_log
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.data_directories import (
    ENTRIES_07,
    MESSAGES_07,
    checked,
    damages,
    flip,
    segments,
    write_log07,
)
from tests.support.log.logs import crash, open_log, open_manager
from tests.support.protocol.wire07 import entry, zipped

FILES = ReadOnlyFiles()


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """The partition's directory of a broker that has stopped."""
    return write_log07(tmp_path / "data")


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The partition's directory of a broker that was killed."""
    return write_log07(tmp_path / "data", clean=False)


def size_of(partition: Path) -> int:
    return sum(path.stat().st_size for path in segments(partition))


@pytest.mark.parametrize(("deep", "messages"), [(False, None), (True, MESSAGES_07)])
def test_a_log_that_was_closed_is_sound(clean: Path, deep: bool, messages: int | None) -> None:
    report = checked(clean, deep=deep)
    assert report.findings == []
    assert (report.start_offset, report.end_offset, report.size_bytes) == (0, size_of(clean), size_of(clean))
    assert (report.entry_count, report.record_count) == (ENTRIES_07, messages)
    assert report.segment_count == len(segments(clean)) >= 3
    assert not list(clean.glob("*index"))


@pytest.mark.parametrize("left", [1, 5, 9, 12])
def test_a_torn_tail_is_not_damage_and_the_next_start_cuts_it_where_the_note_says(
    crashed: Path, left: int
) -> None:
    newest, end = segments(crashed)[-1], size_of(crashed)
    position = newest.stat().st_size
    newest.write_bytes(newest.read_bytes() + entry(b"lost " * 20)[:left])
    (note,) = checked(crashed).findings
    assert (note.damage, note.path, note.position) == (False, newest, position)
    assert note.what.startswith(f"torn tail: {left} bytes")
    assert f"cuts it off at offset {end}" in note.what
    manager, log = open_log(crashed.parent)
    assert log.end_offset == end
    crash(manager)
    assert checked(crashed).findings == []


def test_a_flipped_bit_in_the_middle_names_the_entry_and_what_is_missing(crashed: Path) -> None:
    second = segments(crashed)[1]
    first = int(second.stem)
    size = int.from_bytes(second.read_bytes()[:4], "big") + 4
    flip(second, 12)
    ((name, position, what),) = damages(checked(crashed))
    assert (name, position) == (second.name, 0)
    assert what.startswith(f"wrong checksum of the entry with offsets {first} to {first + size - 1}: ")
    assert what.endswith(f"sound again at byte {size}: offsets {first} to {first + size - 1} are missing")


@pytest.mark.parametrize(("shift", "words"), [(-1, "named by offset"), (1, "is missing")])
def test_a_segment_must_be_named_by_the_byte_at_which_it_begins(clean: Path, shift: int, words: str) -> None:
    (clean / SEGMENT_LIST_NAME).unlink()
    second = segments(clean)[1]
    wrong = second.rename(second.with_name(f"{int(second.stem) + shift:011d}.kafka"))
    found = damages(checked(clean))
    assert found[0][0] == wrong.name
    assert words in found[0][2]
    assert len([each for each in found if each[0] == wrong.name]) <= 2, "and not once for each entry"


def test_compressed_sets_are_opened_when_that_is_asked(crashed: Path) -> None:
    newest = segments(crashed)[-1]
    size = newest.stat().st_size
    bad = zipped(entry(b"within", crc=7))
    newest.write_bytes(newest.read_bytes() + bad + entry(b"no gzip", attributes=1))
    assert checked(crashed).sound
    found = damages(checked(crashed, deep=True))
    assert [position for _, position, _ in found] == [size, size + len(bad)]
    assert "bad checksum" in found[0][2]


def test_names_that_only_07_allows_are_checked_too(tmp_path: Path) -> None:
    manager = open_manager(tmp_path / "data")
    for name in ("té x%", ".hidden", "a-1"):
        manager.create_topic(name, uuid.uuid4(), 1, {}, generation="0.7")
        manager.log(TopicPartition(name, 0)).append(bytearray(entry(name.encode())))
    manager.close()
    contents = read_contents(tmp_path / "data", FILES)
    assert contents.findings == ()
    assert [place.partition.topic for place in contents.partitions] == [".hidden", "a-1", "té x%"]
    for place in contents.partitions:
        inspection = inspection_of(place.path, "0.8", FILES)
        report = verify_log(FILES, place, inspection, contents.expected(place))
        assert (report.findings, report.entry_count) == ([], 1)


# Which generation it is.


def test_the_topic_record_decides_the_generation_then_metadata_then_the_user(clean: Path) -> None:
    record = clean.parent / ".topics" / "my_topic.topic"
    metadata = clean / "partition.metadata"

    def told(otherwise: str = "0.8") -> str:
        return inspection_of(clean, otherwise, FILES).generation

    metadata.write_text(metadata.read_text().replace("0.7", "0.8"))
    assert told() == "0.7"
    record.unlink()
    assert told("0.7") == "0.8"
    metadata.write_text(metadata.read_text().replace("0.8", "0.7"))
    assert told() == "0.7"
    metadata.unlink()
    assert (told(), told("0.7")) == ("0.8", "0.7")


def test_a_generation_that_is_not_known_is_refused(clean: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"generation=0\.9 is not allowed; allowed: 0\.8 or 0\.7"):
        inspection_of(clean, "0.9", FILES)
    (clean.parent / ".topics" / "my_topic.topic").unlink()
    metadata = clean / "partition.metadata"
    metadata.write_text(metadata.read_text().replace("0.7", "7.0"))
    with pytest.raises(StorageError, match=rf"{re.escape(str(metadata))}: generation 7\.0 is not known here"):
        inspection_of(clean, "0.8", FILES)


def test_metadata_of_another_generation_than_the_topics_is_damage(clean: Path) -> None:
    metadata = clean / "partition.metadata"
    metadata.write_text(metadata.read_text().replace("0.7", "0.8"))
    (finding,) = read_contents(clean.parent, FILES).findings
    assert (finding.path, finding.damage) == (metadata, True)
    assert finding.what == "names generation 0.8, the record of topic my_topic has 0.7"
