"""Golden bytes: every v2 record set of the foreign clients, field by field and record by record."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from pyspark_kafkalog.formats.batch import (
    BatchHeader,
    ControlType,
    V2Format,
    control_type,
    decode_records,
    encode_batch,
    encode_control,
    read_header,
    verify_crc,
)
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
from tests.support.formats.vectors import Vector, VectorRecord, vector, vectors

MAX_BYTES = 1 << 20
V2 = vectors("v2-", "fetch-")

every_v2_vector = pytest.mark.parametrize("v", V2, ids=[v.file for v in V2])


def fields_of(header: BatchHeader) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "partition_leader_epoch": header.partition_leader_epoch,
        "crc32c": header.crc,
        "attributes": header.attributes,
        "codec": header.codec.name.lower(),
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.has_delete_horizon,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "record_count": header.record_count,
    }


def plain(records: list[Record]) -> list[VectorRecord]:
    return [VectorRecord(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


def test_there_are_27_v2_vectors_and_every_file_is_the_one_of_the_manifest() -> None:
    assert len(V2) == 27
    for v in vectors(""):
        assert hashlib.sha256(v.data).hexdigest() == v.sha256, v.file


@every_v2_vector
def test_every_header_field_reads_as_the_manifest_says(v: Vector) -> None:
    found = [read_header(v.data, frame.position) for frame in frames(v.data)]
    expected = [{k: x for k, x in b.items() if k not in ("magic", "records")} for b in v.batches]
    assert [fields_of(header) for header in found] == expected


@every_v2_vector
def test_every_checksum_holds(v: Vector) -> None:
    for frame in frames(v.data):
        verify_crc(v.data, frame.position, read_header(v.data, frame.position))


@every_v2_vector
def test_every_record_reads_as_the_manifest_says(v: Vector) -> None:
    found = [
        decode_records(v.data, frame.position, read_header(v.data, frame.position), MAX_BYTES)
        for frame in frames(v.data)
    ]
    assert [plain(batch) for batch in found] == [v.records(b) for b in v.batches]
    for batch, expected in zip(found, v.batches, strict=True):
        kind = TimestampType.LOG_APPEND_TIME if expected["timestamp_type"] == "LogAppendTime" else 0
        assert {r.timestamp_type for r in batch} <= {kind}


@every_v2_vector
def test_times_are_those_of_the_records_and_none_of_a_control_batch(v: Vector) -> None:
    view = memoryview(v.data)
    found = [list(V2Format().times(view, frame, max_bytes=MAX_BYTES)) for frame in frames(v.data)]
    assert found == [
        [] if b["control"] else [(r.timestamp, r.offset) for r in v.records(b)] for b in v.batches
    ]


@every_v2_vector
def test_what_follows_the_last_whole_batch_is_left_alone(v: Vector) -> None:
    assert sum(frame.size for frame in frames(v.data)) + v.trailing_bytes == len(v.data)


@every_v2_vector
def test_a_log_of_them_gives_its_readers_no_control_records(v: Vector) -> None:
    expected = [r for b in v.batches if not b["control"] for r in v.records(b)]
    assert plain(list(records(v.data, start_offset=0, max_bytes=MAX_BYTES))) == expected


@every_v2_vector
def test_the_format_of_a_log_finds_the_same_frames(v: Vector) -> None:
    fmt, view, pos = V2Format(), memoryview(v.data), 0
    for expected in v.batches:
        frame = fmt.frame_at(view, pos, 0)
        assert frame is not None
        fmt.verify(view, frame)
        assert (frame.first_offset, frame.last_offset) == (expected["base_offset"], expected["last_offset"])
        assert frame.next_offset == expected["last_offset"] + 1
        assert frame.max_timestamp == expected["max_timestamp"]
        pos = frame.end
    assert pos == len(v.data) - v.trailing_bytes


@every_v2_vector
def test_our_own_batch_of_the_same_records_differs_only_in_compression(v: Vector) -> None:
    for frame, expected in zip(frames(v.data), v.batches, strict=True):
        held = v.records(expected)
        if expected["codec"] != "none" or expected["timestamp_type"] != "CreateTime" or not held:
            continue
        ours = encode_batch(
            [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in held],
            base_offset=expected["base_offset"],
            producer_id=expected["producer_id"],
            producer_epoch=expected["producer_epoch"],
            base_sequence=expected["base_sequence"],
            transactional=expected["transactional"],
            control=expected["control"],
            leader_epoch=expected["partition_leader_epoch"],
            offset_deltas=[r.offset - expected["base_offset"] for r in held],
            last_offset_delta=expected["last_offset"] - expected["base_offset"],
        )
        assert ours == v.data[frame.position : frame.end]


def test_a_fetch_answer_that_begins_early_is_read_from_the_asked_offset_on() -> None:
    data = vector("fetch-starts-before-request.bin").data
    held = [r.offset for r in records(data, start_offset=0, max_bytes=MAX_BYTES)]
    assert held[0] < 12
    found = [r.offset for r in records(data, start_offset=12, max_bytes=MAX_BYTES)]
    assert found == [offset for offset in held if offset >= 12]
    assert found[0] == 12


@pytest.mark.parametrize(
    ("file", "kind"),
    [("v2-marker-commit.bin", ControlType.COMMIT), ("v2-marker-abort.bin", ControlType.ABORT)],
)
def test_the_transaction_markers_are_read_and_written_byte_for_byte(file: str, kind: ControlType) -> None:
    data = vector(file).data
    header = read_header(data)
    (record,) = decode_records(data, 0, header, MAX_BYTES)
    assert control_type(record) is kind
    assert record.value is not None
    ours = bytearray(
        encode_control(
            kind,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            timestamp=record.timestamp,
            coordinator_epoch=int.from_bytes(record.value[2:], "big"),
            base_offset=header.base_offset,
        )
    )
    ours[12:16] = data[12:16]  # the leader epoch is the broker's
    assert ours == data
