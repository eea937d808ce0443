"""Fake sockets and regions, and a raw client and server for the tests of kafkalog_broker.network."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kafkalog_broker.network.channel import Entrance
from kafkalog_broker.network.processor import RequestHandler
from kafkalog_broker.network.socket_server import AddressLimits, NetworkConfig, Sessions, SocketServer
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock


def frame(body: bytes) -> bytes:
    """A body with its size prefix."""
    return len(body).to_bytes(4, "big") + body


class FakeSocket:
    """Takes as many bytes per call as it is told, then blocks; remembers everything."""

    def __init__(self, allowances: Iterable[int] | None = None) -> None:
        self._allowances = None if allowances is None else iter(allowances)
        self.taken = bytearray()
        self.calls: list[str] = []
        self.error: OSError | None = None

    def take(self, size: int) -> int:
        if self.error is not None:
            raise self.error
        if self._allowances is None:
            return size
        allowed = next(self._allowances, None)
        if not allowed:
            raise BlockingIOError
        return min(size, allowed)

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        self.calls.append("send")
        sent = self.take(len(data))
        self.taken += data[:sent]
        return sent

    def sendmsg(self, buffers: Iterable[bytes], ancdata: object = (), flags: int = 0) -> int:
        self.calls.append("sendmsg")
        data = b"".join(buffers)
        sent = self.take(len(data))
        self.taken += data[:sent]
        return sent


class FakeRegion:
    """A region over bytes, sent through a `FakeSocket`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.closed_count = 0

    def __len__(self) -> int:
        return len(self._data)

    def send_to(self, sock: FakeSocket) -> bool:
        while self._position < len(self._data):
            sock.calls.append("region")
            try:
                sent = sock.take(len(self._data) - self._position)
            except BlockingIOError:
                return False
            sock.taken += self._data[self._position : self._position + sent]
            self._position += sent
        return True

    def read(self) -> bytes:
        assert self._position == 0
        return self._data

    def read_into(self, buffer: memoryview) -> int:
        data = self._data[self._position : self._position + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self.closed_count += 1


class Count:
    """A counter and gauge that is not prometheus's."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self) -> None:
        self.value -= 1


class Counts:
    """What the network layer counts."""

    def __init__(self) -> None:
        self.bytes_in = Count()
        self.bytes_out = Count()
        self.connections = Count()


class Client:
    """A socket that speaks frames."""

    def __init__(
        self,
        port: int,
        timeout: float = 60.0,
        receive_buffer_bytes: int = 0,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.sock = socket.socket()
        if receive_buffer_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.settimeout(timeout)
        self.sock.connect((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")

    def send(self, *bodies: bytes) -> None:
        self.sock.sendall(b"".join(map(frame, bodies)))

    def receive(self) -> bytes:
        """The next frame's body; empty bytes when the server closed the connection."""
        head = self._exactly(4)
        return self._exactly(int.from_bytes(head, "big")) if len(head) == 4 else b""

    def ended(self) -> bool:
        """Whether the server closed the connection; waits for it."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self.sock.recv(min(count - len(data), 1 << 20))
            except ConnectionError:
                return b""
            if not piece:
                return b""
            data += piece
        return bytes(data)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Rounds:
    """How many events the selector of a server's first processor reports, in each round from now on."""

    def __init__(self, server: SocketServer) -> None:
        self.events: list[int] = []
        selector = server._processors[0]._selector
        select = selector.select

        def counted(timeout: float | None = None) -> list[Any]:
            found = select(timeout)
            self.events.append(len(found))
            return found

        selector.select = counted  # type: ignore[method-assign]


DEFAULTS = NetworkConfig(port=0)


class ManualWorkers(Executor):
    """Work is done when the test says so, in its own thread."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.waiting.append(lambda: fn(*args, **kwargs))

    def run(self) -> None:
        """All that waits."""
        while self.waiting:
            self.waiting.pop(0)()


@contextmanager
def serving(
    handler: RequestHandler,
    *,
    sessions: Sessions = lambda _: None,
    entrance: Entrance | None = None,
    addresses: AddressLimits | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **settings: object,
) -> Iterator[SocketServer]:
    """A started server on a free port, stopped at the end; ``settings`` are fields of NetworkConfig."""
    config = replace(DEFAULTS, **settings)  # type: ignore[arg-type]
    workers = ThreadPoolExecutor(2)
    server = SocketServer(
        config,
        handler,
        Counts(),
        clock,
        sessions=sessions,
        entrance=entrance,
        addresses=addresses,
        workers=workers,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop(grace_seconds=1.0)
        workers.shutdown()
