"""Golden bytes: every v0 and v1 message set of the foreign clients, entry by entry and record by record."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.legacy import (
    EntryHeader,
    LegacyFormat,
    read_entry,
    verify_entry,
)
from pyspark_kafkalog.formats.message_set import ENTRIES, codec_at, frames
from pyspark_kafkalog.types import Record
from tests.support.formats.vectors import Vector, VectorRecord, vectors

MAX_BYTES = 1 << 20
LEGACY = vectors("v0-", "v1-")

every_vector = pytest.mark.parametrize("v", LEGACY, ids=[v.file for v in LEGACY])


def fields_of(header: EntryHeader) -> dict[str, Any]:
    return {
        "magic": header.magic,
        "wrapper_offset": header.offset,
        "attributes": header.attributes,
        "codec": header.codec.name.lower(),
        "timestamp_type": ("CreateTime", "LogAppendTime")[header.timestamp_type] if header.magic else "None",
    }


def plain(found: list[Record]) -> list[VectorRecord]:
    return [VectorRecord(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found]


@every_vector
def test_every_entry_reads_as_the_manifest_says_and_its_checksum_holds(v: Vector) -> None:
    found = []
    for frame in frames(v.data):
        header = read_entry(v.data, frame.position)
        verify_entry(v.data, frame.position, header)
        assert header.size == frame.size
        assert (magic_at(v.data, frame.position), codec_at(v.data, frame.position)) == (
            header.magic,
            header.codec,
        )
        found.append(fields_of(header))
    assert found == [{k: x for k, x in b.items() if k != "records"} for b in v.batches]


@every_vector
def test_the_format_of_a_log_finds_the_same(v: Vector) -> None:
    view, pos = memoryview(v.data), 0
    for expected in v.batches:
        for fmt in (LegacyFormat(), ENTRIES):
            frame = fmt.frame_at(view, pos, 0)
            assert frame is not None
            fmt.verify(view, frame)
            at = expected["wrapper_offset"]
            assert (frame.first_offset, frame.last_offset, frame.next_offset) == (at, at, at + 1)
            assert frame.first_is_known == (expected["codec"] == "none")
            assert plain(list(fmt.records(view, frame, max_bytes=MAX_BYTES))) == v.records(expected)
            assert list(fmt.times(view, frame, max_bytes=MAX_BYTES)) == [
                (r.timestamp, r.offset) for r in v.records(expected)
            ]
        assert frame is not None
        pos = frame.end
    assert pos == len(v.data)
