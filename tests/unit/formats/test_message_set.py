from __future__ import annotations

import struct

import pytest

from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.formats.message_set import frames, records
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


def test_frames_tile_the_buffer_and_lead_from_one_to_the_next() -> None:
    found = list(frames(LOG))
    assert [(f.first_offset, f.last_offset, f.next_offset) for f in found] == [
        (0, 2, 3),
        (3, 3, 4),
        (4, 9, 10),
        (10, 11, 12),
    ]
    assert found[0].position == 0
    assert [f.end for f in found] == [f.position for f in found[1:]] + [len(LOG)]


@pytest.mark.parametrize("start", range(14))
def test_reading_begins_at_the_offset_that_was_asked_for(start: int) -> None:
    everything = [(0, b"a"), (1, b"b"), (2, b"c"), (10, b"d"), (11, b"e")]
    found = [(r.offset, r.value) for r in records(LOG, start_offset=start, max_bytes=LIMIT)]
    assert found == [(offset, value) for offset, value in everything if offset >= start]
    assert all(f.next_offset > start for f in frames(LOG, start_offset=start))


def test_a_frame_before_the_asked_offset_is_not_even_verified() -> None:
    damaged = bytearray(LOG)
    damaged[70] ^= 1
    assert [r.offset for r in records(damaged, start_offset=3, max_bytes=LIMIT)] == [10, 11]
    with pytest.raises(CorruptMessage, match="batch at offset 0: CRC-32C"):
        list(records(damaged, start_offset=2, max_bytes=LIMIT))


def test_cut_anywhere_the_whole_frames_before_the_cut_are_read() -> None:
    whole = list(frames(LOG))
    for end in range(len(LOG) + 1):
        assert list(frames(memoryview(LOG)[:end])) == [f for f in whole if f.end <= end]


def test_the_last_record_of_a_frame_leads_past_it() -> None:
    found = list(records(LOG, start_offset=0, max_bytes=LIMIT))
    assert [r.next_offset for r in found] == [1, 2, 3, 11, 12]


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


def test_nothing_holds_no_frames() -> None:
    assert list(frames(b"")) == []
    assert list(records(b"", start_offset=0, max_bytes=LIMIT)) == []
