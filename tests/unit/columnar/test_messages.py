"""Messages of v0 and v1 as Arrow, from either engine: rows, sets, offsets, faults, limits."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.columnar import arena, message_walk
from pyspark_kafkalog.columnar.batch_walk import BatchWalk
from pyspark_kafkalog.columnar.decoder import Decoded
from pyspark_kafkalog.columnar.engine import Answer
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.checksum import crc32
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import (
    CODECS,
    CRC_POSITION,
    MAGIC_POSITION,
    encode_message,
    encode_set,
    wrap_set,
)
from pyspark_kafkalog.types import NewRecord, TimestampType, TopicPartition
from tests.support.columnar.rows import ENGINES, FOREVER, column, decode, offsets

pytestmark = pytest.mark.parametrize("engine", ENGINES)

both_magics = pytest.mark.parametrize("magic", [0, 1])
COMPRESSED = CODECS[1:]
LARGEST_MS = 9_223_372_036_854_775


def numbered(first: int, count: int) -> list[NewRecord]:
    return [NewRecord(b"%d" % (first + i), timestamp=first + i) for i in range(count)]


def stored(first: int, count: int, magic: int, codec: Codec = Codec.NONE, **settings: Any) -> bytes:
    """Messages as a broker keeps them, from offset ``first`` on."""
    return encode_set(numbered(first, count), magic=magic, codec=codec, base_offset=first, **settings)


def resealed(entry: bytearray) -> bytes:
    entry[CRC_POSITION:MAGIC_POSITION] = crc32(bytes(entry[MAGIC_POSITION:])).to_bytes(4, "big")
    return bytes(entry)


# --- rows


def test_keys_and_values_may_be_null_or_empty_and_headers_are_null(engine: str) -> None:
    records = [NewRecord(b"v", b"k", 5), NewRecord(None, b"", 6), NewRecord(b"", None), NewRecord(None)]
    for magic, times in ((0, [-1000] * 4), (1, [5000, 6000, -1000, -1000])):
        decoded = decode(encode_set(records, magic=magic, base_offset=40), engine, start=40)
        rows = {name: column(decoded, name) for name in ("key", "value", "offset", "timestamp", "headers")}
        assert rows == {
            "key": [b"k", b"", None, None],
            "value": [b"v", None, b"", None],
            "offset": [40, 41, 42, 43],
            "timestamp": times,
            "headers": [None] * 4,
        }
        assert (decoded.next_offset, decoded.records) == (44, 4)


def test_the_kind_of_a_time_is_that_of_sparks_connector(engine: str) -> None:
    data = (
        stored(0, 1, 0)
        + stored(1, 1, 1)
        + stored(2, 1, 1, timestamp_type=TimestampType.LOG_APPEND_TIME)
        + stored(3, 1, 0, Codec.GZIP)
        + stored(4, 1, 1, Codec.GZIP)
    )
    assert column(decode(data, engine), "timestampType") == [-1, 0, 1, -1, 0]
    assert column(decode(data, engine), "timestamp") == [-1000, 1000, 2000, -1000, 4000]


@both_magics
@pytest.mark.parametrize("codec", COMPRESSED)
def test_sets_of_every_codec_give_their_messages(engine: str, codec: Codec, magic: int) -> None:
    decoded = decode(stored(1000, 100, magic, codec), engine, start=1000)
    assert column(decoded, "value") == [b"%d" % i for i in range(1000, 1100)]
    assert offsets(decoded) == list(range(1000, 1100))
    assert decoded.next_offset == 1100


def test_offsets_in_a_set_of_v1_count_back_from_its_own_also_over_gaps(engine: str) -> None:
    data = encode_set(
        numbered(0, 3), magic=1, codec=Codec.SNAPPY, base_offset=7, offsets=[507, 511, 519], level=None
    )
    decoded = decode(data, engine, start=500)
    assert (offsets(decoded), decoded.next_offset) == ([507, 511, 519], 520)
    assert offsets(decode(data, engine, start=508, end=519)) == [511]


def test_offsets_in_a_set_that_no_broker_numbered_stand_as_they_are(engine: str) -> None:
    for magic in (0, 1):
        block = encode_set(numbered(0, 3), magic=magic)
        decoded = decode(wrap_set(block, magic=magic, codec=Codec.GZIP, last_offset=0), engine)
        assert (offsets(decoded), decoded.next_offset) == ([0, 1, 2], 3)


def test_a_set_with_log_append_time_gives_its_time_to_all(engine: str) -> None:
    block = encode_set(numbered(0, 3), magic=1)
    data = wrap_set(
        block,
        magic=1,
        codec=Codec.LZ4,
        last_offset=12,
        timestamp=99,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    decoded = decode(data, engine)
    assert column(decoded, "timestamp") == [99_000] * 3
    assert column(decoded, "timestampType") == [1] * 3


@both_magics
@pytest.mark.parametrize("codec", CODECS)
def test_rows_outside_the_range_are_dropped(engine: str, codec: Codec, magic: int) -> None:
    data = stored(10, 5, magic, codec) + stored(15, 5, magic) + stored(20, 5, magic, codec)
    assert offsets(decode(data, engine, start=12, end=22)) == list(range(12, 22))
    assert column(decode(data, engine, start=16, end=17), "value") == [b"16"]
    assert decode(data, engine, start=25, end=30) == Decoded([], 25, 0)
    assert decode(data, engine, start=5, end=9) == Decoded([], 10, 0)


def test_formats_may_follow_each_other_in_one_answer(engine: str) -> None:
    data = b"".join(
        (
            stored(0, 3, 0),
            stored(3, 3, 1),
            stored(6, 3, 0, Codec.LZ4),
            encode_batch(numbered(9, 3), base_offset=9),
            stored(12, 3, 1, Codec.LZ4),
            encode_batch(numbered(15, 3), base_offset=15, codec=Codec.ZSTD),
            stored(18, 3, 0),
        )
    )
    decoded = decode(data, engine, aborted=[], read_committed=True)
    assert offsets(decoded) == list(range(21))
    assert column(decoded, "value") == [b"%d" % i for i in range(21)]
    assert decoded.next_offset == 21
    kinds = [-1] * 3 + [0] * 3 + [-1] * 3 + [0] * 9 + [-1] * 3
    assert column(decoded, "timestampType") == kinds


@both_magics
@pytest.mark.parametrize("codec", CODECS)
def test_an_incomplete_tail_is_left_for_the_next_answer(engine: str, codec: Codec, magic: int) -> None:
    first, second = stored(0, 2, magic, codec), stored(2, 1, magic, codec)
    for kept in range(len(second)):
        decoded = decode(first + second[:kept], engine)
        assert (offsets(decoded), decoded.next_offset) == ([0, 1], 2)
        assert decode(second[:kept], engine, start=2) == Decoded([], 2, 0)


@both_magics
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_messages_that_overlap_are_corrupt(engine: str, codec: Codec, magic: int) -> None:
    expected = r"t-0, reading on from offset 5: an entry claims offsets 3 to .*: the entry before ends at 4"
    with pytest.raises(CorruptMessage, match=expected):
        decode(stored(0, 5, 1) + stored(3, 5, magic, codec), engine)


def test_what_lies_after_the_range_cannot_spoil_it(engine: str) -> None:
    broken = bytearray(stored(5, 1, 1))
    broken[-1] ^= 1
    assert offsets(decode(stored(0, 5, 1) + broken, engine, end=5)) == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptMessage, match=r"t-0, reading on from offset 5: .*offset 5: CRC-32 is"):
        decode(stored(0, 5, 1) + broken, engine, end=6)


def test_only_the_columns_asked_for_are_built_in_their_order(engine: str) -> None:
    (found,) = decode(stored(4, 3, 1), engine, columns=["topic", "offset"]).batches
    assert found.to_pydict() == {"topic": ["t"] * 3, "offset": [4, 5, 6]}


# --- faults


@both_magics
def test_a_checksum_in_a_set_is_looked_at_too(engine: str, magic: int) -> None:
    block = bytearray(encode_set(numbered(0, 3), magic=magic))
    block[-1] ^= 1
    data = wrap_set(bytes(block), magic=magic, codec=Codec.SNAPPY, last_offset=2)
    with pytest.raises(CorruptMessage, match=r"compressed set at offset 2: message at offset 2: CRC-32"):
        decode(data, engine)


@both_magics
def test_the_checksum_of_a_set_comes_before_what_it_holds_also_where_it_is_left_out(
    engine: str, magic: int
) -> None:
    broken = bytearray(stored(0, 3, magic, Codec.GZIP))
    broken[CRC_POSITION] ^= 1
    for start in (0, 3):
        with pytest.raises(CorruptMessage, match="offset 2: CRC-32"):
            decode(bytes(broken) + stored(3, 1, magic), engine, start=start)


def test_an_impossible_length_is_a_fault_also_where_the_answer_ends(engine: str) -> None:
    entry = bytearray(encode_message(NewRecord(b"value"), magic=0, offset=1))
    entry[8:12] = (13).to_bytes(4, "big")
    for size in (17, 25):
        with pytest.raises(CorruptMessage, match=r"impossible .*length 13"):
            decode(stored(0, 1, 0) + entry[:size], engine)


def test_faults_are_reported_in_the_format_s_words(engine: str) -> None:
    message = encode_message(NewRecord(b"v"), magic=1)
    inner = wrap_set(message, magic=1, codec=Codec.GZIP, last_offset=0)
    three = encode_set(numbered(0, 3), magic=1)
    long_key = bytearray(message)
    long_key[26:30] = (9).to_bytes(4, "big")
    null = bytearray(encode_message(NewRecord(None), magic=0))
    null[17] = 1
    for data, text in (
        (
            wrap_set(inner, magic=1, codec=Codec.GZIP, last_offset=0),
            "is itself a compressed set",
        ),
        (wrap_set(b"", magic=1, codec=Codec.GZIP, last_offset=0), "holds no whole message in 0 bytes"),
        (wrap_set(message[:-1], magic=0, codec=Codec.GZIP, last_offset=0), "holds no whole message"),
        (wrap_set(three, magic=1, codec=Codec.GZIP, last_offset=1), "set at offset 1 .* relative offset"),
        (
            wrap_set(three * 2, magic=1, codec=Codec.GZIP, last_offset=9),
            "set at offset 9: offset 0 follows 2",
        ),
        (encode_message(NewRecord(b"v"), magic=0, offset=-3), "message at offset -3"),
        (
            wrap_set(three, magic=0, codec=Codec.GZIP, last_offset=-3),
            "set at offset -3: no offset is negative",
        ),
        (encode_message(NewRecord(b"v"), magic=0, offset=FOREVER), "no offset can follow"),
        (resealed(long_key), "a field of 9 bytes where 1 are left"),
        (resealed(null), "the compressed set at offset 0 is null"),
        (message[:8] + bytes(3) + b"\x0d" + message[12:], "impossible .*length 13"),
        (message[:16] + b"\x03" + message[17:], "magic 3"),
    ):
        with pytest.raises(CorruptMessage, match=text):
            decode(data, engine)


@both_magics
@pytest.mark.parametrize("codec", [4, 7])
def test_codecs_that_came_later_are_refused(engine: str, codec: int, magic: int) -> None:
    entry = bytearray(encode_message(NewRecord(b"packed"), magic=magic))
    entry[17] = codec
    with pytest.raises(UnsupportedCompression, match=f"v{magic} has no compression codec {codec}"):
        decode(resealed(entry), engine)


def test_a_time_fits_microseconds_or_is_reported_with_its_message(engine: str) -> None:
    for codec in (Codec.NONE, Codec.GZIP):
        for time in (LARGEST_MS, -LARGEST_MS):
            records = [NewRecord(b"", timestamp=0), NewRecord(b"", timestamp=time)]
            data = encode_set(records, magic=1, codec=codec, base_offset=40)
            assert column(decode(data, engine), "timestamp") == [0, time * 1000]
        for time in (LARGEST_MS + 1, FOREVER, -FOREVER - 1):
            records = [NewRecord(b"", timestamp=0), NewRecord(b"", timestamp=time)]
            data = encode_set(records, magic=1, codec=codec, base_offset=40)
            with pytest.raises(InvalidTimestamp, match=rf"partition 0, offset 41: .* of {time} ms "):
                decode(data, engine)
            assert offsets(decode(data, engine, columns=["offset", "timestampType"])) == [40, 41]


# --- limits


def test_a_bomb_is_refused_by_the_limit(engine: str) -> None:
    data = encode_set([NewRecord(bytes(1 << 20))], magic=1, codec=Codec.GZIP, base_offset=3)
    with pytest.raises(MessageTooLarge, match=r"t-0.*offset 3.*limit is 1000000"):
        decode(data, engine, start=3, max_batch_bytes=1_000_000)


def test_many_bombs_are_taken_a_few_at_a_time(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.DECOMPRESSED_BYTES", 5_000_000)
    bomb = [NewRecord(bytes(1_000_000))] * 2
    data = b"".join(encode_set(bomb, magic=1, codec=Codec.GZIP, base_offset=2 * i) for i in range(8))
    found, position, parts = [], 0, 0
    while position < 16:
        decoded = decode(data, engine, start=position, columns=["offset"])
        assert 0 < decoded.records <= 6
        found += offsets(decoded)
        position, parts = decoded.next_offset, parts + 1
    assert (found, parts) == (list(range(16)), 3)


def test_record_batches_have_up_to_a_mebibyte_and_a_quarter(engine: str) -> None:
    values = [NewRecord(bytes(1000))] * 6000
    plain = encode_set(values, magic=1)
    packed = encode_set(values, magic=0, codec=Codec.GZIP, base_offset=6000)
    decoded = decode(plain + packed, engine, columns=["offset", "value"])
    sizes = [batch.num_rows for batch in decoded.batches]
    assert sum(sizes) == 12_000
    assert max(sizes) <= 1310
    assert sizes[0] > 700
    assert offsets(decoded) == list(range(12_000))


def test_many_small_messages_are_cut_by_their_number(engine: str) -> None:
    data = encode_set([NewRecord(None)] * 70_000, magic=0, codec=Codec.GZIP)
    decoded = decode(data, engine, columns=["offset"])
    assert [batch.num_rows for batch in decoded.batches] == [50_412, 19_588]
    assert offsets(decoded) == list(range(70_000))


def test_a_message_larger_than_a_record_batch_is_whole(engine: str) -> None:
    large = bytes(range(256)) * (3 << 12)
    records = [NewRecord(b"a"), NewRecord(large, large[:-1]), NewRecord(b"b")]
    for codec in (Codec.NONE, Codec.SNAPPY):
        decoded = decode(encode_set(records, magic=1, codec=codec), engine)
        assert column(decoded, "value") == [b"a", large, b"b"]
        assert column(decoded, "key") == [None, large[:-1], None]


def test_memory_may_be_used_again_once_decoded(engine: str) -> None:
    data = bytearray(stored(0, 50, 1) + stored(50, 50, 0, codec=Codec.LZ4))
    decoded = decode(memoryview(data), engine)
    data[:] = bytes(len(data))
    data.clear()  # raises while anything still refers to it
    assert column(decoded, "value") == [b"%d" % i for i in range(100)]


# --- by other ways


def test_where_the_kernels_for_messages_cannot_be_had_plain_python_serves(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stored(0, 3, 0) + encode_batch(numbered(3, 3), base_offset=3) + stored(6, 3, 1, Codec.GZIP)
    expected = decode(data, engine)
    monkeypatch.setattr(arena, "kernel", lambda name: (None, f"no {name}"))
    assert decode(data, engine) == expected
    assert offsets(expected) == list(range(9))


def test_a_block_gives_records_as_it_gives_rows(engine: str) -> None:
    appended = TimestampType.LOG_APPEND_TIME
    block = encode_message(NewRecord(b"old"), magic=0) + encode_message(NewRecord(b"new"), magic=1, offset=1)
    data = (
        stored(0, 2, 0)
        + stored(2, 2, 1, timestamp_type=appended)
        + wrap_set(
            block, magic=1, codec=Codec.GZIP, last_offset=5, timestamp=9, timestamp_type=TimestampType(1)
        )
        + stored(6, 3, 1, Codec.GZIP)
    )
    walk = BatchWalk(Answer(memoryview(data), TopicPartition("t", 0), 1, 8, max_batch_bytes=1 << 20))
    found = [record for block in walk.blocks() for record in message_walk.records(block)]
    decoded = decode(data, engine, start=1, end=8)
    assert [record.offset for record in found] == offsets(decoded) == list(range(1, 8))
    assert [record.value for record in found] == column(decoded, "value")
    assert [record.timestamp * 1000 for record in found] == column(decoded, "timestamp")
    kinds = column(decoded, "timestampType")
    assert kinds == [-1, 1, 1, -1, 1, 0, 0]
    assert [int(record.timestamp_type) for record in found] == [max(kind, 0) for kind in kinds]
