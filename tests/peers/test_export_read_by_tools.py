"""What we export, Apache Kafka's own tools read: every offset and value; and the indexes lead true."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.cli import main
from pyspark_kafkalog.formats.compression import Codec
from tests.peers.exported import TOPIC, Sent, write_and_export
from tests.support.foreign.foreign_face import Message
from tests.support.log.cleaning import COMPACT, cleaner_of, kept, keyed
from tests.support.log.data_directories import MIXED_RECORDS, write_mixed_log
from tests.support.log.logs import START_MS, open_log
from tests.support.log.logs import TOPIC as MY_TOPIC
from tests.support.manual_clock import ManualClock

Tool = Callable[..., str]

BATCH = re.compile(r"^baseOffset: .*$", re.MULTILINE)
ENTRY = re.compile(r"^(?:baseOffset|offset): .*$", re.MULTILINE)
VALUE = re.compile(r"^\| offset: (\d+) .* payload: (.*)$", re.MULTILINE)
RECORD = re.compile(
    r"^\| offset: (?P<offset>\d+) CreateTime: (?P<time>\d+) keySize: (?P<keys>-?\d+)"
    r" valueSize: (?P<size>-?\d+) sequence: -?\d+ headerKeys: \[(?P<headers>[^]]*)\]"
    r"(?: key: (?P<key>.*?))?(?: payload: (?P<value>.*))?$",
    re.MULTILINE,
)  # fmt: skip
COMPARED = (
    "baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch",
    "partitionLeaderEpoch", "isTransactional", "isControl", "position", "size", "magic", "compresscodec",
    "crc", "isvalid",
)  # fmt: skip


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return write_and_export(tmp_path_factory.mktemp("export"))


def segments(sent: Sent, name: str, suffix: str = ".log") -> list[Path]:
    found = sorted((sent.target / name).glob(f"*{suffix}"))
    assert all(re.fullmatch(r"\d{20}", path.stem) for path in found)
    return found


def together(paths: list[Path]) -> str:
    """As one argument: a tool's start takes a second."""
    return ",".join(map(str, paths))


def message(line: re.Match[str]) -> Message:
    names = [name for name in line["headers"].split(",") if name]
    return Message(
        line["value"].encode() if line["value"] is not None else None,
        line["key"].encode() if line["key"] is not None else None,
        int(line["time"]),
        tuple((name, None) for name in names),
    )


@pytest.mark.parametrize("partition", [0, 1])
def test_kafkas_tool_reads_every_offset_key_and_value(
    sent: Sent, dump_log_segments: Tool, partition: int
) -> None:
    paths = segments(sent, f"{TOPIC}-{partition}")
    assert len(paths) > 3, "there must be segments to go between"
    told = dump_log_segments("--files", together(paths), "--print-data-log")
    lines = list(RECORD.finditer(told))
    assert [int(line["offset"]) for line in lines] == list(range(len(sent.messages[partition])))
    for line, want in zip(lines, sent.messages[partition], strict=True):
        names = tuple((name, None) for name, _ in want.headers)
        assert message(line) == want._replace(headers=names), line["offset"]
        assert (int(line["keys"]), int(line["size"])) == (
            -1 if want.key is None else len(want.key), -1 if want.value is None else len(want.value),
        )  # fmt: skip


