"""What brokers that a test scripts have in common: real sockets, frames, and ways to misbehave."""

from __future__ import annotations

import socket
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.exchange import FrameReader
from tests.support.manual_clock import ManualClock
from tests.support.network.fed_frames import feed

HOST = "127.0.0.1"

S = TypeVar("S", bound="ScriptedServer")


@dataclass(frozen=True)
class Raw:
    """These bytes instead of an answer."""

    data: bytes


class Silence:
    """No answer, and the connection stays open."""


def late(clock: ManualClock, seconds: float) -> Callable[[Any], Raw]:
    """A step: so much time passes over the first byte of an answer, and there is no more of it."""

    def step(_: Any) -> Raw:
        clock.advance(seconds)
        return Raw(b"\0")

    return step


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections, until a broker is told to have it; the system gives it nobody else."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((HOST, 0))
        yield taken.getsockname()[1]


class Close:
    """No answer, and the connection is closed."""


class ScriptedServer(ABC):
    """*Thread-safe for the test's thread.* Answers on a thread per connection until it is closed.

    A subclass calls `start` once its own state is ready, which ``_lock`` guards too.
    """

    def __init__(self, port: int = 0) -> None:
        self.connection_count = 0
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        # Bound beside the listener, so that nobody else gets the port once that is closed.
        held = socket.socket()
        weakref.finalize(self, held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, port))
        self.port: int = held.getsockname()[1]
        self._listener = socket.create_server((HOST, self.port))

    def start(self) -> None:
        self._in_thread(self._accept)

    @abstractmethod
    def answer(self, sock: socket.socket, frame: bytearray) -> bool:
        """Answer one request; False when the connection is to be closed."""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed."""
        with self._lock:
            return len(self._sockets)

    def cut_connections(self) -> None:
        """Close every connection; new ones are accepted."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for sock in sockets:
            _close(sock)

    def close(self) -> None:
        _close(self._listener)
        self.cut_connections()
        for thread in self._threads:
            thread.join(60)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_thread(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.add(sock)
                self.connection_count += 1
            self._in_thread(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        reader = FrameReader(100 << 20)
        try:
            while data := sock.recv(1 << 20):
                if not all(self.answer(sock, frame) for frame in feed(reader, data)):
                    return
        except (OSError, FrameTooLarge):
            pass  # as a broker that cannot read what it gets
        finally:
            _close(sock)
            with self._lock:
                self._sockets.discard(sock)


def _close(sock: socket.socket) -> None:
    """Shut down first: it wakes a thread that waits in accept or recv, which close alone does not."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
