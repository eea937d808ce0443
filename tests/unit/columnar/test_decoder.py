"""What a reader gets of one fetch answer, from either engine."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.columnar.arrow_columns import COLUMNS
from pyspark_kafkalog.columnar.decoder import HEADER_COUNT, RecordBatchDecoder
from pyspark_kafkalog.errors import CorruptMessage, InvalidTimestamp, MessageTooLarge, UnsupportedCompression
from pyspark_kafkalog.formats.base import varint_bytes
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.rows import (
    ENGINES,
    FOREVER,
    column,
    decode,
    good_record,
    offsets,
    raw_batch,
    raw_record,
)

LARGEST_MS = 9_223_372_036_854_775
"""The last millisecond whose microseconds fit 64 bits."""

pytestmark = pytest.mark.parametrize("engine", ENGINES)


def batch(first: int, count: int, **settings: object) -> bytes:
    records = [NewRecord(b"%d" % (first + i), timestamp=first + i) for i in range(count)]
    return encode_batch(records, base_offset=first, **settings)  # type: ignore[arg-type]


def test_reading_continues_after_what_was_read(engine: str) -> None:
    data = batch(10, 5) + batch(20, 5)
    assert decode(data, engine, start=12).next_offset == 25
    assert decode(data, engine, start=12, end=13).next_offset == 15
    assert decode(data, engine, start=12, end=15).next_offset == 15
    # Nothing lies between the batches: what is asked for up to 18 is complete.
    assert decode(data, engine, start=12, end=18).next_offset == 20


def test_an_empty_answer_moves_nothing(engine: str) -> None:
    decoded = decode(b"", engine, start=5)
    assert (decoded.batches, decoded.next_offset, decoded.records) == ([], 5, 0)


def test_what_lies_after_the_range_cannot_spoil_it(engine: str) -> None:
    broken = bytearray(batch(5, 5))
    broken[-1] ^= 1
    data = batch(0, 5) + broken
    assert offsets(decode(data, engine, end=5)) == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptMessage, match=r"t-0.*offset 5.*CRC"):
        decode(data, engine, end=6)


def test_gaps_that_compaction_left_stay_gaps(engine: str) -> None:
    records = [NewRecord(b"a"), NewRecord(b"b"), NewRecord(b"c")]
    data = encode_batch(records, base_offset=100, offset_deltas=[1, 70, 70_000], last_offset_delta=70_009)
    decoded = decode(data, engine, start=100)
    assert (offsets(decoded), decoded.next_offset) == ([101, 170, 70_100], 70_110)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
        (b"\xf5\x80", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\x80\xed\xb0\x80!", "\ufffd\ufffd!"),
    ],
)
def test_a_header_name_that_is_not_utf8_reads_as_in_java(engine: str, raw: bytes, text: str) -> None:
    headers = varint_bytes(1) + varint_bytes(len(raw)) + raw + varint_bytes(-1)
    data = raw_batch(raw_record(headers=headers) + good_record(1), 2)
    assert column(decode(data, engine), "headers") == [[{"key": text, "value": None}], None]


@pytest.mark.parametrize("base", [0, LARGEST_MS, -LARGEST_MS, FOREVER, -FOREVER - 1])
@pytest.mark.parametrize("delta", [0, 1, -1, FOREVER, -FOREVER - 1])
def test_a_timestamp_fits_microseconds_or_is_refused(engine: str, base: int, delta: int) -> None:
    block = raw_record(time=0 if abs(base) <= LARGEST_MS else -base if base > 0 else FOREVER)
    block += raw_record(time=delta, delta=3)
    data = raw_batch(block, 2, last_delta=3, base_timestamp=base, base_offset=40)
    time = base + delta
    if abs(time) <= LARGEST_MS:
        assert column(decode(data, engine), "timestamp")[1] == time * 1000
        return
    with pytest.raises(InvalidTimestamp) as e:
        decode(data, engine)
    text = str(e.value)
    assert text.startswith("[KAFKA_MALFORMED_RECORD_TIMESTAMP] topic t, partition 0, offset 43:")
    assert f" {time} ms " in text
    assert text.endswith("SQLSTATE: 22008")
    assert offsets(decode(data, engine, columns=["offset"])) == [40, 43]
    assert offsets(decode(data, engine, end=43)) == [40]


def test_a_log_append_time_that_does_not_fit_is_refused(engine: str) -> None:
    data = raw_batch(good_record(), 1, append_time=LARGEST_MS + 1)
    with pytest.raises(InvalidTimestamp, match=rf"offset 0: .* {LARGEST_MS + 1} ms"):
        decode(data, engine)
    data = raw_batch(raw_record(time=FOREVER), 1, append_time=LARGEST_MS, base_timestamp=FOREVER)
    assert column(decode(data, engine), "timestamp") == [LARGEST_MS * 1000]


def test_the_delete_horizon_does_not_change_times(engine: str) -> None:
    data = raw_batch(raw_record(time=-7), 1, base_timestamp=1000, attributes=0x40)
    assert column(decode(data, engine), "timestamp") == [993_000]


def test_the_last_offset_there_is_can_be_read(engine: str) -> None:
    data = raw_batch(good_record(), 1, base_offset=FOREVER - 1)
    decoded = decode(data, engine, start=FOREVER - 1)
    assert (offsets(decoded), decoded.next_offset) == ([FOREVER - 1], FOREVER)
    with pytest.raises(CorruptMessage, match="64 bits"):
        decode(raw_batch(good_record(), 1, base_offset=FOREVER - 1, last_delta=1), engine)


def test_only_the_columns_asked_for_are_built_in_their_order(engine: str) -> None:
    data = encode_batch([NewRecord(b"v", b"k", 1, (("h", b""),))] * 3, base_offset=4)
    (found,) = decode(data, engine, columns=["topic", "offset"]).batches
    assert found.to_pydict() == {"topic": ["t"] * 3, "offset": [4, 5, 6]}
    (found,) = decode(data, engine, columns=["broker"], broker=None).batches
    assert found.to_pydict() == {"broker": [None] * 3}


def test_memory_may_be_used_again_once_decoded(engine: str) -> None:
    data = bytearray(batch(0, 50) + batch(50, 50, codec=Codec.LZ4))
    decoded = decode(memoryview(data), engine)
    data[:] = bytes(len(data))
    data.clear()  # raises while anything still refers to it
    assert column(decoded, "value") == [b"%d" % i for i in range(100)]


def test_a_bomb_is_refused_by_the_limit(engine: str) -> None:
    data = encode_batch([NewRecord(bytes(1 << 20))], codec=Codec.ZSTD, base_offset=3)
    with pytest.raises(MessageTooLarge, match=r"t-0.*offset 3.*limit is 1000000"):
        decode(data, engine, start=3, max_batch_bytes=1_000_000)


def test_many_bombs_are_taken_a_few_at_a_time(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.DECOMPRESSED_BYTES", 5_000_000)
    bomb = [NewRecord(bytes(1_000_000))] * 2
    data = b"".join(encode_batch(bomb, codec=Codec.ZSTD, base_offset=2 * i) for i in range(8))
    found, position, parts = [], 0, 0
    while position < 16:
        decoded = decode(data, engine, start=position, columns=["offset"])
        assert 0 < decoded.records <= 6
        found += offsets(decoded)
        position, parts = decoded.next_offset, parts + 1
    assert (found, parts) == (list(range(16)), 3)


def test_an_unknown_codec_is_named(engine: str) -> None:
    with pytest.raises(UnsupportedCompression, match=r"t-0.*codec 5"):
        decode(raw_batch(good_record(), 1, attributes=5), engine)


# --- transactions


def transaction(producer: int, first: int, count: int, end: ControlType | None) -> bytes:
    records = [NewRecord(b"%d" % producer)] * count
    data = encode_batch(
        records, base_offset=first, producer_id=producer, producer_epoch=0, transactional=True
    )
    if end is not None:
        data += encode_control(
            end, producer_id=producer, producer_epoch=0, timestamp=0, base_offset=first + count
        )
    return data


def test_a_transaction_begun_before_the_answer_is_known_from_the_list(engine: str) -> None:
    data = transaction(1, 50, 2, ControlType.ABORT) + transaction(1, 53, 1, ControlType.ABORT)
    assert offsets(decode(data, engine, start=50, read_committed=True, aborted=[(1, 53), (1, 10)])) == []
    assert offsets(decode(data, engine, start=50, read_committed=True, aborted=[(1, 10)])) == [53]


def test_plain_batches_of_an_aborting_producer_are_delivered(engine: str) -> None:
    data = batch(0, 2, producer_id=1, producer_epoch=0)
    assert offsets(decode(data, engine, read_committed=True, aborted=[(1, 0)])) == [0, 1]


def test_nothing_of_one_answer_is_remembered_in_the_next(engine: str) -> None:
    decoder = RecordBatchDecoder(
        topic="t",
        partition=0,
        columns=COLUMNS,
        read_committed=True,
        engine=engine,  # type: ignore[arg-type]
    )
    # The broker cut the first answer before the marker; it repeats the transaction in the second.
    first = decoder.decode(memoryview(transaction(1, 0, 2, None)), 0, FOREVER, [(1, 0)])
    assert (first.records, first.next_offset) == (0, 2)
    second = decoder.decode(memoryview(transaction(1, 2, 1, ControlType.ABORT)), 2, FOREVER, [(1, 0)])
    assert (second.records, second.next_offset) == (0, 4)
    third = decoder.decode(memoryview(transaction(1, 4, 1, ControlType.COMMIT)), 4, FOREVER, [])
    assert offsets(third) == [4]


# --- sizes


def test_record_batches_have_up_to_a_mebibyte_and_a_quarter(engine: str) -> None:
    data = b"".join(
        encode_batch([NewRecord(bytes(1000))] * 60, base_offset=60 * i, codec=Codec(i % 5))
        for i in range(100)
    )
    decoded = decode(data, engine)
    sizes = [found.num_rows for found in decoded.batches]
    assert sum(sizes) == 6000
    assert all(1200 <= size <= 1310 for size in sizes[:-1])
    assert offsets(decoded) == list(range(6000))


@pytest.mark.long("many megabytes")
def test_more_headers_than_usual_are_all_there(engine: str) -> None:
    many = tuple(("h", b"%d" % i) for i in range(70_000))
    records = [NewRecord(b"", headers=many[:count]) for count in (40_000, 40_000, 70_000)]
    decoded = decode(encode_batch(records), engine, columns=["headers", "offset"])
    found = column(decoded, "headers")
    assert [len(headers) for headers in found] == [40_000, 40_000, 70_000]
    assert found[2][-1] == {"key": "h", "value": b"69999"}
    assert HEADER_COUNT < 70_000


@pytest.mark.long("many megabytes")
def test_a_record_too_large_in_every_way_is_whole(engine: str) -> None:
    large = bytes(2 << 20)
    headers = tuple(("h", b"") for _ in range(70_000))
    decoded = decode(encode_batch([NewRecord(large, headers=headers)] * 2), engine)
    assert column(decoded, "value") == [large, large]
    assert [len(found) for found in column(decoded, "headers")] == [70_000, 70_000]


def test_a_record_of_many_mebibytes_can_be_read_without_its_value(engine: str) -> None:
    data = encode_batch([NewRecord(bytes(10 << 20)), NewRecord(b"")])
    assert offsets(decode(data, engine, columns=["offset"])) == [0, 1]


def test_a_batch_of_many_small_records_is_cut(engine: str) -> None:
    block = b"".join(raw_record(delta=i) for i in range(70_000))
    decoded = decode(raw_batch(block, 70_000), engine, columns=["offset"])
    assert [found.num_rows for found in decoded.batches] == [65_536, 4_464]
    assert offsets(decoded) == list(range(70_000))