def test_our_dump_says_of_each_batch_what_kafkas_says(
    sent: Sent, dump_log_segments: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [path for name in (0, 1) for path in segments(sent, f"{TOPIC}-{name}")]
    capsys.readouterr()
    assert main(["dump-log", "--json", *map(str, paths)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ours = [line for line in lines if line["kind"] == "batch"]
    theirs = [fields(line[0]) for line in BATCH.finditer(dump_log_segments("--files", together(paths)))]
    assert [{name: word(batch[name]) for name in COMPARED} for batch in ours] == [
        {name: batch[name] for name in COMPARED} for batch in theirs
    ]
    assert [str(batch["maxTimestamp"]) for batch in ours] == [batch["CreateTime"] for batch in theirs]
    assert {batch["compresscodec"] for batch in ours} == {"none", "gzip", "snappy", "lz4", "zstd"}


def fields(line: str) -> dict[str, str]:
    words = line.split()
    return {name.rstrip(":"): value for name, value in zip(words[::2], words[1::2], strict=False)}


def word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafkas_tool_finds_the_indexes_sane_and_true(
    sent: Sent, dump_log_segments: Tool, suffix: str
) -> None:
    paths = [path for name in (0, 1) for path in segments(sent, f"{TOPIC}-{name}", suffix)]
    # A last segment may be too short for a row.
    words = {path: "is empty." if path.stat().st_size == 0 else "passed sanity check." for path in paths}
    checked = dump_log_segments("--files", together(paths), "--index-sanity-check")
    assert [path for path in paths if f"{path} {words[path]}" not in checked] == []
    told = dump_log_segments("--files", together(paths), "--verify-index-only").splitlines()
    empty = [f"{path} is empty." for path in paths if path.stat().st_size == 0]
    expected = [f"Dumping {path}" for path in paths] + empty
    assert sorted(told) == sorted(expected), "whatever else it says is a complaint"
    assert dump_log_segments("--files", together(paths)).count("offset: ") > 20


def test_a_log_of_three_formats_is_read_and_found_through_its_indexes(
    tmp_path: Path, dump_log_segments: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = write_mixed_log(tmp_path / "ours")
    target = tmp_path / "exported"
    assert main(["export", str(partition.parent), str(target)]) == 0
    paths = sorted((target / "my_topic-0").glob("*.log"))
    assert len(paths) > 2
    capsys.readouterr()
    assert main(["dump-log", "--records", "--json", *map(str, paths)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    theirs = dump_log_segments("--files", together(paths), "--deep-iteration", "--print-data-log")
    ours = [line for line in lines if line["kind"] == "batch"]
    told = [fields(line[0]) for line in ENTRY.finditer(theirs)]
    names = ("position", "size", "magic", "compresscodec", "crc", "isvalid")
    assert [{name: word(entry[name]) for name in names} for entry in ours] == [
        {name: entry[name] for name in names} for entry in told
    ]
    assert {entry["magic"] for entry in told} == {"0", "1", "2"}
    records = [line for line in lines if line["kind"] == "record"]
    assert [(record["offset"], record["value"]) for record in records] == [
        (int(offset), value) for offset, value in VALUE.findall(theirs)
    ]
    assert [record["offset"] for record in records] == list(range(MIXED_RECORDS))
    for suffix in (".index", ".timeindex"):
        indexes = [path.with_suffix(suffix) for path in paths]
        checked = dump_log_segments("--files", together(indexes), "--verify-index-only").splitlines()
        empty = [f"{path} is empty." for path in indexes if path.stat().st_size == 0]
        assert sorted(checked) == sorted([f"Dumping {path}" for path in indexes] + empty)


def test_the_offsets_topic_is_read_by_kafkas_own_decoder(sent: Sent, dump_log_segments: Tool) -> None:
    (path,) = segments(sent, "__consumer_offsets-0")
    told = dump_log_segments("--files", path, "--offsets-decoder")
    assert '"group":"a-group"' in told
    assert f'"topic":"{TOPIC}"' in told
    assert '"offset":17' in told
    (key, value) = re.findall(r'key: (\{"type":"2",.*?\}\}) payload: (.*)$', told, re.MULTILINE)[-1]
    assert json.loads(key)["data"] == {"group": "b-group"}
    found = json.loads(value)
    assert (found["version"], found["data"]["protocolType"], found["data"]["generation"]) == (
        "3",
        "consumer",
        1,
    )
    (member,) = found["data"]["members"]
    assert (member["groupInstanceId"], member["clientHost"]) == ("i", "/127.0.0.1")
    assert found["data"]["leader"] == member["memberId"]


def test_an_empty_log_is_exported_too(sent: Sent, dump_log_segments: Tool) -> None:
    (path,) = segments(sent, "empty-0")
    assert path.stat().st_size == 0
    assert "Log starting offset: 0" in dump_log_segments("--files", path)
    assert path.with_suffix(".timeindex").read_bytes() == b""


def test_what_the_cleaner_has_left_is_read_by_kafkas_tool(tmp_path: Path, dump_log_segments: Tool) -> None:
    """Empty batches, gaps, tombstones with a horizon, markers and aborted transactions."""
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path / "ours", clock=clock, **COMPACT | {"segment_bytes": 2000})
    log.append(keyed((b"gone", None)))
    for number in range(120):
        pair = (b"key %d" % (number % 9), b"value %d" % number)
        log.append(keyed(pair, (b"k", b"x"), codec=list(Codec)[number % 5]))
        if number % 20 == 7:
            sender = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0}
            log.append(keyed((b"in a transaction", b"x"), (b"k", b"y"), transactional=True, **sender))
            log.end_transaction(number, 0, commit=number % 40 == 7)
    cleaner_of(manager, clock).run()
    left, cleaned_offset = kept(log), log.cleaned_offset
    manager.close()
    assert 0 < len([record for record in left if record.offset < cleaned_offset]) < 40
    target = tmp_path / "exported"
    assert main(["export", str(tmp_path / "ours"), str(target)]) == 0
    paths = sorted((target / f"{MY_TOPIC}-0").glob("*.log"))
    told = dump_log_segments("--files", together(paths), "--print-data-log", "--deep-iteration")
    batches = [fields(line[0]) for line in BATCH.finditer(told)]
    assert {batch["isvalid"] for batch in batches} == {"true"}
    assert {"0", "1", "2"} >= {batch["count"] for batch in batches} >= {"0", "1"}
    assert "trailing" not in told
    records = [(int(line["offset"]), line["key"]) for line in RECORD.finditer(told)]
    assert records == [(record.offset, (record.key or b"").decode()) for record in left]
    assert "deleteHorizonMs: OptionalLong[1700086400000]" in told
    for suffix in (".index", ".timeindex"):
        indexes = [path.with_suffix(suffix) for path in paths]
        checked = dump_log_segments("--files", together(indexes), "--verify-index-only").splitlines()
        assert [line for line in checked if not re.match(r"Dumping |.* is empty\.$", line)] == []
