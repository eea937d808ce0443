"""What one connection has received, has in hand and has still to send. Does no I/O."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from broker.network.transmission import BUFFERS, Part, Transmission
from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.frames import FrameReader

READ_AHEAD_BYTES = 65536
"""While a request is in hand, reading goes on until this much waits behind it.

Reading on at all is how the end of a connection is noticed while a fetch is parked.
"""


HELD_BYTES = 16384
"""Small answers wait for each other up to this many bytes."""


class Channel:
    """One request at a time, in order: the state of a connection between two calls of the kernel.

    *Not thread-safe: owned by one processor thread.* A channel is **muted** from `take` until the
    answer to what was taken is given and, unless it is small, sent (or needs none). Requests that arrive
    meanwhile wait, and above `READ_AHEAD_BYTES` the channel no longer asks to be read, so that a client
    which sends without reading its answers is stopped by its own socket and costs no memory here.

    Small answers are **held**, so that one call sends those to several pipelined requests; the owner of
    the channel calls `send_to` before it turns to anything else. A call that wakes the client costs
    8-15 us, as much as the rest of the network's work on a request (benchmarks/broker.py).

    Memory: the frame reader's buffer (4 KiB while idle), one request of at most ``max_request_bytes``
    in hand, and the read-ahead.
    """

    __slots__ = (
        "_ahead_bytes",
        "_failure",
        "_held",
        "_in_hand",
        "_outgoing",
        "_reader",
        "_waiting",
        "paused",
        "unsent_bytes",
    )

    def __init__(self, max_request_bytes: int) -> None:
        self._reader = FrameReader(max_request_bytes)
        self._waiting: list[bytearray] = []  # last in, first element: taking from the end is cheap
        self._ahead_bytes = 0  # received and not taken yet, whole frames or not
        self._failure: FrameTooLarge | None = None
        self._in_hand = False
        self._held: list[Part] = []  # small answers that nobody has tried to send yet; only bytes
        self._outgoing: Transmission | None = None  # what is being sent; then nothing is held
        self.unsent_bytes = 0
        """Size of the answers that are not sent whole yet."""
        self.paused = False
        """Whether other channels have their turn before the next request is taken: read ahead as if muted."""

    @property
    def muted(self) -> bool:
        """Whether a request is in hand or its answer is being sent."""
        return self._in_hand or self._outgoing is not None

    @property
    def in_hand(self) -> bool:
        """Whether a request waits for its answer."""
        return self._in_hand

    @property
    def wants_read(self) -> bool:
        """Whether more bytes may come in now."""
        return self._ahead_bytes < READ_AHEAD_BYTES or not (self.muted or self.paused)

    @property
    def waits(self) -> bool:
        """Whether a whole request waits to be taken."""
        return bool(self._waiting)

    @property
    def wants_write(self) -> bool:
        """Whether an answer waits for room in the socket."""
        return self._outgoing is not None

    @property
    def holds(self) -> bool:
        """Whether small answers wait for `send_to`."""
        return bool(self._held)

    def buffer(self) -> memoryview:
        """Where the next bytes may be put; never empty."""
        return self._reader.buffer()

    def rest(self) -> None:
        """Nothing more comes for now: memory that holds nothing is given up."""
        self._reader.rest()

    def received(self, count: int) -> None:
        """Take note of ``count`` bytes put into `buffer`.

        Raises:
            FrameTooLarge: a size that is negative or above the limit; the connection cannot go on. If
                whole requests came before it, `take` raises this after the last of them.
        """
        self._ahead_bytes += count
        frames = self._reader.received(count)
        if frames:
            frames.reverse()
            self._waiting = frames + self._waiting if self._waiting else frames
            self._failure = self._reader.failure

    def take(self) -> bytearray | None:
        """The next request, which mutes the channel; None while it is muted or nothing waits.

        Raises:
            FrameTooLarge: see `received`.
        """
        if self._in_hand or self._outgoing is not None:
            return None
        if not self._waiting:
            if self._failure is not None:
                raise self._failure
            return None
        frame = self._waiting.pop()
        self._ahead_bytes -= 4 + len(frame)
        self._in_hand = True
        return frame

    def answer(self, parts: Sequence[Part] | None) -> None:
        """The request in hand is done: its answer goes out next, or it needs none (None)."""
        self._in_hand = False
        if parts is None:
            return
        small = True
        for part in parts:
            self.unsent_bytes += len(part)
            if not isinstance(part, BUFFERS):
                small = False
        self._held += parts
        if not small or self.unsent_bytes >= HELD_BYTES:
            self._outgoing, self._held = Transmission(self._held), []

    def send_to(self, sock: socket.socket) -> bool:
        """Send what ``sock`` takes now, held answers too; True once nothing is left to send.

        Raises:
            OSError, EOFError: the answer cannot be finished; the connection cannot go on.
        """
        outgoing = self._outgoing
        if outgoing is None:
            if not self._held:
                return True
            outgoing, self._held = Transmission(self._held), []
            self._outgoing = outgoing
        if not outgoing.send_to(sock):
            return False
        self._outgoing = None
        self.unsent_bytes = 0
        return True

    def close(self) -> None:
        """Drop what waits and what has not been sent."""
        self._waiting.clear()
        self._held.clear()
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
