from __future__ import annotations

import tracemalloc

import pytest

from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.exchange import FrameReader
from tests.support.network.fed_frames import feed

MIB = 1 << 20


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    assert feed(FrameReader(5000), frame(bytes(5000))) == [bytes(5000)]


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_size_outside_the_limits_is_refused_before_its_body_arrives(size: int) -> None:
    with pytest.raises(FrameTooLarge, match=rf"frame of {size} bytes; the limit is 100"):
        feed(FrameReader(100), size.to_bytes(4, "big", signed=True))


def test_frames_are_writable_and_belong_to_the_caller() -> None:
    reader = FrameReader(100)
    (first,) = feed(reader, frame(b"abc"))
    first[0:1] = b"X"
    (second,) = feed(reader, frame(b"abc"))
    assert (first, second) == (b"Xbc", b"abc")
    first += b"grown"
    assert isinstance(first, bytearray)


def test_a_large_frame_is_received_where_it_stays() -> None:
    reader = FrameReader(MIB)
    assert feed(reader, frame(bytes(MIB))[: MIB // 2]) == []
    view = reader.buffer()
    view[:] = b"\1" * len(view)
    done = reader.received(len(view))
    while not done:
        view = reader.buffer()
        view[:] = b"\1" * len(view)
        done = reader.received(len(view))
    (body,) = done
    assert len(body) == MIB
    assert body.count(1) == MIB - (MIB // 2 - 4)


def peak_bytes(reader: FrameReader, data: bytes) -> int:
    tracemalloc.start()
    try:
        assert feed(reader, data) == []
        reader.buffer()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_follows_the_bytes_that_came_not_the_size_claimed() -> None:
    claim = (2000 * MIB).to_bytes(4, "big")
    assert peak_bytes(FrameReader(2**31 - 1), claim + b"x") < 20_000
    assert peak_bytes(FrameReader(2**31 - 1), claim + bytes(MIB)) < 6 * MIB


def test_a_peer_that_sent_large_frames_gets_as_much_at_once_and_no_more() -> None:
    reader = FrameReader(2**31 - 1)
    feed(reader, frame(bytes(MIB)))
    feed(reader, (2000 * MIB).to_bytes(4, "big"))
    assert MIB - 8192 < len(reader.buffer()) <= MIB


def test_a_small_frame_ends_the_trust_in_large_ones() -> None:
    reader = FrameReader(2**31 - 1)
    feed(reader, frame(bytes(MIB)) + frame(bytes(5000)))
    feed(reader, (2000 * MIB).to_bytes(4, "big"))
    assert len(reader.buffer()) <= 8192


def test_receiving_nothing_changes_nothing() -> None:
    reader = FrameReader(100)
    assert reader.received(0) == []
    assert feed(reader, frame(b"a")) == [b"a"]


def receive(reader: FrameReader, data: bytes) -> tuple[list[bytearray], int]:
    """As a socket does it, each view let go of before the next step; the frames, and how many reads."""
    got, reads = [], 0
    while data:
        room = reader.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        del room
        data = data[count:]
        got += reader.received(count)
        reads += 1
    return got, reads


def test_frames_of_one_size_are_received_with_one_read_each() -> None:
    reader = FrameReader(MIB)
    feed(reader, frame(bytes(65_000)))
    bodies = [bytes([number]) * 65_000 for number in range(5)]
    assert receive(reader, b"".join(map(frame, bodies))) == (bodies, 5)


def test_a_frame_is_whole_although_its_buffer_is_still_held() -> None:
    reader = FrameReader(MIB)
    feed(reader, frame(bytes(10_000)))
    room = reader.buffer()
    room[:] = frame(b"x" * 10_000)
    assert reader.received(len(room)) == [b"x" * 10_000]


def test_memory_made_ready_for_a_frame_is_given_up_at_rest_but_not_its_first_bytes() -> None:
    reader = FrameReader(MIB)
    feed(reader, frame(bytes(50_000)))
    tracemalloc.start()
    try:
        assert len(reader.buffer()) == 50_004
        assert tracemalloc.get_traced_memory()[0] > 50_000
        reader.rest()
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    reader.buffer()[:2] = frame(bytes(50_000))[:2]
    assert reader.received(2) == []
    reader.rest()
    assert feed(reader, frame(bytes(50_000))[2:]) == [bytes(50_000)]


def _frame(fill: int, size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes([fill]) * size


@pytest.mark.parametrize("later", [300_000, 299_000, 100, 301_000, 900_000])
def test_memory_given_back_serves_a_later_frame_whatever_its_size(later: int) -> None:
    reader = FrameReader(1 << 20)
    (first,) = feed(reader, _frame(1, 300_000))
    reader.recycle(first)
    (second,) = feed(reader, _frame(2, later))
    assert second == bytes([2]) * later
    if later in (300_000, 299_000):
        assert second is first


def test_frames_that_vary_a_little_share_the_same_memory() -> None:
    reader = FrameReader(1 << 20)
    (frame,) = feed(reader, _frame(1, 320_000))
    for number, size in enumerate((300_000, 310_000, 319_000, 305_000, 320_000)):
        reader.recycle(frame)
        (following,) = feed(reader, _frame(number, size))
        assert following is frame
        assert frame == bytes([number]) * size


@pytest.mark.parametrize("later", [300_000, 299_000])
def test_memory_that_somebody_looks_at_is_not_used_again(later: int) -> None:
    reader = FrameReader(1 << 20)
    (first,) = feed(reader, _frame(1, 300_000))
    looked_at = memoryview(first)[100:200]
    reader.recycle(first)
    (second,) = feed(reader, _frame(2, later))
    assert second == bytes([2]) * later
    assert looked_at == bytes([1]) * 100
    assert len(first) == 300_000
