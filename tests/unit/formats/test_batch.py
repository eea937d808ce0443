from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, InvalidRecord
from pyspark_kafkalog.formats.base import crc32c, varlong_bytes
from pyspark_kafkalog.formats.batch import (
    BatchHeader,
    ControlType,
    V2Format,
    assign,
    control_type,
    encode_batch,
    encode_control,
    read_header,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import NewRecord, Record, TimestampType
from tests.support.formats.batch_bytes import LIMIT, THREE, decode, patched, resealed, with_block


def test_a_batch_is_laid_out_byte_for_byte_as_the_protocol_says() -> None:
    batch = encode_batch(
        [NewRecord(b"v", b"k", 1000, (("h", None),)), NewRecord(None, None, 999)],
        base_offset=7,
        producer_id=5,
        producer_epoch=2,
        base_sequence=9,
        leader_epoch=3,
    )
    assert batch[:8] == (7).to_bytes(8, "big")
    assert batch[8:12] == (len(batch) - 12).to_bytes(4, "big")
    assert batch[12:17] == bytes.fromhex("00000003 02")
    assert batch[17:21] == crc32c(batch[21:]).to_bytes(4, "big")
    assert batch[21:61] == bytes.fromhex(
        "0000 00000001 00000000000003e8 00000000000003e8 0000000000000005 0002 00000009 00000002"
    )
    first = bytes.fromhex("16 00 00 00 02 6b 02 76 02 02 68 01")
    second = bytes.fromhex("0c 00 01 02 01 01 00")
    assert batch[61:] == first + second


def test_header_properties_are_read_from_the_attributes() -> None:
    header = BatchHeader(10, 49, 0, 0, 0b1111100, 4, 0, 0, 1, 0, 2**31 - 3, 5)
    assert header.codec is Codec.ZSTD
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control
    assert header.has_delete_horizon
    assert (header.size, header.last_offset, header.next_offset) == (61, 14, 15)
    assert header.last_sequence == 1  # 2**31 - 3, -2, -1, 0, 1


def test_without_a_sequence_there_is_no_last_one() -> None:
    assert read_header(encode_batch(THREE)).last_sequence == -1
    assert read_header(encode_batch(THREE, base_sequence=2**31 - 2)).last_sequence == 0


def test_timestamps_before_the_first_and_outside_64_bits() -> None:
    times = [0, -1, -(2**62), 2**62]
    batch = encode_batch([NewRecord(b"", None, t) for t in times])
    assert [r.timestamp for r in decode(batch)] == times
    assert read_header(batch).max_timestamp == 2**62
    with pytest.raises(InvalidRecord):
        encode_batch([NewRecord(b"", None, 2**63)])
    with pytest.raises(InvalidRecord, match="varlong of 64 bits"):
        encode_batch([NewRecord(b"", None, -(2**62)), NewRecord(b"", None, 2**63 - 1)])
    with pytest.raises(InvalidRecord, match="timestamp 9223372036854775808"):
        encode_batch([NewRecord(b"", None, 2**62), NewRecord(b"", None, 2**63)])


@pytest.mark.parametrize(("base", "delta", "time"), [
    (1000, 2**63 - 1, -(2**63) + 999),
    (-2000, -(2**63), 2**63 - 2000),
    (2**63 - 1, 2**63 - 1, -2),
    (2**63 - 2, 1, 2**63 - 1),
    (-(2**63) + 1, -1, -(2**63)),
])  # fmt: skip
def test_a_time_that_leaves_64_bits_wraps_around_as_kafkas_does(base: int, delta: int, time: int) -> None:
    # A broker cannot see this without opening the batch, so one may be in any log; what is read must be
    # something that an answer can hold.
    body = b"\0" + varlong_bytes(delta) + b"\0\1\1\0"
    batch = patched(with_block(bytes([2 * len(body)]) + body, count=1), ">q", 27, base)
    assert [r.timestamp for r in decode(batch)] == [time]


@pytest.mark.parametrize("block", [
    b"\x0c\0\0\0\1\1\0\0",  # a byte after the record
    b"\x0e\0\0\0\1\1\0",  # longer than the block
    b"\x04\0\0\0\1\1\0",  # ends before its offset delta does
    b"\x0b\0\0\0\1\1\0",  # of a negative length
    b"\x0c\0\0\2\1\1\0",  # outside its batch
    b"\x0c\0\0\1\1\1\0",  # before its batch
    b"\xff\xff\xff\xff\x0f\0\0",
    b"\x0c\0",
])  # fmt: skip
def test_times_are_not_read_from_damaged_records(block: bytes) -> None:
    data = memoryview(with_block(block, count=1))
    frame = V2Format().frame_at(data, 0, 0)
    assert frame is not None
    with pytest.raises(CorruptMessage, match="batch at offset 0"):
        list(V2Format().times(data, frame, max_bytes=LIMIT))


@pytest.mark.parametrize(
    ("deltas", "last"),
    [([0, 1], None), ([0, 2, 1], None), ([0, 0, 1], None), ([-1, 0, 1], None), ([0, 1, 5], 4), (None, 1)],
)
def test_offsets_that_cannot_be_are_not_written(deltas: list[int] | None, last: int | None) -> None:
    with pytest.raises(InvalidRecord, match="3 records"):
        encode_batch(THREE, offset_deltas=deltas, last_offset_delta=last)


def test_a_batch_of_nothing_needs_its_last_offset() -> None:
    with pytest.raises(InvalidRecord, match="0 records"):
        encode_batch([])


@pytest.mark.parametrize(
    "kw",
    [
        {"producer_id": 2**63},
        {"producer_epoch": 2**15},
        {"base_sequence": 2**31},
        {"base_offset": -(2**63) - 1},
        {"leader_epoch": 2**31},
        {"last_offset_delta": 2**31},
        {"offset_deltas": [0, 1, 2**31]},
    ],
)
def test_a_number_that_does_not_fit_its_field_is_not_written(kw: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        encode_batch(THREE, **kw)


def test_a_header_name_of_half_a_character_is_not_written() -> None:
    with pytest.raises(InvalidRecord, match="not UTF-8"):
        encode_batch([NewRecord(b"", headers=(("\ud800", None),))])


def test_a_header_name_that_is_not_utf_8_is_read_with_replacement() -> None:
    batch = encode_batch([NewRecord(b"", headers=(("ab", None),))])
    broken = resealed(batch.replace(b"\x04ab", b"\x04\xff\xfe"))
    assert decode(broken)[0].headers == (("\ufffd\ufffd", None),)


# --- control batches


def record_with_key(key: bytes | None) -> Record:
    return Record(5, 6, 0, TimestampType.CREATE_TIME, key, b"")


def test_control_types_of_later_kafkas_are_unknown_and_no_error() -> None:
    assert control_type(record_with_key(bytes.fromhex("0000 0002"))) is ControlType.UNKNOWN
    assert control_type(record_with_key(bytes.fromhex("0001 0001 ff"))) is ControlType.COMMIT


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_a_control_record_without_a_type_is_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptMessage, match="control record at offset 5"):
        control_type(record_with_key(key))


def test_a_marker_of_unknown_type_or_epoch_is_not_written() -> None:
    with pytest.raises(InvalidRecord, match="must abort or commit"):
        encode_control(ControlType.UNKNOWN, producer_id=1, producer_epoch=0, timestamp=0)
    with pytest.raises(InvalidRecord, match="coordinator epoch"):
        encode_control(
            ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=0, coordinator_epoch=2**31
        )


# --- assign


def test_a_batch_cut_short_is_not_given_a_time() -> None:
    buf = bytearray(encode_batch(THREE))[:-1]
    with pytest.raises(CorruptMessage, match="cut short"):
        assign(buf, 0, base_offset=0, leader_epoch=0, log_append_time=1)


def test_a_level_that_the_codec_lacks_is_a_configuration_error() -> None:
    with pytest.raises(InvalidConfig, match="1 to 9"):
        encode_batch(THREE, codec=Codec.GZIP, level=30)
