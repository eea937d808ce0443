"""What the machine gives without a broker: the loops that the broker is measured against.

Each runs in a process of its own, as the broker does, and does the same system calls on the same kind of
data with no protocol, no log and no answers:

* ``sendfile``: file to socket, as a fetch;
* ``tls``: file to `ssl.MemoryBIO` to socket, as a fetch over TLS; the order is in clear text, then the client
  shakes hands. The certificate lies beside the file, as ``.pem``;
* ``store``: socket to CRC-32C to file, as a produce request;
* ``echo``: a blocking loop that sends a small answer for each small request, for latency.

``with Peer("sendfile", path) as peer: peer.fetch(...)``
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path

import crc32c

from benchmarks.raw_client import connected

_ORDER = struct.Struct(">QQ")  # what a client asks for: bytes in all, bytes per call

_RECEIVE_BYTES = 1 << 20
_STAGE_BYTES = 64 << 10  # what is encrypted at once: neither more nor less is faster


class Peer:
    """One bare loop in its own process on a free port of 127.0.0.1; a context manager."""

    def __init__(self, kind: str, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_loops", kind, str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, total_bytes: int, call_bytes: int) -> socket.socket:
        """A connection on which the loop has been told what is wanted."""
        sock = connected(self.port)
        sock.sendall(_ORDER.pack(total_bytes, call_bytes))
        return sock

    def fetch(self, total_bytes: int, call_bytes: int) -> float:
        """Seconds for ``total_bytes`` from the ``sendfile`` loop into one buffer of this process."""
        buffer = bytearray(_RECEIVE_BYTES)
        with self.connect(total_bytes, call_bytes) as sock:
            started, left = time.perf_counter(), total_bytes
            while left:
                count = sock.recv_into(buffer)
                if not count:
                    raise ConnectionError("the loop ended early")
                left -= count
            return time.perf_counter() - started

    def store(self, total_bytes: int, call_bytes: int) -> float:
        """Seconds for ``total_bytes`` into the ``store`` loop; the clock stops when all is in its file."""
        block = os.urandom(call_bytes)
        with self.connect(total_bytes, call_bytes) as sock:
            started = time.perf_counter()
            for _ in range(total_bytes // call_bytes):
                sock.sendall(block)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1)
            seconds = time.perf_counter() - started
            # The loop closes when its file is gone. Else it freed the pages in the next contestant's time,
            # on the same processor: 80 ms for 512 MiB, and 10 us for each of its requests of 64 KiB.
            sock.recv(1)
            return seconds

    def round_trips(self, count: int, request_bytes: int, answer_bytes: int) -> list[float]:
        """Seconds of each of ``count`` round trips with the ``echo`` loop."""
        request, samples = bytes(request_bytes), []
        with self.connect(request_bytes, answer_bytes) as sock:
            for _ in range(count):
                started = time.perf_counter()
                sock.sendall(request)
                sock.recv(65536)
                samples.append(time.perf_counter() - started)
        return samples

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _sendfile(sock: socket.socket, path: Path, total_bytes: int, call_bytes: int) -> None:
    """File to socket, from its start and again when it ends."""
    with path.open("rb") as file:
        size, position = path.stat().st_size, 0
        while total_bytes:
            sent = os.sendfile(
                sock.fileno(), file.fileno(), position, min(call_bytes, total_bytes, size - position)
            )
            total_bytes -= sent
            position = (position + sent) % size


def _tls(sock: socket.socket, path: Path, total_bytes: int, call_bytes: int) -> None:  # noqa: ARG001
    """File to socket, encrypted, from its start and again when it ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path.with_suffix(".pem"))
    context.num_tickets = 0
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    shake_hands(sock, tls, incoming, outgoing)
    stage = memoryview(bytearray(_STAGE_BYTES))
    with path.open("rb") as file:
        size, position = path.stat().st_size, 0
        while total_bytes:
            count = os.preadv(file.fileno(), [stage[: min(total_bytes, size - position)]], position)
            tls.write(stage[:count])
            sock.sendall(outgoing.read())
            total_bytes -= count
            position = (position + count) % size


def shake_hands(
    sock: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """The handshake of either side, on a blocking socket."""
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            if outgoing.pending:
                sock.sendall(outgoing.read())
            incoming.write(sock.recv(_STAGE_BYTES))
    if outgoing.pending:
        sock.sendall(outgoing.read())


def _store(sock: socket.socket, path: Path, total_bytes: int, call_bytes: int) -> None:
    """Socket to CRC-32C to file: a new file each time, because new pages cost more than used ones."""
    buffer = memoryview(bytearray(call_bytes))
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        while total_bytes:
            filled = 0
            while filled < call_bytes:
                count = sock.recv_into(buffer[filled:])
                if not count:
                    return
                filled += count
            crc32c.crc32c(buffer)
            file.write(buffer)
            total_bytes -= call_bytes
    sock.sendall(b"!")
    path.unlink()


def _echo(sock: socket.socket, _path: Path, request_bytes: int, answer_bytes: int) -> None:
    """Answer each request with as many bytes as were asked for."""
    answer = bytes(answer_bytes)
    while True:
        filled = 0
        while filled < request_bytes:
            data = sock.recv(65536)
            if not data:
                return
            filled += len(data)
        sock.sendall(answer)


_LOOPS = {"sendfile": _sendfile, "tls": _tls, "store": _store, "echo": _echo}


def _serve(kind: str, path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                order = sock.recv(_ORDER.size, socket.MSG_WAITALL)
                try:
                    _LOOPS[kind](sock, path, *_ORDER.unpack(order))
                except ConnectionError:
                    pass  # the client has what it wanted


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
