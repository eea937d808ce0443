"""A connection and its state, without I/O; the memory of all requests, reserved before they are read; and the
`Entrance` for TLS and login.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kafkalog_broker.network.reply import BUFFERS, Part, Reply, Transmission
from kafkalog_broker.network.tls_channel import ServerTls
from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.exchange import FrameReader

FREE_BYTES = 4096
"""Requests up to this size are not counted: they fit every connection's buffer."""

SMALL_BYTES = 2 << 20
"""Largest request that may use the reserved part; most producers send at most 1 MiB at once."""

_KEPT_PARTS = 4
"""One of this many parts of the memory is for small requests only."""


@dataclass(slots=True, eq=False)
class Reservation:
    """*Guarded by its `RequestMemory`;* ``granted`` may be read at any time."""

    size_bytes: int
    wake: Callable[[], object]
    memory: RequestMemory
    granted: bool = False
    cancelled: bool = False
    lane: _Lane | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    """A part of the memory. One request always fits, else it could never be read."""

    limit_bytes: int
    used_bytes: int = 0

    def fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes


class RequestMemory:
    """*Thread-safe: ``_lock`` guards lanes and queues; callbacks run without it.*

    A quarter of the memory is for requests up to `SMALL_BYTES`, the rest for all. Others wait in order, small
    ones in their own queue, so neither kind blocks the other. A reserved request needs nothing else, so none
    waits forever. The common part has room for ``largest_bytes`` even above the limit.
    """

    def __init__(self, limit_bytes: int | None = None, *, largest_bytes: int = 0) -> None:
        limit = limit_bytes if limit_bytes is not None else 1 << 62
        kept = limit // _KEPT_PARTS
        self._all, self._kept = _Lane(max(limit - kept, largest_bytes)), _Lane(kept)
        self._large: deque[Reservation] = deque()
        self._small: deque[Reservation] = deque()
        self.waiting_count = 0
        self.crowded = False
        """Whether memory may soon run out: then read no request before its memory is reserved."""
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        return self._all.used_bytes + self._kept.used_bytes

    def reserve(self, size_bytes: int, wake: Callable[[], object]) -> Reservation:
        """Reserve memory for a request. If not ``granted`` at once, any thread calls ``wake`` later."""
        wanted = Reservation(size_bytes, wake, self)
        with self._lock:
            (self._small if size_bytes <= SMALL_BYTES else self._large).append(wanted)
            self.waiting_count += 1
            others = [each for each in self._grant() if each is not wanted]
        for each in others:
            each.wake()
        return wanted

    def take(self, size_bytes: int) -> Reservation:
        """Count a request that has already been read, even if it does not fit."""
        taken = Reservation(size_bytes, lambda: None, self)
        with self._lock:
            self._give(taken, self._kept if size_bytes <= SMALL_BYTES else self._all)
        return taken

    def release(self, reservation: Reservation) -> None:
        with self._lock:
            if reservation.lane is not None:
                self._use(reservation.lane, -reservation.size_bytes)
                reservation.lane = None
            elif not reservation.cancelled:
                self.waiting_count -= 1
            reservation.cancelled = True
            granted = self._grant()
        for each in granted:
            each.wake()

    def _grant(self) -> list[Reservation]:
        granted = []
        while (head := _first(self._large)) is not None and self._all.fits(head.size_bytes):
            granted.append(self._give_next(self._large, self._all))
        while (head := _first(self._small)) is not None:
            if self._kept.fits(head.size_bytes):
                granted.append(self._give_next(self._small, self._kept))
            elif not self._large and self._all.fits(head.size_bytes):
                granted.append(self._give_next(self._small, self._all))
            else:
                break
        return granted

    def _give_next(self, queue: deque[Reservation], lane: _Lane) -> Reservation:
        reservation = queue.popleft()
        self.waiting_count -= 1
        self._give(reservation, lane)
        return reservation

    def _give(self, reservation: Reservation, lane: _Lane) -> None:
        self._use(lane, reservation.size_bytes)
        reservation.lane = lane
        reservation.granted = True

    def _use(self, lane: _Lane, size_bytes: int) -> None:
        lane.used_bytes += size_bytes
        self.crowded = 2 * self._kept.used_bytes > self._kept.limit_bytes


