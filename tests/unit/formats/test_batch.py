from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, InvalidRecord
from pyspark_kafkalog.formats.batch import (
    HEADER_SIZE,
    BatchHeader,
    ControlType,
    V2Format,
    assign,
    control_type,
    decode_records,
    encode_batch,
    encode_control,
    read_header,
)
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.varint import varint_bytes, varlong_bytes
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


@pytest.mark.parametrize("codec", Codec)
def test_nulls_empties_and_repeated_headers_come_back_from_every_codec(codec: Codec) -> None:
    found = decode(encode_batch(THREE, codec=codec, base_offset=40))
    assert [(r.offset, r.next_offset) for r in found] == [(40, 41), (41, 42), (42, 43)]
    assert [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in found] == THREE
    assert {r.timestamp_type for r in found} == {TimestampType.CREATE_TIME}


def test_lengths_at_the_borders_of_their_encodings_come_back() -> None:
    sizes = (0, 1, 63, 64, 8190, 8191, 8192, 1 << 20)
    new = [NewRecord(bytes(a), bytes(b), t) for a, b, t in zip(sizes, sizes[::-1], range(8), strict=True)]
    new += [NewRecord(b"x", None, t) for t in (0, 63, 64, 8191, 8192, 1 << 40, 0)]
    found = decode(encode_batch(new))
    assert [NewRecord(r.value, r.key, r.timestamp) for r in found] == new


def test_ten_thousand_records_have_their_offsets() -> None:
    found = decode(encode_batch([NewRecord(b"x")] * 10_000, base_offset=5))
    assert [r.offset for r in found] == list(range(5, 10_005))
    assert {r.timestamp for r in found} == {-1}


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


@pytest.mark.long("many megabytes, or many cases")
def test_times_cost_no_memory_beyond_the_block() -> None:
    # 100,000 records of eight bytes, two kilobytes when compressed: as objects they would be 20 MB.
    body = b"\0\0%s\1\1\0"
    records = b"".join(
        bytes([2 * (len(d) + 5)]) + body % d for d in (varint_bytes(i) for i in range(100_000))
    )
    plain = with_block(records, count=100_000)
    frame = V2Format().frame_at(memoryview(plain), 0, 0)
    assert frame is not None
    tracemalloc.start()
    try:
        count = sum(1 for _ in V2Format().times(memoryview(plain), frame, max_bytes=LIMIT))
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
    assert count == 100_000


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


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = encode_batch(THREE, timestamp_type=TimestampType.LOG_APPEND_TIME)
    found = decode(batch)
    assert {(r.timestamp, r.timestamp_type) for r in found} == {(1500, TimestampType.LOG_APPEND_TIME)}


def test_an_empty_batch_still_says_where_to_go_on() -> None:
    batch = encode_batch([], base_offset=20, last_offset_delta=4, codec=Codec.GZIP, producer_id=8)
    assert len(batch) == HEADER_SIZE
    header = read_header(batch)
    assert (header.record_count, header.last_offset, header.next_offset) == (0, 24, 25)
    assert decode(batch) == []


def test_gaps_stay_gaps_and_the_last_record_leads_to_the_next_batch() -> None:
    batch = encode_batch(THREE, base_offset=100, offset_deltas=[1, 4, 6], last_offset_delta=9)
    assert [(r.offset, r.next_offset) for r in decode(batch)] == [(101, 102), (104, 105), (106, 110)]


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


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_a_marker_says_how_its_transaction_ended(kind: ControlType) -> None:
    batch = encode_control(kind, producer_id=4000, producer_epoch=1, timestamp=77, coordinator_epoch=3)
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 1, -1)
    (record,) = decode(batch)
    assert control_type(record) is kind
    assert record.value == bytes.fromhex("0000 00000003")
    assert record.timestamp == 77


def test_the_log_s_format_gives_no_control_records() -> None:
    batch = encode_control(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=0, base_offset=9)
    fmt, view = V2Format(), memoryview(batch)
    frame = fmt.frame_at(view, 0, 0)
    assert frame is not None
    assert frame.next_offset == 10
    assert list(fmt.records(view, frame, max_bytes=LIMIT)) == []


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


@pytest.mark.parametrize("wrap", [bytearray, lambda b: memoryview(bytearray(b))])
def test_a_log_assigns_offset_and_epoch_without_touching_the_checksum(wrap: Any) -> None:
    batch = encode_batch(THREE)
    buf = wrap(b"xx" + batch)
    assign(buf, 2, base_offset=1_000_000, leader_epoch=4)
    header = read_header(buf, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000_000, 4)
    assert bytes(buf[2 + 16 :]) == batch[16:]
    assert [r.offset for r in decode_records(buf, 2, header, LIMIT)] == [1_000_000, 1_000_001, 1_000_002]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_log_append_time_is_set_for_the_whole_batch_under_a_new_checksum(codec: Codec) -> None:
    buf = bytearray(encode_batch(THREE, codec=codec, producer_id=3, producer_epoch=0, base_sequence=0))
    before = read_header(buf)
    assign(buf, 0, base_offset=8, leader_epoch=0, log_append_time=123_456)
    header = read_header(buf)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.codec is codec
    assert header.crc != before.crc
    assert {r.timestamp for r in decode(buf)} == {123_456}
    assert len(buf) == before.size


def test_a_batch_cut_short_is_not_given_a_time() -> None:
    buf = bytearray(encode_batch(THREE))[:-1]
    with pytest.raises(CorruptMessage, match="cut short"):
        assign(buf, 0, base_offset=0, leader_epoch=0, log_append_time=1)


def test_a_level_that_the_codec_lacks_is_a_configuration_error() -> None:
    with pytest.raises(InvalidConfig, match="1 to 9"):
        encode_batch(THREE, codec=Codec.GZIP, level=30)
