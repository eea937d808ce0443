"""Bytes to and from one broker; only this and ``tls_transport`` use sockets in the connector. Every wait has
a deadline. `FrameTooLarge` means that the peer is not a Kafka broker.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import (
    CannotConnect,
    ConnectionClosed,
    ConnectionLost,
    FrameTooLarge,
    UnknownHost,
)
from pyspark_kafkalog.protocol.exchange import FrameReader

_PARTS_PER_CALL = 64  # parts per sendmsg call; the system's limit (IOV_MAX) is 1024 or 16


def peer_name(host: str, port: int) -> str:
    """``host:port`` for messages, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Transport:
    """*Not thread-safe.* One TCP connection with size-prefixed frames. ``..._now`` calls do not wait."""

    def __init__(self, sock: socket.socket, peer: str, *, max_frame_bytes: int) -> None:
        self.peer = peer
        self._sock = sock
        self._reader = FrameReader(max_frame_bytes)
        self._frames: deque[bytearray] = deque()
        self._outgoing: deque[memoryview] = deque()

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        deadline: Deadline,
        *,
        max_frame_bytes: int,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> Transport:
        """Connect to the first address of ``host`` that responds in time. Raises `CannotConnect`."""
        peer = peer_name(host, port)
        try:
            addresses = _resolved(host, port, deadline)
        except TimeoutError as e:
            raise CannotConnect(peer, "the look-up of the host name timed out", silent=True) from e
        except (OSError, UnicodeError) as e:
            raise UnknownHost(peer, reason_of(e)) from e
        failure: OSError | None = None
        silent = False
        for family, kind, protocol, _, address in addresses:
            sock: socket.socket | None = None
            try:
                sock = socket.socket(family, kind, protocol)
                # Set before connecting: the handshake negotiates the window scale.
                if send_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
                if receive_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
                sock.settimeout(max(deadline.left, 0.001))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as e:
                if sock is not None:
                    sock.close()
                failure = e
                silent = silent or isinstance(e, TimeoutError)
                if deadline.passed:
                    break
                continue
            return cls(sock, peer, max_frame_bytes=max_frame_bytes)
        raise CannotConnect(peer, reason_of(failure), silent=silent) from failure

    def end_if_silent(self, seconds: int) -> None:
        """Let the system end a connection silent for ``seconds``: to a lost host, not a stopped process."""
        limits = {
            "TCP_KEEPIDLE": seconds // 3, "TCP_KEEPALIVE": seconds // 3, "TCP_KEEPINTVL": seconds // 6,
            "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": seconds * 1000,
        }  # fmt: skip
        for name, value in limits.items():
            if (option := getattr(socket, name, None)) is not None:
                self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def start(self, host: str, config: ClientConfig, deadline: Deadline) -> None:
        """Do what precedes the first frame; nothing in plain text."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def unsent(self) -> bool:
        """Whether parts given to `send_now` wait for the socket."""
        return bool(self._outgoing)

    def send(self, parts: Iterable[Any], deadline: Deadline) -> None:
        """Send every bytes-like part; returns when the system has accepted them."""
        self._enqueue(parts)
        while self.unsent:
            late = deadline.passed
            self._send_some(max(deadline.left, 0.001))
            if late and self.unsent:
                raise ConnectionLost(f"{self.peer}: the broker accepts no more data in time")

    def send_now(self, parts: Iterable[Any] = ()) -> bool:
        """Send what the socket accepts at once and keep the rest; True when all is sent."""
        self._enqueue(parts)
        while self.unsent:
            try:
                self._send_some(0)
            except BlockingIOError:
                return False
        return True

    def receive(self, deadline: Deadline) -> bytearray:
        while not self._frames:
            # Checked before waiting: data that arrived before the deadline counts, however late the call.
            late = deadline.passed
            try:
                self._receive_some(max(deadline.left, 0.001))
            except TimeoutError:
                late = True
            if late and not self._frames:
                raise ConnectionLost(f"{self.peer}: no answer in time")
        return self._frames.popleft()

    def receive_byte(self, deadline: Deadline) -> int:
        byte = bytearray(1)
        try:
            self._sock.settimeout(max(deadline.left, 0.001))
            if not self._sock.recv_into(byte):
                raise ConnectionClosed(f"{self.peer}: the peer closed the connection")
        except TimeoutError:
            raise
        except OSError as e:
            raise lost_or_closed(e)(f"{self.peer}: connection lost: {reason_of(e)}") from e
        return byte[0]

    def recycle(self, frame: bytearray) -> None:
        self._reader.recycle(frame)

    def receive_now(self) -> list[bytearray]:
        try:
            self._receive_some(0)
        except BlockingIOError:
            pass
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def close(self) -> None:
        self._outgoing.clear()
        self._sock.close()

    def _enqueue(self, parts: Iterable[Any]) -> None:
        for part in parts:
            view = memoryview(part)
            if view.nbytes:
                self._outgoing.append(view)

    def _send_some(self, timeout: float) -> None:
        outgoing = self._outgoing
        parts = [outgoing[i] for i in range(min(len(outgoing), _PARTS_PER_CALL))]
        try:
            self._sock.settimeout(timeout)
            sent = self._sock.sendmsg(parts)
        except BlockingIOError:
            raise
        except TimeoutError as e:
            raise ConnectionLost(f"{self.peer}: the broker accepts no more data") from e
        except OSError as e:
            raise lost_or_closed(e)(f"{self.peer}: connection lost while sending: {reason_of(e)}") from e
        while sent:
            first = outgoing[0]
            if sent < first.nbytes:
                outgoing[0] = first[sent:]
                return
            sent -= first.nbytes
            outgoing.popleft()

    def _receive_some(self, timeout: float) -> None:
        try:
            self._sock.settimeout(timeout)
            count = self._sock.recv_into(self._reader.buffer())
            if count == 0:
                raise ConnectionClosed(f"{self.peer}: the broker closed the connection")
            self._frames.extend(self._reader.received(count))
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as e:
            raise lost_or_closed(e)(f"{self.peer}: connection lost: {reason_of(e)}") from e
        except FrameTooLarge as e:
            raise FrameTooLarge(f"{self.peer}: this is not a response of a Kafka broker: {e}", e.size) from e


class Ready(NamedTuple):
    data: Any
    readable: bool
    writable: bool


class Poller:
    """*Owned by one thread*, except `wake`. Waits for transports and for wake-ups by other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

    def watch(self, transport: Transport, data: object, *, writing: bool) -> None:
        """Report when ``transport`` has data to read and, if ``writing``, accepts data."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        try:
            known = self._selector.get_key(transport)
        except KeyError:
            self._selector.register(transport, events, data)
            return
        if known.events != events:
            self._selector.modify(transport, events, data)

    def forget(self, transport: Transport) -> None:
        self._selector.unregister(transport)

    def wait(self, seconds: float | None) -> list[Ready]:
        """Transports with something to do, after at most ``seconds``; a wake-up ends the wait."""
        ready = []
        for key, events in self._selector.select(seconds):
            if key.data is None:
                with suppress(BlockingIOError):
                    while self._wake_reader.recv(4096):
                        pass
                continue
            readable, writable = bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE)
            ready.append(Ready(key.data, readable, writable))
        return ready

    def wake(self) -> None:
        with suppress(OSError):  # full: a wake-up is pending; closed: nothing to wake
            self._wake_writer.send(b"\0")

    def close(self) -> None:
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


def _resolved(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Resolve ``host`` in a thread abandoned at the deadline: a name server may take minutes."""
    with suppress(OSError, UnicodeError):  # a name
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    found: list[Any] = []
    failures: list[OSError | UnicodeError] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as e:
            failures.append(e)

    thread = threading.Thread(target=look_up, name=f"resolving-{host}", daemon=True)
    thread.start()
    thread.join(max(deadline.left, 0.001))
    if failures:
        raise failures[0]
    if thread.is_alive():
        raise TimeoutError
    return found


def lost_or_closed(error: OSError) -> type[ConnectionLost]:
    """`ConnectionClosed` if the peer closed the connection, perhaps amid data; else `ConnectionLost`."""
    return ConnectionClosed if isinstance(error, ConnectionError) else ConnectionLost


def reason_of(error: BaseException | None) -> str:
    """The exception's message for use in a sentence; its class if it has none."""
    if error is None:
        return "it has no address"
    if isinstance(error, TimeoutError):
        return "timed out"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[0].lower() + text[1:]
