"""How much work one request may ask of a thread that serves others as well."""

from __future__ import annotations

from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, ServerError

REQUEST_BYTES = 2 << 20
"""Read or made in Python for one request, half of it for its first partition: with messages of 100 bytes
some tens of ms for each MiB (benchmarks/view07.py).
"""


LONGEST_SECONDS = 60.0
"""No part of a request is begun later than that: clients wait for 10 to 30 s, and then send it again."""


class TimeAllowance:
    """*Not thread-safe: one request's.* What a request of many parts may take, turns of others included."""

    __slots__ = ("_clock", "_deadline")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + LONGEST_SECONDS

    def check(self) -> None:
        """To be called before a part is begun.

        Raises:
            ServerError: REQUEST_TIMED_OUT: the request has taken too long already.
        """
        if self._clock.monotonic() > self._deadline:
            raise ServerError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"not begun within {LONGEST_SECONDS:g} s, for the parts before it; send smaller requests",
            )


class Allowance:
    """*Not thread-safe: one request's.* What may still be read and made for it, in bytes.

    What is begun is finished, so it may be overdrawn by one message set. Bytes that the kernel sends without
    our reading them cost nothing.
    """

    __slots__ = ("_left", "_size", "_whole", "short")

    def __init__(self, size_bytes: int = REQUEST_BYTES, whole: Allowance | None = None) -> None:
        self._left = self._size = size_bytes
        self._whole = whole
        self.short = False
        """Whether one of its parts was spent, or told of more: there may be more to be had than was found."""

    @property
    def spent(self) -> bool:
        """Whether there is nothing left: the client is to be answered with what there is, and asks again."""
        return self._left <= 0

    @property
    def exhausted(self) -> bool:
        """Whether the whole of it was overdrawn by as much as it was: nothing more is to be begun."""
        whole = self if self._whole is None else self._whole
        return whole._left <= -whole._size

    def part(self) -> Allowance:
        """Half of what is left, for one partition: so the first one does not keep all others from theirs."""
        return Allowance(self._left // 2, self)

    def tell_of_more(self) -> None:
        """There is more than this answer is given: the client is to have it now, and asks again."""
        (self if self._whole is None else self._whole).short = True

    def take(self, size_bytes: int) -> None:
        """So many bytes were read or made."""
        self._left -= size_bytes
        if self._whole is not None:
            self._whole.take(size_bytes)
            self._whole.short |= self.spent
