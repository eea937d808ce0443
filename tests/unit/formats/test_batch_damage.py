"""Batches that cannot be: refused with the reason, before memory is taken for them."""

from __future__ import annotations

import struct

import pytest

from pyspark_kafkalog.errors import CorruptMessage, MessageTooLarge, UnsupportedCompression
from pyspark_kafkalog.formats.batch import (
    HEADER_SIZE,
    V2Format,
    decode_records,
    encode_batch,
    read_header,
    record_block,
    verify_crc,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.record import read_messages
from pyspark_kafkalog.types import NewRecord
from tests.support.formats.batch_bytes import LIMIT, THREE, decode, patched, with_block


@pytest.mark.parametrize(
    ("fmt", "position", "value", "why"),
    [
        (">b", 16, 1, "magic 1, not 2"),
        (">i", 8, 48, "impossible batch length 48"),
        (">i", 8, -1, "impossible batch length -1"),
        (">i", 57, -1, "-1 records"),
        (">i", 57, 4, "4 records with a last offset delta of 2"),
        (">i", 23, -1, "last offset delta of -1"),
        (">q", 0, 2**63 - 3, "do not fit 64 bits"),
    ],
)
def test_a_header_that_cannot_be_is_corrupt(fmt: str, position: int, value: int, why: str) -> None:
    with pytest.raises(CorruptMessage, match=why):
        read_header(patched(encode_batch(THREE), fmt, position, value) if position != 8 else _raw(value))


def _raw(length: int) -> bytes:
    out = bytearray(encode_batch(THREE))
    struct.pack_into(">i", out, 8, length)
    return bytes(out)


def test_a_header_cut_short_is_corrupt_and_for_a_log_incomplete() -> None:
    batch = encode_batch(THREE)
    for end in range(HEADER_SIZE):
        with pytest.raises(CorruptMessage, match=f"{end} of 61 bytes"):
            read_header(batch[:end])
        assert V2Format().frame_at(memoryview(batch)[:end], 0, 0) is None
    assert V2Format().frame_at(memoryview(batch)[:HEADER_SIZE], 0, 0) is not None


def test_a_batch_cut_short_is_corrupt_wherever_it_is_needed_whole() -> None:
    batch = encode_batch(THREE)
    header = read_header(batch)
    for part in (
        lambda b: verify_crc(b, 0, header),
        lambda b: record_block(b, 0, header, LIMIT),
        lambda b: decode_records(b, 0, header, LIMIT),
    ):
        with pytest.raises(CorruptMessage, match=f"cut short: {len(batch) - 1} of {len(batch)} bytes"):
            part(batch[:-1])


def test_every_flipped_bit_under_the_checksum_is_found() -> None:
    batch = encode_batch(THREE, base_offset=3)
    header = read_header(batch)
    for position in range(17, len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptMessage):
                decode(flipped)
    with pytest.raises(CorruptMessage, match="batch at offset 3: CRC-32C is"):
        verify_crc(batch[:-1] + b"!", 0, header)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_the_checksum_is_compared_before_anything_is_decompressed(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_kafkalog.formats import batch as module

    def refuse(*args: object) -> bytes:
        raise AssertionError("decompressed before the checksum was compared")

    batch = bytearray(encode_batch(THREE, codec=codec))
    batch[-1] ^= 1
    monkeypatch.setattr(module, "decompress", refuse)
    with pytest.raises(CorruptMessage, match="CRC-32C"):
        decode(batch)
    with pytest.raises(AssertionError, match="before"):
        decode(batch, check_crc=False)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_batch_that_decompresses_to_too_much_is_refused(codec: Codec) -> None:
    batch = encode_batch([NewRecord(bytes(1 << 20))], codec=codec)
    header = read_header(batch)
    size = len(record_block(batch, 0, header, LIMIT))
    assert len(decode_records(batch, 0, header, size)) == 1
    with pytest.raises(MessageTooLarge, match=f"limit is {size - 1}"):
        decode_records(batch, 0, header, size - 1)


def test_without_compression_the_block_is_the_batch_s_own_memory() -> None:
    batch = encode_batch(THREE)
    block = record_block(batch, 0, read_header(batch), 0)
    assert block.obj is batch
    assert block == batch[HEADER_SIZE:]


def test_an_unknown_codec_is_unsupported_and_not_corrupt() -> None:
    batch = patched(encode_batch(THREE), ">h", 21, 5)
    verify_crc(batch, 0, read_header(batch))
    with pytest.raises(UnsupportedCompression, match="codec 5"):
        decode(batch)


@pytest.mark.parametrize(
    ("block", "count", "why"),
    [
        ("0c 00 00 00 01 01 00", 2, "2 records cannot be in 7 bytes"),
        ("0c 00 00 00 01 01 00 00", 1, "1 bytes follow"),
        ("0c 00 00 00 01 01", 1, "1 records cannot be in 6 bytes"),
        ("0e 00 00 00 01 01 00", 1, "do not add up"),
        ("0a 00 00 00 01 01 00", 1, "do not add up"),
        ("0d 00 00 00 01 01 00", 1, "do not add up"),
        ("0e 00 00 00 03 01 00 00", 1, "do not add up"),
        ("0e 00 00 00 01 03 00 00", 1, "do not add up"),
        ("0c 00 00 01 01 01 00", 1, "do not add up"),
        ("0c 00 00 02 01 01 00", 1, "offset delta 1 after -1 in a batch that ends at 0"),
        ("0c 00 00 00 01 c8 01", 1, "cut short"),
        ("0c 00 00 00 01 01 02", 1, "1 headers cannot be in 0 bytes"),
        ("0c 00 00 00 01 01 01", 1, "-1 headers"),
        ("10 00 00 00 01 01 02 01 00", 1, "name of -1 bytes"),
        ("10 00 00 00 01 01 02 04 00", 1, "name of 2 bytes where 1 are left"),
        ("10 00 00 00 01 01 02 00 02", 1, "value of 1 bytes where 0 are left"),
        ("ff ff ff ff ff ff ff ff ff ff", 1, "64 bits"),
        ("0c 00 00 00 ff ff ff ff ff ff ff", 1, "32 bits"),
    ],
)
def test_records_that_cannot_be_are_corrupt(block: str, count: int, why: str) -> None:
    with pytest.raises(CorruptMessage, match=f"batch at offset 0: .*{why}"):
        decode(with_block(bytes.fromhex(block), count=count))


def test_offsets_that_do_not_rise_are_corrupt() -> None:
    one = bytes.fromhex("0c 00 00 00 01 01 00")
    with pytest.raises(CorruptMessage, match="offset delta 0 after 0 in a batch that ends at 4"):
        decode(with_block(one + one, count=2, last_delta=4))


def test_attributes_of_a_record_are_ignored() -> None:
    assert len(decode(with_block(bytes.fromhex("0c ff 00 00 01 01 00"), count=1))) == 1


def test_every_negative_length_is_a_null() -> None:
    block = bytes.fromhex("10 00 00 00 03 05 02 00 07")
    (record,) = decode(with_block(block, count=1))
    assert (record.key, record.value, record.headers) == (None, None, (("", None),))
    ((*_, key, value, has_headers),) = read_messages(
        memoryview(block), 1, base_offset=0, last_offset_delta=0, base_timestamp=0
    )
    assert (key, value, has_headers) == (None, None, True)
