"""How much work one request may ask of a thread that serves others as well."""

from __future__ import annotations

REQUEST_BYTES = 1 << 20
"""Read or made in Python for one request: with messages of 100 bytes some tens of ms (benchmarks/view07.py).
"""


class Allowance:
    """*Not thread-safe: one request's.* What may still be read and made for it, in bytes.

    What is begun is finished, so it may be overdrawn by one message set. Bytes that the kernel sends without
    our reading them cost nothing.
    """

    __slots__ = ("_left",)

    def __init__(self, size_bytes: int = REQUEST_BYTES) -> None:
        self._left = size_bytes

    @property
    def spent(self) -> bool:
        """Whether there is nothing left: the client is to be answered with what there is, and asks again."""
        return self._left <= 0

    def take(self, size_bytes: int) -> None:
        """So many bytes were read or made."""
        self._left -= size_bytes
