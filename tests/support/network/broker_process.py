"""What another process takes: its memory at the peak, its sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

MIB = 1 << 20


@contextmanager
def growing_less_than(pid: int, limit_bytes: int) -> Iterator[None]:
    """At no moment within the block is the process larger than before it by as much."""
    before = psutil.Process(pid).memory_info().rss
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # lets the kernel's peak begin anew
    yield
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
    grown = int(line.split()[1]) * 1024 - before
    assert grown < limit_bytes, f"grew by {grown / MIB:.0f} MiB"


def socket_count(pid: int) -> int:
    """Sockets that the process holds; the files of its logs, of which it may open more, do not count."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(descriptor.readlink()).startswith("socket:")
        except FileNotFoundError:
            pass  # closed in between
    return count
