"""What one connection has received, has in hand and has still to send, without any I/O; and what all
connections together may hold of requests: each is reserved whole before its body is read.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafkalog_broker.network.reply import BUFFERS, Part, Transmission
from kafkalog_broker.network.tls import ServerTls
from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.frames import FrameReader

FREE_BYTES = 4096
"""Requests up to this size are not counted: they fit the buffer that every connection has."""

SMALL_BYTES = 2 << 20
"""Largest request for which a part of the memory is kept; most producers send at most 1 MiB at once."""

_KEPT_PARTS = 4
"""The memory is cut into this many parts; one is kept for small requests."""


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
    """A part of the memory. One request always fits: it could never be read otherwise."""

    limit_bytes: int
    used_bytes: int = 0

    def fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes


class RequestMemory:
    """*Thread-safe: ``_lock`` guards the parts and the queues; no call is made while it is held.*

    A quarter of the memory is for requests of at most `SMALL_BYTES`, the rest for all. Those that do not fit
    wait in the order they came in, the small ones in a queue of their own: neither kind can keep the other
    from its part. A request with a reservation needs nothing more to be handled, so none waits forever.
    The part for all has room for ``largest_bytes`` even if both parts together then exceed the limit.
    """

    def __init__(self, limit_bytes: int | None = None, *, largest_bytes: int = 0) -> None:
        limit = limit_bytes if limit_bytes is not None else 1 << 62
        kept = limit // _KEPT_PARTS
        self._all, self._kept = _Lane(max(limit - kept, largest_bytes)), _Lane(kept)
        self._large: deque[Reservation] = deque()
        self._small: deque[Reservation] = deque()
        self.waiting_count = 0
        """Requests that wait for memory."""
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        """Memory that is reserved now."""
        return self._all.used_bytes + self._kept.used_bytes

    @property
    def crowded(self) -> bool:
        """Whether there may soon be too little: then no request is read before its part is reserved."""
        return 2 * self._kept.used_bytes > self._kept.limit_bytes

    def reserve(self, size_bytes: int, wake: Callable[[], object]) -> Reservation:
        """Memory for one request. Unless it is ``granted`` now, any thread calls ``wake`` when it is."""
        wanted = Reservation(size_bytes, wake, self)
        with self._lock:
            (self._small if size_bytes <= SMALL_BYTES else self._large).append(wanted)
            self.waiting_count += 1
            others = [each for each in self._grant() if each is not wanted]
        for each in others:
            each.wake()
        return wanted

    def take(self, size_bytes: int) -> Reservation:
        """Count a request that is there already, whether it fits or not."""
        taken = Reservation(size_bytes, lambda: None, self)
        with self._lock:
            self._give(taken, self._kept if size_bytes <= SMALL_BYTES else self._all)
        return taken

    def release(self, reservation: Reservation) -> None:
        """The request is done or given up; whether it was granted yet or not."""
        with self._lock:
            if reservation.lane is not None:
                reservation.lane.used_bytes -= reservation.size_bytes
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

    @staticmethod
    def _give(reservation: Reservation, lane: _Lane) -> None:
        lane.used_bytes += reservation.size_bytes
        reservation.lane = lane
        reservation.granted = True


def _first(queue: deque[Reservation]) -> Reservation | None:
    while queue and queue[0].cancelled:
        queue.popleft()
    return queue[0] if queue else None


READ_AHEAD_BYTES = 65536
"""While a request is in hand, reading goes on until this much waits: while a fetch is parked, that is how the
end of its connection is noticed.
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
    in hand, and the read-ahead. What is larger than `FREE_BYTES` is reserved once its size is known, and the
    channel asks for no more bytes until that is granted; ``admitted`` is then called, by any thread. While
    another request is in hand nothing larger than the read-ahead is reserved: a client that does not read its
    answers holds no memory.
    """

    __slots__ = (
        "_admitted",
        "_ahead_bytes",
        "_claim",
        "_failure",
        "_held",
        "_memory",
        "_outgoing",
        "_reader",
        "_received_count",
        "_reserved",
        "_reserved_in_hand",
        "_waiting",
        "in_hand",
        "paused",
        "unsent_bytes",
    )

    def __init__(
        self,
        max_request_bytes: int,
        memory: RequestMemory | None = None,
        admitted: Callable[[], object] = lambda: None,
    ) -> None:
        self._reader = FrameReader(max_request_bytes)
        self._memory = memory if memory is not None else RequestMemory()
        self._admitted = admitted
        self._claim: Reservation | None = None  # for the request that comes in
        self._reserved: deque[Reservation] = deque()  # for those that wait and are large, in their order
        self._reserved_in_hand: Reservation | None = None
        self._received_count = 0
        self._waiting: list[bytearray] = []  # last in, first element: taking from the end is cheap
        self._ahead_bytes = 0  # received and not taken yet, whole frames or not
        self._failure: FrameTooLarge | None = None
        self.in_hand = False
        """Whether a request waits for its answer."""
        self._held: list[Part] = []  # small answers not sent yet; only bytes
        self._outgoing: Transmission | None = None  # what is being sent; then nothing is held
        self.unsent_bytes = 0
        """Size of the answers that are not sent whole yet."""
        self.paused = False
        """Whether other channels have their turn before the next request is taken: read ahead as if muted."""

    @property
    def muted(self) -> bool:
        """Whether a request is in hand or its answer is being sent."""
        return self.in_hand or self._outgoing is not None

    @property
    def wants_read(self) -> bool:
        """Whether more bytes may come in now."""
        if self.waits_for_memory:
            return False
        return self._ahead_bytes < READ_AHEAD_BYTES or not (self.muted or self.paused)

    @property
    def waits_for_memory(self) -> bool:
        """Whether a request cannot come in before others are done."""
        return self._claim is not None and not self._claim.granted

    @property
    def coming_in(self) -> int:
        """The number of the request that has come in only in part; 0 when there is none."""
        return self._received_count + 1 if self._reader.partial else 0

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
        return self._reader.buffer(whole=not self._memory.crowded)

    def rest(self) -> None:
        """Nothing more comes for now: memory that holds nothing is given up."""
        self._reader.rest()

    def received(self, count: int) -> None:
        """Take note of ``count`` bytes put into `buffer`.
        Raises `FrameTooLarge` for a size that is negative or above the limit. If whole requests came before
        it, `take` raises this after the last of them.
        """
        self._ahead_bytes += count
        frames = self._reader.received(count)
        if frames:
            self._received_count += len(frames)
            self._count(frames)
            frames.reverse()
            self._waiting = frames + self._waiting if self._waiting else frames
            self._failure = self._reader.failure

    def reserve(self) -> None:
        """Reserve the memory for a request that comes in: to be called before `wants_read` is asked."""
        if self._claim is None:
            claimed = self._reader.claimed
            if claimed > FREE_BYTES and (claimed <= READ_AHEAD_BYTES or not (self.muted or self.paused)):
                self._claim = self._memory.reserve(claimed, self._admitted)

    def _count(self, frames: list[bytearray]) -> None:
        """Large requests are whole: the first has the reservation, if there is one; others came at once."""
        for frame in frames:
            if len(frame) > FREE_BYTES:
                claim, self._claim = self._claim, None
                self._reserved.append(claim if claim is not None else self._memory.take(len(frame)))

    def take(self) -> bytearray | None:
        """The next request, which mutes the channel; None while it is muted or nothing waits.

        Raises `FrameTooLarge` after the last request that came before a size that is not allowed.
        """
        if self.in_hand or self._outgoing is not None:
            return None
        if not self._waiting:
            if self._failure is not None:
                raise self._failure
            return None
        frame = self._waiting.pop()
        self._ahead_bytes -= 4 + len(frame)
        self.in_hand = True
        if len(frame) > FREE_BYTES:
            self._reserved_in_hand = self._reserved.popleft()
        return frame

    def answer(self, parts: Sequence[Part] | None) -> None:
        """The request in hand is done: its answer goes out next, or it needs none (None)."""
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
        self._held += parts
        if not small or self.unsent_bytes >= HELD_BYTES:
            self._outgoing, self._held = Transmission(self._held), []

    def admit(self, max_request_bytes: int, memory: RequestMemory) -> None:
        """From now on requests may be this large, and their memory is counted there."""
        self._reader.max_frame_bytes = max_request_bytes
        self._memory = memory

    def send_to(self, sock: socket.socket, tls: ServerTls | None = None) -> bool:
        """Send what ``sock`` takes now, held answers too; True once nothing is left. Raises as `Region`."""
        outgoing = self._outgoing
        if outgoing is None:
            if not self._held:
                return True
            outgoing, self._held = Transmission(self._held), []
            self._outgoing = outgoing
        if not (outgoing.send_to(sock) if tls is None else tls.send(sock, outgoing)):
            return False
        self._outgoing = None
        self.unsent_bytes = 0
        return True

    def close(self) -> None:
        """Drop what waits and what has not been sent."""
        for reservation in (self._reserved_in_hand, self._claim, *self._reserved):
            if reservation is not None:
                reservation.memory.release(reservation)
        self._reserved_in_hand = self._claim = None
        self._reserved.clear()
        self._waiting.clear()
        self._held.clear()
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
