"""How one thread wakes another that waits in a selector."""

from __future__ import annotations

import os
import threading


class Wakeup:
    """A pipe whose reading end sits in a selector.

    *Thread-safe: any thread may `wake` and `close`; only the waiting thread may `clear`.* The lock keeps
    a late `wake` from writing into a file that was given the pipe's number after `close`.

    The order of three steps keeps a wake-up from being lost. A waker first queues its work, then calls
    `wake`; the waiting thread first calls `clear`, then looks at the queue. `clear` drains the pipe
    before it forgets that it was woken: the other way round, a byte written in between would be drained
    with the flag left set, and no later wake would write.
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
        """The end that becomes readable."""
        return self._read_fd

    def wake(self) -> None:
        """Make the reading end readable. Wake-ups that were not yet noticed count as one."""
        if self._woken:
            return
        with self._lock:
            if self._woken or self._closed:
                return
            self._woken = True
            try:
                os.write(self._write_fd, b"\0")
            except BlockingIOError:
                pass  # a full pipe wakes as well as one byte

    def clear(self) -> None:
        """Forget past wake-ups; look at the queue only after this."""
        try:
            while len(os.read(self._read_fd, 512)) == 512:
                pass
        except BlockingIOError:
            pass
        self._woken = False

    def close(self) -> None:
        """Give the pipe up; later wake-ups do nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)
