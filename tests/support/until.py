"""Wait for what another process or thread is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PATIENCE_SECONDS = 120.0
"""What passes waits for less than a second. On a machine that does four other things, a broker that starts or
a session that ends may take twenty times as long.
"""


def until(look: Callable[[], T], *, seconds: float = _PATIENCE_SECONDS) -> T:
    """What ``look`` returns as soon as it is true; it is asserted to become so."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"still {found!r} after {seconds} s"
        time.sleep(0.005)
    return found
