"""A transmission sends its parts in order, whatever the socket takes at a time."""

from __future__ import annotations

import pytest

from kafkalog_broker.network import reply as transmission_module
from kafkalog_broker.network.reply import Transmission, close_regions
from tests.support.network.sockets import FakeRegion, FakeSocket


@pytest.fixture(params=["read", "sendfile"], autouse=True)
def regions_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with its regions small enough to be read, and too large for it."""
    if request.param == "sendfile":
        monkeypatch.setattr(transmission_module, "_READ_BYTES", 0)
    return str(request.param)


def _parts() -> tuple[list[object], list[FakeRegion], bytes]:
    regions = [FakeRegion(b"first region"), FakeRegion(b"second")]
    parts = [b"head", bytearray(b"er"), regions[0], memoryview(b"middle"), regions[1], b"tail"]
    return parts, regions, b"headerfirst regionmiddlesecondtail"


@pytest.mark.parametrize("join_bytes", [transmission_module._JOIN_BYTES, 0], ids=["copied", "gathered"])
def test_sending_can_pause_at_every_byte(monkeypatch: pytest.MonkeyPatch, join_bytes: int) -> None:
    monkeypatch.setattr(transmission_module, "_JOIN_BYTES", join_bytes)
    whole = _parts()[2]
    for cut in range(len(whole) + 1):
        parts, regions, _ = _parts()
        transmission = Transmission(parts)
        sock = FakeSocket()
        sent_before = _send_up_to(transmission, sock, cut)
        assert sent_before == (cut == len(whole)), cut
        assert bytes(sock.taken) == whole[:cut], cut
        rest = FakeSocket()
        assert transmission.send_to(rest) is True
        assert whole[:cut] + bytes(rest.taken) == whole, cut
        assert [r.closed_count for r in regions] == [1, 1], cut


def _send_up_to(transmission: Transmission, sock: FakeSocket, limit: int) -> bool:
    sock._allowances = _budget(sock, limit)
    return transmission.send_to(sock)


def _budget(sock: FakeSocket, limit: int):
    while True:
        yield limit - len(sock.taken)


def test_a_small_answer_costs_one_call() -> None:
    sock = FakeSocket()
    assert Transmission([b"size", b"header", b"body"]).send_to(sock)
    assert sock.calls == ["send"]


def test_large_buffers_are_gathered_in_one_call_and_not_copied() -> None:
    sock = FakeSocket()
    assert Transmission([b"head", bytes(100_000), b"tail"]).send_to(sock)
    assert sock.calls == ["sendmsg"]
    assert len(sock.taken) == 100_008


def test_more_buffers_than_one_call_may_take_are_sent_all_the_same() -> None:
    parts = [bytes([i % 256]) * 20 for i in range(3000)]
    sock = FakeSocket()
    assert Transmission(parts).send_to(sock)
    assert bytes(sock.taken) == b"".join(parts)
    assert len(sock.calls) == 3


def test_nothing_to_send_is_finished_at_once() -> None:
    sock = FakeSocket(iter([]))
    region = FakeRegion(b"")
    assert Transmission([]).send_to(sock)
    assert Transmission([region]).send_to(sock)
    assert region.closed_count == 1
    assert sock.calls == []


def test_a_peer_that_is_gone_raises_and_close_frees_the_regions() -> None:
    parts, regions, _ = _parts()
    transmission = Transmission(parts)
    sock = FakeSocket()
    sock.error = BrokenPipeError()
    with pytest.raises(BrokenPipeError):
        transmission.send_to(sock)
    transmission.close()
    assert [r.closed_count for r in regions] == [1, 1]


def test_a_peer_that_vanishes_inside_a_region_leaves_it_to_close(regions_are: str) -> None:
    region = FakeRegion(bytes(100))
    transmission = Transmission([region, b"tail"])
    sock = FakeSocket(iter([40, 0]))
    assert transmission.send_to(sock) is False
    sock.error = ConnectionResetError()
    with pytest.raises(ConnectionResetError):
        transmission.send_to(sock)
    assert region.closed_count == (regions_are == "read")
    transmission.close()
    assert region.closed_count == 1


def test_small_regions_leave_with_the_bytes_around_them_in_one_call(regions_are: str) -> None:
    parts, _, whole = _parts()
    sock = FakeSocket()
    assert Transmission(parts).send_to(sock)
    assert sock.calls == (["send"] if regions_are == "read" else ["send", "region", "send", "region", "send"])
    assert bytes(sock.taken) == whole


def test_only_so_much_of_small_regions_is_held_for_a_slow_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transmission_module, "_READ_BYTES", 8192)
    regions = [FakeRegion(bytes(8192)) for _ in range(100)]
    transmission = Transmission(regions)
    assert transmission.send_to(FakeSocket([])) is False
    assert sum(r.closed_count for r in regions) == 9
    transmission.close()
    assert all(r.closed_count == 1 for r in regions)


def test_regions_of_an_answer_that_was_never_sent_can_be_closed() -> None:
    parts, regions, _ = _parts()
    close_regions(parts)
    assert [r.closed_count for r in regions] == [1, 1]