def _first(queue: deque[Reservation]) -> Reservation | None:
    while queue and queue[0].cancelled:
        queue.popleft()
    return queue[0] if queue else None


READ_AHEAD_BYTES = 65536
"""Read-ahead limit during a request; reading on detects that a parked fetch's client is gone."""

HELD_BYTES = 16384
"""Small answers are collected up to this size."""


class Channel:
    """The state of a connection between system calls; handles one request at a time, in order.

    *Not thread-safe: owned by one processor thread.* A channel is **muted** from `take` until the request is
    answered and the answer, unless small, is sent. Meanwhile requests wait; above `READ_AHEAD_BYTES` it stops
    reading, which stops clients that do not read their answers.

    Small answers are **held** to be sent in one call, which costs 8-15 us (benchmarks/broker.py); the owner
    calls `send_to` before it turns to another connection.

    Requests above `FREE_BYTES` are reserved once their size is known; reading stops until the grant, when any
    thread calls ``admitted``. While a request is in hand, nothing above the read-ahead is reserved.
    """

    __slots__ = (
        "_admitted", "_ahead_bytes", "_claim", "_memory", "_reader", "_received_count", "_reserved",
        "_reserved_in_hand", "failure", "held", "in_hand", "outgoing", "paused", "unsent_bytes", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        max_request_bytes: int,
        memory: RequestMemory | None = None,
        admitted: Callable[[], object] = lambda: None,
    ) -> None:
        self._reader = FrameReader(max_request_bytes)
        self._memory = memory if memory is not None else RequestMemory()
        self._admitted = admitted
        self._claim: Reservation | None = None  # for the incoming request
        self._reserved: deque[Reservation] = deque()  # for large waiting requests, in order
        self._reserved_in_hand: Reservation | None = None
        self._received_count = 0
        self._ahead_bytes = 0  # received but not taken, including partial frames
        self.waiting: list[bytearray] = []
        """Requests that are not taken, newest first: popping from the end is cheap."""
        self.failure: FrameTooLarge | None = None
        """Why no request follows those that wait."""
        self.in_hand = False
        """Whether a request waits for its answer."""
        self.held: list[bytes | bytearray | memoryview] = []
        """Unsent small answers."""
        self.outgoing: Transmission | None = None
        """What is being sent; nothing is held then."""
        self.unsent_bytes = 0
        self.paused = False
        """Whether other channels go first: read ahead as if muted."""

    @property
    def muted(self) -> bool:
        return self.in_hand or self.outgoing is not None

    @property
    def waits_for_memory(self) -> bool:
        return self._claim is not None and not self._claim.granted

    @property
    def coming_in(self) -> int:
        """Number of the partly received request, or 0."""
        return self._received_count + 1 if self._reader.partial else 0

    def buffer(self) -> memoryview:
        return self._reader.buffer(whole=not self._memory.crowded)

    def rest(self) -> None:
        self._reader.rest()

    def received(self, count: int) -> None:
        """Process ``count`` bytes put into `buffer`. Raises `FrameTooLarge`, or `take` does later."""
        self._ahead_bytes += count
        frames = self._reader.received(count)
        if not frames:
            return
        self._received_count += len(frames)
        for frame in frames:
            if len(frame) > FREE_BYTES:  # the first has the claim, if there is one; others came at once
                claim, self._claim = self._claim, None
                self._reserved.append(claim if claim is not None else self._memory.take(len(frame)))
        if len(frames) > 1:
            frames.reverse()
        self.waiting = frames + self.waiting if self.waiting else frames
        self.failure = self._reader.failure

    def reads_on(self) -> bool:
        """Reserve memory for the incoming request if its size is known, and say whether to read more."""
        if not self._ahead_bytes:
            return True
        idle = not (self.in_hand or self.paused or self.outgoing is not None)
        if self._claim is None:
            claimed = self._reader.claimed
            if claimed > FREE_BYTES and (claimed <= READ_AHEAD_BYTES or idle):
                self._claim = self._memory.reserve(claimed, self._admitted)
        if self.waits_for_memory:
            return False
        return self._ahead_bytes < READ_AHEAD_BYTES or idle

    def take(self) -> bytearray | None:
        """The next request, which mutes the channel; None if muted or none waits. Raises `FrameTooLarge`."""
        if self.in_hand or self.outgoing is not None:
            return None
        if not self.waiting:
            if self.failure is not None:
                raise self.failure
            return None
        frame = self.waiting.pop()
        self._ahead_bytes -= 4 + len(frame)
        self.in_hand = True
        if len(frame) > FREE_BYTES:
            self._reserved_in_hand = self._reserved.popleft()
        return frame

    def answer(self, parts: Sequence[Part] | None) -> None:
        """Finish the request in hand with this answer, or None."""
        self.in_hand = False
        if self._reserved_in_hand is not None:
            self._reserved_in_hand.memory.release(self._reserved_in_hand)
            self._reserved_in_hand = None
        if parts is None:
            return
        small = True
        for part in parts:
            self.unsent_bytes += len(part)
            if not isinstance(part, BUFFERS):
                small = False
        if small and self.unsent_bytes < HELD_BYTES:
            self.held += cast("Sequence[bytes]", parts)
        else:
            self.outgoing, self.held = Transmission([*self.held, *parts]), []

    def admit(self, max_request_bytes: int, memory: RequestMemory) -> None:
        self._reader.max_frame_bytes = max_request_bytes
        self._memory = memory

    def send_to(self, sock: socket.socket, tls: ServerTls | None = None) -> bool:
        """Send what ``sock`` takes now, held answers too; True once all is sent. Raises as `Region`."""
        outgoing = self.outgoing
        if outgoing is None:
            held, self.held = self.held, []
            if not held:
                return True
            data = held[0] if len(held) == 1 else b"".join(held)
            if tls is None:  # usually all of it goes at once, and needs no Transmission
                try:
                    sent = sock.send(data)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                if sent == len(data):
                    self.unsent_bytes = 0
                    return True
                data = memoryview(data)[sent:]
            outgoing = self.outgoing = Transmission([data])
        if not (outgoing.send_to(sock) if tls is None else tls.send(sock, outgoing)):
            return False
        self.outgoing = None
        self.unsent_bytes = 0
        return True

    def close(self) -> None:
        for reservation in (self._reserved_in_hand, self._claim, *self._reserved):
            if reservation is not None:
                reservation.memory.release(reservation)
        self._reserved_in_hand = self._claim = None
        self._reserved.clear()
        self.waiting.clear()
        self.held.clear()
        if self.outgoing is not None:
            self.outgoing.close()
            self.outgoing = None


