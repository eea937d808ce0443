"""The one answer that a request is owed, and how it goes to its socket, resumable at every byte."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from threading import Lock
from typing import Any, Protocol, cast

_log = logging.getLogger(__name__)


class Outcome(Enum):
    """What the handler decided."""

    PENDING = 0
    """Nothing yet."""
    ANSWER = 1
    """The parts go out."""
    NO_ANSWER = 2
    """The request has none (a produce request with acks 0); the next one is due."""
    CLOSE = 3
    """The connection ends."""
    LAST_ANSWER = 4
    """The parts go out, as far as the socket takes them at once, and the connection ends."""


class ReplyOwner(Protocol):
    """What a reply needs of the processor, which imports this module."""

    reply_lock: Lock
    """Guards the state of all replies of this owner."""

    def work_on(self, reply: Reply) -> None:
        """Have a worker call ``reply.work``; called by the thread that gave it."""

    def settled(self, reply: Reply) -> None:
        """The outcome of ``reply`` is decided; called once, by the thread that gave it."""


class Reply:
    """Takes the answer to one request, now or later, from any thread.

    *Thread-safe: its state is guarded by the owning processor's ``reply_lock``.* Exactly one of `send`,
    `send_last`, `no_answer` and `close` is called, once; a second call raises RuntimeError. When the peer
    vanishes first, the answer is dropped and its regions are closed.
    """

    __slots__ = ("_on_close", "_owner", "closed", "outcome", "parts", "peer", "session", "token", "work")

    def __init__(self, owner: ReplyOwner, token: object, peer: str, session: Any = None) -> None:
        self._owner = owner
        self.closed = False
        """Whether the connection is gone, so that no answer is wanted."""
        self._on_close: Callable[[], None] | None = None
        self.token = token
        """The owner's name for the connection."""
        self.peer = peer
        """``host:port`` of the client."""
        self.session = session
        """What the server's ``sessions`` made for the connection."""
        self.outcome = Outcome.PENDING
        self.parts: Sequence[Part] | None = None
        """The answer; it owns its regions until the channel does."""
        self.work: Callable[[], object] | None = None
        """What a worker does or will do for the request; None again once it is done."""

    def send(self, parts: Sequence[Part]) -> None:
        """Answer with ``parts``, whose size prefix is the first of them. Takes over the regions."""
        try:
            self._settle(Outcome.ANSWER, parts)
        except RuntimeError:
            close_regions(parts)
            raise

    def returned(self, parts: Sequence[Part]) -> None:
        """The handler gave ``parts`` back as the answer: called by the owner only, in its thread.

        No other thread has an unsettled reply whose handler has returned an answer, so it takes no lock.
        """
        if self.outcome is not Outcome.PENDING:
            close_regions(parts)
            raise RuntimeError(f"the request from {self.peer} is answered already")
        self.outcome = Outcome.ANSWER
        self.parts = parts

    def work_on(self, work: Callable[[], object]) -> None:
        """Have ``work`` called by a worker's thread, which may take its time.

        Called by the handler, or later by any thread that would have settled the reply. ``work`` settles it
        as its last act, or leaves that to another thread; what it raises closes the connection. It is not
        begun if the connection is closed first.
        """
        with self._owner.reply_lock:
            if self.closed:
                return
            self.work = work
        self._owner.work_on(self)

    def send_last(self, parts: Sequence[Part]) -> None:
        """Answer with ``parts``, which are small, and close the connection. Takes over the regions."""
        self._settle(Outcome.LAST_ANSWER, parts)

    def no_answer(self) -> None:
        """The request needs no answer."""
        self._settle(Outcome.NO_ANSWER, None)

    def close(self) -> None:
        """Close the connection instead of answering."""
        self._settle(Outcome.CLOSE, None)

    def on_close(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` if the connection ends before the answer is given.

        Called once, in the processor's thread, or at once in the caller's if the connection is gone
        already. It must not block. A later call replaces an earlier one.
        """
        with self._owner.reply_lock:
            if not self.closed:
                if self.outcome is Outcome.PENDING:
                    self._on_close = fn
                return
        fn()

    def peer_gone(self) -> None:
        """The connection is closed: called by the owner only."""
        with self._owner.reply_lock:
            self.closed = True
            self.work = None  # it holds the request
            fn, self._on_close = self._on_close, None
        if fn is not None:
            try:
                fn()
            except Exception:
                _log.exception("on_close of a request from %s failed", self.peer)

    def drop(self) -> None:
        """Close the files of an answer whose client is gone: called by the owner only."""
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
"""Buffers per system call; Linux refuses more (``IOV_MAX``)."""

_JOIN_BYTES = 16384
"""Below this size copying several buffers into one is cheaper than handing all of them to the kernel."""

_READ_BYTES = 8192
"""Regions up to this size are read and sent with the bytes around them: one packet instead of three."""

_READ_AHEAD_BYTES = 65536
"""No further region is read into a group that has this much: a slow peer would make us hold it."""

_MORE = getattr(socket, "MSG_MORE", 0)
"""More follows: a header does not leave in a packet of its own."""


class Region(Protocol):
    """Bytes of a file that go to a socket without passing through Python."""

    def __len__(self) -> int:
        """Size in bytes when the region was made."""

    def send_to(self, sock: socket.socket) -> bool:
        """Send what the socket takes now; True once all is sent.

        Raises:
            OSError: the peer is gone, or the file cannot be read.
            EOFError: the file became shorter than the region.
        """

    def read(self) -> bytes:
        """All of its bytes, for a small region that has not been sent yet. Raises as `send_to`."""

    def read_into(self, buffer: memoryview) -> int:
        """Put the next bytes into ``buffer``, in place of sending them; 0 at the end. Raises as `send_to`."""

    def close(self) -> None:
        """Give the file up; may be called more than once."""


Part = bytes | bytearray | memoryview | Region
"""A piece of a response. A memoryview must be one of bytes."""

_Bytes = bytes | bytearray | memoryview
BUFFERS = (bytes, bytearray, memoryview)
"""The kinds of parts that are no region."""


class Transmission:
    """The parts of one response and how far they have been sent.

    *Not thread-safe: owned by the processor thread of its connection.* It owns its regions: each is
    closed as soon as it has been sent, the others by `close`.
    """

    __slots__ = ("_next", "_parts")

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts: list[Part] = list(parts)
        self._next = 0

    def send_to(self, sock: socket.socket) -> bool:
        """Send what ``sock`` takes now without waiting; True once everything is sent.

        After an error, as of `Region.send_to`, the response is cut, and the connection cannot go on.
        """
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
        """Put what comes next into ``buffer``, in place of sending it; 0 once there is nothing more.
        Raises as `send_to`.
        """
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
        """Give up what has not been sent, and the files that held it."""
        left = self._parts[self._next :]
        self._next = len(self._parts)
        close_regions(left)

    def _send_buffers(self, sock: socket.socket) -> bool:
        """Send the buffers up to the next region with one call where they fit; False if some are left."""
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
        """The buffers that one call may send, and the number of the part that follows them."""
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
        """Step over ``sent`` bytes of buffers; cuts the one that was sent in part."""
        while sent:
            part = cast("_Bytes", self._parts[self._next])
            if sent < len(part):
                self._parts[self._next] = memoryview(part)[sent:]
                return
            sent -= len(part)
            self._next += 1


def close_regions(parts: Iterable[Part]) -> None:
    """Close the regions among parts that will not be sent."""
    for part in parts:
        if not isinstance(part, BUFFERS):
            part.close()
