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
    encode_control,
    read_header,
)
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import Record, TimestampType
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
def test_the_format_of_a_log_finds_the_same_frames_records_and_times(v: Vector) -> None:
    fmt, view, pos = V2Format(), memoryview(v.data), 0
    for expected in v.batches:
        frame = fmt.frame_at(view, pos, 0)
        assert frame is not None
        fmt.verify(view, frame)
        assert (frame.first_offset, frame.last_offset) == (expected["base_offset"], expected["last_offset"])
        assert frame.next_offset == expected["last_offset"] + 1
        assert frame.max_timestamp == expected["max_timestamp"]
        found = decode_records(v.data, pos, read_header(v.data, pos), MAX_BYTES)
        assert plain(found) == v.records(expected)
        kind = TimestampType.LOG_APPEND_TIME if expected["timestamp_type"] == "LogAppendTime" else 0
        assert {r.timestamp_type for r in found} <= {kind}
        times = [] if expected["control"] else [(r.timestamp, r.offset) for r in found]
        assert list(fmt.times(view, frame, max_bytes=MAX_BYTES)) == times
        pos = frame.end
    assert pos == len(v.data) - v.trailing_bytes


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
