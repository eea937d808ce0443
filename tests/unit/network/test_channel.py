"""One request in hand at a time; what comes later waits, and reading stops before it is much."""

from __future__ import annotations

import pytest

from kafkalog_broker.network.channel import HELD_BYTES, READ_AHEAD_BYTES, Channel
from pyspark_kafkalog.errors import FrameTooLarge
from tests.support.network.sockets import FakeRegion, FakeSocket, frame

LIMIT = 1 << 20


def put(channel: Channel, data: bytes) -> None:
    while data:
        buffer = channel.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        del buffer
        channel.received(count)
        data = data[count:]


def test_a_request_belongs_to_who_took_it() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"abcd") + frame(b"efgh"))
    request = channel.take()
    assert request is not None
    request[:2] = b"XY"
    request.extend(b"more")
    channel.answer(None)
    assert channel.take() == b"efgh"
    assert request == b"XYcdmore"


def test_the_next_request_waits_until_a_large_answer_is_sent() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"1") + frame(b"2"))
    assert channel.take() == b"1"
    channel.answer([bytes(HELD_BYTES)])
    assert channel.outgoing is not None
    assert channel.muted
    assert channel.take() is None
    assert channel.send_to(FakeSocket(iter([3, 0]))) is False  # type: ignore[arg-type]
    assert channel.take() is None
    sock = FakeSocket()
    assert channel.send_to(sock) is True  # type: ignore[arg-type]
    assert len(sock.taken) == HELD_BYTES - 3
    assert channel.outgoing is None
    assert channel.take() == b"2"


def test_small_answers_wait_for_each_other_and_leave_in_one_call() -> None:
    channel = Channel(LIMIT)
    put(channel, b"".join(frame(bytes([65 + i])) for i in range(4)))
    for i in range(4):
        assert channel.take() == bytes([65 + i])
        channel.answer([b"<", bytes([97 + i]), b">"] if i != 2 else None)
        assert channel.held
        assert not channel.muted
    sock = FakeSocket()
    assert channel.send_to(sock) is True  # type: ignore[arg-type]
    assert bytes(sock.taken) == b"<a><b><d>"
    assert sock.calls == ["send"]
    assert not channel.held


def test_a_large_answer_or_a_region_takes_the_held_ones_along() -> None:
    for large in (bytes(HELD_BYTES), FakeRegion(b"of a file")):
        channel = Channel(LIMIT)
        put(channel, frame(b"1") + frame(b"2") + frame(b"3"))
        channel.take()
        channel.answer([b"small"])
        assert channel.take() == b"2"
        channel.answer([large])
        assert channel.take() is None
        sock = FakeSocket()
        assert channel.send_to(sock) is True  # type: ignore[arg-type]
        assert bytes(sock.taken) == b"small" + (large if isinstance(large, bytes) else large.read())
        assert channel.take() == b"3"


def test_answers_after_one_that_is_half_sent_are_not_begun() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"1") + frame(b"2"))
    channel.take()
    channel.answer([b"first"])
    assert channel.send_to(FakeSocket([2, 0])) is False  # type: ignore[arg-type]
    assert channel.take() is None, "the socket is full: no further request is begun"


def test_held_answers_are_bounded() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"") * 100)
    answered = 0
    while channel.take() is not None:
        channel.answer([bytes(1000)])
        answered += 1
    assert answered == HELD_BYTES // 1000 + 1
    assert channel.muted


def test_reading_continues_after_a_request_in_hand_up_to_the_limit() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"in hand"))
    assert channel.take() == b"in hand"
    small = frame(bytes(1000))
    behind = 0
    while channel.reads_on():
        put(channel, small)
        behind += len(small)
        assert behind < 2 * READ_AHEAD_BYTES
    assert behind >= READ_AHEAD_BYTES
    channel.answer(None)
    assert channel.reads_on()
    waiting = 0
    while channel.take() is not None:
        waiting += 1
        channel.answer(None)
    assert waiting == behind // len(small)


@pytest.mark.parametrize("size", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_an_impossible_size_is_refused_at_its_fourth_byte(size: int) -> None:
    channel = Channel(LIMIT)
    with pytest.raises(FrameTooLarge, match=str(size)):
        put(channel, size.to_bytes(4, "big", signed=True))


def test_close_drops_what_waits_and_what_was_not_sent() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"1") + frame(b"2"))
    channel.take()
    region = FakeRegion(b"data")
    channel.answer([region])
    channel.close()
    assert region.closed_count == 1
    assert channel.take() is None
    assert not channel.muted


def test_requests_before_an_impossible_size_are_taken_before_it_is_raised() -> None:
    channel = Channel(LIMIT)
    put(channel, frame(b"good") + frame(b"too") + (-5).to_bytes(4, "big", signed=True))
    assert channel.take() == b"good"
    channel.answer(None)
    assert channel.take() == b"too"
    assert channel.take() is None, "while a request is in hand nothing is raised"
    channel.answer(None)
    with pytest.raises(FrameTooLarge, match="-5"):
        channel.take()
