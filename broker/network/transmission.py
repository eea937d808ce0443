"""One response on its way to one socket, resumable at every byte."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Protocol, cast

_GATHER_LIMIT = 1024
"""Buffers per system call; Linux refuses more (``IOV_MAX``)."""

_JOIN_BYTES = 16384
"""Below this size copying several buffers into one is cheaper than handing all of them to the kernel."""

_READ_BYTES = 8192
"""Regions up to this size are read and sent with the bytes around them: one packet instead of three."""

_READ_AHEAD_BYTES = 65536
"""No further region is read into a group that has this much: a slow peer would make us hold it."""

_MORE = getattr(socket, "MSG_MORE", 0)
"""Tells the kernel that more follows, so that a header does not leave in a packet of its own."""


class Region(Protocol):
    """Bytes that lie in a file and go to a socket without passing through Python."""

    def __len__(self) -> int:
        """Size in bytes when the region was made."""
        ...

    def send_to(self, sock: socket.socket) -> bool:
        """Send what the socket takes now; True once all is sent.

        Raises:
            OSError: the peer is gone, or the file cannot be read.
            EOFError: the file became shorter than the region.
        """
        ...

    def read(self) -> bytes:
        """All of its bytes, for a region that is small and of which nothing has been sent.

        Raises:
            OSError, EOFError: as `send_to`.
        """
        ...

    def close(self) -> None:
        """Give the file up; may be called more than once."""
        ...


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

        Raises:
            OSError, EOFError: as `Region.send_to`. The response is cut; the connection cannot go on.
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
