"""Message sets of v0 and v1 as we write them and as we make them of batches, read by Apache Kafka's tool."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import CODECS, encode_set
from pyspark_kafkalog.types import NewRecord, TimestampType
from tests.support.formats.format_steps import for_reader, for_topic

LIMIT = 1 << 20
NEW = [
    NewRecord(b"a", b"k", 10),
    NewRecord(None, None, 30),
    NewRecord(b"", b"", 20),
    NewRecord(b"b" * 900, timestamp=40),
]

ENTRY = re.compile(r"^offset: .*compresscodec: (\w+) .*isvalid: (\w+)$", re.MULTILINE)
MESSAGE = re.compile(
    r"^\| offset: (\d+) (\w+): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r"(?: isValid: true crc: \d+\}| sequence: -1 headerKeys: \[\])(?: key: (.*?))?(?: payload: (.*))?$",
    re.MULTILINE,
)  # fmt: skip

Told = list[tuple[int, str, int, bytes | None, bytes | None]]


def told(magic: int, base: int, kind: str = "CreateTime") -> Told:
    """What the tool is to say of `NEW`, three offsets apart."""
    return [
        (base + 3 * i, kind if magic else "NoTimestampType", r.timestamp if magic else -1, r.key, r.value)
        for i, r in enumerate(NEW)
    ]


def places(base: int) -> list[int]:
    return [base + 3 * i for i in range(len(NEW))]


@pytest.fixture
def dumped(dump_log_segments: Callable[..., str], tmp_path: Path) -> Callable[[bytes], str]:
    def dump(data: bytes) -> str:
        path = tmp_path / f"{0:020}.log"
        path.write_bytes(data)
        return dump_log_segments("--deep-iteration", "--print-data-log", "--files", path)

    return dump


def messages_in(text: str) -> Told:
    return [
        (
            int(offset), kind, int(time),
            None if keys == "-1" else key.encode(), None if size == "-1" else value.encode(),
        )
        for offset, kind, time, keys, size, key, value in MESSAGE.findall(text)
    ]  # fmt: skip


def test_kafka_reads_every_codec_of_both_formats(dumped: Callable[[bytes], str]) -> None:
    log, expected, codecs = b"", [], []
    for magic in (0, 1):
        for codec in CODECS:
            base = len(expected) * 3
            log += encode_set(NEW, magic=magic, codec=codec, offsets=places(base))
            expected += told(magic, base)
            codecs += [codec.name.lower()] * (1 if codec else len(NEW))
    text = dumped(log)
    assert messages_in(text) == expected
    assert ENTRY.findall(text) == [(codec, "true") for codec in codecs]


def test_kafka_reads_batches_and_sets_converted_either_way(
    dumped: Callable[[bytes], str],
) -> None:
    log, expected = b"", []
    deltas = places(0)
    for magic in (0, 1):
        for codec in CODECS:
            for kind in TimestampType:
                base = len(expected) * 3
                batch = encode_batch(
                    NEW, codec=codec, base_offset=base, offset_deltas=deltas, timestamp_type=kind
                )
                log += b"".join(bytes(p.data) for p in for_reader(batch, magic, max_bytes=LIMIT))
                if kind is TimestampType.CREATE_TIME or magic == 0:
                    expected += told(magic, base)
                else:
                    expected += [(at, "LogAppendTime", 40, *kept) for at, _, _, *kept in told(1, base)]
    sets = encode_set(NEW, magic=1, codec=Codec.LZ4) + encode_set(NEW, magic=0)
    base = len(expected) * 3
    log += b"".join(bytes(p.data) for p in for_topic(sets, 2, base_offset=base, max_bytes=LIMIT))
    expected += [
        (base + i, "CreateTime", -1 if i > 3 else r.timestamp, r.key, r.value) for i, r in enumerate(NEW * 2)
    ]
    # The tool says no kind of time for the messages of a batch but in its header: these have create times.
    assert messages_in(dumped(log)) == expected