@dataclass(frozen=True)
class Entrance:
    """*Thread-safe.* TLS, login or both, and the limits until a client is admitted. ``context`` is called for
    each connection, so that certificates can be replaced; None without TLS. ``memory``: until admitted.

    Its sessions have ``admitted``, which changes in the processor's thread between requests, and ``secured``,
    which gets the TLS object after the handshake and raises `KafkaError` if it refuses the certificate.
    """

    context: Callable[[], ssl.SSLContext] | None
    max_request_bytes: int
    max_seconds: float
    memory: RequestMemory


@dataclass(slots=True, eq=False)
class Connection:
    """A socket and its channel. Owned by the processor."""

    sock: socket.socket
    peer: str
    session: Any
    last_active: float  # last transfer; while an answer is being sent, of its bytes
    coming_in_since: float
    opened: float
    channel: Channel = field(init=False)
    coming_in: int = 0  # number of the partial request at the last tick
    open: bool = True
    ended: bool = False  # the client closed its side; handle what it sent
    mask: int = 0  # selector events; 0 = not registered
    reply: Reply | None = None  # of the request in hand
    queued: bool = False  # for its next turn
    on_close: Callable[[], object] | None = None
    tls: ServerTls | None = None
    entering: bool = False  # limits of the entrance apply
    reading_on: bool = False  # queued for data that the selector does not see

    @property
    def is_served(self) -> bool:
        return self.queued or (self.reply is not None and self.reply.work is not None)
