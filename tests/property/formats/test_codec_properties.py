from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.base import (
    _portable_crc32c,
    crc32c,
    read_uvarint,
    read_varint,
    read_varlong,
    varint_bytes,
    varlong_bytes,
    write_uvarint,
)
from pyspark_kafkalog.formats.compression import Codec, compress, decompress
from tests.support.examples import examples
from tests.support.formats.batches import codecs

compressing = st.sampled_from([codec for codec in Codec if codec is not Codec.NONE])
runs = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 2000)), max_size=6).map(
    lambda parts: b"".join(part * times for part, times in parts)
)
noise = st.integers(0, 1 << 30).map(lambda seed: random.Random(seed).randbytes(seed % 150_000))
portable_crc32c = _portable_crc32c()


@given(st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_come_back_from_any_position(unsigned, signed, long) -> None:
    out = bytearray(b"?")
    write_uvarint(out, unsigned)
    out += varint_bytes(signed) + varlong_bytes(long)
    value, pos = read_uvarint(out, 1)
    assert value == unsigned
    value, pos = read_varint(out, pos)
    assert value == signed
    assert read_varlong(out, pos) == (long, len(out))


@given(st.binary(max_size=12))
def test_any_bytes_are_a_number_or_corrupt(data) -> None:
    for read, bits in ((read_uvarint, 32), (read_varint, 32), (read_varlong, 64)):
        try:
            value, pos = read(data, 0)
        except CorruptMessage:
            continue
        assert abs(value) < 1 << bits
        assert 0 < pos <= len(data)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_the_two_implementations_of_crc_32c_agree_whole_and_in_two_steps(data, cut) -> None:
    assert crc32c(data) == portable_crc32c(data, 0)
    assert crc32c(data[cut:], portable_crc32c(data[:cut], 0)) == crc32c(data)


@given(codecs, runs | noise, st.integers(0, 3))
@examples(150)
def test_what_is_compressed_comes_back_within_any_sufficient_bound(codec, data, slack) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data) + slack) == data
    if data:
        with pytest.raises(MessageTooLarge):
            decompress(codec, packed, random.Random(slack).randrange(len(data)))


@given(compressing, st.binary(max_size=300))
@examples(300)
def test_garbage_decompresses_to_a_bounded_something_or_a_kafka_error(codec, data) -> None:
    try:
        assert len(decompress(codec, data, 5000)) <= 5000
    except KafkaError:
        pass


@given(compressing, runs, st.data())
@examples(300)
def test_damage_gives_a_bounded_something_or_a_kafka_error(codec, data, draw) -> None:
    packed = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, bytes(packed), 60_000)) <= 60_000
    except KafkaError:
        pass


@given(compressing, runs, st.data())
def test_a_cut_is_never_taken_for_the_whole(codec, data, draw) -> None:
    packed = compress(codec, data)
    end = draw.draw(st.integers(0, len(packed) - 1)) if packed else 0
    try:
        found = decompress(codec, packed[:end], len(data))
    except CorruptMessage:
        return
    # Only xerial's framing has no end of its own: a cut between two blocks is a shorter stream.
    assert codec is Codec.SNAPPY
    assert data.startswith(bytes(found))
    assert len(found) % (32 * 1024) == 0
