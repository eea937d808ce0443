"""The answer to one request, and how it is sent, resumable at every byte."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Protocol, cast

_log = logging.getLogger(__name__)


class Outcome(Enum):
    PENDING = 0
    ANSWER = 1
    """Send the parts."""
    NO_ANSWER = 2
    """No answer (produce with acks 0); continue with the next request."""
    CLOSE = 3
    LAST_ANSWER = 4
    """Send what the socket takes of the parts at once, then close."""


class ReplyOwner(Protocol):
    """A processor, as its replies see it."""

    reply_lock: threading.Lock

    def work_on(self, reply: Reply) -> None: ...
    def settled(self, reply: Reply) -> None: ...


class Reply:
    """Takes the answer to one request, now or later, from any thread.

    *Thread-safe: guarded by the owning processor's ``reply_lock``.* Call one of `send`, `send_last`,
    `no_answer` and `close`, once; a second call raises RuntimeError. A gone client's answer is closed.
    """

    __slots__ = ("_on_close", "_owner", "closed", "outcome", "parts", "peer", "session", "token", "work")

    def __init__(self, owner: ReplyOwner, token: Any, peer: str, session: Any = None) -> None:
        self._owner = owner
        self.closed = False
        """Whether the connection is closed."""
        self._on_close: Callable[[], None] | None = None
        self.token = token
        """The owner's reference to the connection."""
        self.peer = peer
        self.session = session
        self.outcome = Outcome.PENDING
        self.parts: Sequence[Part] | None = None
        """The answer; owns its regions until the channel takes over."""
        self.work: Callable[[], object] | None = None
        """Worker's task for the request; None once done."""

    def send(self, parts: Sequence[Part]) -> None:
        """Answer with ``parts``, size prefix first. Takes over the regions."""
        try:
            self._settle(Outcome.ANSWER, parts)
        except RuntimeError:
            close_regions(parts)
            raise

    def returned(self, parts: Sequence[Part]) -> None:
        """Set the handler's returned answer. No lock: no other thread uses the reply then."""
        if self.outcome is not Outcome.PENDING:
            close_regions(parts)
            raise RuntimeError(f"the request from {self.peer} is answered already")
        self.outcome = Outcome.ANSWER
        self.parts = parts

    def work_on(self, work: Callable[[], object]) -> None:
        """Run ``work`` in a worker thread, where it may take long, unless the connection closes before.
        ``work`` settles the reply last, or leaves that to another thread; an exception closes the connection.
        """
        with self._owner.reply_lock:
            if self.closed:
                return
            self.work = work
        self._owner.work_on(self)

    def send_last(self, parts: Sequence[Part]) -> None:
        """Answer with small ``parts`` and close the connection. Takes over the regions."""
        self._settle(Outcome.LAST_ANSWER, parts)

    def no_answer(self) -> None:
        self._settle(Outcome.NO_ANSWER, None)

    def close(self) -> None:
        self._settle(Outcome.CLOSE, None)

    def on_close(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` once, without blocking, if the connection ends before the answer; replaces an earlier
        one. Called in the processor's thread, or immediately if the connection is already closed.
        """
        with self._owner.reply_lock:
            if not self.closed:
                if self.outcome is Outcome.PENDING:
                    self._on_close = fn
                return
        fn()

    def peer_gone(self) -> None:
        """The connection is closed; called by the owner."""
        with self._owner.reply_lock:
            self.closed = True
            self.work = None  # references the request
            fn, self._on_close = self._on_close, None
        if fn is not None:
            try:
                fn()
            except Exception:
                _log.exception("on_close of a request from %s failed", self.peer)

    def drop(self) -> None:
        """Close the files of an unsent answer; called by the owner."""
        if self.parts is not None:
            close_regions(self.parts)

    def _settle(self, outcome: Outcome, parts: Sequence[Part] | None) -> None:
        with self._owner.reply_lock:
            if self.outcome is not Outcome.PENDING:
                raise RuntimeError(f"the request from {self.peer} is answered already")
            self.outcome = outcome
            self._on_close = None
            closed = self.closed
            if not closed:
                self.parts = parts
        if not closed:
            self._owner.settled(self)
        elif parts is not None:
            close_regions(parts)


_GATHER_LIMIT = 1024
"""Buffers per system call, Linux's ``IOV_MAX``."""

_JOIN_BYTES = 16384
"""Below this size joining buffers is cheaper than passing them all to the kernel."""

_READ_BYTES = 8192
"""Smaller regions are read and sent with the surrounding bytes: one packet instead of three."""

_READ_AHEAD_BYTES = 65536
"""Limit for reading regions into a group, which a slow client would make us hold."""

_MORE = getattr(socket, "MSG_MORE", 0)
"""More follows: do not send a header in its own packet."""


class Region(Protocol):
    """Part of a file that goes to a socket without passing through Python."""

    def __len__(self) -> int:
        """Size in bytes when created."""

    def send_to(self, sock: socket.socket) -> bool:
        """Send what the socket takes now; True once done. Raises `EOFError`: file too short; `OSError`."""

    def read(self) -> bytes:
        """All bytes of a small, unsent region. Raises as `send_to`."""

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes instead of sending them; 0 at the end. Raises as `send_to`."""

    def close(self) -> None:
        """Release the file; may be repeated."""


Part = bytes | bytearray | memoryview | Region
"""Part of a response. A memoryview must be of bytes."""

_Bytes = bytes | bytearray | memoryview
BUFFERS = (bytes, bytearray, memoryview)
"""Types of parts that are not regions."""


class Transmission:
    """The parts of a response and how far they are sent. Closes each region once it is sent.
    *Not thread-safe: owned by its connection's processor thread.*
    """

    __slots__ = ("_next", "_parts")

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts: list[Part] = list(parts)
        self._next = 0

    def send_to(self, sock: socket.socket) -> bool:
        """Send what ``sock`` takes now; True once all is sent. After an error the connection is unusable."""
        parts = self._parts
        while self._next < len(parts):
            part = parts[self._next]
            if isinstance(part, BUFFERS) or len(part) <= _READ_BYTES:
                if not self._send_buffers(sock):
                    return False
            else:
                if not part.send_to(sock):
                    return False
                part.close()
                self._next += 1
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes instead of sending them; 0 at the end. Raises as `send_to`."""
        parts, filled, room = self._parts, 0, len(buffer)
        while filled < room and self._next < len(parts):
            part = parts[self._next]
            if isinstance(part, BUFFERS):
                count = min(len(part), room - filled)
                buffer[filled : filled + count] = memoryview(part)[:count]
                parts[self._next] = memoryview(part)[count:]
                done = count == len(part)
            else:
                count = part.read_into(buffer[filled:])
                done = not count
                if done:
                    part.close()
            filled += count
            self._next += done
        return filled

    def close(self) -> None:
        left = self._parts[self._next :]
        self._next = len(self._parts)
        close_regions(left)

    def _send_buffers(self, sock: socket.socket) -> bool:
        """Send the buffers up to the next region, in one call if possible; False if some are left."""
        group, following = self._gather()
        size = sum(map(len, group))
        if not size:
            self._next = following
            return True
        flags = _MORE if following < len(self._parts) else 0
        try:
            if len(group) == 1:
                sent = sock.send(group[0], flags)
            elif size <= _JOIN_BYTES:
                sent = sock.send(b"".join(group), flags)
            else:
                sent = sock.sendmsg(group, (), flags)
        except (BlockingIOError, InterruptedError):
            return False
        if sent == size:
            self._next = following
            return True
        self._skip(sent)
        return False

    def _gather(self) -> tuple[list[_Bytes], int]:
        """Buffers for one call, and the index of the part after them."""
        parts, end, size = self._parts, self._next, 0
        group: list[_Bytes] = []
        while end < len(parts) and len(group) < _GATHER_LIMIT:
            part = parts[end]
            if not isinstance(part, BUFFERS):
                if len(part) > _READ_BYTES or size > _READ_AHEAD_BYTES:
                    break
                data = part.read()
                part.close()
                parts[end] = part = data
            group.append(part)
            size += len(part)
            end += 1
        return group, end

    def _skip(self, sent: int) -> None:
        while sent:
            part = cast("_Bytes", self._parts[self._next])
            if sent < len(part):
                self._parts[self._next] = memoryview(part)[sent:]
                return
            sent -= len(part)
            self._next += 1


def close_regions(parts: Iterable[Part]) -> None:
    for part in parts:
        if not isinstance(part, BUFFERS):
            part.close()
