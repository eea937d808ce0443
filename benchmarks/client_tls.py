"""How fast does a client receive over TLS, beside a loop that only decrypts?

The peer is a bare loop over an ``ssl.MemoryBIO``: recv, write, read into one buffer, with neither frames nor
deadlines. Its plaintext always lands in the same 16 KiB, which stay in the processor's cache; ours fills each
response. What that costs, where a response is larger than the cache, is told by a loop that fills them
too. The server is a process that has encrypted everything before the clock starts, so it costs next to
nothing and the client is what is measured. The last row sets the same frames without TLS beside those.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import cast

from benchmarks.bare_loops import shake_hands
from benchmarks.harness import Row, compare, in_turn
from kafkalog_broker.security.authority import make
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.tls_transport import TlsTransport
from pyspark_kafkalog.client.transport import Transport
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.security.tls import client_context

TOTAL_BYTES = 192 << 20
FRAME_BYTES = (64 << 10, 1 << 20, 8 << 20)
_RECORD_BYTES = 128 << 10  # encrypted at once, as a broker does it: records of 16 KiB
_STAGE_BYTES = 64 << 10
_HOST = "127.0.0.1"
_OURS, _BARE, _FILLS, _PLAIN = "TLS", "bare MemoryBIO", "bare MemoryBIO that fills responses", "plain"


class Server:
    """*Used by one thread.* The sending process; a context manager."""

    def __init__(self, certificate: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.client_tls", str(certificate)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.port = int(self._read())

    def expect(self, frame_bytes: int, *, tls: bool) -> None:
        """Let the next connection have frames of this size, `TOTAL_BYTES` in all."""
        self._write(f"{frame_bytes} {int(tls)}")

    def send(self) -> None:
        """Return once everything is encrypted, and let it come."""
        self._read()
        self._write("go")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def serve(certificate: str) -> None:
    """The other process: orders on stdin, `ready` on stdout."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server((_HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        for line in sys.stdin:
            frame_bytes, tls = map(int, line.split())
            with listener.accept()[0] as sock:
                content = (frame_bytes.to_bytes(4, "big") + bytes(frame_bytes)) * (TOTAL_BYTES // frame_bytes)
                sent = _encrypted(context, sock, content) if tls else content
                print("ready", flush=True)
                sys.stdin.readline()
                sock.sendall(sent)
                sock.recv(1)  # until the client closes


def _encrypted(context: ssl.SSLContext, sock: socket.socket, content: bytes) -> bytes:
    """``content`` as the records of a session whose handshake is made here."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    shake_hands(sock, tls, incoming, outgoing)
    view = memoryview(content)
    for at in range(0, len(view), _RECORD_BYTES):
        tls.write(view[at : at + _RECORD_BYTES])
    return outgoing.read()


def bare(server: Server, context: ssl.SSLContext, frame_bytes: int, *, fills: bool = False) -> float:
    """Seconds of the loop that only decrypts; ``fills``: one response after the other, as clients do."""
    server.expect(frame_bytes, tls=True)
    with socket.create_connection((_HOST, server.port)) as sock:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=_HOST)
        shake_hands(sock, tls, incoming, outgoing)
        server.send()
        stage, buffer = memoryview(bytearray(_STAGE_BYTES)), memoryview(bytearray(frame_bytes))
        left, size, at = TOTAL_BYTES + 4 * (TOTAL_BYTES // frame_bytes), len(buffer), 0
        began = time.perf_counter()
        while left:
            incoming.write(stage[: sock.recv_into(stage)])
            try:
                while left:
                    count = cast(
                        "int", tls.read(size - at, cast("bytearray", buffer[at:] if fills else buffer))
                    )
                    left -= count
                    at = (at + count) % size if fills else 0
            except ssl.SSLWantReadError:
                pass
        return time.perf_counter() - began


def ours(server: Server, config: ConsumerConfig, frame_bytes: int) -> float:
    """Seconds of the client's transport, frames taken out and given back."""
    tls = config.security_protocol == "SSL"
    server.expect(frame_bytes, tls=tls)
    deadline = Deadline.after(60)
    kind = TlsTransport if tls else Transport
    transport = kind.connect(_HOST, server.port, deadline, max_frame_bytes=1 << 30)
    if isinstance(transport, TlsTransport):
        transport.start(_HOST, config, deadline)
    server.send()
    began = time.perf_counter()
    for _ in range(TOTAL_BYTES // frame_bytes):
        transport.recycle(transport.receive(deadline))
    took = time.perf_counter() - began
    transport.close()
    return took


def run(rounds: int = 7) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        made = make([_HOST, "localhost"])
        certificate, authority = Path(directory, "server.pem"), Path(directory, "ca.pem")
        certificate.write_bytes(made.server)
        authority.write_bytes(made.ca_certificate)
        with Server(certificate) as server:
            address = f"{_HOST}:{server.port}"
            secured = ConsumerConfig(
                bootstrap_servers=address, security_protocol="SSL", ssl_truststore_location=str(authority)
            )
            plain = ConsumerConfig(bootstrap_servers=address)
            context = client_context(secured, str)
            for size in FRAME_BYTES:
                contestants = {
                    _OURS: partial(ours, server, secured, size),
                    _BARE: partial(bare, server, context, size),
                    _FILLS: partial(bare, server, context, size, fills=True),
                    _PLAIN: partial(ours, server, plain, size),
                }
                took = in_turn(contestants, rounds, TOTAL_BYTES)
                text = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
                question = f"client receives responses of {text} over TLS"
                rows.append(compare(question, took[_OURS], took[_BARE], "MB/s", 0.8))
            for name in (_FILLS, _PLAIN):
                rows.append(compare(f"the same of {text}", took[_OURS], took[name], "MB/s"))
    return rows


if __name__ == "__main__":
    serve(sys.argv[1])
