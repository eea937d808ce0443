"""The memory of arenas, kept and used again: both generations' compiled engines fill it."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Where Arrow likes a buffer to begin, in bytes."""

_KEPT_BYTES = 32 << 20
_USUAL_BYTES = 6 << 20
"""What is allocated at least, so that the next call finds it large enough whatever its records are like."""


class Pool:
    """Memory for arenas, used again when the last Arrow array in it is gone.

    *Thread-safe: appending to a deque and popping from it are.* New memory costs a page fault for every 4
    KiB, more than decoding does, and Arrow's own allocator gives it back to the system while a reader waits
    for Spark or the broker.
    """

    def __init__(self) -> None:
        self._free: deque[Any] = deque()

    def take(self, size: int) -> Any:
        """An array of ``size`` bytes or more, on an `ALIGNMENT` boundary. It comes back by itself: what
        refers to it keeps it from doing so.
        """
        memory = self._free.pop() if self._free else None
        if memory is None or len(memory) < size:
            raw = np.empty(max(size, _USUAL_BYTES) + ALIGNMENT, np.uint8)
            skip = -raw.ctypes.data % ALIGNMENT
            memory = raw[skip : len(raw) - ALIGNMENT + skip]
        lease = memory[:]
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return lease

    def _give_back(self, memory: Any) -> None:
        if len(memory) + sum(map(len, self._free)) <= _KEPT_BYTES:
            self._free.append(memory)


arenas = Pool()
"""One for the process."""
