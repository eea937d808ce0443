from __future__ import annotations

import tracemalloc

import pytest

from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.frames import FrameReader

MIB = 1 << 20


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_nothing_comes_out_before_the_frame_is_whole() -> None:
    reader = FrameReader(100)
    assert reader.feed(b"\0\0\0\5hell") == []
    assert reader.feed(b"o") == [b"hello"]


def test_many_frames_in_one_read_come_out_in_order() -> None:
    assert FrameReader(100).feed(frame(b"a") + frame(b"") + frame(b"ccc")) == [b"a", b"", b"ccc"]


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    assert FrameReader(5000).feed(frame(bytes(5000))) == [bytes(5000)]


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_size_outside_the_limits_is_refused_before_its_body_arrives(size: int) -> None:
    with pytest.raises(FrameTooLarge, match=rf"frame of {size} bytes; the limit is 100"):
        FrameReader(100).feed(size.to_bytes(4, "big", signed=True))


def test_frames_are_writable_and_belong_to_the_caller() -> None:
    reader = FrameReader(100)
    (first,) = reader.feed(frame(b"abc"))
    first[0:1] = b"X"
    (second,) = reader.feed(frame(b"abc"))
    assert (first, second) == (b"Xbc", b"abc")
    first += b"grown"
    assert isinstance(first, bytearray)


def test_a_large_frame_is_received_where_it_stays() -> None:
    reader = FrameReader(MIB)
    assert reader.feed(frame(bytes(MIB))[: MIB // 2]) == []
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
        assert reader.feed(data) == []
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
    reader.feed(frame(bytes(MIB)))
    reader.feed((2000 * MIB).to_bytes(4, "big"))
    assert MIB - 8192 < len(reader.buffer()) <= MIB


def test_a_small_frame_ends_the_trust_in_large_ones() -> None:
    reader = FrameReader(2**31 - 1)
    reader.feed(frame(bytes(MIB)) + frame(bytes(5000)))
    reader.feed((2000 * MIB).to_bytes(4, "big"))
    assert len(reader.buffer()) <= 8192


def test_receiving_nothing_changes_nothing() -> None:
    reader = FrameReader(100)
    assert reader.received(0) == []
    assert reader.feed(frame(b"a")) == [b"a"]
