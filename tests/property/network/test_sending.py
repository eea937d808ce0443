"""However the socket takes the bytes, they arrive whole, in order, and every region is closed once."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.network.channel import Channel
from kafkalog_broker.network.reply import Transmission
from tests.support.network.sockets import FakeRegion, FakeSocket, frame

_KINDS = st.sampled_from([bytes, bytearray, memoryview, FakeRegion])
_PIECES = st.lists(st.tuples(_KINDS, st.binary(max_size=40)))
_READ_LIMITS = st.sampled_from([0, 10, 8192])
_ALLOWANCES = st.lists(st.integers(0, 60), max_size=60)


@given(_PIECES, _ALLOWANCES, _READ_LIMITS)
def test_a_transmission_does_not_depend_on_what_the_socket_takes_at_a_time(
    pieces: list[tuple[type, bytes]], allowances: list[int], read_limit: int
) -> None:
    with patch("kafkalog_broker.network.reply._READ_BYTES", read_limit):
        _check_sending(pieces, allowances)


def _check_sending(pieces: list[tuple[type, bytes]], allowances: list[int]) -> None:
    parts = [kind(data) for kind, data in pieces]
    transmission = Transmission(parts)
    whole = b"".join(data for _, data in pieces)
    received = bytearray()
    for allowance in allowances:
        sock = FakeSocket([allowance])
        done = transmission.send_to(sock)  # type: ignore[arg-type]
        received += sock.taken
        assert whole.startswith(received)
        if done:
            break
    last = FakeSocket()
    assert transmission.send_to(last)  # type: ignore[arg-type]
    assert bytes(received + last.taken) == whole
    assert all(part.closed_count == 1 for part in parts if isinstance(part, FakeRegion))


@given(_PIECES, _ALLOWANCES, _READ_LIMITS)
def test_giving_up_anywhere_closes_every_region_once(
    pieces: list[tuple[type, bytes]], allowances: list[int], read_limit: int
) -> None:
    parts = [kind(data) for kind, data in pieces]
    transmission = Transmission(parts)
    with patch("kafkalog_broker.network.reply._READ_BYTES", read_limit):
        transmission.send_to(FakeSocket(allowances))  # type: ignore[arg-type]
    transmission.close()
    assert all(part.closed_count == 1 for part in parts if isinstance(part, FakeRegion))


@given(st.lists(st.binary(max_size=5000), max_size=12), st.data())
def test_requests_are_taken_in_order_however_bytes_and_answers_interleave(
    bodies: list[bytes], data: st.DataObject
) -> None:
    channel, stream, taken = Channel(1 << 20), b"".join(map(frame, bodies)), []
    while len(taken) < len(bodies) or channel.muted:
        if channel.muted and (not stream or data.draw(st.booleans())):
            channel.answer(None)
        elif stream:
            buffer = channel.buffer()
            count = min(len(stream), len(buffer), data.draw(st.integers(1, 6000)))
            buffer[:count] = stream[:count]
            del buffer
            stream = stream[count:]
            channel.received(count)
        request = channel.take()
        if request is not None:
            taken.append(bytes(request))
    assert taken == bodies
