"""TLS on the server's side: the same requests and answers, whatever the records are; and what clients that
never finish a handshake cost.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.file_slice import NOTHING, FileSlice, MemorySlice
from kafkalog_broker.network.channel import Entrance, RequestMemory
from kafkalog_broker.network.reply import Part, Reply
from kafkalog_broker.network.socket_server import AddressLimits
from kafkalog_broker.network.tls_channel import HANDSHAKE_BYTES
from pyspark_kafkalog.errors import InvalidRequest
from tests.support.manual_clock import ManualClock
from tests.support.network.sockets import Client, Rounds, frame, serving
from tests.support.until import until

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Session:
    """Admitted with the end of the handshake, unless the test says otherwise."""

    def __init__(self, admit: Callable[[ssl.SSLObject], bool]) -> None:
        self.admitted = False
        self._admit = admit

    def secured(self, tls: ssl.SSLObject) -> None:
        self.admitted = self._admit(tls)


class Secured:
    """A listener's certificate, and a client's context that trusts it."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1").configure_cert(self.server)
        self.client = self.client_of()

    def client_of(self) -> ssl.SSLContext:
        """A new context that trusts the listener."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        return context

    def listener(
        self,
        *,
        seconds: float = 30.0,
        max_bytes: int = 1 << 20,
        admit: Callable[[ssl.SSLObject], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Arguments for `serving`."""
        return {
            "entrance": Entrance(lambda: self.server, max_bytes, seconds, RequestMemory()),
            "sessions": lambda _: Session(admit),
        }


@pytest.fixture(scope="module")
def secured() -> Secured:
    return Secured()


def echo(request: bytearray, reply: Reply) -> list[Part]:
    return [len(request).to_bytes(4, "big"), bytes(request)]


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_all_sizes_come_back(secured: Secured, version: ssl.TLSVersion) -> None:
    client_context = secured.client_of()
    client_context.minimum_version = client_context.maximum_version = version
    rng = random.Random(int(version))
    with serving(echo, **secured.listener()) as server, Client(server.port, tls=client_context) as client:
        sizes = [0, 1, 4091, 4092, 4093, 16383, 16384, 16385, 65536, 300_000, 5_000_000, 1]
        bodies = [rng.randbytes(size) for size in sizes]
        for body in bodies:
            client.send(body)
            assert client.receive() == body
        assert asyncio.run(pipelined(server.port, client_context, bodies)) == bodies


