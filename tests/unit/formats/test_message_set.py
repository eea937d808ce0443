from __future__ import annotations

import struct

import pytest

from pyspark_kafkalog.errors import CorruptMessage, UnsupportedCompression
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control, magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_message, encode_set
from pyspark_kafkalog.formats.message_set import ENTRIES, codec_at, coded_records, frames, records
from pyspark_kafkalog.types import NewRecord

LIMIT = 1 << 20


def batch(base_offset: int, *values: bytes, **kw: int) -> bytes:
    return encode_batch([NewRecord(v, None, 5) for v in values], base_offset=base_offset, **kw)


LOG = b"".join(
    (
        batch(0, b"a", b"b", b"c"),
        encode_control(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=5, base_offset=3),
        encode_batch([], base_offset=4, last_offset_delta=5),
        batch(10, b"d", b"e"),
    )
)


def test_a_frame_before_the_asked_offset_is_not_even_verified() -> None:
    damaged = bytearray(LOG)
    damaged[70] ^= 1
    assert [r.offset for r in records(damaged, start_offset=3, max_bytes=LIMIT)] == [10, 11]
    with pytest.raises(CorruptMessage, match="batch at offset 0: CRC-32C"):
        list(records(damaged, start_offset=2, max_bytes=LIMIT))


@pytest.mark.parametrize("length", [-1, 0, 13])
def test_an_impossible_length_is_corrupt_even_at_the_end(length: int) -> None:
    with pytest.raises(CorruptMessage, match=f"impossible entry length {length} at byte {len(LOG)}"):
        list(frames(LOG + struct.pack(">qi", 12, length)))


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    entry = bytearray(batch(12, b"x"))
    entry[16] = magic
    with pytest.raises(CorruptMessage, match="magic"):
        list(frames(LOG + entry))


def test_a_v2_batch_shorter_than_its_header_is_corrupt() -> None:
    entry = struct.pack(">qiib", 12, 14, 0, 2) + bytes(9)
    with pytest.raises(CorruptMessage, match="impossible batch length 14"):
        list(frames(LOG + entry))
    with pytest.raises(CorruptMessage, match="impossible batch length 14"):
        list(frames(LOG + entry + bytes(100)))


# --- logs that mix formats

MIXED = b"".join(
    (
        encode_message(NewRecord(b"a"), magic=0, offset=0),
        encode_set([NewRecord(b"b"), NewRecord(b"c")], magic=1, codec=Codec.LZ4, base_offset=1),
        batch(3, b"d", b"e"),
        encode_control(ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=5, base_offset=5),
        encode_set([NewRecord(b"f"), NewRecord(b"g")], magic=0, codec=Codec.SNAPPY, base_offset=6),
        encode_message(NewRecord(b"h", timestamp=70), magic=1, offset=8),
        encode_message(NewRecord(None), magic=0, offset=9),
    )
)


def test_each_entry_tells_its_format_and_codec() -> None:
    found = list(frames(MIXED))
    assert [(f.first_offset, f.last_offset, f.first_is_known) for f in found] == [
        (0, 0, True), (2, 2, False), (3, 4, True), (5, 5, True), (7, 7, False), (8, 8, True), (9, 9, True),
    ]  # fmt: skip
    assert [magic_at(MIXED, f.position) for f in found] == [0, 1, 2, 2, 0, 1, 0]
    assert [codec_at(MIXED, f.position).name for f in found if codec_at(MIXED, f.position)] == [
        "LZ4",
        "SNAPPY",
    ]
    assert [f.max_timestamp for f in found] == [-1, -1, 5, 5, -1, 70, -1]


def test_how_each_entry_is_compressed_is_reported_with_its_records() -> None:
    told = [
        (codec, len(list(found))) for codec, found in coded_records(MIXED, start_offset=0, max_bytes=LIMIT)
    ]
    assert told == [
        (Codec.NONE, 1), (Codec.LZ4, 2), (Codec.NONE, 2), (Codec.NONE, 0), (Codec.SNAPPY, 2), (Codec.NONE, 1),
        (Codec.NONE, 1),
    ]  # fmt: skip


def test_the_format_of_mixed_logs_needs_a_head_of_61_bytes_and_no_entry_has_fewer_than_26() -> None:
    assert ENTRIES.min_frame_size == 26
    view = memoryview(MIXED)
    for frame in frames(MIXED):
        head = view[frame.position : frame.position + 61]
        assert ENTRIES.frame_at(head, 0, 0) == frame._replace(position=0)
        assert ENTRIES.frame_at(head[:25], 0, 0) is None
        ENTRIES.verify(view, frame)
        damaged = bytearray(view[frame.position : frame.end])
        damaged[-1] ^= 1
        with pytest.raises(CorruptMessage, match="CRC-32"):
            ENTRIES.verify(memoryview(damaged), frame._replace(position=0))


def test_zstd_is_not_a_codec_of_message_sets() -> None:
    entry = bytearray(encode_message(NewRecord(b"x"), magic=1))
    entry[17] = Codec.ZSTD
    with pytest.raises(UnsupportedCompression, match="v1 has no compression codec 4"):
        codec_at(entry, 0)


def test_an_entry_without_its_magic_is_cut_short() -> None:
    with pytest.raises(CorruptMessage, match="the entry at byte 0 is cut short: 16 bytes"):
        magic_at(MIXED[:16], 0)
    with pytest.raises(CorruptMessage, match="unknown magic 3 of the entry at byte 2: Kafka has 0 to 2"):
        magic_at(b"??" + bytes(16) + b"\3", 2)
