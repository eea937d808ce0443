"""What all connections together may hold of requests: each is reserved whole before its body is read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

FREE_BYTES = 4096
"""Requests up to this size are not counted: they lie in the buffer that every connection has."""

SMALL_BYTES = 2 << 20
"""Largest request for which a part of the memory is kept; most producers send at most 1 MiB at once."""

_KEPT_PARTS = 4
"""One of so many parts of the memory is kept for small requests."""


class Reservation:
    """*Guarded by its `RequestMemory`;* ``granted`` may be read at any time."""

    __slots__ = ("cancelled", "granted", "lane", "size_bytes", "wake")

    def __init__(self, size_bytes: int, wake: Callable[[], object]) -> None:
        self.size_bytes = size_bytes
        self.wake = wake
        self.granted = False
        self.cancelled = False
        self.lane: _Lane | None = None


class _Lane:
    """A part of the memory. One request fits always: it could never be read otherwise."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes


class RequestMemory:
    """*Thread-safe: ``_lock`` guards the parts and the queues; no call is made while it is held.*

    A quarter of the memory is for requests of at most `SMALL_BYTES`, the rest for all. Those that do not fit
    wait in the order they came in, the small ones in a queue of their own: neither kind can keep the other
    from its part. Who has a reservation needs nothing more to be read and handled, so nobody waits for ever.
    """

    def __init__(self, limit_bytes: int | None = None, *, largest_bytes: int = 0) -> None:
        """``limit_bytes``: None for no limit; ``largest_bytes``: the largest request there can be, for which
        the part for all has room even where that makes both parts together exceed the limit.
        """
        limit = limit_bytes if limit_bytes is not None else 1 << 62
        kept = limit // _KEPT_PARTS
        self._all, self._kept = _Lane(max(limit - kept, largest_bytes)), _Lane(kept)
        self._large: deque[Reservation] = deque()
        self._small: deque[Reservation] = deque()
        self._waiting_count = 0
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        """Memory that is reserved now."""
        return self._all.used_bytes + self._kept.used_bytes

    @property
    def crowded(self) -> bool:
        """Whether there may soon be too little: then no request is read before its part is reserved."""
        return 2 * self._kept.used_bytes > self._kept.limit_bytes

    @property
    def waiting_count(self) -> int:
        """Requests that wait for memory."""
        return self._waiting_count

    def reserve(self, size_bytes: int, wake: Callable[[], object]) -> Reservation:
        """Memory for one request. Unless it is ``granted`` now, any thread calls ``wake`` when it is."""
        wanted = Reservation(size_bytes, wake)
        with self._lock:
            (self._small if size_bytes <= SMALL_BYTES else self._large).append(wanted)
            self._waiting_count += 1
            others = [each for each in self._grant() if each is not wanted]
        for each in others:
            each.wake()
        return wanted

    def take(self, size_bytes: int) -> Reservation:
        """Count a request that is there already, whether it fits or not."""
        taken = Reservation(size_bytes, _nobody_waits)
        with self._lock:
            self._give(taken, self._kept if size_bytes <= SMALL_BYTES else self._all)
        return taken

    def release(self, reservation: Reservation) -> None:
        """The request is done, or nobody will send the rest of it; whether it was granted yet or not."""
        with self._lock:
            if reservation.lane is not None:
                reservation.lane.used_bytes -= reservation.size_bytes
                reservation.lane = None
            elif not reservation.cancelled:
                self._waiting_count -= 1
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
        self._waiting_count -= 1
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


def _nobody_waits() -> None:
    pass
