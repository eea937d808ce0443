"""Clients that begin to come in at a secured listener and do something else: the others log in meanwhile, and
the broker stays small.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.network.broker_process import MIB, growing_less_than, socket_count
from tests.support.network.certificates import Authority
from tests.support.until import until

SHORT_SECONDS, LONG_SECONDS = 4, 600
"""Time for handshake and login: for clients that let it pass, and for all others."""

PATIENCE_SECONDS = 60

HALF_OPEN_BYTES = 64 << 10
"""What a connection that never finishes its handshake may cost."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.made(tmp_path_factory.mktemp("certificates"))
    made.issue("server", "127.0.0.1")
    return made


def started(authority: Authority, seconds: int) -> EmbeddedBroker:
    properties = {
        "listeners": "SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "ssl.keystore.location": authority.directory / "server.pem",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": 'PlainLoginModule required user_a="secret";',
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": 'PlainLoginModule required user_a="secret";',
        "connection.authentication.timeout.ms": seconds * 1000,
    }
    return start_broker(properties)


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[EmbeddedBroker]:
    with started(authority, LONG_SECONDS) as running:
        yield running


@pytest.fixture(scope="module")
def hasty_broker(authority: Authority) -> Iterator[EmbeddedBroker]:
    """One at which a client that is held up for long must try again."""
    with started(authority, SHORT_SECONDS) as running:
        yield running


def frame(key: int, version: int, body: bytes) -> bytes:
    data = struct.pack(">hhih", key, version, 7, -1) + body
    return struct.pack(">i", len(data)) + data


HANDSHAKE = frame(17, 1, b"\x00\x05PLAIN")
RIGHT, WRONG = (
    frame(36, 1, struct.pack(">i", len(token)) + token) for token in (b"\0a\0secret", b"\0a\0wrong")
)
METADATA = frame(3, 0, b"\x00\x00\x00\x00")


def connect(broker: EmbeddedBroker, listener: str = "SASL_PLAINTEXT") -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port_of(listener)), timeout=PATIENCE_SECONDS)


def receive(sock: socket.socket) -> bytes:
    """One answer's body; empty at the end of the connection."""
    data = b""
    try:
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            piece = sock.recv(65536)
            if not piece:
                return b""
            data += piece
    except ConnectionError:
        return b""
    return data[4:]


