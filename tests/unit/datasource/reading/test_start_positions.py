"""Offsets in text files: the lines of Kafka's first bulk loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.datasource.reading.start_positions import read_offset_files
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import EARLIEST_OFFSET, TopicPartition

T0, T1, S0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("s", 0)


def write(directory: Path, **files: str) -> str:
    for name, text in files.items():
        (directory / name.replace("_", "-")).write_text(text)
    return str(directory)


def test_each_line_of_each_part_is_the_next_offset_of_a_partition(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        part_0_t_0="tcp://host:9092\tt\t0\t17\n",
        part_0_more="tcp://host:9092 \tt \t 1\t0 \r\n\ntcp://other:9093\ts\t0\t9223372036854775807",
        readme="not a part",
    )
    assert read_offset_files(directory) == {T0: 17, T1: 0, S0: 2**63 - 1}


def test_what_was_never_read_begins_at_the_earliest(tmp_path: Path) -> None:
    directory = write(tmp_path, part_a="tcp://h:1\tt\t0\t-1\ntcp://h:1\tt\t1\t-2")
    assert read_offset_files(directory) == {T0: EARLIEST_OFFSET, T1: EARLIEST_OFFSET}


def test_two_lines_may_say_the_same_but_not_otherwise(tmp_path: Path) -> None:
    directory = write(tmp_path, part_a="tcp://h:1\tt\t0\t5", part_b="tcp://g:1\tt\t0\t5")
    assert read_offset_files(directory) == {T0: 5}
    write(tmp_path, part_c="tcp://g:1\tt\t1\t6\ntcp://g:1\tt\t0\t6")
    with pytest.raises(InvalidConfig, match="t-0 is at 5 in part-a, line 1 and at 6 in part-c, line 2"):
        read_offset_files(directory)


@pytest.mark.parametrize(
    "line",
    [
        "tcp://h:1 t 0 5",
        "tcp://h:1\tt\t0",
        "tcp://h:1\tt\t0\t5\t6",
        "tcp://h:1\tt\tzero\t5",
        "tcp://h:1\tt\t0\t-3",
        "tcp://h:1\tt\t0\t9223372036854775808",
        "tcp://h:1\tt\t2147483648\t5",
    ],
)
def test_an_invalid_line_is_reported_with_its_place(tmp_path: Path, line: str) -> None:
    directory = write(tmp_path, part_a=f"tcp://h:1\tt\t1\t5\n{line}\n")
    with pytest.raises(InvalidConfig, match="part-a, line 2 is not 'tcp://host:port TAB topic TAB partition"):
        read_offset_files(directory)


BROKERS = {"node-a:9092": 3, "node-b:9092": 14}


def test_in_07_the_address_says_whose_partition_a_line_is_of(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        part_3_t_0="tcp://node-a:9092\tt\t0\t700\n",
        part_14_t_0="tcp://Node-B:9092\tt\t0\t90\ntcp://node-b:9092\tt\t1\t-1\n",
    )
    assert read_offset_files(directory, BROKERS) == {
        TopicPartition("t", 0, 3): 700,
        TopicPartition("t", 0, 14): 90,
        TopicPartition("t", 1, 14): EARLIEST_OFFSET,
    }


@pytest.mark.parametrize("uri", ["tcp://node-c:9092", "tcp://node-a:9093", "node-a:9092"])
def test_in_07_an_address_that_nobody_has_is_reported_with_its_place_and_who_is_live(
    tmp_path: Path, uri: str
) -> None:
    directory = write(tmp_path, part_a=f"tcp://node-a:9092\tt\t0\t5\n{uri}\tt\t0\t9\n")
    with pytest.raises(
        InvalidConfig,
        match=rf"line 2: no live broker is at '{uri}'.*Live: broker 3 at tcp://node-a:9092, broker 14",
    ):
        read_offset_files(directory, BROKERS)


def test_a_directory_without_parts_is_not_read_as_earliest_and_bytes_that_are_not_text_are_reported(
    tmp_path: Path,
) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidConfig, match=r"no file named part-\* is there"):
            read_offset_files(str(directory))
    (tmp_path / "part-a").write_bytes(b"tcp://h:1\tt\xff\t1\t5\n")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_offset_files(str(tmp_path))
