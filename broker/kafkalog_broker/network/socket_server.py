"""The socket server: an acceptor thread and N processor threads."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.network.channel import Entrance, RequestMemory
from kafkalog_broker.network.processor import Processor, RequestHandler, Wakeup
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import InvalidConfig

_log = logging.getLogger(__name__)

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 0.25
"""Pause when out of descriptors: clients wait in the backlog."""

_LOG_EVERY_SECONDS = 5.0
"""Minimum interval between log lines about refused connections, as clients retry many times a second."""


_SWITCH_SECONDS = 0.0001
"""Each system call of a network thread waits this long for every busy worker (benchmarks/fairness.py)."""


Sessions = Callable[[Any], object]
"""Creates the ``session`` of an accepted connection from its socket address."""


class AddressLimits:
    """*Thread-safe: ``_lock`` guards the counts.* Limits connections per address, over all listeners."""

    def __init__(self, limit: int | None = None, overrides: Mapping[str, int] | None = None) -> None:
        """``overrides``: limits of single addresses, as sockets write them."""
        self._limit = limit
        self._overrides = dict(overrides or {})
        self.limited = limit is not None or bool(overrides)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, host: str) -> bool:
        """Count a connection from ``host``; False if it is at its limit."""
        if not self.limited:
            return True
        host = _plain(host)
        limit = self._overrides.get(host, self._limit)
        with self._lock:
            if limit is not None and self._counts[host] >= limit:
                return False
            self._counts[host] += 1
            return True

    def release(self, host: str) -> None:
        if not self.limited:
            return
        host = _plain(host)
        with self._lock:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]


def _plain(host: str) -> str:
    """IPv4-mapped IPv6 addresses count as IPv4."""
    return host.removeprefix("::ffff:")


@dataclass(eq=False)
class Acceptor:
    """*Thread-safe: the server calls `start` and `stop`; everything else runs in the thread.* Accepts
    connections and distributes them round-robin to processors, which then own them.
    """

    listener: socket.socket
    processors: Sequence[Processor]
    _: KW_ONLY
    sessions: Sessions
    addresses: AddressLimits
    max_connections: int
    send_buffer_bytes: int
    clock: Clock

    def __post_init__(self) -> None:
        self._accepted_count = self._refused_count = 0
        self._next_complaint = 0.0
        self._wakeup = Wakeup()
        # Created here: in the thread a lack of descriptors would go unnoticed.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkalog-acceptor", daemon=True)

    @property
    def connection_count(self) -> int:
        """Open connections. Each counter has one writer, so no lock is needed."""
        return self._accepted_count - sum(p.closed_count for p in self.processors)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting and close the port; the kernel resets connections in the backlog."""
        self._stopping.set()
        self._wakeup.wake()
        self._thread.join()
        self._selector.close()
        self._wakeup.close()
        self.listener.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._selector.select()
            try:
                self._accept_all()
            except OSError as e:
                self._accept_failed(e)
            except Exception:
                # A failed connection must not end the thread: no client could connect again.
                _log.exception("could not take up a connection")

    def _accept_all(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = self.listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            host, reached = str(address[0]), ""
            if self.connection_count >= self.max_connections:
                reached = f"max.connections={self.max_connections}"
            elif not self.addresses.take(host):
                reached = "max.connections.per.ip"
            if reached:
                sock.close()
                self._refused_count += 1
                self._complain(f"{reached} reached, closed {peer_name(address)}")
                continue
            try:
                self._prepare(sock)
            except OSError:
                sock.close()  # the client is already gone
                self.addresses.release(host)
                continue
            turn = self.processors[self._accepted_count % len(self.processors)]
            self._accepted_count += 1
            released = partial(self.addresses.release, host) if self.addresses.limited else None
            turn.adopt(sock, peer_name(address), self.sessions(address), released)

    def _prepare(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)

    def _accept_failed(self, error: OSError) -> None:
        if error.errno in _EXHAUSTED:
            self._refused_count += 1
            self._complain(f"cannot accept now: {error.strerror}; trying again")
            self._stopping.wait(_PAUSE_SECONDS)
        else:
            _log.debug("a connection failed while it was accepted: %s", error)

    def _complain(self, text: str) -> None:
        now = self.clock.monotonic()
        if now >= self._next_complaint:
            _log.warning("%s (%d connections refused or put off so far)", text, self._refused_count)
            self._next_complaint = now + _LOG_EVERY_SECONDS


def listen(host: str, port: int, backlog: int, receive_buffer_bytes: int = -1) -> socket.socket:
    """A non-blocking listening socket on ``host`` (empty: all interfaces) and ``port`` (0: any free one).
    ``receive_buffer_bytes`` is set before accepting, as sockets inherit it. Raises `InvalidConfig`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as e:
        raise InvalidConfig(f"listeners: cannot find the address of {host!r}: {e.strerror}") from e
    sock = socket.socket(family, kind, protocol)
    try:
        # A restarted broker must get its port back while old connections are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise InvalidConfig(f"listeners: cannot listen on {peer_name((host, port))}: {_reason(e)}") from e
    return sock


def peer_name(address: object) -> str:
    """A socket address as ``host:port``, for log lines."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address) or "unknown"


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "address already in use; another broker or program listens there"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno == errno.EACCES:
        return "permission denied; ports below 1024 need privileges"
    return error.strerror or str(error)


def share_the_interpreter() -> None:
    """Set the thread switch interval to 0.1 ms, so that short requests do not wait for busy threads."""
    sys.setswitchinterval(_SWITCH_SECONDS)


@dataclass(frozen=True)
class NetworkConfig:
    """Settings of the socket server; see the broker's properties."""

    host: str = "127.0.0.1"
    """Address to listen on; empty for all interfaces."""
    port: int = 9092
    """0 for a free port, then shown by `SocketServer.port`."""
    processors: int = 1
    """Threads that read, handle and answer. With the GIL one is best; see `Processor`."""
    max_request_bytes: int = 104_857_600
    """A larger request closes its connection before memory is taken for it."""
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    max_connections: int = 2**31 - 1
    """Further connections are accepted and closed at once, so that clients see why."""
    max_idle_ms: int = 600_000
    """A connection idle for this time, with no request in hand, is closed; -1 means never."""
    max_receive_ms: int = 60_000
    """A request incomplete this long after its first byte closes its connection."""
    backlog: int = 1024
    """Connections waiting to be accepted; the kernel has its own limit."""


class SocketServer:
    """Accepts connections, splits their bytes into requests, and sends the handler's answers. Knows no Kafka.

    *Thread-safe: the owner calls `start` and `stop` once, in this order.* The acceptor thread owns the
    listening socket, each processor thread its connections; they share queues, and the ``memory``. The
    handler runs in a processor thread and must not block: slow work goes to a worker (`Reply.work_on`).
    """

    def __init__(
        self,
        config: NetworkConfig,
        handler: RequestHandler,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
        memory: RequestMemory | None = None,
        sessions: Sessions = lambda _: None,
        entrance: Entrance | None = None,
        addresses: AddressLimits | None = None,
        *,
        workers: Executor,
    ) -> None:
        """The owner shuts down ``workers`` after `stop`."""
        self._config = config
        self._clock = clock
        self._addresses = addresses if addresses is not None else AddressLimits()
        self._sessions = sessions
        self._processor = partial(
            Processor, handler=handler, metrics=metrics, max_request_bytes=config.max_request_bytes,
            max_idle_seconds=config.max_idle_ms / 1000 if config.max_idle_ms >= 0 else float("inf"),
            clock=clock, workers=workers, max_receive_seconds=config.max_receive_ms / 1000,
            memory=memory if memory is not None else RequestMemory(), entrance=entrance,
        )  # fmt: skip
        self._processors: list[Processor] = []
        self._acceptor: Acceptor | None = None
        self.host, self.port = config.host, config.port

    @property
    def connection_count(self) -> int:
        return 0 if self._acceptor is None else self._acceptor.connection_count

    def start(self) -> None:
        """Listen and serve; connections are answered once this returns. Raises as `listen`."""
        config = self._config
        listener = listen(config.host, config.port, config.backlog, config.receive_buffer_bytes)
        self.host, self.port = listener.getsockname()[:2]
        self._processors = [self._processor(number) for number in range(max(1, config.processors))]
        self._acceptor = Acceptor(
            listener, self._processors, sessions=self._sessions, addresses=self._addresses,
            max_connections=config.max_connections, send_buffer_bytes=config.send_buffer_bytes,
            clock=self._clock,
        )  # fmt: skip
        for processor in self._processors:
            processor.start()
        self._acceptor.start()
        _log.info("listening on %s", peer_name((self.host, self.port)))

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop accepting, wait up to ``grace_seconds`` for requests in hand, close everything."""
        if self._acceptor is None:
            return
        self._acceptor.stop()
        deadline = self._clock.monotonic() + grace_seconds
        for processor in self._processors:
            processor.begin_stop(deadline)
        for processor in self._processors:
            processor.join()
        _log.info("stopped listening on %s", peer_name((self.host, self.port)))