async def pipelined(port: int, tls: ssl.SSLContext, bodies: list[bytes]) -> list[bytes]:
    """What comes back to ``bodies`` that were sent at once. By one thread: where one reads an `ssl.SSLSocket`
    and another writes it, OpenSSL now and then takes the state of the one for an end of the other's stream.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(b"".join(map(frame, bodies)))
    answers = [await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")) for _ in bodies]
    writer.close()
    await writer.wait_closed()
    return answers


def test_parts_of_files_go_out_between_buffers(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    data = random.Random(7).randbytes(3_000_001)
    path.write_bytes(data)
    files = OpenFiles(FileSystem(), 16)

    def handler(request: bytearray, reply: Reply) -> list[Part]:
        at, size = 17, int(request)
        parts: list[Part] = [
            b"head", FileSlice(files.acquire(path), at, size), NOTHING, b"",
            MemorySlice(b"m" * 70_000, 2), memoryview(b"tail"),
        ]  # fmt: skip
        return [sum(map(len, parts)).to_bytes(4, "big"), *parts]

    with serving(handler, **secured.listener()) as server, Client(server.port, tls=secured.client) as client:
        for size in (1, 5000, 65536, 3_000_000 - 17):
            client.send(b"%d" % size)
            assert client.receive() == b"head" + data[17 : 17 + size] + b"m" * 70_000 + b"tail"
        until(lambda: files.in_use == 0)
    files.close()


def test_a_segment_that_became_shorter_ends_the_connection(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1000))
    files = OpenFiles(FileSystem(), 16)

    def handler(request: bytearray, reply: Reply) -> list[Part]:
        return [(200_000).to_bytes(4, "big"), FileSlice(files.acquire(path), 0, 200_000)]

    with serving(handler, **secured.listener()) as server, Client(server.port, tls=secured.client) as client:
        client.send(b"x")
        assert client.receive() != bytes(200_000)
        until(lambda: server.connection_count == 0 and files.in_use == 0)
    files.close()


def test_handshake_and_request_may_come_byte_by_byte(secured: Secured) -> None:
    with (
        serving(echo, **secured.listener()) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = secured.client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")

        def drip() -> None:
            for byte in outgoing.read():
                sock.send(bytes([byte]))

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                drip()
                incoming.write(sock.recv(65536))
        tls.write(frame(b"hello") + frame(b"again"))
        drip()
        answer = b""
        while len(answer) < 18:
            try:
                answer += tls.read(100)
            except ssl.SSLWantReadError:
                incoming.write(sock.recv(65536))
        assert answer == frame(b"hello") + frame(b"again")


def test_a_client_that_sends_and_never_reads_is_stopped_by_its_own_socket(secured: Secured) -> None:
    handled = [0]

    def handler(request: bytearray, reply: Reply) -> list[Part]:
        handled[0] += 1
        return echo(request, reply)

    with serving(handler, **secured.listener()) as server:
        client = Client(server.port, timeout=0.5, tls=secured.client)
        body, sent = bytes(100_000), 0
        try:
            while sent < 400:
                client.send(body)
                sent += 1
        except (TimeoutError, ssl.SSLError):
            pass
        assert sent < 400
        assert handled[0] <= sent
        with Client(server.port, tls=secured.client) as other:
            other.send(b"quick")
            assert other.receive() == b"quick"
        client.close()
        until(lambda: server.connection_count == 0)


def test_a_large_answer_gives_others_their_turn(secured: Secured) -> None:
    block = bytes(1 << 20)

    def handler(request: bytearray, reply: Reply) -> list[Part]:
        if request == b"big":
            return [(64 << 20).to_bytes(4, "big"), *[block] * 64]
        return echo(request, reply)

    with (
        serving(handler, **secured.listener()) as server,
        Client(server.port, tls=secured.client) as big,
        Client(server.port, tls=secured.client) as small,
    ):
        rounds = Rounds(server)
        big.send(b"big")
        small.send(b"small")
        assert len(big.receive()) == 64 << 20
        # Little more than 1 MiB is sent in a round, and in each of them others have their turn too.
        assert len(rounds.events) >= 32
        assert small.receive() == b"small"


def test_a_clients_goodbye_is_the_end_of_what_it_sends(secured: Secured) -> None:
    with serving(echo, **secured.listener()) as server:
        client = Client(server.port, tls=secured.client)
        client.send(b"last words")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = secured.client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            tls.write(frame(b"bye"))
            with pytest.raises(ssl.SSLWantReadError):
                tls.unwrap()
            sock.sendall(outgoing.read())
            answer = b""
            while piece := sock.recv(65536):  # the server closes the socket, which we did not
                answer += piece
            incoming.write(answer)
            assert tls.read(100) == frame(b"bye")
        assert client.receive() == b"last words"
        client.close()
        until(lambda: server.connection_count == 0)


def test_the_end_of_the_stream_is_reported(secured: Secured) -> None:
    def handler(request: bytearray, reply: Reply) -> None:
        reply.send_last([(3).to_bytes(4, "big"), b"bye"])

    with serving(handler, **secured.listener()) as server, Client(server.port, tls=secured.client) as client:
        client.send(b"x")
        assert client.receive() == b"bye"
        assert client.sock.recv(10) == b""  # an end without goodbye would raise SSLEOFError
        until(lambda: server.connection_count == 0)


@pytest.mark.parametrize(
    "hello",
    [
        b"\x00\x00\x00\x0a0123456789",  # a request in plaintext
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" + bytes(200),  # cut short by another record
        b"\x16\x03\x01\xff\xff" + bytes(70_000),  # a record larger than any
        b"\x16\x03\x01\x00\x00" * 20_000,  # empty ones without end
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x3f\xff\x01\x01\xf0\x00"
        + bytes(0x3FFB)
        + (b"\x16\x03\x01\x40\x00" + bytes(0x4000)) * 4,
    ],
    ids=["plaintext", "garbage", "huge record", "empty records", "http", "huge hello"],
)
def test_an_invalid_handshake_is_closed_and_others_are_served(secured: Secured, hello: bytes) -> None:
    with serving(echo, **secured.listener()) as server, Client(server.port, tls=secured.client) as other:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            try:
                sock.sendall(hello)
                while sock.recv(65536):
                    pass
            except ConnectionError:
                pass
        until(lambda: server.connection_count == 1)
        other.send(b"still here")
        assert other.receive() == b"still here"


def test_a_handshake_that_is_too_long_is_given_up_before_it_is_whole(secured: Secured) -> None:
    # A ClientHello of 120 KB: OpenSSL itself would take in up to 128 KiB.
    with serving(echo, **secured.listener()) as server:
        body = b"\x01" + (120_000).to_bytes(3, "big") + b"\x03\x03" + bytes(119_998)
        records = b"".join(
            b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece
            for piece in (body[i : i + 16384] for i in range(0, len(body), 16384))
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            sock.sendall(records[: HANDSHAKE_BYTES - 100])
            with Client(server.port, tls=secured.client) as other:  # one processor reads both
                for _ in range(3):
                    other.send(b"quick")
                    assert other.receive() == b"quick"
                assert server.connection_count == 2
            try:
                sock.sendall(records[HANDSHAKE_BYTES - 100 :])
                assert sock.recv(10) == b""
            except ConnectionError:
                pass
            until(lambda: server.connection_count == 0)


def test_half_open_connections_are_closed_at_the_limit_and_others_served(secured: Secured) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        secured.client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    hello = outgoing.read()
    clock = ManualClock()
    with serving(echo, clock=clock, **secured.listener(seconds=2.0)) as server:
        silent = [Client(server.port) for _ in range(200)]
        for number, client in enumerate(silent):
            client.sock.sendall(hello[: number % (len(hello) + 1)])  # the last one is whole
        with Client(server.port, tls=secured.client) as other:
            for _ in range(20):
                other.send(b"quick")
                assert other.receive() == b"quick"
            until(lambda: server.connection_count == 201)
            clock.advance(2.1)
            until(lambda: server.connection_count == 1)
            other.send(b"still here")
            assert other.receive() == b"still here"
        for client in silent:
            client.close()


def test_until_it_is_admitted_a_client_may_send_little_and_not_for_long(secured: Secured) -> None:
    clock = ManualClock()
    limits = secured.listener(seconds=1.0, max_bytes=1000, admit=lambda _: False)
    with serving(echo, clock=clock, **limits) as server:
        with Client(server.port, tls=secured.client) as client:
            client.send(b"x" * 1000)
            assert client.receive() == b"x" * 1000
            client.send(b"x" * 1001)
            assert client.receive() == b""
        with Client(server.port, tls=secured.client) as client:
            client.send(b"x")
            assert client.receive() == b"x"
            clock.advance(1.1)
            assert client.ended()


def test_a_certificate_that_is_not_welcome_ends_the_connection(secured: Secured) -> None:
    def refuse(tls: ssl.SSLObject) -> bool:
        raise InvalidRequest("no")

    with serving(echo, **secured.listener(admit=refuse)) as server:
        with Client(server.port, tls=secured.client) as client:
            assert client.ended()
        until(lambda: server.connection_count == 0)


def test_one_address_has_so_many_connections_and_gets_them_back() -> None:
    limits = AddressLimits(2, {"127.0.0.9": 0})
    with serving(echo, addresses=limits) as server:
        first, second, third = (Client(server.port) for _ in range(3))
        assert third.ended()
        third.close()
        first.close()
        until(lambda: server.connection_count == 1)
        with Client(server.port) as fourth:
            fourth.send(b"x")
            assert fourth.receive() == b"x"
        second.close()
        assert not limits.take("127.0.0.9")
    assert limits._counts == {}


def test_tls_at_a_listener_without_it_is_named_once(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(echo) as server:
        for _ in range(3):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                Client(server.port, tls=secured.client)
        until(lambda: server.connection_count == 0)
    assert caplog.text.count("speaks TLS, which this listener does not") == 1
