from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord
from pyspark_kafkalog.formats.base import (
    read_uvarint,
    read_uvarlong,
    read_varint,
    read_varlong,
    varint_bytes,
    varlong_bytes,
    write_uvarint,
)

UNSIGNED = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16383, "ff7f"),
    (16384, "808001"),
    (2**32 - 1, "ffffffff0f"),
]
SIGNED = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
LONG = [*SIGNED, (2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]


@pytest.mark.parametrize(("value", "text"), UNSIGNED)
def test_unsigned_numbers_have_seven_bits_to_a_byte_lowest_first(value: int, text: str) -> None:
    out = bytearray(b"x")
    write_uvarint(out, value)
    assert out == b"x" + bytes.fromhex(text)
    assert read_uvarint(out, 1) == (value, len(out))


@pytest.mark.parametrize(("value", "text"), SIGNED)
def test_signed_numbers_are_zigzag_coded(value: int, text: str) -> None:
    out = b"x" + varint_bytes(value)
    assert out == b"x" + bytes.fromhex(text)
    assert read_varint(memoryview(out), 1) == (value, len(out))


@pytest.mark.parametrize(("value", "text"), LONG)
def test_longs_are_zigzag_coded_in_up_to_ten_bytes(value: int, text: str) -> None:
    out = varlong_bytes(value)
    assert out.hex() == text
    assert read_varlong(out, 0) == (value, len(out))


def test_an_unsigned_long_is_what_zigzag_is_made_of() -> None:
    assert read_uvarlong(bytes.fromhex("ffffffffffffffffff01"), 0) == (2**64 - 1, 10)


@pytest.mark.parametrize("read", [read_uvarint, read_varint, read_varlong, read_uvarlong])
@pytest.mark.parametrize("text", ["", "80", "ff", "ffffffff"])
def test_a_number_cut_short_is_corrupt(read, text: str) -> None:
    with pytest.raises(CorruptMessage, match="cut short"):
        read(bytes.fromhex(text), 0)


@pytest.mark.parametrize("read", [read_uvarint, read_varint])
@pytest.mark.parametrize("text", ["808080808000", "ffffffffff01", "8080808010", "ffffffff1f"])
def test_more_than_five_bytes_or_32_bits_is_corrupt(read, text: str) -> None:
    with pytest.raises(CorruptMessage, match="32 bits"):
        read(bytes.fromhex(text), 0)


@pytest.mark.parametrize("read", [read_uvarlong, read_varlong])
@pytest.mark.parametrize("text", ["8080808080808080808000", "80808080808080808002"])
def test_more_than_ten_bytes_or_64_bits_is_corrupt(read, text: str) -> None:
    with pytest.raises(CorruptMessage, match="64 bits"):
        read(bytes.fromhex(text), 0)


def test_needless_bytes_within_the_limit_are_read() -> None:
    assert read_uvarint(bytes.fromhex("8180808000"), 0) == (1, 5)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_an_unsigned_number_outside_its_type_is_not_written(value: int) -> None:
    out = bytearray()
    with pytest.raises(InvalidRecord, match=str(value)):
        write_uvarint(out, value)
    assert out == b""


@pytest.mark.parametrize(
    ("encode", "value"),
    [
        (varint_bytes, 2**31),
        (varint_bytes, -(2**31) - 1),
        (varlong_bytes, 2**63),
        (varlong_bytes, -(2**63) - 1),
    ],
)
def test_a_signed_number_outside_its_type_is_refused(encode, value: int) -> None:
    with pytest.raises(InvalidRecord, match=str(value)):
        encode(value)
