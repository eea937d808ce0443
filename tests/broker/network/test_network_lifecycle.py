"""Starting, stopping, and the limits on connections."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.network.reply import Reply
from kafkalog_broker.network.socket_server import NetworkConfig, SocketServer, listen, peer_name
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.manual_clock import ManualClock
from tests.support.network.sockets import Client, Counts, FakeRegion, ManualWorkers, serving
from tests.support.until import until


def echo(request: bytearray, reply: Reply) -> None:
    reply.send([len(request).to_bytes(4, "big"), bytes(request)])


def test_an_address_in_use_is_named() -> None:
    with serving(echo) as server:
        second = SocketServer(NetworkConfig(port=server.port), echo, Counts(), workers=ManualWorkers())
        with pytest.raises(
            InvalidConfig,
            match=rf"^listeners: cannot listen on 127\.0\.0\.1:{server.port}: address already in use",
        ):
            second.start()
        second.stop()


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("192.0.2.1", r"cannot listen on 192\.0\.2\.1:0: this machine has no such address"),
        ("no.such.host.invalid", r"cannot find the address of 'no\.such\.host\.invalid'"),
    ],
)
def test_an_address_that_cannot_be_had_is_named(host: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        listen(host, 0, 1)


def test_peers_are_named_with_brackets_only_where_needed() -> None:
    assert peer_name(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert peer_name(("::1", 80, 0, 0)) == "[::1]:80"
    assert peer_name("") == "unknown"


OWN_ADDRESS = "127.83.7.1"
"""Of this machine, and nobody else listens there: a port that is free for a moment stays so."""


def test_a_port_can_be_listened_on_again_right_after_a_stop() -> None:
    with serving(echo, host=OWN_ADDRESS) as server, Client(server.port, host=OWN_ADDRESS) as client:
        port = server.port
        client.send(b"1")
        assert client.receive() == b"1"
    with serving(echo, host=OWN_ADDRESS, port=port), Client(port, host=OWN_ADDRESS) as client:
        client.send(b"2")
        assert client.receive() == b"2"


def test_stop_closes_idle_connections_and_the_port() -> None:
    clock = ManualClock()  # which stands still: a stop that waited for the grace time would not return
    with serving(echo, host=OWN_ADDRESS, clock=clock) as server:
        client = Client(server.port, host=OWN_ADDRESS)
        client.send(b"1")
        assert client.receive() == b"1"
        server.stop(grace_seconds=30)
        assert client.ended()
        client.close()
        assert server.connection_count == 0
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect((OWN_ADDRESS, server.port))


def test_stop_waits_for_a_request_in_hand_and_begins_no_other() -> None:
    begun: list[tuple[bytearray, Reply]] = []
    clock = ManualClock()  # the grace time never ends
    with (
        serving(lambda request, reply: begun.append((request, reply)), clock=clock) as server,
        Client(server.port) as client,
    ):
        idle = Client(server.port)
        client.send(b"in hand", b"behind it")
        until(lambda: len(begun) == 1 and server.connection_count == 2)
        stopping = threading.Thread(target=server.stop, args=(10,))
        stopping.start()
        assert idle.ended()  # so it has begun to stop
        idle.close()
        assert stopping.is_alive(), "it waits"
        echo(*begun[0])
        assert client.receive() == b"in hand"
        assert client.ended()
        stopping.join()
        assert [bytes(request) for request, _ in begun] == [b"in hand"]


class CountedClock(ManualClock):
    """Counts how often it was looked at."""

    reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return super().monotonic()


def test_stop_gives_up_after_the_grace_time() -> None:
    replies: list[Reply] = []
    clock = CountedClock()
    with (
        serving(lambda request, reply: replies.append(reply), clock=clock) as server,
        Client(server.port) as client,
    ):
        client.send(b"never answered")
        idle = Client(server.port)
        until(lambda: len(replies) == 1 and server.connection_count == 2)
        gone = threading.Event()
        replies[0].on_close(gone.set)
        stopping = threading.Thread(target=server.stop, args=(20,))
        stopping.start()
        assert idle.ended()
        idle.close()
        clock.advance(19)
        looked = clock.reads
        until(lambda: clock.reads > looked + 3)
        assert not gone.is_set()
        clock.advance(2)
        stopping.join()
        assert gone.is_set()
        assert client.ended()
        region = FakeRegion(b"x")
        replies[0].send([region])
        assert region.closed_count == 1


def test_stop_lets_a_half_sent_answer_finish() -> None:
    answer = bytes(40_000_000)
    with serving(lambda request, reply: reply.send([b"\x02\x62\x5a\x00", answer])) as server:
        client, idle = Client(server.port), Client(server.port)
        client.send(b"x")
        head = client.sock.recv(4, socket.MSG_WAITALL)
        until(lambda: server.connection_count == 2)
        stopper = threading.Thread(target=server.stop, args=(60,))
        stopper.start()
        assert idle.ended()  # so it has begun to stop
        idle.close()
        assert len(client._exactly(int.from_bytes(head, "big"))) == len(answer)
        assert client.ended()
        client.close()
        stopper.join()


def test_stop_twice_and_before_start_are_harmless() -> None:
    server = SocketServer(NetworkConfig(port=0), echo, Counts(), workers=ManualWorkers())
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_connections_above_the_limit_are_closed_at_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(echo, max_connections=2) as server:
        first, second = Client(server.port), Client(server.port)
        until(lambda: server.connection_count == 2)
        with Client(server.port) as third:
            assert third.ended()
        first.close()
        until(lambda: server.connection_count == 1)
        with Client(server.port) as fourth:
            for client in (second, fourth):
                client.send(b"in")
                assert client.receive() == b"in"
        second.close()
    assert "max.connections=2 reached, closed 127.0.0.1:" in caplog.text
    assert caplog.text.count("max.connections") == 1


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    late: list[tuple[bytearray, Reply]] = []

    def handler(request: bytearray, reply: Reply) -> None:
        if request == b"wait":
            late.append((request, reply))
        else:
            echo(request, reply)

    clock = ManualClock()
    with serving(handler, max_idle_ms=300, clock=clock) as server:
        idle, busy, waiting = (Client(server.port) for _ in range(3))
        waiting.send(b"wait")
        until(lambda: late and server.connection_count == 3)
        for _ in range(8):
            clock.advance(0.1)
            busy.send(b"tick")
            assert busy.receive() == b"tick"
        assert idle.ended()
        assert server.connection_count == 2
        echo(*late[0])
        assert waiting.receive() == b"wait"
        clock.advance(0.4)
        for client in (busy, waiting):
            assert client.ended()
        for client in (idle, busy, waiting):
            client.close()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Room for 30 more open files than there are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 30, hard))
    yield highest + 30
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Pauses(threading.Event):
    """Counts how often it is waited for."""

    count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return super().wait(timeout)


def test_running_out_of_descriptors_is_survived(
    few_descriptors: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(echo) as server:
        acceptor = server._acceptor
        assert acceptor is not None
        acceptor._stopping = pauses = Pauses()
        clients: list[socket.socket] = []
        try:
            while True:  # each takes a descriptor here and one in the server
                sock = socket.socket()
                clients.append(sock)
                sock.settimeout(60)
                sock.connect(("127.0.0.1", server.port))
        except OSError:
            pass
        until(lambda: "cannot accept now" in caplog.text)
        until(lambda: acceptor._refused_count >= 3)
        attempts = acceptor._refused_count
        assert pauses.count >= attempts - 1, "the acceptor spins"
        for sock in clients:
            sock.close()
        until(lambda: server.connection_count == 0)
        with Client(server.port) as client:
            client.send(b"back again")
            assert client.receive() == b"back again"
