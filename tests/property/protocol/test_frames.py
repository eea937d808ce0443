"""Frames do not depend on how the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.exchange import FrameReader
from tests.support.network.fed_frames import feed

bodies = st.lists(st.binary(max_size=50) | st.integers(4000, 20000).map(bytes), max_size=8)


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(bodies, st.data())
def test_frames_do_not_depend_on_how_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = stream_of(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, got = FrameReader(1 << 20), []
    for start, stop in pairwise([0, *cuts, len(stream)]):
        got += feed(reader, stream[start:stop])
    assert got == frames


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_frames_fed_byte_by_byte_come_out_whole(frames: list[bytes]) -> None:
    reader, got = FrameReader(1 << 20), []
    for byte in stream_of(frames):
        got += feed(reader, bytes([byte]))
    assert got == frames


@given(
    bodies, st.binary(max_size=3) | st.integers(1, 40).map(lambda n: (n + 1).to_bytes(4, "big") + bytes(n))
)
def test_an_incomplete_frame_after_whole_ones_is_kept(frames: list[bytes], tail: bytes) -> None:
    reader = FrameReader(1 << 20)
    assert feed(reader, stream_of(frames) + tail) == frames
    if len(tail) > 4:
        assert feed(reader, b"!") == [tail[4:] + b"!"]


@given(bodies, st.integers(-(1 << 31), -1) | st.integers((1 << 20) + 1, (1 << 31) - 1), st.data())
def test_whole_frames_come_out_before_a_bad_size_is_reported(
    frames: list[bytes], size: int, data: st.DataObject
) -> None:
    stream = stream_of(frames) + size.to_bytes(4, "big", signed=True) + b"more"
    cut = data.draw(st.integers(0, len(stream)))
    reader = FrameReader(1 << 20)
    assert frames_before_failure(reader, [stream[:cut], stream[cut:]]) == frames
    for call in (reader.buffer, lambda: reader.received(0), lambda: feed(reader, b"x")):
        with pytest.raises(FrameTooLarge, match=f"frame of {size} bytes; the limit is 1048576"):
            call()


def frames_before_failure(reader: FrameReader, pieces: list[bytes]) -> list[bytearray]:
    got: list[bytearray] = []
    try:
        for piece in pieces:
            got += feed(reader, piece)
    except FrameTooLarge:
        pass
    return got
