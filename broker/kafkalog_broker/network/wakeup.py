"""Wakes a thread that waits in a selector."""

from __future__ import annotations

import os
import threading


class Wakeup:
    """A pipe whose reading end is in a selector.

    *Thread-safe: any thread may `wake` and `close`; only the waiting thread may `clear`.* The lock keeps a
    late `wake` from writing to a file that reused the descriptor after `close`.

    To lose no wake-up, queue work before `wake`, and call `clear` before looking at the queue. `clear` drains
    the pipe before it resets the flag, else it could drain a new byte with the flag set, and no later wake
    would write.
    """

    __slots__ = ("_closed", "_lock", "_read_fd", "_woken", "_write_fd")

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._lock = threading.Lock()
        self._woken = False
        self._closed = False

    def fileno(self) -> int:
        return self._read_fd

    def wake(self) -> None:
        """Make the reading end readable. Unnoticed wake-ups count as one."""
        if self._woken:
            return
        with self._lock:
            if self._woken or self._closed:
                return
            self._woken = True
            try:
                os.write(self._write_fd, b"\0")
            except BlockingIOError:
                pass  # a full pipe wakes too

    def clear(self) -> None:
        """Reset; look at the queue only afterwards."""
        try:
            while len(os.read(self._read_fd, 512)) == 512:
                pass
        except BlockingIOError:
            pass
        self._woken = False

    def close(self) -> None:
        """Close the pipe; later wake-ups do nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)
