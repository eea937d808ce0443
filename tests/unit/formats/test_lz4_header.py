"""The header of lz4 frames in message sets: v0's wrong checksum, and no content size."""

from __future__ import annotations

import lz4.frame
import pytest

from pyspark_kafkalog.formats.compression import lz4_frame_for_message_set, lz4_frame_with_checksum, xxh32

DATA = b"the quick brown fox " * 200

FRAMES = [
    lz4.frame.compress(data, store_size=size, content_checksum=content, block_linked=False, block_size=block)
    for data in (b"", b"x", DATA)
    for size in (True, False)
    for content in (True, False)
    for block in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB)
]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_the_hash_is_xxh32(data: bytes, expected: int) -> None:
    assert xxh32(data) == xxh32(memoryview(data)) == expected


@pytest.mark.parametrize("frame", FRAMES)
def test_whatever_the_checksum_byte_it_becomes_the_library_s_own(frame: bytes) -> None:
    at = 14 if frame[4] & 8 else 6
    for byte in (0, 0x5A, 0xFF, frame[at]):
        damaged = frame[:at] + bytes((byte,)) + frame[at + 1 :]
        assert lz4_frame_with_checksum(damaged) == frame


@pytest.mark.parametrize("frame", FRAMES)
def test_a_set_of_v1_has_no_size_and_is_read_by_any_lz4(frame: bytes) -> None:
    ours = lz4_frame_for_message_set(frame, 1)
    assert ours[4] & 8 == 0
    assert lz4.frame.decompress(ours) == lz4.frame.decompress(frame)


@pytest.mark.parametrize("frame", FRAMES)
def test_a_set_of_v0_differs_in_one_byte_that_no_library_takes(frame: bytes) -> None:
    right, wrong = lz4_frame_for_message_set(frame, 1), lz4_frame_for_message_set(frame, 0)
    assert [i for i in range(len(right)) if right[i] != wrong[i]] == [6]
    assert wrong[6] == xxh32(wrong[:6]) >> 8 & 0xFF
    with pytest.raises(RuntimeError, match="headerChecksum"):
        lz4.frame.decompress(wrong)
    assert lz4_frame_with_checksum(wrong) == right


@pytest.mark.parametrize(("flags", "at"), [(0x60, 6), (0x61, 10), (0x68, 14), (0x69, 18)])
def test_the_checksum_byte_follows_whatever_the_descriptor_has(flags: int, at: int) -> None:
    frame = b"\x04\x22\x4d\x18" + bytes((flags, 0x40)) + bytes(range(40))
    mended = lz4_frame_with_checksum(frame)
    assert mended == frame[:at] + bytes((xxh32(frame[4:at]) >> 8 & 0xFF,)) + frame[at + 1 :]


@pytest.mark.parametrize(
    "data", [b"", b"\x04\x22\x4d", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x68", b"no frame"]
)
def test_an_invalid_frame_is_left_to_the_library(data: bytes) -> None:
    assert lz4_frame_with_checksum(data) == data