def ended(sock: socket.socket) -> bool:
    """Whether the broker closes the connection; what it says before does not count."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def logs_in(sock: socket.socket) -> bool:
    """False where the broker has closed the connection."""
    try:
        for asked in (HANDSHAKE, RIGHT):
            sock.sendall(asked)
            if receive(sock)[4:6] != b"\0\0":
                return False
        sock.sendall(METADATA)
    except ConnectionError:
        return False
    return receive(sock)[:4] == b"\0\0\0\x07"


@pytest.fixture(autouse=True)
def others_log_in(broker: EmbeddedBroker, authority: Authority) -> Iterator[None]:
    yield
    assert broker.running
    with connect(broker) as sock:
        assert logs_in(sock)
    context = ssl.create_default_context(cafile=str(authority.file))
    with context.wrap_socket(connect(broker, "SASL_SSL"), server_hostname="127.0.0.1") as tls:
        assert logs_in(tls)
    until(lambda: socket_count(broker.pid) <= 6)


@pytest.mark.long("thousands of hostile requests")
@pytest.mark.parametrize(
    "sent",
    [
        METADATA, RIGHT, HANDSHAKE + METADATA, HANDSHAKE + HANDSHAKE, HANDSHAKE + WRONG,
        frame(17, 1, b"\x00\x06GSSAPI"), frame(17, 2, b"\x00\x05PLAIN"), frame(17, 1, b"\x7f\xffPLAIN"),
        HANDSHAKE + frame(36, 9, b""), HANDSHAKE + frame(36, 1, b"\x7f\xff\xff\xff"),
        HANDSHAKE + frame(36, 1, b""),
        frame(18, 0, b"") * 2, b"\xff\xff\xff\xff", b"\0\0\0\0", struct.pack(">i", 524_289),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", frame(0, 7, bytes(100)), frame(999, 0, b""),
    ],
    ids=range(18),
)  # fmt: skip
def test_whatever_is_out_of_order_ends_the_connection(broker: EmbeddedBroker, sent: bytes) -> None:
    with connect(broker) as sock:
        sock.sendall(sent)
        # At once: its time is longer than our patience.
        assert ended(sock)


def test_all_may_be_sent_in_one_go(broker: EmbeddedBroker) -> None:
    with connect(broker) as sock:
        sock.sendall(HANDSHAKE + RIGHT + METADATA)
        assert [receive(sock)[:4] for _ in range(1)] == [b"\0\0\0\x07"]


def test_who_says_nothing_or_drips_is_closed_in_time(hasty_broker: EmbeddedBroker) -> None:
    silent, half, dripping = connect(hasty_broker), connect(hasty_broker), connect(hasty_broker)
    half.sendall(HANDSHAKE)
    dripping.sendall(HANDSHAKE + struct.pack(">i", 400_000))
    for sock in (silent, half, dripping):
        with sock:
            assert ended(sock)


def test_large_requests_of_strangers_do_not_fill_the_memory(broker: EmbeddedBroker) -> None:
    size = 524_288
    with growing_less_than(broker.pid, 40 * MIB):
        strangers = [connect(broker) for _ in range(150)]  # 75 MiB, if all were let in
        for sock in strangers:
            sock.setblocking(False)
            try:
                sock.send(struct.pack(">i", size) + bytes(size - 1))
            except BlockingIOError:
                pass
        with connect(broker) as good:
            assert logs_in(good)
        for sock in strangers:
            sock.close()


def test_many_wrong_passwords_delay_nobody(broker: EmbeddedBroker) -> None:
    guessing = [connect(broker) for _ in range(100)]
    for sock in guessing:
        sock.sendall(HANDSHAKE + WRONG)
    with connect(broker) as good:
        assert logs_in(good)
    for sock in guessing:
        with sock:
            assert ended(sock)


def test_garbage_within_tls_ends_the_connection(broker: EmbeddedBroker, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.file))
    rng = random.Random(16)
    for _ in range(20):
        raw = connect(broker, "SASL_SSL")
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            plain = socket.socket(fileno=socket.dup(tls.fileno()))
            with plain:
                plain.settimeout(PATIENCE_SECONDS)
                plain.sendall(b"\x17\x03\x03" + struct.pack(">H", 100) + rng.randbytes(100))
                assert ended(plain)


def a_good_client_logs_in(broker: EmbeddedBroker, context: ssl.SSLContext) -> bool:
    """False where its time was over: it tries again."""
    try:
        with context.wrap_socket(connect(broker, "SASL_SSL"), server_hostname="127.0.0.1") as tls:
            return logs_in(tls)
    except (ConnectionError, ssl.SSLError):
        return False


def half_open(broker: EmbeddedBroker, authority: Authority, count: int) -> None:
    """So many clients stop in all places of the handshake: each costs little, and its time is limited."""
    context = ssl.create_default_context(cafile=str(authority.file))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    hello = outgoing.read()
    before = socket_count(broker.pid)
    with growing_less_than(broker.pid, count * HALF_OPEN_BYTES):
        clients = []
        for number in range(count):
            sock = connect(broker, "SASL_SSL")
            with suppress(ConnectionError):  # its time may be over already
                sock.sendall(hello if number % 2 else hello[: number % len(hello)])
            clients.append(sock)
        until(lambda: a_good_client_logs_in(broker, context))
        until(lambda: socket_count(broker.pid) <= before)
    for sock in clients:
        sock.close()


@pytest.mark.long("thousands of hostile requests")
def test_half_open_handshakes_are_small_and_closed_in_time(
    hasty_broker: EmbeddedBroker, authority: Authority
) -> None:
    half_open(hasty_broker, authority, 300)


@pytest.mark.soak
def test_2000_half_open_handshakes(hasty_broker: EmbeddedBroker, authority: Authority) -> None:
    half_open(hasty_broker, authority, 2000)
