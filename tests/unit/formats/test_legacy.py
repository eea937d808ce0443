"""Message sets of v0 and v1: the layout by hand, offsets and times of what is compressed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import cramjam
import pytest

from pyspark_kafkalog.errors import InvalidRecord, UnsupportedCompression
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import (
    MIN_ENTRY_BYTES,
    assign_entry,
    encode_message,
    encode_set,
    inner_set,
    key_and_value,
    messages,
    read_entry,
    verify_entry,
    wrap_set,
)
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord, TimestampType
from tests.support.formats.legacy_bytes import (
    FORMAT,
    LIMIT,
    NEW,
    both,
    entry,
    only_frame,
    packing,
    read,
    refuse,
)

# --- the layout


@pytest.mark.parametrize(
    ("magic", "expected"),
    [
        (0, "0000000000000007 00000013 CRC 00 00 00000002 6b31 00000003 6f6e65"),
        (1, "0000000000000007 0000001b CRC 01 00 00000000000003e8 00000002 6b31 00000003 6f6e65"),
    ],
)
def test_a_message_is_laid_out_as_kafka_has_it(magic: int, expected: str) -> None:
    before, covered = (bytes.fromhex(part) for part in expected.split("CRC"))
    whole = before + struct.pack(">I", zlib.crc32(covered)) + covered
    assert encode_message(NEW[0], magic=magic, offset=7) == whole
    header = read_entry(whole)
    assert (header.offset, header.size, header.magic) == (7, len(whole), magic)
    assert (header.timestamp, header.codec) == (1000 if magic else NO_TIMESTAMP, Codec.NONE)
    assert key_and_value(memoryview(whole), 0, header) == (b"k1", b"one")


def test_the_smallest_entry_of_v0_is_enough_for_any_header() -> None:
    data = memoryview(encode_message(NewRecord(None), magic=0, offset=3))
    assert len(data) == MIN_ENTRY_BYTES == FORMAT.min_frame_size
    assert FORMAT.frame_at(data, 0, 0) == Frame(0, 26, 3, 3, 4, NO_TIMESTAMP)
    assert FORMAT.frame_at(data[:25], 0, 0) is None
    assert FORMAT.frame_at(memoryview(encode_message(NEW[0], magic=1, offset=3))[:26], 0, 0) == Frame(
        0, 39, 3, 3, 4, 1000
    )


def test_unknown_bits_of_the_attributes_are_ignored() -> None:
    assert read(entry(5, 1, b"x", attributes=0xF0 - 256, timestamp=9)) == [(5, 9, b"x")]
    (found,) = messages(entry(5, 0, b"x", attributes=0x08), max_bytes=LIMIT)
    assert found.timestamp_type is TimestampType.CREATE_TIME


# --- sets: offsets


@both
@packing
def test_a_compressed_set_ends_at_the_offset_of_its_wrapper(magic: int, codec: Codec) -> None:
    data = encode_set(NEW, magic=magic, codec=codec, base_offset=100)
    assert [offset for offset, *_ in read(data)] == [100, 101, 102]
    inner = [offset for offset, *_ in read(data, stored=False)]
    assert inner == ([100, 101, 102] if magic == 0 else [0, 1, 2])
    frame = FORMAT.frame_at(memoryview(data), 0, 0)
    assert frame == Frame(0, len(data), 102, 102, 103, 3000 if magic else NO_TIMESTAMP, False)


def test_a_v1_wrapper_at_offset_0_leaves_the_inner_offsets_as_they_are() -> None:
    data = wrap_set(entry(0, 1, b"a") + entry(1, 1, b"b"), magic=1, codec=Codec.GZIP, last_offset=0)
    assert [offset for offset, *_ in read(data)] == [0, 1]
    ends = [r.next_offset for r in FORMAT.records(memoryview(data), only_frame(data), max_bytes=LIMIT)]
    assert ends == [1, 2]


@pytest.mark.parametrize("wrapper", [4, 6, 9])
def test_a_v0_wrapper_must_have_the_offset_of_its_last_message(wrapper: int) -> None:
    # No checksum covers the wrapper's own offset: a flipped bit in it would hide what comes after.
    block = entry(4, 0, b"a") + entry(5, 0, b"b")
    data = wrap_set(block, magic=0, codec=Codec.GZIP, last_offset=wrapper)
    refuse(data, f"the compressed set at offset {wrapper}.*ends with a message at offset 5, not at")
    right = wrap_set(block, magic=0, codec=Codec.GZIP, last_offset=5)
    assert [(offset, value) for offset, _, value in read(right)] == [(4, b"a"), (5, b"b")]


@pytest.mark.parametrize(
    ("inner", "wrapper", "why"),
    [
        ([0, 1, 7], 6, "ends at relative offset 7"),
        ([5], 1, "ends at relative offset 5"),
        ([0, 7, 1], 20, "offset 1 follows 7"),
        ([0, 0], 20, "offset 0 follows 0"),
        ([-1, 0], 20, "offset -1 follows -1"),
    ],
)
def test_offsets_that_do_not_rise_or_leave_their_wrapper_are_corrupt(
    inner: Sequence[int], wrapper: int, why: str
) -> None:
    block = b"".join(entry(offset, 1, b"x") for offset in inner)
    data = wrap_set(block, magic=1, codec=Codec.GZIP, last_offset=wrapper)
    refuse(data, f"the compressed set at offset {wrapper}.*{why}")
    # A producer may send what it likes: the broker numbers it.
    assert [offset for offset, *_ in read(data, stored=False)] == inner


@both
def test_offsets_within_a_v0_wrapper_rise_as_well_and_none_is_below_0(magic: int) -> None:
    data = wrap_set(entry(3, 0, b"x") * 2, magic=0, codec=Codec.GZIP, last_offset=3)
    refuse(data, "in the compressed set at offset 3: offset 3 follows 3")
    refuse(entry(-1, magic, b"x"), "a message at offset -1")
    assert read(entry(-1, magic, b"x"), stored=False) == [(-1, -1, b"x")]


def test_no_offset_can_follow_the_largest() -> None:
    refuse(entry((1 << 63) - 1, 1, b"x"), "no offset can follow")
    assert read(entry((1 << 63) - 2, 1, b"x"))[0][0] == (1 << 63) - 2


# --- sets: times


@packing
def test_log_append_time_is_the_wrapper_s(codec: Codec) -> None:
    data = bytearray(encode_set(NEW, magic=1, codec=codec))
    assign_entry(data, 0, offset=62, timestamp=9999, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert read(bytes(data)) == [(60, 9999, b"one"), (61, 9999, None), (62, 9999, b"")]
    kinds = {m.timestamp_type for m in messages(data, max_bytes=LIMIT)}
    assert kinds == {TimestampType.LOG_APPEND_TIME}


def test_a_wrapper_decides_who_set_the_times_of_its_messages() -> None:
    inner = entry(0, 1, b"x", attributes=8, timestamp=7) + entry(1, 0, b"y")
    (one, two) = messages(
        wrap_set(inner, magic=1, codec=Codec.GZIP, last_offset=1, timestamp=50), max_bytes=LIMIT
    )
    assert (one.timestamp, one.timestamp_type) == (7, TimestampType.CREATE_TIME)
    stamped = wrap_set(
        inner, magic=1, codec=Codec.GZIP, last_offset=1, timestamp=50,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )  # fmt: skip
    (one, two) = messages(stamped, max_bytes=LIMIT)
    assert (one.timestamp, one.timestamp_type, one.magic) == (50, TimestampType.LOG_APPEND_TIME, 1)
    assert (two.timestamp, two.timestamp_type, two.magic) == (NO_TIMESTAMP, TimestampType.CREATE_TIME, 0)


# --- assigning


def test_a_time_is_assigned_with_a_new_checksum_but_v0_has_no_place_for_it() -> None:
    for magic in (0, 1):
        data = bytearray(b"??" + encode_message(NEW[0], magic=magic))
        before = bytes(data[10:])
        assign_entry(data, 2, offset=3, timestamp=77, timestamp_type=TimestampType.LOG_APPEND_TIME)
        header = read_entry(data, 2)
        verify_entry(data, 2, header)
        assert (data[10:] == before) == (magic == 0)
        assert (header.offset, header.timestamp) == (3, 77 if magic else NO_TIMESTAMP)
        assign_entry(data, 2, offset=4, timestamp=78)
        assert read_entry(data, 2).timestamp_type is TimestampType.CREATE_TIME


# --- codecs and their framings


@both
def test_snappy_is_written_in_xerial_framing_and_read_bare_as_well(magic: int) -> None:
    ours = encode_set(NEW, magic=magic, codec=Codec.SNAPPY)
    _, value = key_and_value(memoryview(ours), 0, read_entry(ours))
    assert value is not None
    assert value[:8] == b"\x82SNAPPY\0"
    bare = bytes(cramjam.snappy.compress_raw(bytes(inner_set(ours, 0, read_entry(ours), LIMIT))))
    assert read(entry(2, magic, bare, attributes=Codec.SNAPPY)) == read(ours)


def test_lz4_of_v0_has_the_wrong_checksum_and_is_read_with_either() -> None:
    v0, v1 = (encode_set(NEW, magic=magic, codec=Codec.LZ4) for magic in (0, 1))
    for data, magic in ((v0, 0), (v1, 1)):
        _, value = key_and_value(memoryview(data), 0, read_entry(data))
        assert value is not None
        frame = bytes(value)
        assert frame[4] & 0x08 == 0, "Kafka 0.8 to 0.10 cannot read a content size"
        assert (cramjam_reads(frame), magic) in ((True, 1), (False, 0))
    assert [value for *_, value in read(v0)] == [value for *_, value in read(v1)] == [b"one", None, b""]
    right = compress(Codec.LZ4, inner_set(v0, 0, read_entry(v0), LIMIT))
    assert read(entry(2, 0, right, attributes=Codec.LZ4)) == read(v0)


def test_the_wrong_checksum_is_corrupt_in_v1() -> None:
    v0 = encode_set(NEW, magic=0, codec=Codec.LZ4)
    _, value = key_and_value(memoryview(v0), 0, read_entry(v0))
    assert value is not None
    refuse(entry(2, 1, bytes(value), attributes=Codec.LZ4), "lz4 data is corrupt")


def cramjam_reads(frame: bytes) -> bool:
    try:
        cramjam.lz4.decompress(frame)
    except cramjam.DecompressionError:
        return False
    return True


@both
@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_zstd_and_codecs_that_are_none_are_refused(magic: int, number: int) -> None:
    packed = compress(Codec.ZSTD, encode_set(NEW, magic=magic))
    refuse(
        entry(2, magic, packed, attributes=number),
        f"v{magic} has no compression codec",
        UnsupportedCompression,
    )
    with pytest.raises(InvalidRecord, match=f"v{magic} cannot hold a set compressed in zstd"):
        encode_set(NEW, magic=magic, codec=Codec.ZSTD)
