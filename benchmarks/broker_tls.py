"""What does TLS cost the broker, beside a loop that only encrypts?

The peer of a fetch is a bare loop in its own process (`bare_loops`): file, ``ssl.MemoryBIO``, socket. The
client of both shakes hands and then decrypts nothing: it adds up the lengths in the records' headers, so that
only the sending side is measured. Beside it, for information, the same fetches without TLS.

Then two limits: a start with TLS, from exec to the first answer; and a client's connection, from nothing
to its first answer, with SCRAM over TLS, which is a handshake and 4096 rounds of PBKDF2 on the client's side.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bare_loops import Peer, shake_hands
from benchmarks.broker import FETCH_BYTES, ROUND_BYTES, apart, scratch
from benchmarks.harness import Row, compare, cost, in_turn
from benchmarks.raw_client import RawClient, batch, connected, encode, fetch_request
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.security.authority import make
from kafkalog_broker.security.file_stores import CredentialChange, FileCredentials, SecurityFile
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from pyspark_kafkalog.security.scram import ScramCredential

_HOST = "127.0.0.1"
_USER, _PASSWORD, _MECHANISM = "alice", "alice's secret", "SCRAM-SHA-256"
_LOG_BYTES = 256 << 20
_RECEIVE_BYTES = 1 << 20
_WINDOW = 3
_CONNECTIONS = 40
_START_SECONDS, _CONNECTION_SECONDS = 1.0, 0.010
_HEADER_BYTES = 5
_NOT_PLAIN_BYTES = 17  # of a record of TLS 1.3: its inner type and the tag.


class CountingClient:
    """*Used by one thread.* A connection over TLS 1.3 on which answers are counted and not decrypted; a
    context manager.
    """

    def __init__(self, sock: socket.socket, certificates: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificates)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=_HOST)
        shake_hands(sock, self._tls, self._incoming, self._outgoing)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._carried = 0
        self._skip = 0

    def send(self, frame: bytes) -> None:
        self._tls.write(frame)
        self._sock.sendall(self._outgoing.read())

    def decrypted(self, count: int) -> None:
        """Receive so many bytes of plaintext as clients do: the tickets before them are taken in too."""
        while count:
            try:
                count -= len(self._tls.read(count))
            except ssl.SSLWantReadError:
                self._incoming.write(self._sock.recv(_RECEIVE_BYTES))

    def counted(self) -> int:
        """Bytes of plaintext in what has come since the last call; waits for something."""
        buffer, carried = self._buffer, self._carried
        end = carried + self._sock.recv_into(buffer[carried:])
        if end == carried:
            raise ConnectionError("the connection ended early")
        at, total = self._skip, 0
        while at + _HEADER_BYTES <= end:
            length = int.from_bytes(buffer[at + 3 : at + _HEADER_BYTES], "big")
            total += length - _NOT_PLAIN_BYTES
            at += _HEADER_BYTES + length
        self._carried = max(0, end - at)
        buffer[: self._carried] = buffer[end - self._carried : end]
        self._skip = max(0, at - end)
        return total

    def __enter__(self) -> CountingClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._sock.close()


def bare_seconds(sender: Peer, certificates: Path) -> float:
    """Of `ROUND_BYTES` from the bare loop."""
    with CountingClient(sender.connect(ROUND_BYTES, FETCH_BYTES), certificates) as client:
        started, left = time.perf_counter(), ROUND_BYTES
        while left > 0:
            left -= client.counted()
        return time.perf_counter() - started


def broker_seconds(port: int, certificates: Path, frames: Sequence[bytes], answer_bytes: int) -> float:
    """Of one fetch after the other, each answered with ``answer_bytes``, `_WINDOW` of them under way."""
    with CountingClient(connected(port), certificates) as client:
        client.send(frames[0])
        client.decrypted(answer_bytes)
        started, total, sent = time.perf_counter(), 0, 0
        while total < len(frames) * answer_bytes:
            while sent < len(frames) and sent < total // answer_bytes + _WINDOW:
                client.send(frames[sent])
                sent += 1
            total += client.counted()
        return time.perf_counter() - started


def run(rounds: int = 7) -> list[Row]:
    with scratch() as directory:
        made = make([_HOST])
        source, certificates = directory / "source", directory / "ca.pem"
        (directory / "source.pem").write_bytes(made.server)
        certificates.write_bytes(made.ca_certificate)
        rows = fetch(directory, source, certificates, rounds)
        source.unlink()
        return [*rows, start(directory, certificates, rounds), connection(directory, certificates, rounds)]


def fetch(directory: Path, source: Path, certificates: Path, rounds: int) -> list[Row]:
    """Fetches of 1 MiB, beside the bare loop and beside the same without TLS."""
    source.write_bytes(os.urandom(1 << 20) * (_LOG_BYTES >> 20))
    data, records = batch(64 << 10)
    batches, per_fetch, count = _LOG_BYTES // len(data), FETCH_BYTES // len(data), ROUND_BYTES // FETCH_BYTES
    requests = [
        fetch_request("fetched", i * per_fetch % (batches - per_fetch) * records, FETCH_BYTES)
        for i in range(count)
    ]
    with (
        _broker(directory / "fetched", "PLAINTEXT", "SSL") as broker,
        RawClient(broker.port) as plain,
        Peer("tls", source) as sender,
        apart(broker.pid, sender.pid),
    ):
        plain.create_topic("fetched")
        plain.produce("fetched", data, batches)
        frames = [encode(request) for request in requests]
        answer_bytes = 4 + plain.fetch(requests)[1] // count
        received = count * answer_bytes

        def ours() -> float:
            took = broker_seconds(broker.port_of("SSL"), certificates, frames, answer_bytes)
            return took * ROUND_BYTES / received

        def without_tls() -> float:
            return plain.fetch(requests)[0] * ROUND_BYTES / received

        bare = {"broker": ours, "bare MemoryBIO loop": lambda: bare_seconds(sender, certificates)}
        beside = in_turn(bare, rounds, ROUND_BYTES)
        without = in_turn({"broker": ours, "without TLS": without_tls}, rounds, ROUND_BYTES)
    return [
        compare("fetch over TLS, 1 MiB", *beside.values(), "MB/s", 0.8),
        compare("the same, beside no TLS", *without.values(), "MB/s"),
    ]


def start(directory: Path, certificates: Path, rounds: int) -> Row:
    """From the start of the process to the first answer over TLS."""
    seconds = []
    with _broker(directory / "started", "SSL") as broker:
        for _ in range(rounds):
            broker.stop()
            began = time.perf_counter()
            broker.start()
            _answered(broker.port, _client_config(broker.port, certificates, "SSL"))
            seconds.append(time.perf_counter() - began)
    return cost("start with TLS", statistics.median(seconds), _START_SECONDS, "s", 1.0)


def connection(directory: Path, certificates: Path, rounds: int) -> Row:
    """From nothing to the first answer with a login over TLS: the first connection of a process, which loads
    modules and certificates, does not count.
    """
    data = directory / "secured"
    data.mkdir()
    credential = ScramCredential.of_password(_MECHANISM, _PASSWORD, salt=os.urandom(16), iterations=4096)
    FileCredentials(SecurityFile([data], FileSystem())).change(
        [CredentialChange(_USER, _MECHANISM, credential)]
    )
    medians = []
    with _broker(data, "SASL_SSL") as broker, apart(broker.pid):
        config = _client_config(broker.port, certificates, "SASL_SSL")
        for _ in range(rounds):
            samples = []
            for _ in range(_CONNECTIONS):
                began = time.perf_counter()
                _answered(broker.port, config)
                samples.append(time.perf_counter() - began)
            medians.append(statistics.median(samples))
    question = f"connection to first answer, TLS and {_MECHANISM}"
    return cost(question, 1000 * statistics.median(medians), 1000 * _CONNECTION_SECONDS, "ms", 1.0)


def _broker(data_dir: Path, *listeners: str) -> EmbeddedBroker:
    return start_broker(
        {
            "listeners": ",".join(f"{name}://{_HOST}:0" for name in listeners),
            "ssl.keystore.location": data_dir.parent / "source.pem",
            "sasl.enabled.mechanisms": _MECHANISM,
        },
        data_dir=data_dir,
    )


def _client_config(port: int, certificates: Path, protocol: str) -> ConsumerConfig:
    return ConsumerConfig(
        bootstrap_servers=f"{_HOST}:{port}",
        security_protocol=protocol,
        ssl_truststore_location=str(certificates),
        sasl_mechanism=_MECHANISM,
        sasl_username=_USER,
        sasl_password=_PASSWORD,
    )


def _answered(port: int, config: ConsumerConfig) -> None:
    with contextlib.closing(Connection(_HOST, port, config)) as opened:
        opened.request(MetadataRequest(topics=()))
