"""``dump-log`` shows what is there: batches, records, index rows and damage."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog_broker
from kafkalog_broker.cli import main
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.types import NewRecord
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.log.data_directories import BATCHES, flip, overwrite, segments

ROOT = Path(__file__).resolve().parents[3]
RECORDS = [
    NewRecord(b"value", b"key", 1_700_000_000_000, (("h", b"1"), ("n", None))),
    NewRecord(None, b"gone", 1_700_000_000_001),
    NewRecord(b"\xff\x00", None, 1_700_000_000_002),
    NewRecord("line\nbreak \x1b[31m ü".encode(), b"", 1_700_000_000_003),
]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three batches: of an idempotent producer, of a transaction with its marker."""
    path = tmp_path / "00000000100.kafka"
    path.write_bytes(
        encode_batch(
            RECORDS, base_offset=100, codec=Codec.GZIP, producer_id=7, producer_epoch=2, base_sequence=40
        )
        + encode_batch(
            [NewRecord(b"in doubt", timestamp=5)], base_offset=104, transactional=True,
            producer_id=9, producer_epoch=0, base_sequence=0,
        )
        + encode_control(ControlType.ABORT, producer_id=9, producer_epoch=0, timestamp=6, base_offset=105)
    )  # fmt: skip
    return path


def dumped(capsys: pytest.CaptureFixture[str], *arguments: Path | str, code: int = 0) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["dump-log", "--json", *map(str, arguments)]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_batch_is_a_line_as_kafkas_tool_writes_it(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump-log", str(segment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"Dumping {segment}", "Log starting offset: 100"]
    assert len(lines) == 5
    assert lines[2].startswith(
        "baseOffset: 100 lastOffset: 103 count: 4 baseSequence: 40 lastSequence: 43 producerId: 7"
        " producerEpoch: 2 partitionLeaderEpoch: -1 isTransactional: false isControl: false position: 0"
        " timestampType: CreateTime baseTimestamp: 1700000000000 maxTimestamp: 1700000000003 size: "
    )
    assert "magic: 2 compresscodec: gzip" in lines[2]
    assert all(line.endswith("isvalid: true") for line in lines[2:])
    assert "isTransactional: true isControl: true" in lines[4]


def test_each_record_is_an_object_with_key_value_and_headers(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = dumped(capsys, "--records", segment)
    assert [line["kind"] for line in lines] == [
        "file",
        "batch",
        *["record"] * 4,
        "batch",
        "record",
        "batch",
        "record",
    ]
    records = [line for line in lines if line["kind"] == "record"]
    assert [(r["offset"], r["timestamp"], r["sequence"]) for r in records[:4]] == [
        (100 + i, 1_700_000_000_000 + i, 40 + i) for i in range(4)
    ]
    assert (records[0]["key"], records[0]["value"]) == ("key", "value")
    assert records[0]["headers"] == [["h", "1"], ["n", None]]
    assert (records[1]["key"], records[1]["value"], records[1]["valueSize"]) == ("gone", None, -1)
    assert (records[2]["key"], base64.b64decode(records[2]["value"]["base64"])) == (None, b"\xff\x00")
    assert (records[3]["key"], records[3]["value"]) == ("", "line\nbreak \x1b[31m ü")
    assert records[5]["controlType"] == "ABORT"


def test_a_record_cannot_begin_a_line_or_steer_the_terminal(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump-log", "--records", str(segment)]) == 0
    told = capsys.readouterr().out
    assert r"value: line\nbreak \x1b[31m ü" in told
    assert "\x1b" not in told
    assert len(told.splitlines()) == 2 + 3 + 6


def test_a_damaged_place_is_shown_where_it_is_and_reading_continues(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [line for line in dumped(capsys, partition.parent) if line["kind"] == "batch"]
    assert len(whole) == BATCHES
    first = segments(partition)[0]
    flip(first, whole[2]["position"] + 70)
    overwrite(first, whole[4]["position"], bytes(20))
    lines = dumped(capsys, partition.parent, code=1)
    (damage,) = [line for line in lines if line["kind"] == "damage"]
    assert (damage["position"], damage["size"]) == (whole[4]["position"], whole[4]["size"])
    batches = [line for line in lines if line["kind"] == "batch"]
    assert [b["baseOffset"] for b in batches] == [b["baseOffset"] for b in whole if b is not whole[4]]
    assert [b["baseOffset"] for b in batches if not b["isvalid"]] == [whole[2]["baseOffset"]]


def test_the_rows_of_the_indexes_are_shown(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [line for line in dumped(capsys, partition) if line["kind"] == "batch"]
    places = {(b["baseOffset"], b["position"]) for b in batches}
    times = {(b["maxTimestamp"], b["baseOffset"]) for b in batches}
    rows = [line for line in dumped(capsys, "--index", partition) if line["kind"] == "row"]
    by_offset = [(row["offset"], row["position"]) for row in rows if "position" in row]
    by_time = [(row["timestamp"], row["offset"]) for row in rows if "timestamp" in row]
    assert len(by_offset) > 10
    assert len(by_time) > 3
    assert set(by_offset) <= places
    assert set(by_time) <= times
    index = segments(partition)[0].with_suffix(".index")
    assert dumped(capsys, index)[1] == {
        "kind": "index", "baseOffset": 0, "segmentSize": segments(partition)[0].stat().st_size,
        "rows": (index.stat().st_size - 24) // 8,
    }  # fmt: skip
    flip(index, 0)
    assert dumped(capsys, index, code=1)[1]["reason"].startswith("its checksum is")


def test_stored_offsets_are_read_while_the_broker_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kafkalog_broker.start_broker(data_dir=tmp_path / "data") as running:
        CLIENTS[0].create_topic(running.bootstrap_servers, "flights", 1)
        CLIENTS[0].commit(running.bootstrap_servers, "g", "flights", 0, 17)
        lines = dumped(capsys, "--offsets-decoder", tmp_path / "data" / "__consumer_offsets_0")
        assert running.running
    (record,) = [line for line in lines if line["kind"] == "record"]
    said = ("group", "topic", "partition", "committedOffset")
    assert [record[name] for name in said] == ["g", "flights", 0, 17]
    assert "key" not in record


def test_nothing_to_show_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for place in (tmp_path / "absent", tmp_path, tmp_path / "notes.txt"):
        assert main(["dump-log", str(place)]) == 2
        assert str(place) in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_ends_it_without_noise(partition: Path) -> None:
    command = f"'{sys.executable}' -m kafkalog_broker dump-log --records '{partition}' | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Dumping ")
    assert done.stderr == ""


def test_looking_writes_nothing(partition: Path) -> None:
    for path in [*partition.iterdir(), partition]:
        path.chmod(0o555)
    before = {path: path.stat().st_mtime_ns for path in partition.parent.rglob("*")}
    assert main(["dump-log", "--records", str(partition.parent)]) == 0
    assert {path: path.stat().st_mtime_ns for path in partition.parent.rglob("*")} == before
    partition.chmod(0o755)


def test_message_sets_are_shown_as_kafkas_tool_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "00000000010.kafka"
    new = [NewRecord(b"value", b"key", 1_700_000_000_000), NewRecord(None, b"gone", 1_700_000_000_005)]
    first = encode_set(new[:1], magic=0, base_offset=10)
    second = encode_set(new, magic=1, codec=Codec.SNAPPY, base_offset=11)
    path.write_bytes(first + second + encode_batch(new[:1], base_offset=13))
    assert main(["dump-log", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0] == (
        f"offset: 10 position: 0 timestampType: NoTimestampType maxTimestamp: -1 size: {len(first)} magic: 0"
        f" compresscodec: none crc: {int.from_bytes(first[12:16], 'big')} isvalid: true"
    )
    assert lines[1] == (
        f"offset: 12 position: {len(first)} timestampType: CreateTime maxTimestamp: 1700000000005"
        f" size: {len(second)} magic: 1 compresscodec: snappy crc: {int.from_bytes(second[12:16], 'big')}"
        " isvalid: true"
    )
    assert lines[2].startswith("baseOffset: 13 lastOffset: 13 count: 1")
    shown = [line for line in dumped(capsys, "--records", path) if line["kind"] == "record"]
    assert [(r["offset"], r["timestamp"], r["key"], r["value"], r["headers"]) for r in shown] == [
        (10, -1, "key", "value", []),
        (11, 1_700_000_000_000, "key", "value", []),
        (12, 1_700_000_000_005, "gone", None, []),
        (13, 1_700_000_000_000, "key", "value", []),
    ]
    assert [r["timestampType"] for r in shown] == ["NoTimestampType"] + ["CreateTime"] * 3


def test_of_a_message_set_with_a_wrong_checksum_what_can_be_read_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "00000000000.kafka"
    path.write_bytes(encode_set([NewRecord(b"value")], magic=0))
    flip(path, path.stat().st_size - 1)
    _, entry, record = dumped(capsys, "--records", path, code=1)
    assert (entry["isvalid"], record["value"]) == (False, "valud")
