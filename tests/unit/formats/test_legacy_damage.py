"""Entries and compressed sets of v0 and v1 that cannot be: refused, before memory is taken for them."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from pyspark_kafkalog.errors import InvalidRecord, MessageTooLarge
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_message, encode_set, messages, wrap_set
from pyspark_kafkalog.types import NewRecord
from tests.support.formats.legacy_bytes import LIMIT, NEW, both, entry, packing, read, refuse, sealed


@both
@packing
def test_a_wrapper_within_a_wrapper_is_corrupt(magic: int, codec: Codec) -> None:
    inner = encode_set(NEW, magic=magic, codec=codec)
    data = wrap_set(inner, magic=magic, codec=codec, last_offset=2)
    refuse(
        data,
        "in the compressed set at offset 2: the message at byte 0 is itself a compressed set",
    )


@both
@packing
def test_a_compressed_set_must_hold_a_whole_message(magic: int, codec: Codec) -> None:
    for block in (b"", entry(0, magic, b"x")[:-1]):
        data = wrap_set(block, magic=magic, codec=codec, last_offset=2)
        refuse(data, f"at offset 2 holds no whole message in {len(block)} bytes")
    cut = wrap_set(
        entry(0, magic, b"x") + entry(1, magic, b"y")[:-1], magic=magic, codec=codec, last_offset=0
    )
    assert [value for *_, value in read(cut)] == [b"x"]


@both
def test_a_compressed_set_that_is_null_is_corrupt(magic: int) -> None:
    refuse(entry(2, magic, None, attributes=1), "the compressed set at offset 2 is null")


@both
def test_a_checksum_that_differs_names_the_offset_and_both_sums(magic: int) -> None:
    data = bytearray(encode_message(NEW[0], magic=magic, offset=9))
    data[-1] ^= 1
    refuse(bytes(data), r"message at offset 9: CRC-32 is 0x[0-9a-f]{8}, header says 0x[0-9a-f]{8}")


@both
def test_a_checksum_within_a_set_counts_as_well(magic: int) -> None:
    block = bytearray(entry(0, magic, b"x"))
    block[-1] ^= 1
    data = wrap_set(bytes(block), magic=magic, codec=Codec.GZIP, last_offset=2)
    refuse(data, "in the compressed set at offset 2: message at offset 0: CRC-32")


@pytest.mark.parametrize(("magic", "length"), [(0, 13), (0, -1), (0, 0), (1, 21), (1, -(1 << 31))])
def test_no_entry_is_shorter_than_its_fields(magic: int, length: int) -> None:
    data = struct.pack(">qiIbb", 1, length, 0, magic, 0) + bytes(40)
    refuse(data, f"impossible message length {length} at byte 0, offset 1")


@pytest.mark.parametrize("magic", [2, 3, 255])
def test_another_magic_is_refused_in_a_message_set(magic: int) -> None:
    data = bytearray(encode_message(NEW[0], magic=1))
    data[16] = magic
    refuse(bytes(data), f"has magic {magic}, not 0 or 1")
    packed = wrap_set(data, magic=1, codec=Codec.GZIP, last_offset=0)
    refuse(packed, f"in the compressed set at offset 0: message at byte 0 has magic {magic}")


@pytest.mark.parametrize(
    ("key", "value"),
    [(-2, 0), (5, 0), (1 << 30, 0), (0, -2), (0, 5), (0, 2), (-1, 1 << 30), (0, 3)],
)
def test_lengths_that_do_not_fill_the_entry_are_corrupt(key: int, value: int) -> None:
    for head in (b"\0\0", b"\1\0" + bytes(8)):
        refuse(sealed(3, head + struct.pack(">ii", key, value) + b"four"), "message at offset 3:")


@pytest.mark.parametrize(("key", "value"), [(-2, 0), (0, -2), (-2, -2)])
def test_only_minus_one_is_null(key: int, value: int) -> None:
    for head in (b"\0\0", b"\1\0" + bytes(8)):
        refuse(sealed(3, head + struct.pack(">ii", key, value)), "message at offset 3: a field of -2 bytes")


def test_an_entry_that_is_cut_short_is_corrupt() -> None:
    data = encode_message(NEW[0], magic=1, offset=3)
    refuse(data[:25], "message header at byte 0 is cut short: 25 of 26 bytes")
    refuse(data[:-1], f"message at offset 3 is cut short: {len(data) - 1} of {len(data)} bytes")


@both
def test_headers_cannot_be_written(magic: int) -> None:
    with pytest.raises(InvalidRecord, match=f"v{magic} has no headers"):
        encode_set([NewRecord(b"x", headers=(("h", None),))], magic=magic)


def test_numbers_that_do_not_fit_cannot_be_written() -> None:
    for bad in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(InvalidRecord, match=str(bad)):
            encode_message(NewRecord(b"x", timestamp=bad), magic=1)
        with pytest.raises(InvalidRecord, match=str(bad)):
            encode_message(NewRecord(b"x"), magic=0, offset=bad)
    with pytest.raises(InvalidRecord, match="no message set of format v2"):
        encode_message(NewRecord(b"x"), magic=2)
    with pytest.raises(InvalidRecord, match="2 offsets for 3 records"):
        encode_set(NEW, magic=1, offsets=[1, 2])


@both
@packing
def test_a_bomb_is_refused_before_memory_is_taken(magic: int, codec: Codec) -> None:
    bomb = encode_set([NewRecord(bytes(32 << 20))], magic=magic, codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge, match="limit is 1048576"):
            read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    finally:
        tracemalloc.stop()


@both
def test_many_small_messages_take_no_memory_beside_their_bytes(magic: int) -> None:
    block = encode_message(NewRecord(None), magic=magic) * 8_000
    data = wrap_set(block, magic=magic, codec=Codec.GZIP, last_offset=0)
    tracemalloc.start()
    try:
        assert sum(1 for _ in messages(data, max_bytes=len(block), stored=False)) == 8_000
        assert tracemalloc.get_traced_memory()[1] < 3 * len(block)
    finally:
        tracemalloc.stop()
