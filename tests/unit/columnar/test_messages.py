"""Messages of v0 and v1 as Arrow, from either engine: rows, sets, offsets, faults, limits."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.columnar import message_walk, numba_engine
from pyspark_kafkalog.columnar.batch_walk import BatchWalk
from pyspark_kafkalog.columnar.column_types import Answer
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.base import crc32
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import (
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


def test_offsets_in_a_set_that_no_broker_numbered_stand_as_they_are(engine: str) -> None:
    for magic in (0, 1):
        block = encode_set(numbered(0, 3), magic=magic)
        decoded = decode(wrap_set(block, magic=magic, codec=Codec.GZIP, last_offset=0), engine)
        assert (offsets(decoded), decoded.next_offset) == ([0, 1, 2], 3)


@both_magics
def test_an_incomplete_tail_is_left_for_the_next_answer(engine: str, magic: int) -> None:
    first, second = stored(0, 2, magic), stored(2, 1, magic)
    for kept in range(len(second)):
        assert (offsets(found := decode(first + second[:kept], engine)), found.next_offset) == ([0, 1], 2)


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


def test_many_small_messages_are_cut_by_their_number(engine: str) -> None:
    data = encode_set([NewRecord(None)] * 70_000, magic=0, codec=Codec.GZIP)
    decoded = decode(data, engine, columns=["offset"])
    assert [batch.num_rows for batch in decoded.batches] == [50_412, 19_588]
    assert offsets(decoded) == list(range(70_000))


# --- by other ways


def test_where_the_kernels_for_messages_cannot_be_had_plain_python_serves(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stored(0, 3, 0) + encode_batch(numbered(3, 3), base_offset=3) + stored(6, 3, 1, Codec.GZIP)
    expected = decode(data, engine)
    monkeypatch.setattr(numba_engine, "kernel", lambda name: (None, f"no {name}"))
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
