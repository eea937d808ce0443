"""Golden bytes: every v0 and v1 message set of the foreign clients, entry by entry and record by record."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import (
    EntryHeader,
    LegacyFormat,
    encode_set,
    inner_set,
    read_entry,
    verify_entry,
)
from pyspark_kafkalog.formats.message_set import ENTRIES, codec_at, frames, magic_at
from pyspark_kafkalog.types import NewRecord, Record
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


def all_records(v: Vector) -> list[VectorRecord]:
    return [r for b in v.batches for r in v.records(b)]


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


@every_vector
def test_our_own_set_of_the_same_records_differs_only_in_compression(v: Vector) -> None:
    held, header = all_records(v), read_entry(v.data)
    new = [NewRecord(r.value, r.key, r.timestamp) for r in held]
    ours = encode_set(new, magic=header.magic, codec=header.codec, base_offset=held[0].offset)
    if header.codec is Codec.NONE:
        assert ours == v.data
        return
    # The sets within are the same, byte for byte. kafka-python's wrapper has offset and time 0, ours those of
    # the last message and of the newest.
    assert inner_set(ours, 0, read_entry(ours), MAX_BYTES) == inner_set(v.data, 0, header, MAX_BYTES)
    assert read_entry(ours).offset == held[-1].offset
    assert read_entry(ours).timestamp == max(r.timestamp for r in held)
