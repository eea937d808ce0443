"""The files of one task: where rows go, when a row group and a file end, what is left after a failure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.writers import parquet_files
from pyspark_kafkalog.loads.writers.parquet_files import Layout, ParquetFiles, WrittenFile

SCHEMA = pa.schema(
    {"offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "topic": pa.string(), "value": pa.binary()}
)


def rows(offsets: Sequence[int], topic: str = "t", size: int = 10) -> pa.RecordBatch:
    columns = {
        "offset": list(offsets),
        "timestamp": list(offsets),
        "topic": [topic] * len(offsets),
        "value": [b"%010d" % offset * (size // 10) for offset in offsets],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def files(root: Path, schema: pa.Schema = SCHEMA, **layout: Any) -> ParquetFiles:
    notes = {"kafkalog.load": "x"}
    is_sorted = schema is SCHEMA
    return ParquetFiles(
        LocalStore(root), "load", "part", schema, Layout(**layout), notes, is_sorted=is_sorted
    )


def names(found: Sequence[WrittenFile]) -> list[str]:
    return [file.name for file in found]


def test_a_file_is_what_is_said_of_it(tmp_path: Path) -> None:
    writing = files(tmp_path)
    writing.add(rows(range(5)), (0, 4))
    writing.add(rows([]), (0, 0))
    writing.add(rows(range(7, 9)), (7, 8))
    assert writing.finished == []
    writing.close()
    (file,) = writing.finished
    data = (tmp_path / "load" / "part-c000.zstd.parquet").read_bytes()
    assert replace(file, columns={}) == WrittenFile(
        "part-c000.zstd.parquet", len(data), 7, crc32c(data), (0, 8), {}
    )
    bounds = {name: (one.values, one.nulls, one.least, one.greatest) for name, one in file.columns.items()}
    assert bounds == {
        "offset": (7, 0, 0, 8), "timestamp": (7, 0, 0, 8), "topic": (7, 0, "t", "t"),
        "value": (7, None, None, None),
    }  # fmt: skip
    opened = pq.ParquetFile(tmp_path / "load" / file.name)
    assert opened.read().equals(pa.Table.from_batches([rows([0, 1, 2, 3, 4, 7, 8])]))
    noted = opened.metadata.metadata
    ours = {key.decode(): value.decode() for key, value in noted.items() if key.startswith(b"kafkalog")}
    assert ours == {"kafkalog.load": "x", "kafkalog.first_offset": "0", "kafkalog.last_offset": "8"}
    spark = json.loads(noted[b"org.apache.spark.sql.parquet.row.metadata"])
    assert [(one["name"], one["type"]) for one in spark["fields"]] == [
        ("offset", "long"), ("timestamp", "timestamp"), ("topic", "string"), ("value", "binary"),
    ]  # fmt: skip
    group = opened.metadata.row_group(0)
    encodings = {group.column(n).path_in_schema: group.column(n).encodings for n in range(4)}
    assert all("DELTA_BINARY_PACKED" in encodings[name] for name in ("offset", "timestamp"))
    assert ("RLE_DICTIONARY" in encodings["topic"], "RLE_DICTIONARY" in encodings["value"]) == (True, False)
    assert group.column(0).statistics.max == 8
    assert group.column(3).statistics is None
    assert group.sorting_columns == (pq.SortingColumn(0),)


def test_groups_end_by_rows_and_bytes_and_files_by_what_lies_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet_files, "_GROUP_BYTES", 20_000)
    writing = files(tmp_path, compression="none", target_file_bytes=6_000)
    for start in range(0, 1000, 50):
        writing.add(rows(range(start, start + 50)), (start, start + 49))
    writing.add(rows(range(1000, 1010), size=4000), (1000, 1009))  # 40,000 bytes
    writing.close()
    found = writing.finished
    read = [pq.read_metadata(tmp_path / "load" / file.name) for file in found]
    groups = [[one.row_group(n).num_rows for n in range(one.num_row_groups)] for one in read]
    assert groups == [[100] * 4, [100] * 4, [100, 100, 10]]
    assert [file.span for file in found] == [(0, 399), (400, 799), (800, 1009)]


def test_open_files_are_held_to_a_size_and_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_HELD_BYTES", 10_000)
    monkeypatch.setattr(parquet_files, "_OPEN_FILES", 3)
    writing = files(tmp_path, partitioning=Partitioning(("topic",)))
    for number, topic in enumerate("abcabdcae" * 3):
        writing.add(rows([number], topic, size=2000), (number, number))
        assert writing.held_bytes <= 10_000
        assert len(writing._open) <= 3
    writing.close()
    found = writing.finished
    assert len({*names(found)}) == len(found) > 5
    assert {file.name.partition("/")[0] for file in found} == {f"topic={one}" for one in "abcde"}
    read = [pq.ParquetFile(tmp_path / "load" / file.name).read() for file in found]
    assert sorted(offset for one in read for offset in one["offset"].to_pylist()) == list(range(27))
    assert all(one.schema.names == ["offset", "timestamp", "value"] for one in read)


def test_after_a_failure_no_unfinished_file_is_left(tmp_path: Path) -> None:
    writing = files(tmp_path, partitioning=Partitioning(("topic",)))
    writing.add(rows([1], "a"), (1, 1))
    writing.add(rows([2], "b"), (2, 2))
    writing.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    writing.abort()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = files(tmp_path)
    writing.add(rows(range(3)), (0, 2))

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyspark_kafkalog.ledger.stores.local_store._write_all", full)
    with pytest.raises(
        LoadError, match=r"cannot write .*part-c000.*: No space left on device; free space there"
    ):
        writing.close()
    writing.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_function_may_call_any_column_as_the_source_does(tmp_path: Path) -> None:
    """Only numbers and times are encoded by their differences, and nothing says that rows are in order."""
    texts = pa.record_batch({"offset": ["b", "a"], "timestamp": [True, False]})
    writing = files(tmp_path, texts.schema)
    writing.add(texts)
    writing.close()
    (file,) = writing.finished
    assert file.span is None
    opened = pq.ParquetFile(tmp_path / "load" / file.name)
    assert opened.read().to_pylist() == texts.to_pylist()
    assert opened.metadata.row_group(0).sorting_columns == ()
    assert b"kafkalog.first_offset" not in opened.metadata.metadata


def test_a_layout_names_what_it_allows() -> None:
    with pytest.raises(
        InvalidConfig, match="compression is 'zip'; it must be one of zstd, snappy, lz4, gzip"
    ):
        Layout(compression="zip")
    with pytest.raises(InvalidConfig, match="target_file_bytes is 0; it must be a number of bytes"):
        Layout(target_file_bytes=0)
